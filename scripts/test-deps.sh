#!/usr/bin/env bash
# Installs the Debian packages that the tests need: only those that are missing.
# As root, or through sudo. With the argument "kernels", those of the tests on other
# kernels (amd64), with "kernels-arm64" those of arm64 kernels.
set -euo pipefail

# package: what it is for
needed=(
  clang-19        # BPF objects
  llvm-19         # llvm-strip-19; llvm-addr2line-19 and llvm-dwarfdump-19, oracles
  lld-19          # arm64 programs for the tests of unwinding
  libbpf-dev      # bpf_helpers.h and its like
  bpftool         # statistics of BPF programs, in bench
  gcc g++ libc6-dev # programs that tests profile; cgo, for the race detector
  binutils        # addr2line, nm, objcopy, strip, readelf: oracles and test data
  elfutils        # eu-strip and eu-readelf
  gdb             # oracle of unwinding
  dwz             # common files of debugging information
  xz-utils        # MiniDebugInfo
  util-linux      # unshare, setpriv, taskset
  iproute2        # network namespaces
  chromium        # the page
)

case ${1:-} in
  '') ;;
  kernels)
    needed=(
      qemu-system-x86         # the virtual machines
      gcc libc6-dev           # programs that tests profile
      debian-archive-keyring  # signatures of the suites that the kernels are from
    ) ;;
  kernels-arm64)
    needed=(
      qemu-system-arm
      gcc-aarch64-linux-gnu libc6-dev-arm64-cross
      debian-archive-keyring
    ) ;;
  *)
    echo "usage: $0 [kernels|kernels-arm64]" >&2
    exit 2 ;;
esac

if ! command -v dpkg-query >/dev/null; then
  echo "test-deps: this is no Debian; the tests need the programs of these packages: ${needed[*]}" >&2
  exit 0
fi

missing=()
for p in "${needed[@]}"; do
  # The state is "install ok installed"; a removed package is known, too.
  [[ $(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null || true) == installed ]] || missing+=("$p")
done
if ((${#missing[@]} == 0)); then
  exit 0
fi

as_root=()
if ((EUID != 0)); then
  if ! command -v sudo >/dev/null; then
    echo "test-deps: missing: ${missing[*]}. Run this as root, or install them: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
echo "test-deps: installing ${missing[*]}"
"${as_root[@]}" apt-get -q update </dev/null
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
  apt-get -q -y -o Dpkg::Use-Pty=0 --no-install-recommends install "${missing[@]}" </dev/null
