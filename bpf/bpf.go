// Package bpf holds the kernel programs' C sources (folder c), and the Go
// bindings and objects that bpf2go generates of them, for amd64 and arm64.
// Nothing here is typed by hand twice: the structs and numbers that both sides
// share are declared in c/spanflame.h.
package bpf

//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target amd64,arm64 -go-package bpf -type sample_key -type sample_value -type chunk_cursor -type chunk -type round_stats -type process_event -type process_event_kind -type stack_end -type round_stat -type table_leaf -type table_inner -type space_entry -type space_node -type process_space -type unwind_file -type unwind_file_state -type unwind_rule -type cfa_kind -type saved_kind -type sample_kind -type wait_cause -type thread_state -type block -type asleep -type python_layout -type python_process -type python_code -type python_instruction Profile c/profile.bpf.c -- -O2 -g -Wall -Werror -mcpu=v3 -Ic
