package symtab

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxCodeName bounds the names of code that a process made, and their files, in bytes.
const maxCodeName = 1024

// CleanName makes a name that was read from a process fit to be shown.
func CleanName(b []byte) string { return cleanText(b) }

// cleanText makes what a process wrote fit to be shown: valid UTF-8, without control
// characters, and bounded.
func cleanText(b []byte) string {
	s := strings.TrimSpace(string(b[:min(len(b), maxCodeName+utf8.UTFMax)]))
	clean := utf8.ValidString(s) && len(s) <= maxCodeName
	for i := 0; clean && i < len(s); i++ {
		clean = s[i] >= ' ' && s[i] < 0x7f
	}
	if clean {
		return s
	}
	s = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || unicode.Is(unicode.C, r) || r == '\u2028' || r == '\u2029' {
			return utf8.RuneError // control, format (bidirectional marks), private use
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
	if len(s) <= maxCodeName {
		return s
	}
	cut := maxCodeName
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut]
}

// codeFrame makes a function of the name that a runtime gave a piece of code. Of the
// runtimes whose names have parts it takes them apart:
//
//	JS:*checkout /srv/shop.js:3:22       V8 (src/logging/log.cc): function, file, line
//	py::Shop.checkout:/srv/shop.py       CPython (Python/perf_trampoline.c)
//
// V8 marks how the code was made: ~ interpreted, ^ and + by a fast compiler, * by the
// optimizing one. That is dropped: it is one function whatever it was compiled with.
func codeFrame(name []byte) Frame {
	s := cleanText(name)
	if rest, ok := strings.CutPrefix(s, "py::"); ok {
		if i := strings.LastIndex(rest, ":"); i > 0 && i+1 < len(rest) {
			return Frame{Name: rest[:i], File: rest[i+1:]}
		}
		return Frame{Name: s}
	}
	kind, rest, ok := strings.Cut(s, ":")
	if !ok || !isV8Function(kind) {
		return Frame{Name: s}
	}
	rest = strings.TrimLeft(rest, "~^+*")
	fn, where, _ := strings.Cut(rest, " ")
	f := Frame{Name: fn}
	f.File, f.Line = v8Position(where)
	if f.Name == "" {
		f.Name = "(anonymous)"
		if kind == "Script" || kind == "Eval" {
			f.Name = "(" + strings.ToLower(kind) + ")"
		}
	}
	return f
}

// isV8Function: the others, such as Builtin, BytecodeHandler, RegExp and Stub, are V8's own.
func isV8Function(kind string) bool {
	switch kind {
	case "JS", "LazyCompile", "Function", "Script", "Eval":
		return true
	}
	return false
}

// v8Position takes "file:line:column", or "file:line", apart. The file may have blanks and
// colons: file:///srv/shop.mjs.
func v8Position(s string) (file string, line int) {
	numbers := 0
	for numbers < 2 {
		i := strings.LastIndex(s, ":")
		if i < 0 {
			break
		}
		n, err := strconv.ParseUint(s[i+1:], 10, 31)
		if err != nil {
			break
		}
		s, line = s[:i], int(n)
		numbers++
	}
	return s, line
}
