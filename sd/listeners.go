package sd

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	maxNamespaces  = 1 << 14
	maxDescriptors = 1 << 17 // looked at of one process
	// maxNewOwners bounds what is kept between two scans of processes that were not
	// there at the first.
	maxNewOwners = 1 << 14
)

// procKey is the identity of a process.
type procKey struct {
	pid   PID
	start StartTicks
}

// listenTable says which processes listen on the addresses of targets. It is
// immutable.
type listenTable struct {
	inodes map[uint64][]string  // listening socket → addresses as targets give them
	owners map[procKey][]string // process → addresses
}

func (t *listenTable) equal(o *listenTable) bool {
	return maps.EqualFunc(t.owners, o.owners, slices.Equal[[]string])
}

// listeners keeps the table of listening processes.
type listeners struct {
	procfs string
	names  resolver // used by scan alone, which is not called concurrently

	mu    sync.Mutex
	table *listenTable         // guarded by mu
	newer map[procKey][]string // guarded by mu; processes that the table does not know
}

func newListeners(procfs string, lookup func(context.Context, string) ([]netip.Addr, error)) *listeners {
	return &listeners{procfs: procfs, names: resolver{lookup: lookup}, table: &listenTable{}, newer: map[procKey][]string{}}
}

// of returns the addresses of targets that a process listens on. A process that
// is newer than the table is looked at: it may have inherited its sockets.
func (l *listeners) of(p *Process) []string {
	key := procKey{p.PID, p.Start}
	l.mu.Lock()
	table := l.table
	addresses, known := table.owners[key]
	if !known {
		addresses, known = l.newer[key]
	}
	l.mu.Unlock()
	if known || len(table.inodes) == 0 || p.Kernel {
		return addresses
	}
	addresses = ownedAddresses(l.procfs, p.PID, table.inodes)
	if start, err := ReadStart(l.procfs, p.PID); err != nil || start != p.Start {
		return nil // it is another process that was looked at
	}
	l.mu.Lock()
	if l.table == table && len(l.newer) < maxNewOwners {
		l.newer[key] = addresses
	}
	l.mu.Unlock()
	return addresses
}

// any says whether the table knows anybody.
func (l *listeners) any() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.table.owners) > 0
}

// scan looks all namespaces through for listeners on the addresses (host:port) and
// says whether who listens has changed.
func (l *listeners) scan(ctx context.Context, addresses []string) (changed bool, err error) {
	next := &listenTable{inodes: map[uint64][]string{}, owners: map[procKey][]string{}}
	if len(addresses) > 0 {
		wanted := l.names.resolve(ctx, addresses)
		if err = l.fill(ctx, next, wanted); err != nil {
			return false, err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	changed = !l.table.equal(next)
	l.table, l.newer = next, map[procKey][]string{}
	return changed, nil
}

// wantedAddrs are the addresses that are looked for, by port.
type wantedAddrs map[uint16][]wantedAddr

type wantedAddr struct {
	addr netip.Addr
	text string // as the target gives it
}

func (l *listeners) fill(ctx context.Context, t *listenTable, wanted wantedAddrs) error {
	pids, err := listPIDs(l.procfs)
	if err != nil {
		return err
	}
	// The namespace of the host is that of its first process, and the agent's own
	// may be another: what a loopback address means is the same in both.
	home := map[uint64]bool{}
	for _, link := range []string{filepath.Join(l.procfs, "1/ns/net"), filepath.Join(l.procfs, "self/ns/net")} {
		if ns, err := os.Readlink(link); err == nil {
			home[namespaceInode([]byte(ns))] = true
		}
	}
	spaces := map[uint64]bool{}
	for _, pid := range pids {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		ns, err := os.Readlink(filepath.Join(l.procfs, strconv.Itoa(int(pid)), "ns/net"))
		if err != nil {
			continue
		}
		inode := namespaceInode([]byte(ns))
		if spaces[inode] || len(spaces) == maxNamespaces {
			continue
		}
		// A process that ends meanwhile leaves its namespace to the next in it.
		if matchNamespace(netNSOf(l.procfs, pid), home[inode], wanted, t.inodes) == nil {
			spaces[inode] = true
		}
	}
	if len(t.inodes) == 0 {
		return nil
	}
	for _, pid := range pids {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		l.fillOwner(t, pid)
	}
	dropActivator(t)
	return nil
}

func (l *listeners) fillOwner(t *listenTable, pid PID) {
	owned := ownedAddresses(l.procfs, pid, t.inodes)
	if len(owned) == 0 {
		return
	}
	if start, err := ReadStart(l.procfs, pid); err == nil {
		t.owners[procKey{pid, start}] = owned
	}
}

// dropActivator takes the addresses from the host's first process that others
// listen on as well: it opens sockets for the services that it starts.
func dropActivator(t *listenTable) {
	var init procKey
	served := map[string]bool{}
	for key, addresses := range t.owners {
		if key.pid == 1 {
			init = key
			continue
		}
		for _, a := range addresses {
			served[a] = true
		}
	}
	if init.pid == 0 {
		return
	}
	left := slices.DeleteFunc(slices.Clone(t.owners[init]), func(a string) bool { return served[a] })
	// It stays in the table, so that it is not looked at again as a new process.
	t.owners[init] = left
}

// matchNamespace enters the listening sockets of a namespace that are wanted.
func matchNamespace(ns netNS, home bool, wanted wantedAddrs, inodes map[uint64][]string) error {
	var local []netip.Prefix
	var localErr error
	read := false
	isLocal := func(a netip.Addr) bool {
		if a.IsLoopback() {
			return home
		}
		if !read {
			local, localErr = ns.addresses()
			read = true
		}
		return slices.ContainsFunc(local, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	err := ns.listeners(func(s socket) {
		for _, w := range wanted[s.addr.Port()] {
			if listensOn(s.addr.Addr(), w.addr) && isLocal(w.addr) && !slices.Contains(inodes[s.inode], w.text) {
				inodes[s.inode] = append(inodes[s.inode], w.text)
			}
		}
	})
	return errors.Join(err, localErr)
}

// listensOn says whether a socket bound to an address takes connections to
// another. One bound to the unspecified IPv6 address is taken to serve IPv4 too,
// as it does unless its program asked otherwise, which procfs does not show.
func listensOn(bound, addr netip.Addr) bool {
	if bound.IsUnspecified() {
		return bound.Is6() || addr.Is4()
	}
	return bound == addr
}

// ownedAddresses looks through the descriptors of a process for listening sockets.
func ownedAddresses(procfs string, pid PID, inodes map[uint64][]string) []string {
	dir, err := os.Open(filepath.Join(procfs, strconv.Itoa(int(pid)), "fd"))
	if err != nil {
		return nil
	}
	defer dir.Close()
	var out []string
	var buf [64]byte
	for n := 0; n < maxDescriptors; {
		names, err := dir.Readdirnames(1024)
		for _, name := range names {
			k, err := unix.Readlinkat(int(dir.Fd()), name, buf[:])
			if err != nil || k == len(buf) {
				continue
			}
			for _, a := range inodes[bracketed(buf[:k], "socket:[")] {
				if !slices.Contains(out, a) {
					out = append(out, a)
				}
			}
		}
		n += len(names)
		if err != nil || len(names) == 0 {
			break
		}
	}
	slices.Sort(out)
	return out
}
