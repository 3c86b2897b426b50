package sd

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/discovery/targetgroup"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/relabel"
)

// maxDiscovered bounds the discovered targets of all jobs, whatever a service
// discovery answers.
const maxDiscovered = 200_000

// order is the rank of a target: of those that a process matches, the lowest
// counts. A job's process discovery comes after its other targets.
type order struct{ job, target int }

func (o order) before(p order) bool {
	return cmp.Or(cmp.Compare(o.job, p.job), cmp.Compare(o.target, p.target)) < 0
}

const lastOfJob = int(^uint(0) >> 1)

// entry is a discovered target. It is immutable.
type entry struct {
	order      order
	job        *job
	discovered labels.Labels
	// series are the labels that leave, perhaps without service_name.
	series labels.Labels
	// target is nil if the service name depends on the process, or if why is set.
	target *Target
	// why says why a process that the target names is not profiled as it. If it is
	// refused, the process is its own all the same and goes to no other target;
	// else it was dropped by relabelling.
	why     string
	refused bool
	// names says what the target names processes by, e.g. "container 3f4e…".
	names string
}

// index finds the discovered targets that name a process. It is immutable.
type index struct {
	entries     []*entry // in order
	byPID       map[PID][]*entry
	byContainer map[string][]*entry // by containerKey
	byAddress   map[string][]*entry // by __address__
	containers  map[*entry]string   // the id that is given
	truncated   int                 // targets beyond maxDiscovered
}

// buildIndex relabels what discovery found. groups are in the order of jobs, and
// for each job in the order of its mechanisms.
func buildIndex(js *jobSet, groups map[string][]*targetgroup.Group, in *interner) *index {
	ix := &index{
		byPID: map[PID][]*entry{}, byContainer: map[string][]*entry{}, byAddress: map[string][]*entry{},
		containers: map[*entry]string{},
	}
	var scratch labels.ScratchBuilder
	for i, j := range js.jobs {
		n := 0
		for _, set := range j.sets {
			sorted := slices.Clone(groups[set.name])
			slices.SortStableFunc(sorted, func(a, b *targetgroup.Group) int { return compareNatural(a.Source, b.Source) })
			for _, g := range sorted {
				for _, t := range g.Targets {
					if len(ix.entries) == maxDiscovered {
						ix.truncated++
						continue
					}
					e := js.relabelled(j, &scratch, g, t, in)
					e.order = order{i, n}
					n++
					ix.add(e)
				}
			}
		}
	}
	return ix
}

// relabelled makes an entry, without its rank.
func (js *jobSet) relabelled(j *job, scratch *labels.ScratchBuilder, g *targetgroup.Group, t model.LabelSet, in *interner) *entry {
	e := &entry{job: j, discovered: groupLabels(scratch, g, t)}
	lb := labels.NewBuilder(e.discovered)
	keep := relabel.ProcessBuilder(lb, j.config.RelabelConfigs...)
	relabelled := lb.Labels()
	if !keep {
		e.why = j.dropped
		// What it would have named, so that the reason can be told.
		relabelled = e.discovered
	}
	e.names = naming(relabelled)
	if e.why == "" {
		e.series = seriesLabels(scratch, relabelled, js.external)
		if e.why = checkSeries(e.series); e.why != "" {
			e.refused = true
			e.why = fmt.Sprintf("refused for job %q: %s", j.config.JobName, e.why)
		}
	}
	if e.why == "" && e.series.Get(ServiceNameLabel) != "" {
		target, err := in.target(j.config.JobName, e.series, e.discovered)
		if err != nil {
			e.why, e.refused = js.tooMany(j), true
		}
		e.target = target
	}
	return e
}

// groupLabels are the labels of a target of a group before relabelling; the
// target's own go before the group's.
func groupLabels(b *labels.ScratchBuilder, g *targetgroup.Group, t model.LabelSet) labels.Labels {
	b.Reset()
	for name, value := range t {
		if value != "" {
			b.Add(string(name), string(value))
		}
	}
	for name, value := range g.Labels {
		if _, own := t[name]; !own && value != "" {
			b.Add(string(name), string(value))
		}
	}
	b.Sort()
	return b.Labels()
}

// What a target may name processes by; the most specific that it has counts.
const (
	byPID       = "pid "
	byContainer = "container "
	byAddress   = "address "
)

// naming says what a target names processes by: one of the words above with the
// value, or why it names none, in brackets.
func naming(ls labels.Labels) string {
	if pid := ls.Get(ProcessPIDLabel); pid != "" {
		if n, err := strconv.ParseInt(pid, 10, 32); err != nil || n <= 0 {
			return fmt.Sprintf("(%s is %.20q, which is no process id)", ProcessPIDLabel, pid)
		}
		return byPID + pid
	}
	for _, label := range [...]string{ContainerIDLabel, dockerContainerIDLabel, kubeContainerIDLabel} {
		if id := normalContainerID(ls.Get(label)); id != "" {
			return byContainer + id
		}
	}
	address := ls.Get(model.AddressLabel)
	if address == "" {
		return "(it has no process id, no container id and no address)"
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" {
		return fmt.Sprintf("(its address %.80q is not host:port)", address)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Sprintf("(the port of its address %.80q is not a number from 1 to 65535)", address)
	}
	return byAddress + address
}

// add enters an entry; entries are added in their order.
func (ix *index) add(e *entry) {
	ix.entries = append(ix.entries, e)
	if rest, ok := strings.CutPrefix(e.names, byPID); ok {
		if n, err := strconv.ParseInt(rest, 10, 32); err == nil {
			ix.byPID[PID(n)] = append(ix.byPID[PID(n)], e)
		}
	} else if id, ok := strings.CutPrefix(e.names, byContainer); ok {
		key := containerKey(id)
		ix.byContainer[key] = append(ix.byContainer[key], e)
		ix.containers[e] = id
	} else if address, ok := strings.CutPrefix(e.names, byAddress); ok {
		ix.byAddress[address] = append(ix.byAddress[address], e)
	}
}

// best are the first entry that a process belongs to, and the first that names it
// but was dropped; each nil if there is none.
type best struct{ kept, dropped *entry }

func (b *best) offer(e *entry) {
	to := &b.kept
	if e.why != "" && !e.refused {
		to = &b.dropped
	}
	if *to == nil || e.order.before((*to).order) {
		*to = e
	}
}

// find looks a process up. addresses are those of byAddress that it listens on.
func (ix *index) find(p *Process, addresses []string) best {
	var b best
	for _, e := range ix.byPID[p.PID] {
		b.offer(e)
	}
	if len(ix.byContainer) > 0 {
		match := func(id string) bool {
			for _, e := range ix.byContainer[containerKey(id)] {
				if sameContainer(ix.containers[e], id) {
					b.offer(e)
				}
			}
			return true
		}
		eachContainer(p.CgroupPath, match)
		if p.ContainerID != "" {
			match(p.ContainerID)
		}
	}
	for _, a := range addresses {
		for _, e := range ix.byAddress[a] {
			b.offer(e)
		}
	}
	return b
}

// compareNatural compares texts so that "2" comes before "10".
func compareNatural(a, b string) int {
	at, an := cutNumber(a)
	bt, bn := cutNumber(b)
	return cmp.Or(cmp.Compare(at, bt), cmp.Compare(len(an), len(bn)), cmp.Compare(an, bn))
}

// cutNumber splits the digits at the end off, less leading zeros.
func cutNumber(s string) (text, number string) {
	i := len(s)
	for i > 0 && '0' <= s[i-1] && s[i-1] <= '9' {
		i--
	}
	return s[:i], strings.TrimLeft(s[i:], "0")
}
