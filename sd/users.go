package sd

import (
	"bufio"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	maxPasswdBytes    = 4 << 20
	passwdCheckPeriod = 30 * time.Second
)

// hostUsers is shared by all: there is one file of users on a host, and
// ReadProcess is called for each of thousands of processes.
var hostUsers = &users{path: "/etc/passwd"}

// users knows the names of a passwd file (passwd(5)). It asks no name service,
// which could take as long as it liked. The file is read again when it has
// changed.
type users struct {
	path string

	mu      sync.Mutex
	checked time.Time // guarded by mu, as are the rest
	stamp   fileStamp
	names   map[int64]string
}

type fileStamp struct {
	modified time.Time
	size     int64
}

// name is the user's name, "" if it has none. A user in a container has the name
// that the host has for its number.
func (u *users) name(uid int64) string {
	if uid < 0 {
		return ""
	}
	now := time.Now()
	u.mu.Lock()
	fresh := !u.checked.IsZero() && now.Sub(u.checked) < passwdCheckPeriod
	if fresh {
		defer u.mu.Unlock()
		return u.names[uid]
	}
	u.checked = now // others go on with what is known
	stamp := u.stamp
	u.mu.Unlock()

	names, stamp, err := readPasswd(u.path, stamp)
	u.mu.Lock()
	defer u.mu.Unlock()
	if err == nil {
		u.names, u.stamp = names, stamp
	}
	return u.names[uid]
}

var errUnchanged = errors.New("the file has not changed")

func readPasswd(path string, known fileStamp) (map[int64]string, fileStamp, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, known, err
	}
	stamp := fileStamp{info.ModTime(), info.Size()}
	if stamp == known {
		return nil, known, errUnchanged
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, known, err
	}
	defer f.Close()
	names := map[int64]string{}
	sc := bufio.NewScanner(io.LimitReader(f, maxPasswdBytes))
	for sc.Scan() {
		fields := strings.SplitN(sc.Text(), ":", 4)
		if len(fields) < 4 {
			continue
		}
		uid, err := strconv.ParseUint(fields[2], 10, 32)
		if err != nil {
			continue
		}
		if _, dup := names[int64(uid)]; !dup { // the first entry counts, as for getpwuid(3)
			names[int64(uid)] = strings.ToValidUTF8(fields[0], "\uFFFD")
		}
	}
	return names, stamp, sc.Err()
}
