package symtab

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"hash/crc32"
	"hash/crc64"
	"io"

	"github.com/ulikunitz/xz/lzma"

	"github.com/spanflame/spanflame/internal/elffile"
)

// unxz decompresses an .xz stream whose result has at most limit bytes.
//
// The library's own reader of the container takes the memory for the dictionary
// that a block asks for, up to 4 GiB, so the container is read here and the library
// decodes LZMA2 with a dictionary no larger than the result may be.
// Format: "The .xz File Format", version 1.2.1. Of the filters only LZMA2 is known.
func unxz(b []byte, limit int) ([]byte, error) {
	newCheck, checkLen, err := xzHeader(b)
	if err != nil {
		return nil, fmt.Errorf("xz stream header: %w", err)
	}
	var out bytes.Buffer
	in := bytes.NewReader(b[12:])
	for {
		first, err := in.ReadByte()
		if err != nil {
			return nil, fmt.Errorf("xz: %w", io.ErrUnexpectedEOF)
		}
		if first == 0 { // the index: no more blocks
			return out.Bytes(), nil
		}
		_ = in.UnreadByte() // cannot fail after ReadByte
		if err := xzBlock(in, &out, limit, newCheck(), checkLen); err != nil {
			return nil, fmt.Errorf("xz block: %w", err)
		}
	}
}

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{elffile.ErrCorrupt}, args...)...)
}

// xzHeader reads the 12 bytes of the stream header (section 2.1.1).
func xzHeader(b []byte) (newCheck func() hash.Hash, checkLen int, err error) {
	if len(b) < 12 || string(b[:6]) != "\xfd7zXZ\x00" {
		return nil, 0, corrupt("no magic bytes")
	}
	if crc32.ChecksumIEEE(b[6:8]) != binary.LittleEndian.Uint32(b[8:]) {
		return nil, 0, corrupt("checksum")
	}
	switch b[7] {
	case 0:
		return func() hash.Hash { return nil }, 0, nil
	case 1:
		return func() hash.Hash { return crc32.NewIEEE() }, 4, nil
	case 4:
		return func() hash.Hash { return crc64.New(crc64.MakeTable(crc64.ECMA)) }, 8, nil
	case 10:
		return sha256.New, 32, nil
	}
	return nil, 0, corrupt("check %d", b[7])
}

// xzBlock decodes a block (section 3) and appends its data to out.
func xzBlock(in *bytes.Reader, out *bytes.Buffer, limit int, check hash.Hash, checkLen int) error {
	dict, err := xzBlockHeader(in)
	if err != nil {
		return err
	}
	left := in.Len()
	r, err := lzma.Reader2Config{DictCap: max(lzma.MinDictCap, int(min(dict, uint64(limit))))}.NewReader2(in)
	if err != nil {
		return err
	}
	start := out.Len()
	n, err := io.Copy(out, io.LimitReader(r, int64(limit-start)+1))
	if err != nil {
		return err
	}
	if n > int64(limit-start) {
		return fmt.Errorf("more than %d bytes: %w", limit, elffile.ErrTooLarge)
	}
	pad := -(left - in.Len()) & 3
	tail := make([]byte, pad+checkLen)
	if _, err := io.ReadFull(in, tail); err != nil {
		return fmt.Errorf("check: %w", io.ErrUnexpectedEOF)
	}
	if check == nil {
		return nil
	}
	_, _ = check.Write(out.Bytes()[start:]) // a hash's Write never fails
	sum := check.Sum(nil)
	if checkLen < 32 { // the CRCs are stored little-endian, the standard library writes them big-endian
		for a, b := 0, len(sum)-1; a < b; a, b = a+1, b-1 {
			sum[a], sum[b] = sum[b], sum[a]
		}
	}
	if !bytes.Equal(sum, tail[pad:]) {
		return corrupt("checksum of the data")
	}
	return nil
}

// xzBlockHeader reads a block header (section 3.1) and returns the size of the
// dictionary that the block asks for.
func xzBlockHeader(in *bytes.Reader) (dict uint64, err error) {
	size, _ := in.ReadByte()
	h := make([]byte, (int(size)+1)*4)
	h[0] = size
	if _, err := io.ReadFull(in, h[1:]); err != nil {
		return 0, fmt.Errorf("header: %w", io.ErrUnexpectedEOF)
	}
	body, sum := h[:len(h)-4], h[len(h)-4:]
	if crc32.ChecksumIEEE(body) != binary.LittleEndian.Uint32(sum) {
		return 0, corrupt("checksum of the header")
	}
	flags := body[1]
	if flags&3 != 0 {
		return 0, fmt.Errorf("%w: %d filters", elffile.ErrUnsupported, flags&3+1)
	}
	body = body[2:]
	for _, present := range []byte{0x40, 0x80} { // sizes, which the LZMA2 data states, too
		if flags&present != 0 {
			_, n := binary.Uvarint(body)
			if n <= 0 {
				return 0, corrupt("size in the header")
			}
			body = body[n:]
		}
	}
	if len(body) < 3 || body[0] != 0x21 || body[1] != 1 {
		return 0, fmt.Errorf("%w: filter other than LZMA2", elffile.ErrUnsupported)
	}
	bits := uint(body[2])
	switch { // section 5.3.1
	case bits > 40:
		return 0, corrupt("dictionary size %d", bits)
	case bits == 40:
		return 1<<32 - 1, nil
	}
	return uint64(2|bits&1) << (bits/2 + 11), nil
}
