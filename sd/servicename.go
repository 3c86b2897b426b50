package sd

import (
	"path"
	"strings"

	"github.com/prometheus/prometheus/model/labels"
)

const (
	kernelServiceName  = "kernel"
	unknownServiceName = "unknown"
)

// inferServiceName names the service of a process whose target has no label
// service_name: by its systemd unit, else by its container or pod, as the
// discovery named it, else by the container's id, its program, its command. It is
// never empty. discovered may be empty.
func inferServiceName(p *Process, discovered labels.Labels) string {
	if p.IsKernelThread() {
		return kernelServiceName
	}
	if name := unitServiceName(p.SystemdUnit); name != "" {
		return name
	}
	for _, label := range [...]string{dockerContainerNameLabel, kubeContainerNameLabel, kubePodNameLabel} {
		if name := strings.Trim(discovered.Get(label), "/ "); name != "" {
			return name
		}
	}
	if id := p.ContainerID; id != "" {
		if len(id) == containerIDLen {
			id = id[:shortIDLen]
		}
		return id
	}
	// A program that lies in memory has a name that was made up when it was loaded.
	if p.Exe != "" && !strings.HasPrefix(p.Exe, "/memfd:") {
		if base := path.Base(p.Exe); base != "/" && base != "." {
			return base
		}
	}
	if p.Comm != "" {
		return p.Comm
	}
	return unknownServiceName
}

// unitServiceName is the name of the service that a unit is, "" if the unit is
// none: scopes hold what was started otherwise (sessions, containers), user
// managers hold other units, and the names of transient units are made up anew
// each time.
func unitServiceName(unit string) string {
	name, ok := strings.CutSuffix(unit, ".service")
	switch {
	case !ok, strings.HasPrefix(name, "user@"), transientUnit(name):
		return ""
	}
	return unescapeUnit(name)
}

// transientUnit says whether the name is one that systemd-run(1) makes up:
// "run-u123" or "run-r0123456789abcdef0123456789abcdef" (also "run-p1-i2").
func transientUnit(name string) bool {
	rest, ok := strings.CutPrefix(name, "run-")
	if !ok || len(rest) < 2 {
		return false
	}
	switch number := rest[1:]; rest[0] {
	case 'u':
		return isDigits(number)
	case 'r':
		return isHex(number)
	case 'p':
		pid, invocation, ok := strings.Cut(number, "-i")
		return isDigits(pid) && (!ok || isDigits(invocation))
	}
	return false
}

// unescapeUnit undoes the escapes of systemd-escape(1) such as "\x2d". The dash,
// which stands for a slash in paths, is kept.
func unescapeUnit(s string) string {
	if !strings.Contains(s, `\x`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if i+3 < len(s) && s[i] == '\\' && s[i+1] == 'x' {
			hi, lo := hexDigit(s[i+2]), hexDigit(s[i+3])
			if hi >= 0 && lo >= 0 && hi<<4|lo != 0 {
				b.WriteByte(byte(hi<<4 | lo))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return strings.ToValidUTF8(b.String(), "\uFFFD")
}

func hexDigit(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c-'a') + 10
	case 'A' <= c && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}
