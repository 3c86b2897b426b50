// Package stack is what a resolved call stack is made of: locations in mappings,
// each with the functions that were inlined there. Locations and mappings are
// shared between samples and rounds: they are compared by pointer and never
// changed once made.
package stack

// Mapping is an executable file, or one of the kernel's parts.
type Mapping struct {
	File    string // path in the process's own root, or "[kernel.kallsyms]", "[vdso]", …
	BuildID string // hexadecimal, "" if unknown
	// HasFunctions says that names were found for addresses of this file.
	HasFunctions bool
}

// Location is one address of one mapping.
type Location struct {
	Mapping *Mapping // nil if no mapping is known
	// Address is the offset in the mapping's file, or the address itself where
	// there is no file. For a caller's frame it is that of the call, not of the
	// instruction it returns to.
	Address uint64
	// Lines are the functions at the address: inlined ones first, the function
	// that they were inlined into last. Never empty.
	Lines []Line
}

// Line is one function, with the source line if it is known.
type Line struct {
	Function string
	File     string // "" if unknown
	Line     int    // 0 if unknown
}

// Pseudo makes a location that stands for no code: a marker, or a name that takes
// the place of one.
func Pseudo(name string) *Location {
	return &Location{Lines: []Line{{Function: name}}}
}
