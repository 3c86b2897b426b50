package sd

import (
	"errors"
	"sync"
	"weak"

	"github.com/prometheus/prometheus/model/labels"
)

var errTooManyTargets = errors.New("too many different targets")

// interner keeps targets with the same job and labels one pointer. It holds them
// weakly: a target that nobody uses any more is forgotten, so that the bound is on
// what is in use.
type interner struct {
	max int

	mu    sync.Mutex
	byKey map[string]weak.Pointer[Target] // guarded by mu, as are the rest
	sweep int                             // size at which the dead are removed next
	buf   []byte
}

const firstSweep = 256

func newInterner(max int) *interner {
	return &interner{max: max, byKey: map[string]weak.Pointer[Target]{}, sweep: min(firstSweep, max)}
}

// target returns the target of a job and its labels; errTooManyTargets if it
// would be one more than allowed.
func (in *interner) target(job string, ls, discovered labels.Labels) (*Target, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.buf = append(in.buf[:0], job...)
	in.buf = append(in.buf, 0xff) // in no UTF-8 text
	ls.Range(func(l labels.Label) {
		in.buf = append(in.buf, l.Name...)
		in.buf = append(in.buf, 0xff)
		in.buf = append(in.buf, l.Value...)
		in.buf = append(in.buf, 0xff)
	})
	if w, ok := in.byKey[string(in.buf)]; ok {
		if t := w.Value(); t != nil {
			return t, nil
		}
	} else if len(in.byKey) >= in.sweep {
		in.removeDead()
		if len(in.byKey) >= in.max {
			return nil, errTooManyTargets
		}
		in.sweep = min(max(firstSweep, 2*len(in.byKey)), in.max)
	}
	t := &Target{Labels: ls, Job: job, Discovered: discovered}
	in.byKey[string(in.buf)] = weak.Make(t)
	return t, nil
}

// removeDead is called with mu held.
func (in *interner) removeDead() {
	for k, w := range in.byKey {
		if w.Value() == nil {
			delete(in.byKey, k)
		}
	}
}

// len counts the targets that are known, with some that are not in use any more.
func (in *interner) len() int {
	in.mu.Lock()
	defer in.mu.Unlock()
	return len(in.byKey)
}
