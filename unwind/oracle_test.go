package unwind

import (
	"bufio"
	"bytes"
	"cmp"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// oracle is a file's call frame information as llvm-dwarfdump has it.
type oracle struct {
	names registerNames
	fdes  []oracleFDE
	rows  []oracleRow
	rules []Rule
	index map[string]uint32 // text -> its rule
}

type oracleFDE struct {
	start, end uint64
	rows       [2]int // in oracle.rows
	shown      uint64 // the first address that no FDE before it has
	disputed   bool   // LLVM takes the offset of a register that follows an expression for 0
}

type oracleRow struct {
	addr uint64
	rule uint32
}

// registerNames are DWARF's numbers of LLVM's register names.
type registerNames struct {
	number     map[string]int64
	sp, fp, ra string
	linkReg    bool
}

func namesOf(machine elf.Machine) registerNames {
	n := registerNames{number: map[string]int64{}}
	if machine == elf.EM_AARCH64 {
		n.sp, n.fp, n.ra, n.linkReg = "WSP", "W29", "W30", true
		for i := range int64(31) {
			n.number["W"+strconv.FormatInt(i, 10)] = i
		}
		n.number["WSP"] = 31
		return n
	}
	n.sp, n.fp, n.ra = "RSP", "RBP", "RIP"
	for i, r := range strings.Fields("RAX RDX RCX RBX RSI RDI RBP RSP R8 R9 R10 R11 R12 R13 R14 R15 RIP") {
		n.number[r] = int64(i)
	}
	return n
}

var errComplaint = errors.New("complains")

// toolOutput gives every line of what a tool prints.
func toolOutput(line func([]byte), name string, args ...string) error {
	cmd := exec.Command(name, args...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	sc := bufio.NewScanner(out)
	sc.Buffer(make([]byte, 1<<16), 64<<20)
	for sc.Scan() {
		line(sc.Bytes())
	}
	if sc.Err() != nil {
		_, _ = io.Copy(io.Discard, out)
	}
	if err := cmd.Wait(); err != nil || sc.Err() != nil || stderr.Len() > 0 {
		return fmt.Errorf("%s: %w: %s", name, cmp.Or(err, sc.Err(), errComplaint), stderr.String())
	}
	return nil
}

// askLLVM reads "llvm-dwarfdump --eh-frame", which shows .debug_frame, too.
func askLLVM(path string, machine elf.Machine) (*oracle, error) {
	o := &oracle{names: namesOf(machine), index: map[string]uint32{}}
	var (
		signals = map[string]bool{} // CIEs of signal frames, by offset
		cie     string              // the one that is being read; empty in an FDE
		signal  bool
		bad     error
		// The last instruction that defined a CFA was an expression.
		expression bool
	)
	fde := -1
	err := toolOutput(func(b []byte) {
		if bytes.HasPrefix(b, []byte("  DW_CFA_")) {
			switch b = b[9:]; { // most lines
			case fde >= 0 && expression && bytes.HasPrefix(b, []byte("def_cfa_register:")):
				o.fdes[fde].disputed = true
			case bytes.HasPrefix(b, []byte("def_cfa")):
				expression = bytes.HasPrefix(b, []byte("def_cfa_expression:"))
			}
			return
		}
		line := string(b)
		switch {
		case strings.HasSuffix(line, " contents:"):
			clear(signals)
		case strings.HasSuffix(line, " CIE"):
			cie, _, _ = strings.Cut(line, " ")
		case strings.HasPrefix(line, "  Augmentation: "):
			signals[cie] = strings.Contains(line, "S")
		case strings.Contains(line, " FDE cie="):
			d, of, err := parseFDE(line)
			if err != nil {
				bad = err
			}
			signal, cie, expression = signals[of], "", false
			d.rows = [2]int{len(o.rows), len(o.rows)}
			o.fdes = append(o.fdes, d)
			fde = len(o.fdes) - 1
		case cie == "" && strings.HasPrefix(line, "  0x") && strings.Contains(line, ": CFA="):
			addr, rule, _ := strings.Cut(line[4:], ": ")
			a, err := strconv.ParseUint(addr, 16, 64)
			if err != nil || fde < 0 {
				bad = fmt.Errorf("%q: %w", line, err)
				return
			}
			o.rows = append(o.rows, oracleRow{a, o.rule(rule, signal)})
			o.fdes[fde].rows[1] = len(o.rows)
		}
	}, "llvm-dwarfdump-19", "--eh-frame", path)
	if err == nil {
		err = bad
	}
	o.sort()
	return o, err
}

// parseFDE reads "00000018 00000024 0000001c FDE cie=00000000 pc=00026000...00026360".
func parseFDE(line string) (d oracleFDE, cie string, err error) {
	_, rest, _ := strings.Cut(line, "cie=")
	cie, rest, _ = strings.Cut(rest, " pc=")
	start, end, _ := strings.Cut(rest, "...")
	if d.start, err = strconv.ParseUint(start, 16, 64); err == nil {
		d.end, err = strconv.ParseUint(end, 16, 64)
	}
	if err != nil {
		err = fmt.Errorf("%q: %w", line, err)
	}
	return d, cie, err
}

// sort finds what is to be seen of each FDE: the first to begin has an address.
func (o *oracle) sort() {
	o.fdes = slices.DeleteFunc(o.fdes, func(d oracleFDE) bool { return d.start == 0 || d.end <= d.start })
	slices.SortStableFunc(o.fdes, func(a, b oracleFDE) int { return cmp.Compare(a.start, b.start) })
	last := uint64(0)
	for i := range o.fdes {
		d := &o.fdes[i]
		d.shown = max(d.start, last)
		last = max(last, d.end)
	}
}

func (o *oracle) rule(text string, signal bool) uint32 {
	key := text
	if signal {
		key += " S"
	}
	i, ok := o.index[key]
	if !ok {
		i = uint32(len(o.rules))
		o.index[key] = i
		o.rules = append(o.rules, o.names.parse(text, signal))
	}
	return i
}

// parse makes of "CFA=RSP+16: RBX=[CFA-16], RIP=[CFA-8]" what the table is to hold.
func (n *registerNames) parse(text string, signal bool) Rule {
	cfa, list, _ := strings.Cut(strings.TrimPrefix(text, "CFA="), ": ")
	places := map[string]string{}
	for list != "" {
		var name, place string
		name, list, _ = strings.Cut(list, "=")
		end := 0
		for depth := 0; end < len(list) && (depth > 0 || list[end] != ','); end++ {
			switch list[end] {
			case '[':
				depth++
			case ']':
				depth--
			}
		}
		place, list = list[:end], strings.TrimPrefix(list[end:], ", ")
		places[name] = place
	}
	r := Rule{Signal: signal}
	if places[n.ra] == "undefined" {
		return Rule{CFA: CFAEnd}
	}
	ok := n.parseCFA(cfa, &r)
	r.FP, r.FPOffset = n.parsePlace(places[n.fp])
	r.RA, r.RAOffset = n.parsePlace(places[n.ra])
	switch sp := places[n.sp]; {
	case sp == "", sp == "CFA", strings.HasPrefix(sp, "[DW_OP_") && cfa == strings.Trim(sp, "[]")+", DW_OP_deref":
	default:
		ok = false
	}
	if !ok || r.RA == SavedLost || r.RA == SavedSame && !n.linkReg {
		return Rule{CFA: CFAUnsupported}
	}
	return r
}

var (
	reRegister = regexp.MustCompile(`^(\w+?)([+-]\d+)?$`)
	reBase     = regexp.MustCompile(`^DW_OP_breg\d+ (\w+?)([+-]\d+)(?:, DW_OP_deref(?:, DW_OP_plus_uconst (0x[0-9a-f]+))?)?$`)
	rePLT      = regexp.MustCompile(`^DW_OP_breg7 RSP([+-]\d+), DW_OP_breg16 RIP\+0, DW_OP_lit15, DW_OP_and, DW_OP_lit(\d+), DW_OP_ge, DW_OP_lit3, DW_OP_shl, DW_OP_plus$`)
	reInMemory = regexp.MustCompile(`^\[(?:DW_OP_breg\d+ )?(\w+?)([+-]\d+)?\]$`)
)

func number32(s string) int32 {
	v, _ := strconv.ParseInt(s, 0, 64)
	return int32(v)
}

func (n *registerNames) parseCFA(s string, r *Rule) bool {
	if m := rePLT.FindStringSubmatch(s); m != nil {
		r.CFA, r.CFAOffset, r.Deref = CFAPLT, number32(m[1]), number32(m[2])
		return true
	}
	m := reBase.FindStringSubmatch(s)
	deref := m != nil && strings.Contains(s, "DW_OP_deref")
	if m == nil {
		m = reRegister.FindStringSubmatch(s)
	}
	if m == nil {
		return false
	}
	reg, ok := n.number[m[1]]
	switch {
	case !ok || m[1] == "RIP":
		return false
	case deref && m[1] == n.sp:
		r.CFA, r.Deref, r.CFAOffset = CFASPDeref, number32(m[2]), number32(m[3])
	case deref && m[1] == n.fp:
		r.CFA, r.Deref, r.CFAOffset = CFAFPDeref, number32(m[2]), number32(m[3])
	case deref:
		return false
	case m[1] == n.sp:
		r.CFA, r.CFAOffset = CFASP, number32(m[2])
	case m[1] == n.fp:
		r.CFA, r.CFAOffset = CFAFP, number32(m[2])
	default:
		r.CFA, r.Reg, r.CFAOffset = CFARegister, uint8(reg), number32(m[2])
	}
	return true
}

func (n *registerNames) parsePlace(s string) (Saved, int32) {
	if s == "" || s == "same" {
		return SavedSame, 0
	}
	if m := reInMemory.FindStringSubmatch(s); m != nil {
		switch m[1] {
		case "CFA":
			return SavedCFA, number32(m[2])
		case n.sp:
			return SavedSP, number32(m[2])
		case n.fp:
			return SavedFP, number32(m[2])
		}
		return SavedLost, 0
	}
	if reg, ok := n.number[s]; ok && s != "RIP" {
		return SavedReg, int32(reg)
	}
	return SavedLost, 0
}

// figures of a comparison.
type figures struct{ rows, unsupported, disputed, wrong int }

func (f *figures) add(g figures) {
	f.rows += g.rows
	f.unsupported += g.unsupported
	f.disputed += g.disputed
	f.wrong += g.wrong
}

// inContext is the rule of __start_context, of which the oracle does not know.
var inContext = Rule{CFA: CFAEnd, Signal: true}

// compare looks every row of the oracle up, at its first and its last byte, and checks
// that the table has no others.
func (o *oracle) compare(table *Table, entry uint64, report func(format string, args ...any)) (f figures) {
	wrong := func(format string, args ...any) {
		if f.wrong++; f.wrong <= 10 {
			report(format, args...)
		}
	}
	begins := make([]uint64, 0, len(o.rows)) // where a row may begin
	last := uint64(0)
	covered := false // the entry point
	for i := range o.fdes {
		d := &o.fdes[i]
		if d.shown >= d.end {
			continue
		}
		covered = covered || entry >= d.start && entry < d.end
		if last != 0 && d.shown-last >= padding && (entry < last || entry >= d.shown) {
			for _, a := range []uint64{last, d.shown - 1} {
				if r := table.Find(VirtAddr(a)); r != (Rule{}) && r != inContext {
					wrong("%#x, between functions: %+v", a, r)
				}
			}
		}
		begins = append(begins, last)
		last = d.end
		rows := o.rows[d.rows[0]:d.rows[1]]
		if len(rows) == 0 {
			wrong("%#x: the oracle has no row", d.start)
		}
		for k, row := range rows {
			end := d.end
			if k+1 < len(rows) {
				end = min(end, rows[k+1].addr)
			}
			from := max(row.addr, d.shown)
			if from >= end {
				continue
			}
			f.rows++
			begins = append(begins, from)
			if d.disputed {
				f.disputed++
				continue
			}
			want := o.rules[row.rule]
			if want.CFA == CFAUnsupported {
				f.unsupported++
			}
			for _, a := range []uint64{from, end - 1} {
				if got := table.Find(VirtAddr(a)); got != want && got != inContext {
					wrong("%#x: %+v, want %+v", a, got, want)
				}
			}
		}
	}
	begins = append(begins, last)
	if got := table.Find(VirtAddr(last)); got.CFA != CFANone && last != entry {
		wrong("%#x, after the last: %+v", last, got)
	}
	if entry != 0 && !covered {
		if got := table.Find(VirtAddr(entry)); got != (Rule{CFA: CFAEnd}) {
			wrong("the entry point %#x: %+v", entry, got)
		}
	}
	slices.Sort(begins)
	for _, r := range table.Rows {
		a := uint64(r.Addr)
		if _, ok := slices.BinarySearch(begins, a); !ok && table.Rules[r.Rule] != inContext && (covered || a-entry > entryLen) {
			wrong("%#x: a row that the oracle has not", a)
		}
	}
	return f
}

// compareReadelf does so with what readelf tells apart: it shows expressions as "exp", and
// registers that nothing is said of as undefined.
func (o *oracle) compareReadelf(table *Table, path string, report func(format string, args ...any)) (f figures, err error) {
	wrong := func(format string, args ...any) {
		if f.wrong++; f.wrong <= 10 {
			report(format, args...)
		}
	}
	hidden := map[[2]uint64]bool{}
	for _, d := range o.fdes {
		if d.shown != d.start {
			hidden[[2]uint64{d.start, d.end}] = true
		}
	}
	fp := map[bool]string{true: "x29", false: "rbp"}[o.names.linkReg]
	var columns []string
	inFDE := false
	var start, end uint64
	var bad error
	err = toolOutput(func(b []byte) {
		w := strings.Fields(string(b))
		switch {
		case len(w) >= 4 && (w[3] == "CIE" || w[3] == "FDE"):
			if inFDE = w[3] == "FDE"; inFDE {
				pc := strings.TrimPrefix(w[len(w)-1], "pc=")
				s, e, _ := strings.Cut(pc, "..")
				start, _ = strconv.ParseUint(s, 16, 64)
				if end, bad = strconv.ParseUint(e, 16, 64); bad != nil {
					return
				}
				inFDE = start != 0 && !hidden[[2]uint64{start, end}]
			}
		case len(w) > 1 && w[0] == "LOC":
			columns = slices.Clone(w[1:])
		case inFDE && len(w) == len(columns)+1 && len(w[0]) == 16:
			a, err := strconv.ParseUint(w[0], 16, 64)
			if err != nil || a >= end {
				return
			}
			f.rows++
			got := table.Find(VirtAddr(a))
			if got.CFA == CFAUnsupported {
				f.unsupported++
				return
			}
			has := map[string]string{}
			for i, c := range columns {
				has[c] = w[i+1]
			}
			if !readelfAgrees(got, has, fp, o.names.linkReg) {
				wrong("%#x: %+v, readelf has %v", a, got, has)
			}
		}
	}, "readelf", "-wFN", "-W", path)
	if err == nil {
		err = bad
	}
	return f, err
}

func readelfAgrees(r Rule, has map[string]string, fp string, linkReg bool) bool {
	if r.CFA == CFAEnd {
		return has["ra"] == "u"
	}
	base := map[CFA]string{CFASP: map[bool]string{true: "sp", false: "rsp"}[linkReg], CFAFP: fp}[r.CFA]
	switch {
	case base != "" && has["CFA"] != "exp":
		if has["CFA"] != fmt.Sprintf("%s%+d", base, r.CFAOffset) {
			return false
		}
	case r.CFA == CFARegister:
		if !strings.HasSuffix(has["CFA"], fmt.Sprintf("%+d", r.CFAOffset)) {
			return false
		}
	default:
		if has["CFA"] != "exp" {
			return false
		}
	}
	place := func(kind Saved, off int32, s string) bool {
		switch s {
		case "", "s":
			return kind == SavedSame
		case "u":
			return kind == SavedSame || kind == SavedLost
		case "exp":
			return kind == SavedSP || kind == SavedFP || kind == SavedLost
		case "vexp":
			return kind == SavedLost
		}
		if o, ok := strings.CutPrefix(s, "c"); ok {
			return kind == SavedCFA && fmt.Sprintf("%+d", off) == o
		}
		if strings.HasPrefix(s, "v") {
			return kind == SavedLost
		}
		return kind == SavedReg
	}
	return place(r.FP, r.FPOffset, has[fp]) && place(r.RA, r.RAOffset, has["ra"])
}

// checkFile compares a file's table with both oracles.
func checkFile(t *testing.T, path string) figures {
	t.Helper()
	for _, tool := range []string{"llvm-dwarfdump-19", "readelf"} {
		if _, err := exec.LookPath(tool); err != nil {
			skip(t, "%s is needed as an oracle: %v", tool, err)
		}
	}
	f := openELF(t, path)
	table := read(t, path)
	o, err := askLLVM(path, f.Machine)
	if err != nil {
		t.Fatal(err)
	}
	got := o.compare(table, uint64(f.Entry), t.Errorf)
	re, err := o.compareReadelf(table, path, t.Errorf)
	if err != nil {
		t.Error(err)
	}
	if got.rows == 0 || re.rows == 0 && f.Machine == elf.EM_X86_64 {
		t.Errorf("compared %d and %d rows", got.rows, re.rows)
	}
	t.Logf("%d rows of llvm-dwarfdump, %d of readelf, %d unsupported", got.rows, re.rows, got.unsupported)
	return got
}
