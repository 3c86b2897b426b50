package sd

import (
	"fmt"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
)

// Limits of a target's labels. They are Pyroscope's defaults for a series (30
// names), less __name__ and the label thread, which profiles may add.
const (
	MaxLabels          = 28
	MaxLabelNameBytes  = 1024
	MaxLabelValueBytes = 2048
)

// seriesLabels makes the labels that leave of those that relabelling left: without
// "__…", with valid names, and with the external labels where they clash with
// none. A name keeps its letters, digits and underscores; each other byte becomes
// an underscore.
func seriesLabels(b *labels.ScratchBuilder, relabelled, external labels.Labels) labels.Labels {
	b.Reset()
	taken := map[string]bool{}
	add := func(name, value string) {
		if !taken[name] {
			taken[name] = true
			b.Add(name, value)
		}
	}
	leaves := func(l labels.Label) bool {
		return l.Value != "" && !strings.HasPrefix(l.Name, model.ReservedLabelPrefix)
	}
	valid := func(name string) bool { return model.LegacyValidation.IsValidLabelName(name) }
	// A name that is valid as it is goes before one that had to be changed into it.
	var changed []labels.Label
	relabelled.Range(func(l labels.Label) {
		switch {
		case !leaves(l):
		case valid(l.Name):
			add(l.Name, strings.ToValidUTF8(l.Value, "\uFFFD"))
		default:
			changed = append(changed, l)
		}
	})
	for _, l := range changed {
		add(SanitizeLabelName(l.Name), strings.ToValidUTF8(l.Value, "\uFFFD"))
	}
	external.Range(func(l labels.Label) {
		if leaves(l) {
			add(SanitizeLabelName(l.Name), strings.ToValidUTF8(l.Value, "\uFFFD"))
		}
	})
	b.Sort()
	return b.Labels()
}

// SanitizeLabelName makes a name of the form [a-zA-Z_][a-zA-Z0-9_]* that does not
// begin with two underscores.
func SanitizeLabelName(name string) string {
	out := []byte(name)
	for i, c := range out {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', c == '_':
		case '0' <= c && c <= '9':
		default:
			out[i] = '_'
		}
	}
	if len(out) == 0 || ('0' <= out[0] && out[0] <= '9') {
		out = append([]byte{'_'}, out...)
	}
	for len(out) > 1 && out[0] == '_' && out[1] == '_' {
		out = out[1:]
	}
	return string(out)
}

// checkSeries says in plain words why a server would refuse the labels, "" if it
// would not.
func checkSeries(ls labels.Labels) (why string) {
	n := 0
	ls.Range(func(l labels.Label) {
		n++
		switch {
		case why != "":
		case len(l.Name) > MaxLabelNameBytes:
			why = fmt.Sprintf("the name of label %.40s… has %d bytes; the limit is %d", l.Name, len(l.Name), MaxLabelNameBytes)
		case len(l.Value) > MaxLabelValueBytes:
			why = fmt.Sprintf("label %s has a value of %d bytes; the limit is %d", l.Name, len(l.Value), MaxLabelValueBytes)
		}
	})
	if why == "" && n > MaxLabels {
		why = fmt.Sprintf("there are %d labels; the limit is %d", n, MaxLabels)
	}
	return why
}

// withServiceName returns the labels with a service name; ls has none.
func withServiceName(b *labels.ScratchBuilder, ls labels.Labels, name string) labels.Labels {
	b.Reset()
	ls.Range(func(l labels.Label) {
		if l.Name != ServiceNameLabel {
			b.Add(l.Name, l.Value)
		}
	})
	b.Add(ServiceNameLabel, strings.ToValidUTF8(name, "\uFFFD"))
	b.Sort()
	return b.Labels()
}
