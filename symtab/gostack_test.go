package symtab

import (
	"debug/elf"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spanflame/spanflame/internal/elffile"
	"github.com/spanflame/spanflame/unwind"
)

// TestGoFrames compares the distances of the stack pointer with the call frame
// information that Go's linker writes for debuggers.
func TestGoFrames(t *testing.T) {
	for _, tt := range []struct {
		name  string
		cgo   bool
		flags []string
	}{
		{"exe", false, nil},
		{"pie", false, []string{"-buildmode=pie"}},
		{"cgo", true, nil},
		{"not optimised", false, []string{"-gcflags=all=-N -l"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := goProgram(t, tt.cgo, tt.flags...)
			f, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			st, err := f.Stat()
			if err != nil {
				t.Fatal(err)
			}
			ef, err := elffile.Open(f, st.Size())
			if err != nil {
				t.Fatal(err)
			}
			want, err := unwind.Read(ef, nil, unwind.Options{})
			if err != nil {
				t.Fatal(err)
			}
			syms, err := elfSymbolsOf(path)
			if err != nil {
				t.Fatal(err)
			}
			var frames []GoFrame
			end, err := GoFrames(ef, func(g GoFrame) { frames = append(frames, g) })
			if err != nil {
				t.Fatal(err)
			}
			if !slices.IsSortedFunc(frames, func(a, b GoFrame) int { return int(int64(a.Addr) - int64(b.Addr)) }) || end <= frames[len(frames)-1].Addr {
				t.Error("not in the order of addresses")
			}
			compared, apart, returns, top, injected := 0, 0, 0, map[string]bool{}, map[string]bool{}
			for i, g := range frames {
				if g.Apart {
					apart++ // compared, too
				}
				if name := strings.TrimSuffix(syms[uint64(g.Addr)], ".abi0"); g.Injected && name != "" {
					injected[name] = true
				}
				if g.SignalReturn {
					returns++
					if name := strings.TrimSuffix(syms[uint64(g.Addr+1)], ".abi0"); name != goSigReturn {
						t.Errorf("signal handlers return to %q", name)
					}
					continue
				}
				if g.Top {
					top[syms[uint64(g.Addr)]] = true
					continue
				}
				next := end
				if i+1 < len(frames) {
					next = frames[i+1].Addr
				}
				if g.Below < 0 || next == g.Addr {
					continue
				}
				r := want.Find(g.Addr)
				if r.CFA == unwind.CFANone {
					continue // padding, and assembler that debuggers are not told of
				}
				compared++
				if r.CFA != unwind.CFASP || r.CFAOffset != g.Below+8 {
					t.Errorf("%#x: %d below the return address, the debugger is told %+v", g.Addr, g.Below, r)
				}
			}
			if compared < 5000 {
				t.Errorf("%d of %d places compared", compared, len(frames))
			}
			if !maps.Equal(injected, goInjected) {
				t.Errorf("calls of %v are injected", injected)
			}
			if want := ef.Machine == elf.EM_X86_64; (apart > 2) != want || (returns == 1) != want {
				t.Errorf("%d rows of %s, %d functions that signal handlers return to", apart, goSigTramp, returns)
			}
			for _, name := range []string{"runtime.goexit.abi0", "runtime.mcall", "runtime.mstart.abi0", "runtime.rt0_go.abi0"} {
				if !top[name] && !top[name[:len(name)-len(".abi0")]] && !top[name+".abi0"] {
					t.Errorf("%s is not the outermost of a stack; those are %v", name, top)
				}
			}
		})
	}
}

// elfSymbolsOf are the functions of a file by address.
func elfSymbolsOf(path string) (map[uint64]string, error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	list, err := f.Symbols()
	if err != nil {
		return nil, err
	}
	out := map[uint64]string{}
	for _, s := range list {
		if elf.ST_TYPE(s.Info) == elf.STT_FUNC {
			out[s.Value] = s.Name
		}
	}
	return out, nil
}
