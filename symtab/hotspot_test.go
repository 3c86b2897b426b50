package symtab

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestHotSpotLeaves(t *testing.T) {
	lib := compile(t, "gcc", "hotspot.S", "-shared", "-nostdlib")
	at := func(name string) VirtAddr { return VirtAddr(symbolAddr(t, lib, name)) }
	want := []CodeRange{{at("SpinPause"), at("other")}, {at("_Copy_conjoint_jlongs_atomic"), at("last")}}
	if got := HotSpotLeaves(openELF(t, lib)); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%#x, want %#x", got, want)
	}
	run(t, ".", "strip", "--strip-all", lib)
	if got := HotSpotLeaves(openELF(t, lib)); got != nil {
		t.Errorf("without symbols: %#x", got)
	}
	other := compile(t, "gcc", "hotspot.S", "-shared", "-nostdlib", "-DJNI_CreateJavaVM=other_name")
	if got := HotSpotLeaves(openELF(t, other)); got != nil {
		t.Errorf("of another library: %#x", got)
	}
}

// TestHotSpotLeavesOfJava lets objdump say whether those of the installed Java touch the
// stack.
func TestHotSpotLeavesOfJava(t *testing.T) {
	libs, _ := filepath.Glob("/usr/lib/jvm/*/lib/server/libjvm.so")
	if len(libs) == 0 {
		t.Skip("there is no Java")
	}
	for _, lib := range libs {
		ranges := HotSpotLeaves(openELF(t, lib))
		if len(ranges) == 0 {
			t.Logf("%s has no symbols", lib)
		}
		for _, r := range ranges {
			code := run(t, ".", "objdump", "-d", "--no-show-raw-insn", fmt.Sprintf("--start-address=%#x", r.Start), fmt.Sprintf("--stop-address=%#x", r.End), lib)
			if bad := regexp.MustCompile(`\t.*(%[re]?[sb]p\b|push|pop|call|leave|enter)`).FindString(code); bad != "" {
				t.Errorf("%s: %s in %#x", lib, strings.TrimSpace(bad), r)
			}
		}
		t.Logf("%s: %#x", lib, ranges)
	}
}
