package symtab

import (
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"
)

// ErrKernelRestricted says that the kernel shows its symbols without their addresses.
var ErrKernelRestricted = errors.New("the kernel hides its addresses from this process: " +
	"it needs CAP_SYSLOG, or kernel.kptr_restrict set to 0 or 1 (see kernel.kptr_restrict in sysctl)")

const (
	maxKernelModules = 4 << 20  // bytes of /proc/modules
	maxKallsyms      = 64 << 20 // bytes of /proc/kallsyms
	maxKernelSymbols = 2 << 20

	// reloadAfter is how old the names must be to be read again because code was
	// seen that comes and goes without a trace in /proc/modules: BPF programs.
	reloadAfter = time.Minute
)

// Kernel names the kernel's functions, those of its modules and of BPF programs.
// It is safe for concurrent use.
type Kernel struct {
	logger log.Logger
	procfs string
	cur    atomic.Pointer[kernelNames]
	gen    atomic.Uint64
	doubt  atomic.Bool // an address was unknown, or in a BPF program
	seed   maphash.Seed

	mu      sync.Mutex // guards the rest; taken by Refresh only
	modules uint64     // hash of /proc/modules
	loaded  time.Time
}

// LoadKernel reads /proc/kallsyms. If the addresses in it are hidden, the error wraps
// ErrKernelRestricted. Of the options, ProcFS and MaxBytes are used.
func LoadKernel(logger log.Logger, opts Options) (*Kernel, error) {
	if logger == nil {
		logger = log.NewNopLogger()
	}
	k := &Kernel{logger: logger, procfs: opts.withDefaults().ProcFS, seed: maphash.MakeSeed()}
	modules, err := k.hashModules()
	if err != nil {
		return nil, err
	}
	if err := k.reload(modules); err != nil {
		return nil, err
	}
	return k, nil
}

// Lookup returns the function that covers a kernel address, and the module it is of
// ("" for the kernel itself, "bpf" for BPF programs). The kernel states no sizes: a
// function reaches to the next symbol, but not out of its module.
func (k *Kernel) Lookup(addr uint64) (name, module string, ok bool) {
	name, module, ok = k.cur.Load().lookup(addr)
	if (!ok || module == bpfModule) && !k.doubt.Load() {
		k.doubt.Store(true)
	}
	return name, module, ok
}

const bpfModule = "bpf"

// Refresh reads the names again if modules were loaded or removed, or if since the
// last time an unknown address or a BPF program was seen and the names are older than
// a minute. If nothing changed it costs one small read.
func (k *Kernel) Refresh() error {
	modules, err := k.hashModules()
	if err != nil {
		return err
	}
	k.mu.Lock()
	same := modules == k.modules
	young := time.Since(k.loaded) < reloadAfter
	k.mu.Unlock()
	if same && (young || !k.doubt.Load()) {
		return nil
	}
	return k.reload(modules)
}

// Generation changes whenever the names do: what was kept of an earlier generation
// may be wrong.
func (k *Kernel) Generation() uint64 { return k.gen.Load() }

// Symbols is the number of functions known, and Bytes the memory they take.
func (k *Kernel) Symbols() int { return k.cur.Load().count }

// Bytes is the memory that the names take.
func (k *Kernel) Bytes() int64 { return k.cur.Load().bytes() }

func (k *Kernel) reload(modules uint64) error {
	path := filepath.Join(k.procfs, "kallsyms")
	start := time.Now()
	names, err := readKernel(path, k.procfs, true)
	if errors.Is(err, errInterleaved) {
		names, err = readKernel(path, k.procfs, false)
	}
	if err != nil {
		return fmt.Errorf("read the kernel's symbols from %s: %w", path, err)
	}
	k.doubt.Store(false)
	k.cur.Store(names)
	k.gen.Add(1)
	k.mu.Lock()
	k.modules, k.loaded = modules, start
	k.mu.Unlock()
	level.Debug(k.logger).Log("msg", "read the kernel's symbols", "functions", names.count,
		"bytes", names.bytes(), "took", time.Since(start))
	return nil
}

func readKernel(path, procfs string, inOrder bool) (*kernelNames, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read from
	return readKallsyms(f, moduleEnds(procfs), inOrder)
}

// hashModules reads /proc/modules; a kernel without modules has no such file.
func (k *Kernel) hashModules() (uint64, error) {
	b, err := readModules(k.procfs)
	if err != nil {
		return 0, fmt.Errorf("read the list of kernel modules: %w", err)
	}
	return maphash.Bytes(k.seed, loadedModules(b)), nil
}

func readModules(procfs string) ([]byte, error) {
	f, err := os.Open(filepath.Join(procfs, "modules"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read from
	return io.ReadAll(io.LimitReader(f, maxKernelModules))
}
