package push

import (
	"sync"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"
)

// noteEvery is how often a note of one kind is logged for one endpoint.
const noteEvery = time.Minute

// notes are log lines, at most one a minute of each kind. They are taken down
// where a lock may be held, and written by flush, where none is.
type notes struct {
	logger log.Logger

	mu      sync.Mutex
	kinds   map[string]*noteKind // guarded by mu; the kinds are few and fixed
	pending []note               // guarded by mu
}

type noteKind struct {
	at         time.Time
	suppressed int
}

type note struct {
	info bool
	kv   []any
}

func (n *notes) warn(kind, msg string, kv ...any) { n.add(kind, false, msg, kv) }
func (n *notes) info(kind, msg string, kv ...any) { n.add(kind, true, msg, kv) }

func (n *notes) add(kind string, info bool, msg string, kv []any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	k, ok := n.kinds[kind]
	switch {
	case !ok:
		if n.kinds == nil {
			n.kinds = map[string]*noteKind{}
		}
		k = &noteKind{}
		n.kinds[kind] = k
	case now.Sub(k.at) < noteEvery:
		k.suppressed++
		return
	}
	kv = append([]any{"msg", msg}, kv...)
	if k.suppressed > 0 {
		kv = append(kv, "suppressed", k.suppressed)
	}
	*k = noteKind{at: now}
	n.pending = append(n.pending, note{info, kv})
}

func (n *notes) flush() {
	n.mu.Lock()
	pending := n.pending
	n.pending = nil
	n.mu.Unlock()
	for _, p := range pending {
		l := level.Warn(n.logger)
		if p.info {
			l = level.Info(n.logger)
		}
		_ = l.Log(p.kv...)
	}
}
