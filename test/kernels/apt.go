package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// keyring is what Debian signs its archive with; the package debian-archive-keyring has
// it.
const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// listsAge is how old a suite's list of packages may become.
const listsAge = 24 * time.Hour

// machineMirror is the address of Debian's archive in this machine's apt configuration.
func machineMirror(ctx context.Context) (string, error) {
	out, err := output(ctx, "", "apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Label: Debian")
	if err != nil {
		return "", err
	}
	uri, _, _ := strings.Cut(out, "\n")
	if uri == "" {
		return "", errors.New("apt knows no archive of Debian (apt-get update)")
	}
	return uri, nil
}

// apt downloads packages of one suite and one architecture, with a configuration, lists
// and a cache of its own.
type apt struct {
	mirror, suite, architecture string
	dir                         string // where all of it is
}

func (a *apt) path(names ...string) string {
	return filepath.Join(append([]string{a.dir}, names...)...)
}

// options are those of the apt programs.
func (a *apt) options() []string {
	settings := []string{
		"APT::Architecture=" + a.architecture,
		"APT::Architectures=" + a.architecture,
		"APT::Sandbox::User=root", // our folders are not for the user _apt
		"Dir::Etc::SourceList=" + a.path("sources.list"),
		"Dir::Etc::SourceParts=/dev/null",
		"Dir::State::Lists=" + a.path("lists"),
		"Dir::State::Status=/dev/null",
		"Dir::Cache=" + a.path("cache"),
		"Acquire::Languages=none",
		"Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false",
	}
	var args []string
	for _, s := range settings {
		args = append(args, "-o", s)
	}
	return append(args, "-q")
}

// update fetches the list of packages, if it is not there or old.
func (a *apt) update(ctx context.Context) error {
	stamp := a.path("updated")
	if info, err := os.Stat(stamp); err == nil && time.Since(info.ModTime()) < listsAge {
		return nil
	}
	for _, d := range []string{"lists/partial", "cache/archives/partial", "packages"} {
		if err := os.MkdirAll(a.path(d), 0o755); err != nil {
			return err
		}
	}
	source := fmt.Sprintf("deb [signed-by=%s] %s %s main\n", keyring, a.mirror, a.suite)
	if err := os.WriteFile(a.path("sources.list"), []byte(source), 0o600); err != nil {
		return err
	}
	fmt.Printf("fetching the list of packages of %s (%s)\n", a.suite, a.architecture)
	if _, err := output(ctx, "", "apt-get", append(a.options(), "update")...); err != nil {
		return err
	}
	return os.WriteFile(stamp, nil, 0o600)
}

// unpack downloads packages and unpacks them into a folder, whose path it returns. It
// does nothing if the same versions were unpacked before.
func (a *apt) unpack(ctx context.Context, folder string, packages ...string) (string, error) {
	if err := a.update(ctx); err != nil {
		return "", err
	}
	out, err := output(ctx, a.path("packages"), "apt-get", slices.Concat(a.options(), []string{"--print-uris", "download"}, packages)...)
	if err != nil {
		return "", err
	}
	// 'URI' FILE SIZE SUM
	var files []string
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) >= 3 && strings.HasPrefix(f[0], "'") {
			files = append(files, f[1])
		}
	}
	if len(files) != len(packages) {
		return "", fmt.Errorf("%d packages are wanted, apt names %d files: %s", len(packages), len(files), out)
	}
	dir, done := a.path(folder), a.path(folder+".unpacked")
	want := strings.Join(files, "\n")
	if have, err := os.ReadFile(done); err == nil && string(have) == want {
		return dir, nil
	}
	fmt.Printf("fetching of %s: %s\n", a.suite, strings.Join(packages, " "))
	if _, err := output(ctx, a.path("packages"), "apt-get", slices.Concat(a.options(), []string{"download"}, packages)...); err != nil {
		return "", err
	}
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	for _, f := range files {
		if _, err := output(ctx, a.path("packages"), "dpkg-deb", "--extract", f, dir); err != nil {
			return "", err
		}
		if err := os.Remove(a.path("packages", f)); err != nil { // the folder has it all
			return "", err
		}
	}
	return dir, os.WriteFile(done, []byte(want), 0o600)
}

// imagePackage matches the packages that a kernel's image may be in.
var imagePackage = regexp.MustCompile(`\blinux-(image|binary)-[a-z0-9.+-]+`)

// kernel downloads the suite's kernel for virtual machines and returns the path of its
// image.
func (a *apt) kernel(ctx context.Context) (string, error) {
	if err := a.update(ctx); err != nil {
		return "", err
	}
	// The package that has no version in its name depends on the one that has, and that
	// since Linux 7 on one with the image.
	for name := "linux-image-cloud-" + a.architecture; name != ""; {
		out, err := output(ctx, "", "apt-cache", append(a.options(), "show", "--no-all-versions", name)...)
		if err != nil {
			return "", err
		}
		depends := ""
		for line := range strings.Lines(out) {
			if rest, ok := strings.CutPrefix(line, "Depends:"); ok {
				depends = rest
			}
		}
		next := imagePackage.FindString(depends)
		if next == "" {
			return a.image(ctx, name)
		}
		name = next
	}
	panic("unreachable")
}

// image finds the image in its package.
func (a *apt) image(ctx context.Context, name string) (string, error) {
	dir, err := a.unpack(ctx, "kernel", name)
	if err != nil {
		return "", err
	}
	var found []string
	for _, pattern := range []string{"boot/vmlinuz-*", "usr/lib/modules/*/vmlinuz"} {
		more, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return "", err
		}
		found = append(found, more...)
	}
	if len(found) != 1 {
		return "", fmt.Errorf("%s of %s has %d images, want one: %v", name, a.suite, len(found), found)
	}
	return found[0], nil
}

// output runs a program to its end and returns what it printed.
func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s%s", name, strings.Join(args, " "), err, out, stderr.String())
	}
	return string(out), nil
}
