package ebpfspy

import (
	"slices"
	"sort"
)

// Bounds of what is kept of executable mappings, of one process and of all. A stock
// JVM has about 40; a process beyond the bound loses the names of the rest.
const (
	maxMappings    = 2048
	maxAllMappings = 1 << 20 // of 32 bytes each
)

// mapping is one executable range of a process's memory.
type mapping struct {
	start, end uint64 // addresses, end exclusive
	offset     uint64 // of start in the file, bytes
	file       *file  // nil: anonymous memory
}

// addrRange is a range of addresses that a round saw mapped twice, differently.
type addrRange struct{ start, end, round uint64 }

// mappings are the executable mappings of a program, sorted by address.
type mappings struct {
	list     []mapping
	replaced []addrRange // ranges whose content changed, with the round
	// shared says that another program or a round holds them too: they are copied
	// before they are changed.
	shared bool
	// version counts the changes.
	version uint64
}

// share marks m as held by one more, and returns it.
func (m *mappings) share() *mappings {
	m.shared = true
	return m
}

func (m *mappings) clone() *mappings {
	return &mappings{list: slices.Clone(m.list), replaced: slices.Clone(m.replaced)}
}

// insert adds a mapping, which covers what it overlaps. It returns by how much the
// list has grown.
func (m *mappings) insert(add mapping, round uint64) int {
	if add.end <= add.start || len(m.list) >= maxMappings {
		return 0
	}
	i := sort.Search(len(m.list), func(i int) bool { return m.list[i].end > add.start })
	j := i
	for j < len(m.list) && m.list[j].start < add.end {
		j++
	}
	put := make([]mapping, 0, 3)
	if i < j && m.list[i].start < add.start {
		left := m.list[i]
		left.end = add.start
		put = append(put, left)
	}
	put = append(put, add)
	if i < j && m.list[j-1].end > add.end {
		right := m.list[j-1]
		right.offset += add.end - right.start
		right.start = add.end
		put = append(put, right)
	}
	m.replaced = slices.DeleteFunc(m.replaced, func(r addrRange) bool { return r.round < round })
	for _, old := range m.list[i:j] {
		if !sameFile(old.file, add.file) || old.start-old.offset != add.start-add.offset {
			m.replaced = append(m.replaced, addrRange{max(old.start, add.start), min(old.end, add.end), round})
		}
	}
	if n := len(m.replaced) - maxMappings; n > 0 {
		m.replaced = slices.Delete(m.replaced, 0, n)
	}
	m.list = slices.Replace(m.list, i, j, put...)
	m.version++
	return len(put) - (j - i)
}

// sameFile says whether two may be one. /proc/PID/maps does not tell the generation, which
// is 0 then.
func sameFile(a, b *file) bool {
	if a == nil || b == nil {
		return a == b
	}
	if a.id.Ino != 0 && (a.id.Gen == 0 || b.id.Gen == 0) {
		return a.id.Dev == b.id.Dev && a.id.Ino == b.id.Ino
	}
	return a == b
}

// find returns the mapping that covers an address. ambiguous says that in the
// given round the address was covered by something else as well.
func (m *mappings) find(addr, round uint64) (found *mapping, ambiguous bool) {
	i := sort.Search(len(m.list), func(i int) bool { return m.list[i].end > addr })
	if i == len(m.list) || m.list[i].start > addr {
		return nil, false
	}
	for _, r := range m.replaced {
		if r.round == round && addr >= r.start && addr < r.end {
			return &m.list[i], true
		}
	}
	return &m.list[i], false
}
