package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"time"
)

// kernelAddresses are addresses of functions of the kernel.
func kernelAddresses() ([]uint64, error) {
	f, err := os.Open("/proc/kallsyms")
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read from
	var all []uint64
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		w := strings.Fields(sc.Text())
		if len(w) < 3 || !strings.Contains("tT", w[1]) {
			continue
		}
		if a, err := strconv.ParseUint(w[0], 16, 64); err == nil && a>>63 == 1 {
			all = append(all, a)
		}
	}
	if err := sc.Err(); err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no addresses in /proc/kallsyms")
	}
	r := rand.New(rand.NewPCG(1, 2))
	out := make([]uint64, 2048) // what a busy host has sampled
	for i := range out {
		out[i] = all[r.IntN(len(all))]
	}
	return out, nil
}

// readKallsyms is the least time to read the list and do nothing with it.
func readKallsyms(repeats int) (time.Duration, error) {
	best := time.Duration(0)
	buf := make([]byte, 128<<10)
	for range repeats {
		f, err := os.Open("/proc/kallsyms")
		if err != nil {
			return 0, err
		}
		start := time.Now()
		for err == nil {
			_, err = f.Read(buf)
		}
		took := time.Since(start)
		_ = f.Close() // only read from
		if !errors.Is(err, io.EOF) {
			return 0, err
		}
		if best == 0 || took < best {
			best = took
		}
	}
	return best, nil
}
