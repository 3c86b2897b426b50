package sd

import (
	"bytes"
	"strings"
)

// parseCgroup picks the path out of /proc/PID/cgroup (cgroups(7)) that says most:
// of the lines of version 2 ("0::/path"), of systemd's own version 1 hierarchy
// ("1:name=systemd:/path") and of the others, in this order, the first that
// names a container, else the first that is not the root.
func parseCgroup(b []byte) string {
	var unified, systemd string
	var others []string
	for len(b) > 0 {
		line := b
		if i := bytes.IndexByte(b, '\n'); i >= 0 {
			line, b = b[:i], b[i+1:]
		} else {
			b = nil // a line that was cut, or the end
		}
		id, rest, ok := strings.Cut(string(line), ":")
		if !ok {
			continue
		}
		controllers, path, ok := strings.Cut(rest, ":") // the path may hold colons
		if !ok || !strings.HasPrefix(path, "/") {
			continue
		}
		path = strings.ToValidUTF8(strings.TrimSuffix(path, " (deleted)"), "\uFFFD")
		switch {
		case id == "0" && controllers == "":
			unified = path
		case controllers == "name=systemd":
			systemd = path
		default:
			others = append(others, path)
		}
	}
	candidates := append([]string{unified, systemd}, others...)
	for _, path := range candidates {
		if _, id := describeCgroup(path); id != "" {
			return path
		}
	}
	// A controller's path without a container says less than systemd's, and
	// differs from controller to controller: it is only used if there is no other.
	for _, path := range candidates {
		if path != "" && path != "/" {
			return path
		}
	}
	if unified != "" || systemd != "" || len(others) > 0 {
		return "/"
	}
	return ""
}

// describeCgroup says which systemd unit and which container a control group
// belongs to: the innermost of each, "" for none. A unit that contains the
// container, such as its runtime's, is none of it.
func describeCgroup(path string) (unit, container string) {
	inUnit := false   // the rest of the path is the unit's own business
	userManager := "" // user@1000.service: its units come next
	for segment := range strings.SplitSeq(path, "/") {
		if segment == "" {
			continue
		}
		if id := containerID(segment); id != "" {
			container, unit, inUnit, userManager = id, "", false, ""
			if isUnit(segment) {
				unit, inUnit = segment, true
			}
			continue
		}
		segment = strings.TrimPrefix(segment, "_") // systemd's escape of clashing names
		switch {
		case strings.HasSuffix(segment, ".slice"):
			inUnit = false // a slice within a unit is that of a manager within it
		case inUnit && userManager == "":
		case isUnit(segment):
			unit, inUnit = segment, true
			userManager = ""
			if strings.HasPrefix(segment, "user@") {
				userManager = segment
			}
		}
	}
	return unit, container
}

// isUnit says whether a segment is named like a systemd unit that has processes
// (systemd.unit(5)).
func isUnit(s string) bool {
	for _, suffix := range [...]string{".service", ".scope", ".socket", ".mount", ".swap"} {
		if len(s) > len(suffix) && strings.HasSuffix(s, suffix) {
			return true
		}
	}
	return false
}

const (
	containerIDLen = 64 // of Docker, containerd's CRI, CRI-O and Podman
	ecsIDLen       = 32 // Amazon ECS on Fargate: a task's id, a dash, a number
)

// containerID finds the container's id in a segment of a control group's path:
//
//	<id>                                          cgroupfs driver of Docker, kubelet, Podman
//	docker-<id>.scope, cri-containerd-<id>.scope, crio-<id>.scope, libpod-<id>.scope
//	kubepods-burstable-pod<uid>.slice:cri-containerd:<id>
//	<32 digits>-<number>                          Amazon ECS on Fargate
//
// The control group of the process that watches over a container (conmon) is not
// in it.
func containerID(segment string) string {
	s := strings.TrimSuffix(segment, ".scope")
	if strings.Contains(s, "conmon-") {
		return ""
	}
	if len(s) >= containerIDLen {
		id := s[len(s)-containerIDLen:]
		before := s[:len(s)-containerIDLen]
		if isHex(id) && (before == "" || before[len(before)-1] == '-' || before[len(before)-1] == ':') {
			return id
		}
	}
	if task, number, ok := strings.Cut(s, "-"); ok && len(task) == ecsIDLen && isHex(task) && isDigits(number) {
		return s
	}
	return ""
}

func isHex(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return s != ""
}

func isDigits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

// shortIDLen is the length of the ids that Docker shows.
const shortIDLen = 12

// containerKey is what a container's id is indexed under: ids may be given short.
func containerKey(id string) string {
	if len(id) > shortIDLen && isHex(id) {
		return id[:shortIDLen]
	}
	return id
}

// normalContainerID removes the runtime from an id such as Kubernetes gives it,
// "containerd://<id>".
func normalContainerID(id string) string {
	if _, rest, ok := strings.Cut(id, "://"); ok {
		id = rest
	}
	return strings.TrimSpace(id)
}

// sameContainer says whether a given id, which may be short, is that of a
// container.
func sameContainer(given, id string) bool {
	return given == id || (len(given) >= shortIDLen && isHex(given) && strings.HasPrefix(id, given))
}

// eachContainer calls f for each name that a container may have in a path, the
// innermost first, until f returns false: the ids, and the segments as they are,
// for runtimes whose ids are names.
func eachContainer(path string, f func(id string) bool) {
	for path != "" && path != "/" {
		i := strings.LastIndexByte(path, '/')
		segment := path[i+1:]
		path = path[:max(i, 0)]
		if segment == "" {
			continue
		}
		if id := containerID(segment); id != "" {
			if !f(id) {
				return
			}
			continue
		}
		if !f(segment) {
			return
		}
	}
}
