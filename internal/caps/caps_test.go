package caps

import "testing"

func TestParse(t *testing.T) {
	s, err := parse([]byte("Name:\tx\nCapEff:\t000000c000080000\nSeccomp:\t0\n"))
	if err != nil {
		t.Fatal(err)
	}
	if m := s.Missing(Required...); len(m) != 0 {
		t.Errorf("missing %v", m)
	}
	if m := s.Missing(DACReadSearch, Syslog); len(m) != 2 || m[1].String() != "CAP_SYSLOG" {
		t.Errorf("missing %v", m)
	}
	admin := Set(1 << SysAdmin)
	if !admin.Has(BPF) || !admin.Has(Perfmon) || admin.Has(SysPtrace) {
		t.Error("CAP_SYS_ADMIN stands for BPF and PERFMON and not for SYS_PTRACE")
	}
	for _, bad := range []string{"", "CapEff:\tzz\n"} {
		if _, err := parse([]byte(bad)); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
	if _, err := Effective(); err != nil {
		t.Error(err)
	}
}
