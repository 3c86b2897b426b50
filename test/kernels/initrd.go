package main

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spanflame/spanflame/test/harness"
)

// workloads are the programs that the truth tests profile.
var workloads = []string{"split-static", "deep-static", "signals-static", "waits-static", "fakepython-static"}

// testDir is where the tests and what they need are in the virtual machine.
const testDir = "spanflame"

// makeInitrd builds everything of this tree that runs in the virtual machine, and packs it
// with the programs of a folder into an initial RAM disk.
func makeInitrd(ctx context.Context, m machine, programs, build, out string) error {
	if err := os.MkdirAll(build, 0o755); err != nil {
		return err
	}
	fmt.Printf("building the tests for %s\n", m.goarch)
	built := []struct {
		name string
		args []string
	}{
		{"init", []string{"build", "./test/kernels/init"}},
		{"spanflame", []string{"build", "./cmd/agent"}},
		{"ebpfspy.test", []string{"test", "-c", "./ebpfspy"}},
		{"truth.test", []string{"test", "-c", "./test/truth"}},
	}
	root, err := harness.Root()
	if err != nil {
		return err
	}
	files := map[string]string{} // path in the disk → path here
	for _, b := range built {
		path := filepath.Join(build, b.name)
		args := slices.Concat([]string{"CGO_ENABLED=0", "GOOS=linux", "GOARCH=" + m.goarch, "go"}, b.args[:len(b.args)-1],
			[]string{"-trimpath", "-ldflags=-s -w", "-o", path}, b.args[len(b.args)-1:])
		if _, err := output(ctx, root, "env", args...); err != nil {
			return err
		}
		files[filepath.Join(testDir, b.name)] = path
	}
	files["init"] = files[filepath.Join(testDir, "init")]
	delete(files, filepath.Join(testDir, "init"))
	for _, w := range workloads {
		path := filepath.Join(build, w)
		if err := harness.CompileWorkload(m.compiler, w, path); err != nil {
			return err
		}
		files[filepath.Join(testDir, w)] = path
	}
	for _, pattern := range m.files() {
		found, err := filepath.Glob(filepath.Join(programs, pattern))
		if err != nil {
			return err
		}
		for _, f := range found {
			files[strings.TrimPrefix(f, programs+"/")] = f
		}
	}
	return writeArchive(out, files)
}

// writeArchive packs files and symbolic links, and the folders that they are in, into a
// compressed archive.
func writeArchive(out string, files map[string]string) (err error) {
	f, err := os.Create(out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	packed, err := gzip.NewWriterLevel(f, gzip.BestSpeed) // the machine that unpacks is slow
	if err != nil {
		return err
	}
	a := &archive{w: packed}
	folders := map[string]bool{}
	var names []string
	for name := range files {
		names = append(names, name)
		for d := filepath.Dir(name); d != "."; d = filepath.Dir(d) {
			folders[d] = true
		}
	}
	for d := range folders {
		names = append(names, d)
	}
	slices.Sort(names) // a folder comes before what is in it
	for _, name := range names {
		if folders[name] {
			err = a.add(name, 0o040755, nil)
		} else {
			err = a.addFile(name, files[name])
		}
		if err != nil {
			return fmt.Errorf("pack %s: %w", name, err)
		}
	}
	return errors.Join(a.add("TRAILER!!!", 0, nil), packed.Close())
}

// archive writes the format "newc" of cpio(5), which the kernel unpacks
// (Documentation/driver-api/early-userspace/buffer-format.rst).
type archive struct {
	w    io.Writer
	inos int
}

// addFile adds a file or a symbolic link.
func (a *archive) addFile(name, path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	switch {
	case info.Mode().IsRegular():
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return a.add(name, 0o100755, b)
	case info.Mode()&fs.ModeSymlink != 0:
		to, err := os.Readlink(path)
		if err != nil {
			return err
		}
		return a.add(name, 0o120777, []byte(to))
	}
	return fmt.Errorf("%s is neither a file nor a symbolic link", path)
}

// add writes an entry: a header of 13 numbers of 8 hexadecimal digits behind the magic
// number, the name and the content, each filled up to 4 bytes.
func (a *archive) add(name string, mode int, content []byte) error {
	a.inos++
	header := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
		a.inos, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name)+1, 0)
	entry := []byte(header + name + "\x00")
	for _, part := range [][]byte{entry, content} {
		if _, err := a.w.Write(append(part, make([]byte, -len(part)&3)...)); err != nil {
			return err
		}
	}
	return nil
}
