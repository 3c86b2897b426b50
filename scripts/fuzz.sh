#!/usr/bin/env bash
# Runs every fuzz target of the module for a time each: fuzz.sh 10s
set -euo pipefail
cd "$(dirname "$0")/.."
time=${1:-10s}
log=$(mktemp)
trap 'rm -f "$log"' EXIT

fuzz() { # target, package
  go test -run '^$' -fuzz "^$1\$" -fuzztime "$time" "$2" 2>&1 | tee "$log"
}

# Go's coordinator may take the end of the time for an error of the target's. A target that
# fails writes its input and says so.
ended_by_the_clock() {
  grep -qx '    context deadline exceeded' "$log" && ! grep -q -e 'Failing input written' -e panic: "$log"
}

grep -rEo --include='*_test.go' --exclude-dir=node_modules '^func Fuzz[A-Za-z0-9_]*' . | sort |
  while IFS=: read -r file func; do
    target=${func#func } package=$(dirname "$file")
    echo "fuzz: $target in $package for $time"
    if ! fuzz "$target" "$package"; then
      ended_by_the_clock
      echo "fuzz: $target found nothing, but its time ran out in the middle of something: once more"
      fuzz "$target" "$package"
    fi
  done
