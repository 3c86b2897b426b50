package sd

import (
	"bytes"
	"errors"
	"path/filepath"
	"strconv"
)

// Flags of a task (the kernel's include/linux/sched.h), field 9 of its stat file.
const (
	pfWorkqueueWorker = 0x00000020 // PF_WQ_WORKER
	pfKernelThread    = 0x00200000 // PF_KTHREAD
)

var errStat = errors.New("not the contents of a stat file (proc(5))")

// stat is what is used of /proc/PID/stat.
type stat struct {
	comm   string
	parent PID
	start  StartTicks
	vsize  uint64 // bytes of virtual memory
	kernel bool   // PF_KTHREAD
	state  byte   // R, S, D, …
}

// readStat reads the stat file in a process's directory, or, if a path is given,
// in the directory that it leads to.
func readStat(dir int, s *scratch, path ...string) (stat, error) {
	name := "stat"
	if len(path) > 0 {
		name = filepath.Join(append(path, name)...)
	}
	b, err := readAt(dir, name, s.buf[:maxStatBytes])
	if err != nil {
		return stat{}, gone(err)
	}
	return parseStat(b)
}

// parseStat parses /proc/PID/stat (proc(5)). The name of the command is in
// parentheses and may hold blanks, newlines and parentheses itself; nothing after
// it does.
func parseStat(b []byte) (st stat, err error) {
	open := bytes.IndexByte(b, '(')
	end := bytes.LastIndexByte(b, ')')
	if open < 0 || end < open {
		return st, errStat
	}
	comm := b[open+1 : end]
	rest := b[end+1:]
	const firstField = 3
	var flags uint64
	for field := firstField; field <= 23; field++ {
		rest = bytes.TrimLeft(rest, " ")
		var value []byte
		if i := bytes.IndexAny(rest, " \n"); i >= 0 {
			value, rest = rest[:i], rest[i:]
		} else {
			value, rest = rest, nil
		}
		var to *uint64
		var n uint64
		switch field {
		case firstField:
			if len(value) != 1 {
				return st, errStat
			}
			st.state = value[0]
			continue
		case 4:
			parent, err := strconv.ParseInt(string(value), 10, 32)
			if err != nil {
				return st, errStat
			}
			st.parent = PID(parent)
			continue
		case 9:
			to = &flags
		case 22:
			to = (*uint64)(&st.start)
		case 23:
			to = &st.vsize
		default:
			if len(value) == 0 {
				return st, errStat
			}
			continue
		}
		if n, err = strconv.ParseUint(string(value), 10, 64); err != nil {
			return st, errStat
		}
		*to = n
	}
	st.kernel = flags&pfKernelThread != 0
	if flags&pfWorkqueueWorker != 0 {
		comm = workerName(comm)
	}
	st.comm = string(bytes.ToValidUTF8(comm, []byte("\uFFFD")))
	return st, nil
}

// workerName removes what procfs appends to the name of a workqueue's worker, the
// work that it does at the moment: "kworker/0:1-events" is "kworker/0:1".
func workerName(comm []byte) []byte {
	if bytes.HasPrefix(comm, []byte("kworker/R-")) { // a rescuer: the name has a dash itself
		return comm
	}
	if i := bytes.IndexAny(comm, "-+"); i > 0 {
		return comm[:i]
	}
	return comm
}

// parseStatus takes the effective user id and the PID in the innermost PID
// namespace out of /proc/PID/status (proc(5)); -1 and 0 if they are not there.
func parseStatus(b []byte) (uid int64, inNS PID) {
	uid = -1
	for len(b) > 0 {
		line := b
		if i := bytes.IndexByte(b, '\n'); i >= 0 {
			line, b = b[:i], b[i+1:]
		} else {
			b = nil
		}
		if rest, ok := bytes.CutPrefix(line, []byte("Uid:")); ok {
			if f := bytes.Fields(rest); len(f) >= 2 {
				if n, err := strconv.ParseUint(string(f[1]), 10, 32); err == nil {
					uid = int64(n)
				}
			}
		} else if rest, ok := bytes.CutPrefix(line, []byte("NSpid:")); ok {
			if f := bytes.Fields(rest); len(f) > 0 {
				if n, err := strconv.ParseInt(string(f[len(f)-1]), 10, 32); err == nil && n > 0 {
					inNS = PID(n)
				}
			}
			return uid, inNS // after Uid
		}
	}
	return uid, inNS
}
