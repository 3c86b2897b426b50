#!/usr/bin/env bash
# Makes all generated files anew and fails if one differs from before. What it
# made stays, to be looked at and committed.
set -euo pipefail
cd "$(dirname "$0")/.."

sums() {
  find bpf web/ui/dist web/ui/THIRD_PARTY.md -type f \
    \( -name '*_bpfel.go' -o -name '*_bpfel.o' -o -path 'web/ui/*' \) -exec sha256sum {} + | sort -k 2
}

before=$(sums)
make --no-print-directory generate
if ! diff <(echo "$before") <(sums); then
  echo 'generate-check: the generated files differ from what the sources give: commit them as they are now (make generate)' >&2
  exit 1
fi
echo 'generate-check: all generated files are what the sources give'
