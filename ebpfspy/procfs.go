package ebpfspy

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/spanflame/spanflame/symtab"
)

// maxMapsBytes bounds what is read of one /proc/PID/maps.
const maxMapsBytes = 16 << 20

// mapsEntry is an executable line of /proc/PID/maps.
type mapsEntry struct {
	start, end, offset uint64
	id                 symtab.FileID
	path               string
}

// readMaps reads the executable mappings of a process (proc(5), /proc/PID/maps).
func readMaps(procfs string, pid uint32) ([]mapsEntry, error) {
	f, err := os.Open(filepath.Join(procfs, strconv.Itoa(int(pid)), "maps"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return parseMaps(io.LimitReader(f, maxMapsBytes))
}

func parseMaps(r io.Reader) ([]mapsEntry, error) {
	var out []mapsEntry
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 0, 8<<10), 64<<10)
	for sc.Scan() {
		e, executable, err := parseMapsLine(sc.Text())
		if err != nil {
			return nil, err
		}
		if !executable {
			continue
		}
		if len(out) == maxMappings {
			break
		}
		out = append(out, e)
	}
	return out, sc.Err()
}

var errMapsLine = errors.New("no line of a maps file")

// parseMapsLine reads e.g.
//
//	7f3c1a000000-7f3c1a155000 r-xp 00026000 fe:00 1835033   /usr/lib/libc.so.6
func parseMapsLine(line string) (e mapsEntry, executable bool, err error) {
	bad := func() (mapsEntry, bool, error) {
		return mapsEntry{}, false, fmt.Errorf("%q: %w", line, errMapsLine)
	}
	rest := line
	next := func() string {
		rest = strings.TrimLeft(rest, " ")
		var f string
		f, rest, _ = strings.Cut(rest, " ")
		return f
	}
	addrs, perms, offset, dev, inode := next(), next(), next(), next(), next()
	if len(perms) != 4 {
		return bad()
	}
	if perms[2] != 'x' {
		return mapsEntry{}, false, nil
	}
	lo, hi, ok := strings.Cut(addrs, "-")
	major, minor, ok2 := strings.Cut(dev, ":")
	if !ok || !ok2 {
		return bad()
	}
	var maj, min uint64
	for _, n := range []struct {
		s    string
		base int
		to   *uint64
	}{{lo, 16, &e.start}, {hi, 16, &e.end}, {offset, 16, &e.offset}, {major, 16, &maj}, {minor, 16, &min}, {inode, 10, &e.id.Ino}} {
		if *n.to, err = strconv.ParseUint(n.s, n.base, 64); err != nil {
			return bad()
		}
	}
	if e.end <= e.start {
		return bad()
	}
	e.id.Dev = maj<<32 | min
	e.path = strings.TrimSuffix(strings.TrimLeft(rest, " "), " (deleted)")
	return e, true, nil
}

// root opens files in the file system of a process, or in the agent's own once
// the process is gone, and never outside of it: no symbolic link leads out
// (openat2(2), RESOLVE_IN_ROOT), nothing but a regular file is opened, and opening
// does not wait.
type root struct {
	procfs string
	pid    uint32
}

// Open opens a path as the process sees it.
func (r root) Open(path string) (*os.File, error) {
	f, err := openIn(filepath.Join(r.procfs, strconv.Itoa(int(r.pid)), "root"), path)
	if err != nil && errors.Is(err, unix.ENOENT) {
		if _, gone := os.Lstat(filepath.Join(r.procfs, strconv.Itoa(int(r.pid)))); gone != nil {
			// The caller compares the inode: another file under the same path is not
			// taken for this one.
			return openIn("/", path)
		}
	}
	return f, err
}

func openIn(dir, path string) (*os.File, error) {
	dirfd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the root %s: %w", dir, err)
	}
	defer unix.Close(dirfd)
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	}
	fd, err := unix.Openat2(dirfd, path, &how)
	if err != nil {
		return nil, fmt.Errorf("open %s in %s: %w", path, dir, err)
	}
	return regular(fd, path)
}

// openMapped opens the very file that a process maps at a range, even if it was
// deleted (/proc/PID/map_files). Requires CAP_CHECKPOINT_RESTORE or
// CAP_SYS_ADMIN.
func openMapped(procfs string, pid uint32, start, end uint64) (*os.File, error) {
	path := fmt.Sprintf("%s/%d/map_files/%x-%x", procfs, pid, start, end)
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return regular(fd, path)
}

var errNotRegular = errors.New("not a regular file")

// regular takes a descriptor that was opened with O_PATH and opens its file for
// reading if it is a regular one: a device or a FIFO is never opened, for the
// opening alone can have effects.
func regular(path int, name string) (*os.File, error) {
	defer unix.Close(path)
	var st unix.Stat_t
	err := unix.Fstat(path, &st)
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = errNotRegular
	}
	var fd int
	if err == nil {
		fd, err = unix.Open("/proc/self/fd/"+strconv.Itoa(path), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}
