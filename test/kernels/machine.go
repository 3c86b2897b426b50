package main

import "path/filepath"

// machine is what differs from one architecture to another.
type machine struct {
	goarch   string
	triplet  string // GNU's, of libraries
	compiler string // of C
	tools    string // Debian's package of assembler and linker
	qemu     []string
	console  string // the serial port's device
}

var machines = map[string]machine{
	"amd64": {
		goarch: "amd64", triplet: "x86_64-linux-gnu", compiler: "gcc", tools: "binutils-x86-64-linux-gnu",
		qemu:    []string{"qemu-system-x86_64", "-cpu", "max"},
		console: "ttyS0",
	},
	"arm64": {
		goarch: "arm64", triplet: "aarch64-linux-gnu", compiler: "aarch64-linux-gnu-gcc", tools: "binutils-aarch64-linux-gnu",
		qemu:    []string{"qemu-system-aarch64", "-machine", "virt", "-cpu", "max,pauth-impdef=on"},
		console: "ttyAMA0",
	},
}

// packages are those of the programs that the tests run, and of their libraries.
func (m machine) packages() []string {
	return []string{
		"dash", "perl-base", "coreutils", "util-linux", "binutils", m.tools, // programs
		"libc6", "libgcc-s1", "libcrypt1", // of perl
		"libbinutils", "libctf0", "libctf-nobfd0", "libjansson4", "libzstd1", "zlib1g", // of the linker
	}
}

// files are those of the packages that the tests need, as patterns.
func (m machine) files() []string {
	files := []string{
		"bin/dash", "bin/sh", "bin/sleep", "bin/true",
		"usr/bin/perl", "usr/bin/nice", "usr/bin/taskset",
		"usr/bin/as", "usr/bin/ld", "usr/bin/" + m.triplet + "-as", "usr/bin/" + m.triplet + "-ld", "usr/bin/" + m.triplet + "-ld.bfd",
		"lib/ld-linux-*", "lib64/ld-linux-*",
	}
	for _, dir := range []string{"lib", "usr/lib"} {
		files = append(files, filepath.Join(dir, m.triplet, "*.so*"))
	}
	return files
}
