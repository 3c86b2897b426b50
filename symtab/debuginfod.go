package symtab

import (
	"slices"

	"github.com/go-kit/log/level"

	"github.com/spanflame/spanflame/internal/debuginfod"
	"github.com/spanflame/spanflame/internal/dwarf"
	"github.com/spanflame/spanflame/internal/elffile"
)

// Debuginfod are the servers that are asked for debug files, and where those are kept.
type Debuginfod = debuginfod.Options

// Defaults of Debuginfod.
const (
	DefaultDebuginfodBytes   = debuginfod.DefaultMaxBytes
	DefaultDebuginfodTimeout = debuginfod.DefaultTimeout
)

// startDebuginfod makes the client that the options ask for, if they name a server. What
// an earlier one had open stays usable.
func (c *Cache) startDebuginfod(opts Debuginfod) {
	if old := c.debuginfod.Swap(nil); old != nil {
		old.Close()
	}
	if len(opts.URLs) == 0 {
		return
	}
	client, err := debuginfod.New(c.logger, opts, debuginfod.Hooks{
		Result:  func(result string) { c.metrics.fetches.WithLabelValues(result).Inc() },
		Evicted: func() { c.metrics.debugEvicted.Inc() },
	})
	if err != nil {
		level.Error(c.logger).Log("msg", "no server is asked for debug files", "err", err)
		return
	}
	c.debuginfod.Store(client)
}

// remote finds debug files by build id among those that were fetched. It notes those that
// were not there, and that the client will fetch if it can.
type remote struct {
	client  *debuginfod.Client // nil: there is none
	missing []string
}

// find returns the file of a build id, or nils.
func (r *remote) find(id string) (*elffile.File, *handle) {
	if r.client == nil || id == "" {
		return nil, nil
	}
	file, release, err := r.client.Open(id)
	if err != nil {
		r.missing = append(r.missing, id)
		return nil, nil
	}
	h, err := newHandle(file)
	if err != nil {
		release()
		return nil, nil
	}
	h.release = release
	f, err := elffile.Open(h, h.id.size)
	if err != nil || f.GNUBuildID() != id { // it was another when it was fetched
		h.close()
		r.client.Discard(id)
		r.missing = append(r.missing, id)
		return nil, nil
	}
	return f, h
}

// wanted says whether the debug file of a program is of use that could be fetched: none of
// its files has debugging information.
func (r *remote) wanted(files []elfSymbols, golang bool) bool {
	main := files[0]
	switch {
	case r.client == nil, main.handle == nil: // the vDSO
		return false
	case golang && hasFullTable(main.file): // debugging information is not used
		return false
	}
	return !slices.ContainsFunc(files, func(f elfSymbols) bool { return dwarf.Has(f.file) })
}

// awaited says whether a debug file that was missing when the table was made has come. It
// asks again for those that have not.
func (st *state) awaited(client *debuginfod.Client) bool {
	if client == nil || st.table == nil {
		return false
	}
	s := st.table.got.Load()
	if s == nil {
		return false
	}
	come := false
	for _, id := range s.missing {
		come = client.Ask(id) || come
	}
	return come
}
