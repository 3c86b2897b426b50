package debuginfod

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	suffix     = ".debug" // of a file, after its build id
	tempPrefix = "fetch-" // of one that is being written
	tempSuffix = ".tmp"
	block      = 4 << 10 // what a file takes is rounded up to it
	maxFiles   = 1 << 14 // in the directory
	readAtOnce = 1 << 10 // names of a directory
)

// errNoRoom says that all that is in the directory is in use.
var errNoRoom = errors.New("no room among the debug files that are in use")

// diskError is one that is likely to meet the next file, too.
type diskError struct{ err error }

func (e *diskError) Error() string { return e.err.Error() }
func (e *diskError) Unwrap() error { return e.err }

// directory holds files by build id, within a bound of bytes. The least recently used go
// first; those that are open stay. When a file was used last outlives the agent as its
// time of access, which nothing else needs: a new modification time would tell those who
// have it open that its content has changed.
type directory struct {
	path    string
	limit   int64
	now     func() time.Time
	evicted func()

	opening sync.Mutex // held while the directory is opened
	mu      sync.Mutex // guards the rest; not held over I/O
	lock    *os.File   // the directory, locked; nil: not open
	files   map[string]*kept
	bytes   int64 // of files and of what is reserved
}

// kept is a file in the directory.
type kept struct {
	bytes int64 // on disk
	used  time.Time
	users int
}

func newDirectory(path string, limit int64, now func() time.Time, evicted func()) *directory {
	return &directory{path: path, limit: limit, now: now, evicted: evicted, files: map[string]*kept{}}
}

func onDisk(size int64) int64 { return (size + block - 1) &^ (block - 1) }

func (d *directory) name(id string) string { return filepath.Join(d.path, id+suffix) }

// open makes and locks the directory and finds out what is in it, if that is not done.
func (d *directory) open() error {
	d.opening.Lock()
	defer d.opening.Unlock()
	d.mu.Lock()
	lock := d.lock
	d.mu.Unlock()
	if lock != nil {
		return nil
	}
	if err := os.MkdirAll(d.path, 0o700); err != nil {
		return &diskError{fmt.Errorf("make the folder of debug files: %w", err)}
	}
	lock, err := os.Open(d.path)
	if err != nil {
		return &diskError{fmt.Errorf("open the folder of debug files: %w", err)}
	}
	files, err := d.scan(lock)
	if err != nil {
		lock.Close()
		return &diskError{fmt.Errorf("folder of debug files %s: %w", d.path, err)}
	}
	d.mu.Lock()
	d.lock, d.files = lock, files
	d.bytes = 0
	for _, k := range files {
		d.bytes += k.bytes
	}
	drop := d.shrinkLocked(0)
	d.mu.Unlock()
	d.unlink(drop)
	return nil
}

// scan locks the directory, removes what a killed run left half written, and lists the
// rest.
func (d *directory) scan(lock *os.File) (map[string]*kept, error) {
	st, err := lock.Stat()
	if err != nil {
		return nil, err
	}
	if st.Mode().Perm()&0o022 != 0 {
		return nil, errors.New("others may write to it (chmod 700)")
	}
	err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, errors.New("another agent uses it")
	} else if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	files := map[string]*kept{}
	for {
		entries, err := lock.ReadDir(readAtOnce)
		for _, e := range entries {
			if !e.Type().IsRegular() {
				continue
			}
			if strings.HasPrefix(e.Name(), tempPrefix) && strings.HasSuffix(e.Name(), tempSuffix) {
				if err := os.Remove(filepath.Join(d.path, e.Name())); err != nil {
					return nil, err
				}
				continue
			}
			id, ok := strings.CutSuffix(e.Name(), suffix)
			var st unix.Stat_t
			if !ok || !validBuildID(id) || unix.Lstat(d.name(id), &st) != nil {
				continue // not ours, or gone
			}
			files[id] = &kept{bytes: onDisk(st.Size), used: time.Unix(st.Atim.Unix())}
		}
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

func (d *directory) close() {
	d.mu.Lock()
	lock := d.lock
	d.lock, d.files, d.bytes = nil, map[string]*kept{}, 0
	d.mu.Unlock()
	if lock != nil {
		lock.Close() // and with it the lock is gone
	}
}

func (d *directory) stats() (files int, bytes int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.files), d.bytes
}

func (d *directory) has(id string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.files[id] != nil
}

// openFile opens a file and keeps it from being evicted until release is called.
func (d *directory) openFile(id string) (_ *os.File, release func(), err error) {
	now := d.now()
	d.mu.Lock()
	k := d.files[id]
	if k == nil {
		d.mu.Unlock()
		return nil, nil, fs.ErrNotExist
	}
	k.users++
	k.used = now
	d.mu.Unlock()
	release = sync.OnceFunc(func() {
		now := d.now()
		d.mu.Lock()
		k.users--
		k.used = now
		d.mu.Unlock()
	})
	f, err := os.OpenFile(d.name(id), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		release()
		d.remove(id)
		return nil, nil, fmt.Errorf("open debug file: %w", err)
	}
	_ = os.Chtimes(d.name(id), now, time.Time{}) // else it may be evicted too early after the next start
	return f, release, nil
}

// remove removes a file, also one that is open.
func (d *directory) remove(id string) {
	d.mu.Lock()
	if k := d.files[id]; k != nil {
		d.bytes -= k.bytes
		delete(d.files, id)
	}
	d.mu.Unlock()
	d.unlink([]string{id})
}

func (d *directory) unlink(ids []string) {
	for _, id := range ids {
		_ = os.Remove(d.name(id)) // what stays is found at the next start
	}
}

// reserve makes room for more bytes.
func (d *directory) reserve(n int64) error {
	d.mu.Lock()
	drop := d.shrinkLocked(n)
	room := d.bytes+n <= d.limit
	if room {
		d.bytes += n
	}
	d.mu.Unlock()
	d.unlink(drop)
	if !room {
		return errNoRoom
	}
	return nil
}

func (d *directory) unreserve(n int64) {
	d.mu.Lock()
	d.bytes -= n
	d.mu.Unlock()
}

// shrinkLocked takes the least recently used files from the list until there is room for
// more bytes, and returns them to be removed. If that cannot be, all stay.
func (d *directory) shrinkLocked(more int64) (drop []string) {
	excess := d.bytes + more - d.limit
	if excess <= 0 && len(d.files) <= maxFiles {
		return nil
	}
	var unused []string
	free := int64(0)
	for id, k := range d.files {
		if k.users == 0 {
			unused = append(unused, id)
			free += k.bytes
		}
	}
	if more > 0 && free < excess {
		return nil
	}
	slices.SortFunc(unused, func(a, b string) int { return d.files[a].used.Compare(d.files[b].used) })
	for _, id := range unused {
		if excess <= 0 && len(d.files) <= maxFiles {
			break
		}
		size := d.files[id].bytes
		excess -= size
		d.bytes -= size
		delete(d.files, id)
		drop = append(drop, id)
		d.evicted()
	}
	return drop
}

// temp is a file that is being written.
type temp struct {
	d        *directory
	f        *os.File
	size     int64
	reserved int64
	kept     bool
}

func (d *directory) create() (*temp, error) {
	f, err := os.CreateTemp(d.path, tempPrefix+"*"+tempSuffix)
	if err != nil {
		return nil, &diskError{fmt.Errorf("make a debug file: %w", err)}
	}
	return &temp{d: d, f: f}, nil
}

// reserve makes room for a file of size bytes.
func (t *temp) reserve(size int64) error {
	more := onDisk(size) - t.reserved
	if more <= 0 {
		return nil
	}
	if err := t.d.reserve(more); err != nil {
		return err
	}
	t.reserved += more
	return nil
}

func (t *temp) write(b []byte) error {
	if err := t.reserve(t.size + int64(len(b))); err != nil {
		return err
	}
	n, err := t.f.Write(b)
	t.size += int64(n)
	if err != nil {
		return &diskError{fmt.Errorf("write a debug file: %w", err)}
	}
	return nil
}

// keep gives the file its name.
func (t *temp) keep(id string) error {
	// Without it a crash of the machine could leave a file with the name and not its content.
	if err := t.f.Sync(); err != nil {
		return &diskError{fmt.Errorf("write a debug file: %w", err)}
	}
	if err := os.Rename(t.f.Name(), t.d.name(id)); err != nil {
		return &diskError{fmt.Errorf("keep a debug file: %w", err)}
	}
	t.kept = true
	t.f.Close()
	d, now := t.d, t.d.now()
	d.mu.Lock()
	if old := d.files[id]; old != nil {
		d.bytes -= old.bytes
	}
	d.bytes -= t.reserved - onDisk(t.size)
	d.files[id] = &kept{bytes: onDisk(t.size), used: now}
	drop := d.shrinkLocked(0)
	d.mu.Unlock()
	d.unlink(drop)
	return nil
}

// drop removes a file that is not kept.
func (t *temp) drop() {
	if t.kept {
		return
	}
	t.f.Close()
	_ = os.Remove(t.f.Name()) // else the next start does
	t.d.unreserve(t.reserved)
}
