#!/bin/sh
# Builds the test server: build.sh OUTPUT. See README.md for why it takes these flags.
set -eu
[ $# -eq 1 ] || { echo "usage: $0 OUTPUT" >&2; exit 2; }
case $1 in /*) out=$1 ;; *) out=$PWD/$1 ;; esac
cd "$(dirname "$0")"
exec go build -mod=mod -p 2 -tags purego -o "$out" .
