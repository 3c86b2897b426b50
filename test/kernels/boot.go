package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

const (
	// silence is how long a virtual machine may say nothing.
	silence = 3 * time.Minute
	// limit is how long it may take in all.
	limit = 20 * time.Minute
)

// boot runs the tests on a kernel, and reads the results from the console, which it keeps
// in a file.
func boot(ctx context.Context, m machine, s suite, image, initrd, pattern, log string, copyTo io.Writer) *result {
	r := newResult(s)
	fmt.Printf("booting the kernel of %s\n", s.name)
	began := time.Now()
	if err := r.read(ctx, m, image, initrd, pattern, log, copyTo); err != nil {
		r.problem("%v (the console is in %s)", err, log)
	}
	r.took = time.Since(began)
	r.finish(pattern != "")
	return r
}

func (r *result) read(ctx context.Context, m machine, image, initrd, pattern, log string, copyTo io.Writer) error {
	file, err := os.Create(log)
	if err != nil {
		return err
	}
	defer file.Close()
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("the virtual machine did not end within %s", limit))
	defer cancel()
	ctx, tooSilent := context.WithCancelCause(ctx)
	defer tooSilent(nil)
	commandLine := "console=" + m.console + " quiet panic=-1"
	if pattern != "" {
		commandLine += " -- " + pattern
	}
	// The kernel's own lines would come in between those of the tests; init prints them at
	// the end.
	//
	// One thread emulates both processors: with a thread each, QEMU may go on with an
	// instruction that the other processor has replaced. Linux 5.10 then runs the same int3
	// for ever, in the scheduler, when a tracepoint is attached.
	args := slices.Concat(m.qemu[1:], []string{"-accel", "tcg,thread=single", "-smp", "2", "-m", "1024", "-nic", "none",
		"-display", "none", "-monitor", "none", "-serial", "stdio", "-no-reboot",
		"-kernel", image, "-initrd", initrd, "-append", commandLine})
	cmd := exec.CommandContext(ctx, m.qemu[0], args...)
	cmd.Stderr = file
	console, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the virtual machine (make test-deps-kernels): %w", err)
	}
	alarm := time.AfterFunc(silence, func() {
		tooSilent(fmt.Errorf("the virtual machine said nothing for %s", silence))
	})
	defer alarm.Stop()
	lines := bufio.NewScanner(console)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		alarm.Reset(silence)
		line := strings.TrimRight(lines.Text(), "\r")
		fmt.Fprintln(file, line)
		fmt.Fprintln(copyTo, line)
		r.line(line)
	}
	err = errors.Join(lines.Err(), cmd.Wait())
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}
