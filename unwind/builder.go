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
	if n > 0 && rows[n-1].Addr >= at {
		b.t.Rows = rows[:n-1]
		if b.last.CFA == CFAUnsupported {
			b.t.Unsupported--
		}
		if n > 1 {
			if prev := b.t.Rules[rows[n-2].Rule]; prev == r {
				b.last = r
				return
			}
		}
	}
	if b.full() {
		return
	}
	b.t.Rows = append(b.t.Rows, Row{at, b.ruleIndex(r)})
	b.last = r
	if r.CFA == CFAUnsupported {
		b.t.Unsupported++
	}
}

func (b *builder) ruleIndex(r Rule) uint32 {
	slot := &b.recent[(uint32(r.CFAOffset)>>3^uint32(r.CFA)^uint32(r.FP)<<1)%uint32(len(b.recent))]
	if slot.rule == r {
		return slot.index
	}
	i, ok := b.index[r]
	if !ok {
		i = uint32(len(b.t.Rules))
		b.t.Rules = append(b.t.Rules, r)
		b.index[r] = i
	}
	*slot = recent{r, i}
	return i
}

func (b *builder) finish(end VirtAddr, entries int) *Table {
	b.max++ // room for the last
	b.add(end, Rule{})
	b.t.Entries = entries
	return &b.t
}
