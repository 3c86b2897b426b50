package ebpfspy

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/spanflame/spanflame/internal/madecode"
	"github.com/spanflame/spanflame/sd"
	"github.com/spanflame/spanflame/symtab"
)

// isMade says whether a mapped file is memory that just has a name: what is in it was not
// there before the process began.
func isMade(path string) bool {
	return strings.HasPrefix(path, "/memfd:") || strings.HasPrefix(path, "/dev/zero") ||
		strings.HasPrefix(path, "/dev/shm/") || strings.HasPrefix(path, "/SYSV")
}

// dumpPID returns the process whose jitdump a file is by its name; 0 if it is none.
func dumpPID(p string) uint32 {
	name, ok := strings.CutPrefix(path.Base(p), "jit-")
	if !ok {
		return 0
	}
	digits, ok := strings.CutSuffix(name, ".dump")
	n, err := strconv.ParseUint(digits, 10, 31)
	if !ok || err != nil {
		return 0
	}
	return uint32(n)
}

// Reasons why a file in which a process says what code it made is not read.
var (
	errOwner    = errors.New("it belongs to another user than the process's, or root")
	errNotOwnID = errors.New("it is not the file that is mapped")
)

// openOwn opens a file of a process as root.Open does, but not what a link in the last part
// of the path leads to, and never in the agent's own root. The process, or root, must own
// it: anybody may write to /tmp.
func (r root) openOwn(path string, uid int64) (*os.File, error) {
	dir := filepath.Join(r.procfs, strconv.Itoa(int(r.pid)), "root")
	dirfd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the root %s: %w", dir, err)
	}
	defer unix.Close(dirfd)
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	}
	fd, err := unix.Openat2(dirfd, path, &how)
	if err != nil {
		return nil, fmt.Errorf("open %s in %s: %w", path, dir, err)
	}
	f, err := regular(fd, path)
	if err != nil {
		return nil, err
	}
	return ownedBy(f, uid)
}

// ownedBy returns the file if it belongs to a user or to root.
func ownedBy(f *os.File, uid int64) (*os.File, error) {
	var st unix.Stat_t
	err := unix.Fstat(int(f.Fd()), &st)
	if err == nil && st.Uid != 0 && int64(st.Uid) != uid {
		err = errOwner
	}
	if err != nil {
		_ = f.Close() // not even read from
		return nil, fmt.Errorf("open %s: %w", f.Name(), err)
	}
	return f, nil
}

// openPerfMap opens the perf map of a process: where perf looks for it, under the PID that
// the process has for itself.
func openPerfMap(procfs string, facts *sd.Process) (f *os.File, path string, err error) {
	path = fmt.Sprintf("/tmp/perf-%d.map", facts.PIDInNS)
	f, err = root{procfs, uint32(facts.PID)}.openOwn(path, facts.UID)
	return f, path, err
}

// openDump opens the jitdump that a process has mapped. It maps a page of it to tell
// profilers (tools/perf/Documentation/jitdump-specification.txt).
func openDump(procfs string, facts *sd.Process, m *mapping) (*os.File, error) {
	pid := uint32(facts.PID)
	f, err := openMapped(procfs, pid, m.start, m.end)
	if err != nil {
		return root{procfs, pid}.openDump(facts.UID, m.file)
	}
	return ownedBy(f, facts.UID)
}

// openDump opens it by its path.
func (r root) openDump(uid int64, of *file) (*os.File, error) {
	f, err := r.openOwn(of.path, uid)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Ino != of.id.Ino {
		_ = f.Close() // not even read from
		return nil, fmt.Errorf("open %s: %w", of.path, errors.Join(errNotOwnID, err))
	}
	return f, nil
}

// codeFile is a file of a process's own code as a madecode.Source.
type codeFile struct {
	*symtab.CodeFile
	path    string
	flushed uint64 // how often of those that there was no room are counted
}

// Name is the path, as perf shows it.
func (c *codeFile) Name() string { return c.path }

// Frames returns the function at a place.
func (c *codeFile) Frames(p madecode.Place) []symtab.Frame { return c.CodeFile.Frames(p.Addr) }
