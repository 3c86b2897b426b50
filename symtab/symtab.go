// Package symtab turns addresses into names: of native code from ELF symbol tables
// (.symtab, .dynsym, MiniDebugInfo, separate debug files), of Go code from its
// function table (.gopclntab, with inlined functions and lines), of the kernel from
// /proc/kallsyms, and of the vDSO.
//
// It names an address only if a function covers it: an address outside every
// symbol's [start, start+size) is unknown and never gets the name of a neighbour.
// A function symbol without a size (hand-written assembler) covers its first byte
// only, and only where nothing else covers that byte.
//
// Everything it reads is written by others and may be hostile; sizes, counts and
// depths have limits, and files are read with pread, never mapped (see
// internal/elffile).
//
// # Identity
//
// One table serves all processes that map a file. A table holds its file open, so
// that the inode cannot be given to another file while the table is in use. A file
// that changes in place (size, modification time) loses its table. When a table
// has been evicted, the file is opened anew and must have the inode that the
// mapping had.
package symtab

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/ianlancetaylor/demangle"

	"github.com/spanflame/spanflame/internal/elffile"
)

// FileOffset is a position in a file, in bytes.
type FileOffset = elffile.FileOffset

// VirtAddr is an address as a file's headers state it, before any load bias.
type VirtAddr = elffile.VirtAddr

// FileID is the identity of a mapped file, as perf's MMAP2 records and
// /proc/PID/maps give it. An Ino of zero means that there is no inode.
type FileID struct {
	Dev uint64 // major<<32 | minor, of the file system
	Ino uint64
	Gen uint64 // inode generation, 0 if not known
}

// Frame is a function that was executing. Names and files of equal frames share
// their memory.
type Frame struct {
	Name string // demangled as the options say
	File string // "" if not known
	Line int    // 0 if not known
}

// Opener opens the file that a module stands for.
type Opener func() (*os.File, error)

// Root opens files by their absolute path in the root directory of a target. It
// must not follow a link out of it, and must open regular files only.
type Root interface {
	Open(path string) (*os.File, error)
}

// Errors of Module.Err.
var (
	ErrNoSymbols   = errors.New("the file has no function names")
	ErrReplaced    = errors.New("another file is under the path of the mapped one")
	ErrNoFile      = errors.New("the mapping has no file")
	ErrTableTooBig = errors.New("symbol table larger than the limit")
)

// errStale is returned by resolvers whose file was closed or changed.
var errStale = errors.New("the file was closed or has changed")

// Options of a cache and of the kernel's names. The zero value gives the defaults.
type Options struct {
	// Demangle says how much of C++ and Rust names is kept: "none" (as in the
	// file), "simplified" (function name only), "templates" (with template and
	// generic parameters), "full" (with parameter types; the default).
	Demangle string
	// Inline adds a frame for each function inlined at the address.
	Inline bool
	// MaxBytes bounds the memory of tables and names; 64 MiB by default. A single
	// table may take half of it.
	MaxBytes int64
	// MaxAge is how long a table is kept without use; 10 minutes by default.
	MaxAge time.Duration
	// MaxFiles bounds the tables and the files of split units, and with them the files
	// held open; 1024 by default.
	MaxFiles int
	// DebugDirs are searched for separate debug files, in the target's root;
	// /usr/lib/debug by default.
	DebugDirs []string
	// Debuginfod are servers that are asked for debug files that are not there; none
	// by default.
	Debuginfod Debuginfod
	// ProcFS is where /proc is; /proc by default.
	ProcFS string
}

// Defaults of Options.
const (
	DefaultDemangle = "full"
	DefaultMaxBytes = 64 << 20
	DefaultMaxAge   = 10 * time.Minute
	DefaultMaxFiles = 1024
	DefaultDebugDir = "/usr/lib/debug"
)

// withDefaults fills what is zero. Unknown values of Demangle become the default;
// Validate is there to refuse them.
func (o Options) withDefaults() Options {
	if o.Validate() != nil || o.Demangle == "" {
		o.Demangle = DefaultDemangle
	}
	if o.MaxBytes <= 0 {
		o.MaxBytes = DefaultMaxBytes
	}
	if o.MaxAge <= 0 {
		o.MaxAge = DefaultMaxAge
	}
	if o.MaxFiles <= 0 {
		o.MaxFiles = DefaultMaxFiles
	}
	if o.DebugDirs == nil {
		o.DebugDirs = []string{DefaultDebugDir}
	}
	if o.ProcFS == "" {
		o.ProcFS = "/proc"
	}
	return o
}

// Validate says what is wrong with the options.
func (o Options) Validate() error {
	switch o.Demangle {
	case "", "none", "simplified", "templates", "full":
		return nil
	}
	return fmt.Errorf("demangle %q: want none, simplified, templates or full", o.Demangle)
}

const (
	maxMangled   = 16 << 10 // longer names are left as they are
	maxDemangled = 14       // as a power of two
)

// demangler returns the function that the option names.
func demangler(option string) func(string) string {
	opts := []demangle.Option{demangle.NoClones, demangle.MaxLength(maxDemangled)}
	switch option {
	case "none":
		return func(s string) string { return s }
	case "simplified":
		opts = append(opts, demangle.NoParams, demangle.NoEnclosingParams, demangle.NoTemplateParams)
	case "templates":
		opts = append(opts, demangle.NoParams, demangle.NoEnclosingParams)
	}
	return func(s string) string {
		if len(s) < 3 || len(s) > maxMangled || (s[0] != '_' && s[0] != '.' && s[0] != '$') {
			return s
		}
		return safely(func(name string) string { return demangle.Filter(name, opts...) }, s)
	}
}

// safely keeps a name that makes the demangler panic as it is.
func safely(f func(string) string, name string) (out string) {
	defer func() {
		if recover() != nil {
			out = name
		}
	}()
	return f(name)
}
