#!/usr/bin/env bash
# Unpacks the CPythons that the tests profile, those of Debian's suites, each with the
# libraries that it needs, into folders that a program can have as its root:
# .cache/pythons/SUITE/files. Nothing is installed. apt checks what it fetches against the
# archive's signed lists.
set -euo pipefail
cd "$(dirname "$0")/.."

# suite: version, and the package of libffi
suites=(bullseye=3.9=libffi7 bookworm=3.11=libffi8 trixie=3.13=libffi8 sid=3.14=libffi8)
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | head -n 1)
if [[ -z $mirror ]]; then
  echo "test-pythons: apt knows no archive of Debian (apt-get update)" >&2
  exit 1
fi

for s in "${suites[@]}"; do
  IFS='=' read -r suite version ffi <<<"$s"
  dir=$PWD/.cache/pythons/$suite
  [[ -x $dir/files/usr/bin/python$version ]] && continue
  echo "test-pythons: fetching python$version of $suite"
  rm -rf "$dir"
  mkdir -p "$dir"/{lists,cache/archives}/partial "$dir/packages"
  echo "deb [signed-by=$keyring] $mirror $suite main" >"$dir/sources.list"
  options=(
    -q -o APT::Architecture=amd64 -o APT::Architectures=amd64 -o APT::Sandbox::User=root
    -o "Dir::Etc::SourceList=$dir/sources.list" -o Dir::Etc::SourceParts=/dev/null
    -o "Dir::State::Lists=$dir/lists" -o Dir::State::Status=/dev/null -o "Dir::Cache=$dir/cache"
    -o Acquire::Languages=none
  )
  apt-get "${options[@]}" update >/dev/null
  (cd "$dir/packages" && apt-get "${options[@]}" download "libpython$version-minimal" "libpython$version-stdlib" \
    "python$version-minimal" libc6 libgcc-s1 zlib1g libexpat1 "$ffi" >/dev/null)
  for p in "$dir"/packages/*.deb; do
    dpkg-deb --extract "$p" "$dir/unpacked"
  done
  # Older packages have files in /lib, which newer ones have in /usr/lib.
  if [[ ! -e $dir/unpacked/lib64 ]]; then
    ln -s usr/lib "$dir/unpacked/lib"
    ln -s usr/lib64 "$dir/unpacked/lib64"
  fi
  mv "$dir/unpacked" "$dir/files"
  rm -rf "$dir/packages" "$dir/lists" "$dir/cache"
done
