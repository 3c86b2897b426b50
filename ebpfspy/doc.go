// Package ebpfspy is the session: it loads the kernel programs, follows the
// host's processes, and round by round turns what the kernel counted into samples
// with named frames, each with its target. It never writes to a process, never
// stops one, and never sends anything anywhere.
//
// # Rounds
//
// Two sets of kernel maps take turns. CollectProfiles lets the kernel fill the
// other set, waits until no program that saw the old one runs (an RCU grace
// period), and has the old set for itself. So the counts of a round are frozen
// before they are read, and the equation
//
//	taken = counted + dropped in the kernel
//
// is checked for each round to the sample.
//
// # Which program a sample was taken in
//
// The kernel counts under (tgid, start time, exec id). Events of fork, exec and
// exit carry the same three numbers; the perf side-band tells which files a
// process maps, and when. Both are applied in the order of their time, so that
// the mappings of a process are known after it has ended, and those of a program
// after its process has taken up another one.
//
// A mapping that was put over another within a round makes addresses in it
// ambiguous; those frames are left without a name.
package ebpfspy
