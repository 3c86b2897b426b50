package symtab

import (
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync"

	"github.com/spanflame/spanflame/internal/dwarf"
	"github.com/spanflame/spanflame/internal/elffile"
)

// debugInfo resolves by the debugging information of a file or of its separate debug
// file: inlined functions and lines.
type debugInfo struct {
	data   *dwarf.Data
	file   *handle
	inline bool
	cache  frameCache // by address

	mu    sync.Mutex
	names map[string]string // linkage name -> demangled
}

// maxDebugNames bounds the names that are kept to be shared.
const maxDebugNames = 1 << 14

// newDebugInfo takes the first of the files with debugging information; nil if there is
// none. The files' headers are needed until it returns. What it opened, the common file of
// dwz, is returned to be closed with it. splits may be nil.
func newDebugInfo(files []elfSymbols, root Root, splits dwarf.SplitFiles, opts *Options, b *budget, fetched *remote) (*debugInfo, []*handle) {
	for _, f := range files {
		if f.handle == nil || !dwarf.Has(f.file) {
			continue
		}
		var opened []*handle
		alt, h := findCommonFile(f.file, f.handle.file.Name(), root, opts.DebugDirs, fetched)
		if h != nil {
			opened = append(opened, h)
		}
		data, err := dwarf.Open(f.file, alt, splits)
		if err != nil {
			closeHandles(opened)
			continue // names are what symbols tell
		}
		d := &debugInfo{data: data, file: f.handle, inline: opts.Inline, names: map[string]string{}}
		d.cache.budget = b
		return d, opened
	}
	return nil, nil
}

// findCommonFile opens the file that .gnu_debugaltlink names, or one of its build id in a
// debug directory or that was fetched. Nil if there is none; what refers to it then has no
// name. Source: dwz(1); DWARF 5, 7.3.6.
func findCommonFile(f *elffile.File, itself string, root Root, dirs []string, fetched *remote) (*elffile.File, *handle) {
	s := f.Section(".gnu_debugaltlink")
	if s == nil {
		return nil, nil
	}
	b, err := f.Data(s, 4096+maxBuildID)
	if err != nil {
		return nil, nil
	}
	name := string(cut(b))
	if len(name) == 0 || len(name)+1 >= len(b) {
		return nil, nil
	}
	id := hex.EncodeToString(b[len(name)+1:])
	if root == nil {
		return fetched.find(id)
	}
	candidates := []string{name}
	if !path.IsAbs(name) {
		candidates[0] = path.Join(path.Dir(itself), name)
	}
	for _, dir := range dirs {
		candidates = append(candidates, path.Join(dir, ".build-id", id[:2], id[2:]+".debug"))
	}
	for _, c := range candidates {
		alt, h, err := openDebugFile(root, c, func(d *elffile.File, _ *handle) error {
			if d.GNUBuildID() != id {
				return errNotItsDebugFile
			}
			return nil
		})
		if err == nil {
			return alt, h
		}
	}
	return fetched.find(id)
}

// maxBuildID bounds a build id.
const maxBuildID = 64

// frames are the functions at a place. base is that of the symbol table, whose name is
// taken for the outermost if debugging information has none that is whole.
func (d *debugInfo) frames(p position, demangle func(string) string, base func(position) ([]Frame, error)) ([]Frame, error) {
	if fr, ok := d.cache.get(uint64(p.addr)); ok {
		return fr, nil
	}
	outer, err := base(p)
	if err != nil {
		return nil, err
	}
	if err := d.file.fresh(); err != nil {
		return nil, err
	}
	calls, err := d.data.Find(p.addr)
	if errors.Is(err, errStale) || errors.Is(err, dwarf.ErrClosed) {
		return nil, fmt.Errorf("%w: %w", errStale, err)
	}
	if err != nil || len(calls) == 0 {
		return outer, nil // the symbol's name is right all the same
	}
	if !d.inline {
		calls = calls[len(calls)-1:]
	}
	if last := calls[len(calls)-1]; last.Split && len(outer) > 0 {
		name := last.Name
		if last.Linkage != "" {
			name = d.name(last.Linkage, demangle)
		}
		// The symbol may have more: foo.cold, foo.isra.0.
		if name != "" && !strings.HasPrefix(outer[len(outer)-1].Name, name) {
			return outer, nil // functions were elsewhere when the unit was made
		}
	}
	frames := make([]Frame, len(calls))
	for i, c := range calls {
		f := &frames[i]
		f.File, f.Line = c.File, c.Line
		switch {
		case c.Linkage != "":
			f.Name = d.name(c.Linkage, demangle)
		case i == len(calls)-1 && len(outer) > 0:
			f.Name = outer[len(outer)-1].Name
		default:
			f.Name = c.Name
		}
		if f.Name == "" {
			return outer, nil
		}
	}
	return d.cache.put(uint64(p.addr), frames, 0), nil
}

func (d *debugInfo) name(linkage string, demangle func(string) string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	name, ok := d.names[linkage]
	if !ok {
		if len(d.names) >= maxDebugNames {
			clear(d.names)
		}
		name = demangle(linkage)
		d.names[linkage] = name
	}
	return name
}

func (d *debugInfo) bytes() int64 {
	if d == nil {
		return 0
	}
	d.mu.Lock()
	names := int64(len(d.names)) * 200 // about
	d.mu.Unlock()
	return d.data.Bytes() + d.cache.bytes() + names
}

// openFiles is the number of files of split units that are open.
func (d *debugInfo) openFiles() int {
	if d == nil {
		return 0
	}
	return d.data.OpenFiles()
}

func (d *debugInfo) close() {
	if d != nil {
		d.cache.close()
		d.data.Close()
	}
}
