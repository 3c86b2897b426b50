#!/bin/sh
# Makes small.elf: the seed of the fuzz target. Needs gcc and objcopy.
set -eu
cd "$(dirname "$0")"
printf 'int f(void) { return 1; }\nint _start(void) { return f(); }\n' |
	gcc -x c -O1 -nostdlib -static -Wl,--build-id=0x01020304,-z,noseparate-code,-z,max-page-size=16 -o small.elf -
objcopy --remove-section=.comment --remove-section=.eh_frame --remove-section=.note.gnu.property small.elf
