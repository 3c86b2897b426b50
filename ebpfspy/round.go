package ebpfspy

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/spanflame/spanflame/bpf"
)

// rawRound is what the kernel counted in one round.
type rawRound struct {
	start, end time.Time
	firstRead  time.Time // when the agent began to read what was counted
	startMono  uint64    // CLOCK_MONOTONIC, ns
	endMono    uint64
	period     time.Duration // that one sample stands for
	number     uint64

	keys   []bpf.ProfileSampleKey
	values []bpf.ProfileSampleValue
	words  map[uint32][]uint64 // chunks that a value points into

	stats [bpf.ProfileRoundStatSTAT_MAX]uint64

	interpreters *interpreters // know the functions of interpreters
}

// rawStack is the frames of an entry, innermost first.
type rawStack struct {
	user   []uint64
	python []uint64 // pythonWords each
	kernel []uint64
}

// pythonWords is PYTHON_WORDS of c/spanflame.h.
const pythonWords = 2

// frames returns the frames of entry i. An entry whose place is not within what was read
// has none.
func (r *rawRound) frames(i int) (_ rawStack, ok bool) {
	key, val := &r.keys[i], &r.values[i]
	n := framesKeyOf(key).words()
	if n == 0 {
		return rawStack{}, true
	}
	chunk := r.words[val.Chunk]
	from := int(val.Word)
	if from+n > len(chunk) {
		return rawStack{}, false
	}
	words := chunk[from : from+n]
	nu, np := int(key.UserLen), pythonWords*int(key.PythonLen)
	return rawStack{words[:nu], words[nu : nu+np], words[nu+np:]}, true
}

// counted is the sum of all counts.
func (r *rawRound) counted() uint64 {
	var n uint64
	for i := range r.values {
		n += r.values[i].Count
	}
	return n
}

// counter reads and empties the kernel's rounds.
type counter struct {
	kern    *kernelSide
	current uint32
	keys    []bpf.ProfileSampleKey
	values  []bpf.ProfileSampleValue
	parked  parked
}

// flip lets the kernel fill the other round, which begins at the given time, and returns
// the number of the one that it is done with.
func (c *counter) flip(border uint64) (uint32, error) {
	old := c.current
	next := 1 - old
	if err := c.began(next, border); err != nil {
		return 0, err
	}
	if err := c.kern.objs.CurrentRound.Set(next); err != nil {
		return 0, fmt.Errorf("flip the round: %w", err)
	}
	c.current = next
	// An update of a map of maps returns after an RCU grace period, so that all
	// programs that may have seen the old value have ended (kernel/bpf/syscall.c,
	// maybe_wait_bpf_programs; Linux 4.20). The update itself changes nothing.
	if err := c.kern.objs.Counts.Update(old, c.kern.inner[old], ebpf.UpdateAny); err != nil {
		return 0, fmt.Errorf("wait for the programs of the old round: %w", err)
	}
	return old, nil
}

// began says when a round begins.
func (c *counter) began(r uint32, at uint64) error {
	var began [rounds]uint64
	v := c.kern.objs.RoundBegan
	if err := v.Get(&began); err != nil {
		return fmt.Errorf("read when the rounds began: %w", err)
	}
	began[r] = at
	if err := v.Set(began); err != nil {
		return fmt.Errorf("say when the round begins: %w", err)
	}
	return nil
}

// drain reads a round and empties it. On an error what was read so far is
// returned, and the rest is still emptied.
func (c *counter) drain(r uint32, out *rawRound) error {
	var errs []error
	if err := c.drainCounts(r, out); err != nil {
		errs = append(errs, err)
	}
	ids, err := c.readChunks(r, out)
	if err != nil {
		errs = append(errs, err)
	}
	if err := c.kern.resetArena(r, ids); err != nil {
		errs = append(errs, err)
	}
	if err := c.takeStats(r, out); err != nil {
		errs = append(errs, err)
	}
	if c.kern.offCPU {
		if err := c.offCPUParts(out); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

const batch = 4096

func (c *counter) drainCounts(r uint32, out *rawRound) error {
	m := c.kern.inner[r]
	if c.keys == nil {
		c.keys = make([]bpf.ProfileSampleKey, batch)
		c.values = make([]bpf.ProfileSampleValue, batch)
	}
	var cursor ebpf.MapBatchCursor
	size := batch
	for {
		n, err := m.BatchLookupAndDelete(&cursor, c.keys[:size], c.values[:size], nil)
		out.keys = append(out.keys, c.keys[:n]...)
		out.values = append(out.values, c.values[:n]...)
		switch {
		case err == nil:
		case errors.Is(err, ebpf.ErrKeyNotExist):
			return nil // the end
		case errors.Is(err, unix.ENOSPC) && size < 1<<20:
			// A bucket of the table holds more entries than fit.
			size *= 2
			c.keys = make([]bpf.ProfileSampleKey, size)
			c.values = make([]bpf.ProfileSampleValue, size)
		default:
			return fmt.Errorf("read the counts: %w", err)
		}
	}
}

// readChunks reads the chunks that entries point into, and returns all that the
// round has taken from the free ones.
func (c *counter) readChunks(r uint32, out *rawRound) ([]uint32, error) {
	out.words = map[uint32][]uint64{}
	lo := r * uint32(c.kern.chunks)
	hi := lo + uint32(c.kern.chunks)
	used := map[uint32]int{}
	for i := range out.keys {
		id := out.values[i].Chunk
		if id < lo || id >= hi {
			continue
		}
		end := int(out.values[i].Word) + framesKeyOf(&out.keys[i]).words()
		used[id] = max(used[id], end)
	}
	var firstErr error
	var chunk bpf.ProfileChunk
	for id, n := range used {
		if n > chunkWords {
			n = chunkWords
		}
		if err := c.kern.objs.Arena.Lookup(id, &chunk); err != nil {
			if firstErr == nil {
				firstErr = fmt.Errorf("read chunk %d of the arena: %w", id, err)
			}
			continue
		}
		words := make([]uint64, n)
		copy(words, chunk.Words[:n])
		out.words[id] = words
	}

	// What is not free has been taken, whether an entry points into it or not.
	free := c.kern.objs.FreeChunks0
	if r == 1 {
		free = c.kern.objs.FreeChunks1
	}
	var id uint32
	for {
		if err := free.LookupAndDelete(nil, &id); err != nil {
			break
		}
	}
	return c.kern.allChunks(r), firstErr
}

// takeStats reads the round's counters and sets them to zero.
func (c *counter) takeStats(r uint32, out *rawRound) error {
	var perCPU []bpf.ProfileRoundStats
	if err := c.kern.objs.Stats.Lookup(r, &perCPU); err != nil {
		return fmt.Errorf("read the counters of the round: %w", err)
	}
	for i := range perCPU {
		for j, n := range perCPU[i].N {
			out.stats[j] += n
		}
		perCPU[i] = bpf.ProfileRoundStats{}
	}
	if err := c.kern.objs.Stats.Put(r, perCPU); err != nil {
		return fmt.Errorf("reset the counters of the round: %w", err)
	}
	return nil
}
