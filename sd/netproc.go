package sd

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
)

// Bounds of what is read of one network namespace.
const (
	maxListenRows  = 1 << 16
	maxFibBytes    = 32 << 20
	maxLocalRanges = 1 << 14
)

// socket is a listening TCP socket.
type socket struct {
	addr  netip.AddrPort // unspecified: all addresses of its family, and for IPv6 both
	inode uint64
}

// stateListen is TCP_LISTEN (the kernel's include/net/tcp_states.h).
const stateListen = "0A"

// parseListeners calls f for each listening socket in a /proc/PID/net/tcp or tcp6
// file. The kernel writes those first: the first other one ends the list, however
// many connections there are.
func parseListeners(r io.Reader, f func(socket)) error {
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 0, 4<<10), 4<<10)
	sc.Scan() // the names of the columns
	for n := 0; n < maxListenRows && sc.Scan(); n++ {
		fields := bytes.Fields(sc.Bytes())
		if len(fields) < 10 {
			continue
		}
		if string(fields[3]) != stateListen {
			break
		}
		addr, ok := parseHexAddr(fields[1])
		inode, err := strconv.ParseUint(string(fields[9]), 10, 64)
		if ok && err == nil && inode != 0 {
			f(socket{addr, inode})
		}
	}
	return sc.Err()
}

// parseHexAddr parses "0100007F:1F90": the address in words of the machine's
// byte order, the port as a number.
func parseHexAddr(b []byte) (netip.AddrPort, bool) {
	host, port, ok := bytes.Cut(b, []byte{':'})
	if !ok || (len(host) != 8 && len(host) != 32) {
		return netip.AddrPort{}, false
	}
	p, err := strconv.ParseUint(string(port), 16, 16)
	if err != nil {
		return netip.AddrPort{}, false
	}
	var raw [16]byte
	n, err := hex.Decode(raw[:], host)
	if err != nil {
		return netip.AddrPort{}, false
	}
	for i := 0; i < n; i += 4 {
		binary.NativeEndian.PutUint32(raw[i:], binary.BigEndian.Uint32(raw[i:]))
	}
	addr, _ := netip.AddrFromSlice(raw[:n])
	return netip.AddrPortFrom(addr.Unmap(), uint16(p)), true
}

// parseFibTrie calls f for each range of IPv4 addresses that are local to a
// network namespace, as /proc/PID/net/fib_trie shows them:
//
//	|-- 192.0.2.2
//	   /32 host LOCAL
func parseFibTrie(r io.Reader, f func(netip.Prefix)) error {
	sc := bufio.NewScanner(io.LimitReader(r, maxFibBytes))
	sc.Buffer(make([]byte, 0, 4<<10), 4<<10)
	var addr netip.Addr
	for n := 0; n < maxLocalRanges && sc.Scan(); {
		line := bytes.TrimSpace(sc.Bytes())
		if rest, ok := bytes.CutPrefix(line, []byte("|-- ")); ok {
			addr, _ = netip.ParseAddr(string(rest))
			continue
		}
		if rest, ok := bytes.CutSuffix(line, []byte(" host LOCAL")); ok && addr.IsValid() && len(rest) > 1 && rest[0] == '/' {
			bits, err := strconv.Atoi(string(rest[1:]))
			if prefix := netip.PrefixFrom(addr, bits); err == nil && prefix.IsValid() {
				f(prefix)
				n++
			}
		}
	}
	return sc.Err()
}

// parseIfInet6 calls f for each IPv6 address of a /proc/PID/net/if_inet6 file.
func parseIfInet6(r io.Reader, f func(netip.Prefix)) error {
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 0, 4<<10), 4<<10)
	for n := 0; n < maxLocalRanges && sc.Scan(); n++ {
		fields := bytes.Fields(sc.Bytes())
		var raw [16]byte
		if len(fields) < 6 || len(fields[0]) != 32 {
			continue
		}
		if _, err := hex.Decode(raw[:], fields[0]); err == nil {
			f(netip.PrefixFrom(netip.AddrFrom16(raw), 128))
		}
	}
	return sc.Err()
}

// netNS reads the network namespace of a process through procfs, for which
// neither entering it nor a privilege is needed but that of seeing the process.
type netNS struct{ dir string }

func netNSOf(procfs string, pid PID) netNS {
	return netNS{filepath.Join(procfs, strconv.Itoa(int(pid)), "net")}
}

func (n netNS) listeners(f func(socket)) error {
	if err := n.read("tcp", func(r io.Reader) error { return parseListeners(r, f) }); err != nil {
		return err
	}
	err := n.read("tcp6", func(r io.Reader) error { return parseListeners(r, f) })
	if os.IsNotExist(err) { // a kernel or a host without IPv6
		return nil
	}
	return err
}

// addresses are the ranges that are local to the namespace.
func (n netNS) addresses() ([]netip.Prefix, error) {
	var out []netip.Prefix
	add := func(p netip.Prefix) { out = append(out, p) }
	err4 := n.read("fib_trie", func(r io.Reader) error { return parseFibTrie(r, add) })
	err6 := n.read("if_inet6", func(r io.Reader) error { return parseIfInet6(r, add) })
	if len(out) > 0 {
		return out, nil
	}
	if err4 != nil {
		return nil, err4
	}
	return nil, err6
}

func (n netNS) read(name string, f func(io.Reader) error) error {
	file, err := os.Open(filepath.Join(n.dir, name))
	if err != nil {
		return err
	}
	defer file.Close()
	return f(file)
}
