#!/usr/bin/env bash
# Installs the Debian packages that the tests need: only those that are missing. As root, or
# through sudo. Services are neither started nor enabled. With an argument, those of
#   bench           the programs that bench/unwind measures, as far as they can be had
#   kernels         the tests on other kernels (amd64)
#   kernels-arm64   those on arm64 kernels
set -euo pipefail

# package: what it is for
needed=(
  clang-19        # BPF objects
  llvm-19         # llvm-strip-19; llvm-addr2line-19 and llvm-dwarfdump-19, oracles
  lld-19          # arm64 programs for the tests of unwinding
  libbpf-dev      # bpf_helpers.h and its like
  bpftool         # statistics of BPF programs, in bench
  bpftrace        # oracle of off-CPU profiles
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

# program=package
measured=(
  nginx=nginx-light redis-server=redis-server redis-benchmark=redis-tools curl=curl node=nodejs
  perl=perl openssl=openssl xz=xz-utils zstd=zstd g++=g++ rustc=rustc javac=default-jdk-headless
  /usr/lib/postgresql/*/bin/pgbench=postgresql
)

case ${1:-} in
  '' | bench) ;;
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
    echo "usage: $0 [bench|kernels|kernels-arm64]" >&2
    exit 2 ;;
esac

if ! command -v dpkg-query >/dev/null; then
  echo "test-deps: this is no Debian; the tests need the programs of these packages: ${needed[*]}" >&2
  exit 0
fi

missing=()
if [[ ${1:-} == bench ]]; then
  for m in "${measured[@]}"; do
    # A path is a pattern.
    command -v ${m%=*} >/dev/null || missing+=("${m#*=}")
  done
else
  for p in "${needed[@]}"; do
    # The state is "install ok installed"; a removed package is known, too.
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null || true) == installed ]] || missing+=("$p")
  done
fi
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
install() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get -q -y -o Dpkg::Use-Pty=0 --no-install-recommends install "$@" </dev/null
}

echo "test-deps: installing ${missing[*]}"
"${as_root[@]}" apt-get -q update </dev/null
if [[ ${1:-} != bench ]]; then
  install "${missing[@]}"
  exit 0
fi

# Packages ask this program whether they may start their services (invoke-rc.d).
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
  trap '"${as_root[@]}" rm -f "$policy"' EXIT
  printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" env install -m 755 /dev/stdin "$policy"
fi
for p in "${missing[@]}"; do
  if ! install "$p"; then
    echo "test-deps: $p cannot be had; what it is of is left out" >&2
  elif command -v systemctl >/dev/null; then # else they would start with the machine
    for unit in nginx redis-server postgresql; do
      [[ $p != "$unit"* ]] || "${as_root[@]}" systemctl -q disable "$unit"
    done
  fi
done
