#!/usr/bin/env bash
# Runs every fuzz target of the module for a time each: fuzz.sh 10s
set -euo pipefail
cd "$(dirname "$0")/.."
time=${1:-10s}

grep -rEo --include='*_test.go' --exclude-dir=node_modules '^func Fuzz[A-Za-z0-9_]*' . | sort |
  while IFS=: read -r file func; do
    echo "fuzz: ${func#func } in $(dirname "$file") for $time"
    go test -run '^$' -fuzz "^${func#func }\$" -fuzztime "$time" "$(dirname "$file")"
  done
