package unwind

// builder makes a table of rows that come in the order of their addresses.
type builder struct {
	t      Table
	index  map[Rule]uint32
	max    int
	last   Rule // that of the last row
	recent [8]recent
}

// recent saves most look-ups in the index: functions use few rules in turn.
type recent struct {
	rule  Rule
	index uint32
}

func newBuilder(maxRows, functions int) *builder {
	b := &builder{max: maxRows, index: map[Rule]uint32{{}: 0}}
	b.t.Rules = []Rule{{}}
	b.t.Rows = make([]Row, 0, min(maxRows, 8*functions))
	return b
}

// full says whether there is no room for another row.
func (b *builder) full() bool { return len(b.t.Rows) >= b.max }

// add lets a rule hold from an address on. One at the same address as the last row
// takes its place.
func (b *builder) add(at VirtAddr, r Rule) {
	rows := b.t.Rows
	n := len(rows)
	if n > 0 && r == b.last {
		return
	}
	index, ok := b.ruleIndex(r)
	if !ok {
		b.add(at, Rule{CFA: CFAUnsupported})
		return
	}
	if n > 0 && rows[n-1].Addr >= at {
		n--
		b.t.Rows = rows[:n]
		if b.last.CFA == CFAUnsupported {
			b.t.Unsupported--
		}
		if n > 0 && rows[n-1].Rule == index {
			b.last = r
			return
		}
	}
	if b.full() {
		return
	}
	b.t.Rows = append(b.t.Rows, Row{at, index})
	b.last = r
	if r.CFA == CFAUnsupported {
		b.t.Unsupported++
	}
}

// maxRules bounds the memory of the index. The tables of real files have under 1000.
const maxRules = 1 << 16

// ruleIndex is false if there is no room for the rule.
func (b *builder) ruleIndex(r Rule) (uint32, bool) {
	slot := &b.recent[(uint32(r.CFAOffset)>>3^uint32(r.CFA)^uint32(r.FP)<<1)%uint32(len(b.recent))]
	if slot.rule == r {
		return slot.index, true
	}
	i, ok := b.index[r]
	if !ok {
		if len(b.t.Rules) >= maxRules && r.CFA != CFAUnsupported {
			return 0, false
		}
		i = uint32(len(b.t.Rules))
		b.t.Rules = append(b.t.Rules, r)
		b.index[r] = i
	}
	*slot = recent{r, i}
	return i, true
}

func (b *builder) finish(end VirtAddr, entries int) *Table {
	b.max++ // room for the last
	b.add(end, Rule{})
	b.t.Entries = entries
	return &b.t
}
