package store

import (
	"slices"
	"strings"

	typesv1 "github.com/grafana/pyroscope/api/gen/proto/go/types/v1"
	"github.com/prometheus/prometheus/model/labels"
)

// Labels that Pyroscope derives for each series (pkg/model/labels.go of
// grafana/pyroscope names them).
const (
	LabelProfileType = "__profile_type__" // the type's ID
	LabelName        = "__name__"
	LabelType        = "__type__"
	LabelUnit        = "__unit__"
	LabelPeriodType  = "__period_type__"
	LabelPeriodUnit  = "__period_unit__"
	LabelServicePriv = "__service_name__" // a copy of service_name
	LabelService     = "service_name"
)

// labelSampleTypes marks a parent: a set of pushed labels with the list of its
// sample types and the period type. It is no series and never leaves the store.
const labelSampleTypes = "__sample_types__"

// maxSeriesOfProfile bounds the label sets of one profile's samples. Those
// beyond it are filed under the profile's own labels.
const maxSeriesOfProfile = 512

// subSeries is one series that a profile contributes to.
type subSeries struct {
	labels     labels.Labels
	valueIndex int
	total      int64
}

// typeNames are the strings of a profile's sample types.
type typeNames struct {
	sample                 [][2]string // type, unit
	periodType, periodUnit string
}

func typesOf(p *wireProfile) typeNames {
	t := typeNames{
		periodType: string(p.str(p.periodType.typ)),
		periodUnit: string(p.str(p.periodType.unit)),
	}
	for _, st := range p.sampleTypes {
		t.sample = append(t.sample, [2]string{string(p.str(st.typ)), string(p.str(st.unit))})
	}
	return t
}

// encode is the value of labelSampleTypes. Names cannot hold the separators: a
// profile with such a name is refused.
func (t typeNames) encode() string {
	var b strings.Builder
	for _, s := range t.sample {
		b.WriteString(s[0] + "\x1f" + s[1] + "\x1e")
	}
	b.WriteString(t.periodType + "\x1f" + t.periodUnit)
	return b.String()
}

func decodeTypes(s string) (t typeNames) {
	parts := strings.Split(s, "\x1e")
	for i, p := range parts {
		typ, unit, _ := strings.Cut(p, "\x1f")
		if i == len(parts)-1 {
			t.periodType, t.periodUnit = typ, unit
		} else {
			t.sample = append(t.sample, [2]string{typ, unit})
		}
	}
	return t
}

func (t typeNames) validate() error {
	bad := func(s string) bool { return len(s) > 1024 || strings.ContainsAny(s, ":\x1e\x1f") }
	for _, s := range t.sample {
		if bad(s[0]) || bad(s[1]) {
			return malformed("a sample type's name is too long or has a colon or a control character")
		}
	}
	if bad(t.periodType) || bad(t.periodUnit) {
		return malformed("the period type's name is too long or has a colon or a control character")
	}
	return nil
}

// setTypeLabels adds the derived labels of sample type i.
func (t typeNames) setTypeLabels(b *labels.Builder, name, service string, i int) {
	typ, unit := t.sample[i][0], t.sample[i][1]
	b.Set(LabelProfileType, name+":"+typ+":"+unit+":"+t.periodType+":"+t.periodUnit)
	b.Set(LabelType, typ)
	b.Set(LabelUnit, unit)
	b.Set(LabelPeriodType, t.periodType)
	b.Set(LabelPeriodUnit, t.periodUnit)
	b.Set(LabelServicePriv, service)
}

// splitSeries sums a profile up by series. The parent has the profile's labels and
// labelSampleTypes.
func splitSeries(p *wireProfile, own labels.Labels) (parent labels.Labels, subs []subSeries, err error) {
	types := typesOf(p)
	if err := types.validate(); err != nil {
		return labels.EmptyLabels(), nil, err
	}
	b := labels.NewBuilder(own)
	b.Set(labelSampleTypes, types.encode())
	parent = b.Labels()

	n := len(p.sampleTypes)
	var (
		s       wireSample
		byRaw   = map[string]int{} // encoded labels → group
		byName  = map[string]int{} // labels as text → group
		groups  = [][]stringLabel{nil}
		totals  = make([]int64, n) // n for each group; group 0 has no labels
		touched = []bool{len(p.samples) == 0}
	)
	for i := range p.samples {
		if err := p.readSample(i, &s); err != nil {
			return labels.EmptyLabels(), nil, err
		}
		g := 0
		if len(s.labels) > 0 {
			var ok bool
			if g, ok = byRaw[string(s.rawLabels)]; !ok {
				ls := p.seriesLabels(&s, own)
				name := textOf(ls)
				if g, ok = byName[name]; !ok && len(ls) > 0 && len(groups) < maxSeriesOfProfile {
					g = len(groups)
					byName[name] = g
					groups = append(groups, ls)
					totals = append(totals, make([]int64, n)...)
					touched = append(touched, false)
				}
				byRaw[string(s.rawLabels)] = g
			}
		}
		touched[g] = true
		for j, v := range s.values {
			totals[g*n+j] = satAdd(totals[g*n+j], v)
		}
	}
	name, service := own.Get(LabelName), own.Get(LabelService)
	for g, ls := range groups {
		if !touched[g] {
			continue
		}
		for j := range n {
			b.Reset(own)
			for _, l := range ls {
				b.Set(l.name, l.value)
			}
			types.setTypeLabels(b, name, service, j)
			subs = append(subs, subSeries{b.Labels(), j, totals[g*n+j]})
		}
	}
	return parent, subs, nil
}

// seriesLabels are the labels of a sample that become labels of its series:
// strings, but those that name one span, and none that the series has itself.
func (p *wireProfile) seriesLabels(s *wireSample, own labels.Labels) []stringLabel {
	var out []stringLabel
	for _, l := range s.labels {
		if l.str == 0 {
			continue
		}
		name, ok := seriesLabelName(string(p.str(l.key)))
		value := string(p.str(l.str))
		if !ok || value == "" || len(value) > MaxLabelValueBytes || own.Has(name) {
			continue
		}
		if slices.ContainsFunc(out, func(o stringLabel) bool { return o.name == name }) {
			continue
		}
		out = append(out, stringLabel{name, value})
	}
	slices.SortFunc(out, func(a, b stringLabel) int { return strings.Compare(a.name, b.name) })
	return out
}

// seriesLabelName is the label name under which a sample's label is found. Dots
// become underscores, as the servers do it.
func seriesLabelName(name string) (string, bool) {
	switch name {
	case "span_id", "trace_id", "profile_id":
		return "", false
	}
	if len(name) > MaxLabelNameBytes || strings.HasPrefix(name, "__") {
		return "", false
	}
	name = strings.ReplaceAll(name, ".", "_")
	return name, validLabelName(name)
}

func validLabelName(s string) bool {
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c != '_' && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}

func textOf(ls []stringLabel) string {
	var b strings.Builder
	for _, l := range ls {
		b.WriteString(l.name + "\xff" + l.value + "\xff")
	}
	return b.String()
}

// sampleMatches says whether samples of a profile whose labels are ls belong to
// a series that all matchers accept. own and types are the parent's.
func sampleMatches(own labels.Labels, types typeNames, valueIndex int, ls []stringLabel, matchers []*labels.Matcher) bool {
	b := labels.NewBuilder(own)
	b.Del(labelSampleTypes)
	for _, l := range ls {
		if name, ok := seriesLabelName(l.name); ok && !own.Has(name) && len(l.value) <= MaxLabelValueBytes {
			b.Set(name, l.value)
		}
	}
	types.setTypeLabels(b, own.Get(LabelName), own.Get(LabelService), valueIndex)
	return matchesAll(b.Labels(), matchers)
}

func matchesAll(ls labels.Labels, matchers []*labels.Matcher) bool {
	for _, m := range matchers {
		if !m.Matches(ls.Get(m.Name)) {
			return false
		}
	}
	return true
}

// marshalLabels encodes labels as types.v1.Labels.
func marshalLabels(ls labels.Labels) ([]byte, error) {
	return pbLabels(ls).MarshalVT()
}

func pbLabels(ls labels.Labels) *typesv1.Labels {
	out := &typesv1.Labels{}
	ls.Range(func(l labels.Label) {
		out.Labels = append(out.Labels, &typesv1.LabelPair{Name: l.Name, Value: l.Value})
	})
	return out
}

func unmarshalLabels(b []byte) (labels.Labels, error) {
	var pb typesv1.Labels
	if err := pb.UnmarshalVT(b); err != nil {
		return labels.EmptyLabels(), err
	}
	sb := labels.NewScratchBuilder(len(pb.Labels))
	for _, l := range pb.Labels {
		// What an older version has stored may be what cannot be sent.
		sb.Add(strings.ToValidUTF8(l.Name, "\uFFFD"), strings.ToValidUTF8(l.Value, "\uFFFD"))
	}
	sb.Sort()
	return sb.Labels(), nil
}
