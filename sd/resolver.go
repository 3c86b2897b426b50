package sd

import (
	"context"
	"net"
	"net/netip"
	"strconv"
	"time"
)

// Bounds of what names of hosts may cost.
const (
	lookupTimeout  = 2 * time.Second
	lookupsTimeout = 10 * time.Second // of one scan, together
	foundLifetime  = time.Minute
	failedLifetime = 20 * time.Second
	maxNames       = 4096
	maxAddrsOfName = 64
)

// resolver turns the hosts of addresses into IP addresses and remembers them for a
// while. It is not safe for concurrent use.
type resolver struct {
	lookup func(context.Context, string) ([]netip.Addr, error)
	known  map[string]resolved
}

type resolved struct {
	addrs []netip.Addr
	until time.Time
}

// lookupHost asks the host's resolver.
func lookupHost(ctx context.Context, host string) ([]netip.Addr, error) {
	return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
}

// resolve takes addresses of the form host:port. A host that is not known now is
// asked for again at a later call.
func (r *resolver) resolve(ctx context.Context, addresses []string) wantedAddrs {
	ctx, cancel := context.WithTimeout(ctx, lookupsTimeout)
	defer cancel()
	if len(r.known) > maxNames || r.known == nil {
		r.known = map[string]resolved{}
	}
	out := wantedAddrs{}
	for _, text := range addresses {
		host, portText, err := net.SplitHostPort(text)
		if err != nil {
			continue
		}
		port, err := strconv.ParseUint(portText, 10, 16)
		if err != nil {
			continue
		}
		for _, a := range r.host(ctx, host) {
			out[uint16(port)] = append(out[uint16(port)], wantedAddr{a.Unmap().WithZone(""), text})
		}
	}
	return out
}

func (r *resolver) host(ctx context.Context, host string) []netip.Addr {
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a}
	}
	if host == "localhost" {
		return []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}
	}
	now := time.Now()
	old, ok := r.known[host]
	if ok && now.Before(old.until) {
		return old.addrs
	}
	if ctx.Err() != nil || len(r.known) >= maxNames {
		return old.addrs
	}
	one, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	addrs, err := r.lookup(one, host)
	if err != nil {
		// What was known goes on to count: a server of names that is away for a while
		// does not end profiling.
		r.known[host] = resolved{old.addrs, now.Add(failedLifetime)}
		return old.addrs
	}
	addrs = addrs[:min(len(addrs), maxAddrsOfName)]
	r.known[host] = resolved{addrs, now.Add(foundLifetime)}
	return addrs
}
