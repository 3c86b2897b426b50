package python

import (
	"encoding/binary"
	"strings"
	"unicode/utf8"
)

// Text makes UTF-8 of a string as CPython has it in memory: characters of 1, 2 or 4 bytes
// (PEP 393). What is no character, such as half of a surrogate pair, becomes U+FFFD.
func Text(b []byte, kind int) string {
	var s strings.Builder
	for ; len(b) >= kind && kind > 0; b = b[kind:] {
		var r rune
		switch kind {
		case 1:
			r = rune(b[0])
		case 2:
			r = rune(binary.LittleEndian.Uint16(b))
		case 4:
			r = rune(binary.LittleEndian.Uint32(b) & 0x7fffffff)
		default:
			return s.String()
		}
		if !utf8.ValidRune(r) {
			r = utf8.RuneError
		}
		s.WriteRune(r)
	}
	return s.String()
}
