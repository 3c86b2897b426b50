package sd

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// ErrProcessGone is returned for a process that does not exist (any more), or
// that ended while it was read.
var ErrProcessGone = errors.New("the process is gone")

// Bounds of what is read of one process, in bytes.
const (
	maxStatBytes    = 4 << 10
	maxStatusBytes  = 8 << 10
	maxCommandLine  = 2 << 10 // what a label can hold
	maxCgroupBytes  = 16 << 10
	maxProcessCount = 4 << 20 // the kernel's PID_MAX_LIMIT
)

// scratch is the memory of one read.
type scratch struct {
	buf  [maxCgroupBytes]byte
	link [unix.PathMax]byte
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// ReadProcess reads what the proc file system at procfs ("/proc") says of a
// process. All is read through one descriptor of its directory, so that a reused
// PID cannot mix two processes. What may not be read is left empty: the program,
// the working directory and the namespace need CAP_SYS_PTRACE or the same user.
// It returns ErrProcessGone if the process does not exist or ended meanwhile.
func ReadProcess(procfs string, pid PID) (*Process, error) {
	p, err := readProcess(procfs, pid)
	if err != nil {
		return nil, fmt.Errorf("read process %d: %w", pid, err)
	}
	return p, nil
}

func readProcess(procfs string, pid PID) (*Process, error) {
	dir, err := openProcess(procfs, pid)
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)

	st, err := readStat(dir, s)
	if err != nil {
		return nil, err
	}
	p := &Process{
		PID: pid, Start: st.start, Parent: st.parent, Comm: st.comm, Kernel: st.kernel,
		UID: -1,
	}
	if b, err := readAt(dir, "status", s.buf[:maxStatusBytes]); err == nil {
		p.UID, p.PIDInNS = parseStatus(b)
		p.Username = hostUsers.name(p.UID)
	}
	if b, err := readAt(dir, "cgroup", s.buf[:maxCgroupBytes]); err == nil {
		p.CgroupPath = parseCgroup(b)
		p.SystemdUnit, p.ContainerID = describeCgroup(p.CgroupPath)
	}
	p.NetNS = namespaceInode(linkAt(dir, "ns/net", s))
	if !st.kernel || st.vsize != 0 {
		p.Exe = strings.TrimSuffix(string(linkAt(dir, "exe", s)), " (deleted)")
		p.Cwd = strings.TrimSuffix(string(linkAt(dir, "cwd", s)), " (deleted)")
		if b, err := readAt(dir, "cmdline", s.buf[:maxCommandLine]); err == nil {
			p.CommandLine = joinArguments(b)
		}
	}
	again, err := readStat(dir, s)
	if err != nil {
		return nil, err
	}
	if again.start != p.Start {
		return nil, ErrProcessGone
	}
	return p, nil
}

// ReadStart reads only the start time of a process. It returns ErrProcessGone if
// the process does not exist.
func ReadStart(procfs string, pid PID) (StartTicks, error) {
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	st, err := readStat(unix.AT_FDCWD, s, procfs, strconv.Itoa(int(pid)))
	if err != nil {
		return 0, fmt.Errorf("read the start time of process %d: %w", pid, err)
	}
	return st.start, nil
}

// Thread is what the proc file system says of a thread.
type Thread struct {
	Comm   string
	Asleep bool // neither running nor able to, nor ended
}

// ReadThread reads the state of a thread of a process. It returns ErrProcessGone if there
// is none.
func ReadThread(procfs string, pid PID, id int) (Thread, error) {
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	st, err := readStat(unix.AT_FDCWD, s, procfs, strconv.Itoa(int(pid)), "task", strconv.Itoa(id))
	if err != nil {
		return Thread{}, fmt.Errorf("read the state of thread %d: %w", id, err)
	}
	return Thread{Comm: st.comm, Asleep: !st.kernel && bytes.IndexByte([]byte("RZXx"), st.state) < 0}, nil
}

// ListProcesses reads all processes that the proc file system shows, in the order
// of their PIDs. A process that ends meanwhile is left out.
func ListProcesses(procfs string) ([]*Process, error) {
	pids, err := listPIDs(procfs)
	if err != nil {
		return nil, err
	}
	out := make([]*Process, 0, len(pids))
	for _, pid := range pids {
		p, err := ReadProcess(procfs, pid)
		switch {
		case errors.Is(err, ErrProcessGone):
		case err != nil:
			return nil, err
		default:
			out = append(out, p)
		}
	}
	return out, nil
}

// listPIDs lists the processes in ascending order.
func listPIDs(procfs string) ([]PID, error) {
	f, err := os.Open(procfs)
	if err != nil {
		return nil, fmt.Errorf("list the processes: %w", err)
	}
	defer f.Close()
	names, err := f.Readdirnames(maxProcessCount)
	if err != nil && len(names) == 0 {
		return nil, fmt.Errorf("list the processes in %s: %w", procfs, err)
	}
	var pids []PID
	for _, name := range names {
		if pid, err := strconv.ParseInt(name, 10, 32); err == nil && pid > 0 {
			pids = append(pids, PID(pid))
		}
	}
	slices.Sort(pids)
	return pids, nil
}

// openProcess opens the directory of a process. The descriptor stays that of this
// very process: once it has ended, reading through it fails with ESRCH even if
// its PID is in use again.
func openProcess(procfs string, pid PID) (int, error) {
	fd, err := unix.Open(filepath.Join(procfs, strconv.Itoa(int(pid))), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	return fd, gone(err)
}

// gone turns the errors by which procfs says that a process has ended into
// ErrProcessGone.
func gone(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) {
		return ErrProcessGone
	}
	return err
}

// readAt reads a file from its beginning until the buffer is full.
func readAt(dir int, name string, buf []byte) ([]byte, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	n := 0
	for n < len(buf) {
		m, err := unix.Read(fd, buf[n:])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, err
		}
		if m <= 0 {
			break
		}
		n += m
	}
	return buf[:n], nil
}

// linkAt reads a link; nil if it cannot be read. The bytes are valid until the
// next call.
func linkAt(dir int, name string, s *scratch) []byte {
	n, err := unix.Readlinkat(dir, name, s.link[:])
	if err != nil || n <= 0 {
		return nil
	}
	return s.link[:n]
}

// namespaceInode reads the inode out of e.g. "net:[4026531840]" (namespaces(7)).
func namespaceInode(link []byte) uint64 {
	return bracketed(link, "net:[")
}

// bracketed reads the number of a link such as "socket:[1234]".
func bracketed(link []byte, prefix string) uint64 {
	rest, ok := bytes.CutPrefix(link, []byte(prefix))
	if !ok {
		return 0
	}
	rest, ok = bytes.CutSuffix(rest, []byte{']'})
	if !ok {
		return 0
	}
	n, err := strconv.ParseUint(string(rest), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// joinArguments joins the arguments, which end in a zero byte each, by blanks.
func joinArguments(b []byte) string {
	b = bytes.TrimRight(b, "\x00")
	for i, c := range b {
		if c == 0 {
			b[i] = ' '
		}
	}
	return strings.ToValidUTF8(string(b), "\uFFFD")
}
