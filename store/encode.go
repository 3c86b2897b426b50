package store

import (
	"google.golang.org/protobuf/encoding/protowire"
)

// encode writes the merged profile in pprof's protobuf encoding, uncompressed.
// Ids are positions + 1.
func (m *merger) encode() []byte {
	var out, msg, sub []byte
	message := func(num protowire.Number) {
		out = protowire.AppendTag(out, num, protowire.BytesType)
		out = protowire.AppendBytes(out, msg)
	}
	msg = appendVarint(appendVarint(msg, 1, uint64(m.sampleType[0])), 2, uint64(m.sampleType[1]))
	message(1)
	for i, k := range m.stackTab {
		msg, sub = m.encodeSample(msg[:0], sub, i, k)
		message(2)
	}
	for i, k := range m.mapTab {
		msg = appendVarint(msg[:0], 1, uint64(i)+1)
		msg = appendVarint(msg, 2, k.start)
		msg = appendVarint(msg, 3, k.limit)
		msg = appendVarint(msg, 4, k.offset)
		msg = appendVarint(msg, 5, uint64(k.file))
		msg = appendVarint(msg, 6, uint64(k.build))
		msg = appendVarint(msg, 7, uint64(b2u(k.hasFuncs)))
		msg = appendVarint(msg, 8, uint64(b2u(k.hasFiles)))
		msg = appendVarint(msg, 9, uint64(b2u(k.hasLines)))
		msg = appendVarint(msg, 10, uint64(b2u(k.hasInlineFunc)))
		message(3)
	}
	for i, k := range m.locTab {
		msg, sub = m.encodeLocation(msg[:0], sub, i, k)
		message(4)
	}
	for i, k := range m.funcTab {
		msg = appendVarint(msg[:0], 1, uint64(i)+1)
		msg = appendVarint(msg, 2, uint64(k.name))
		msg = appendVarint(msg, 3, uint64(k.system))
		msg = appendVarint(msg, 4, uint64(k.file))
		msg = appendVarint(msg, 5, uint64(k.startLine))
		message(5)
	}
	for _, s := range m.stringTab {
		out = protowire.AppendTag(out, 6, protowire.BytesType)
		out = protowire.AppendString(out, s)
	}
	out = appendVarint(out, 9, uint64(m.timeNanos))
	out = appendVarint(out, 10, uint64(m.durNanos))
	if m.periodType != [2]uint32{} {
		msg = appendVarint(appendVarint(msg[:0], 1, uint64(m.periodType[0])), 2, uint64(m.periodType[1]))
		message(11)
	}
	return appendVarint(out, 12, uint64(m.period))
}

func (m *merger) encodeSample(msg, sub []byte, i int, key string) (sample, scratch []byte) {
	n := int(u32(key))
	key = key[4:]
	sub = sub[:0]
	for ; n > 0; n-- {
		sub = protowire.AppendVarint(sub, uint64(u32(key))+1)
		key = key[4:]
	}
	msg = protowire.AppendTag(msg, 1, protowire.BytesType)
	msg = protowire.AppendBytes(msg, sub)
	sub = protowire.AppendVarint(sub[:0], uint64(m.values[i]))
	msg = protowire.AppendTag(msg, 2, protowire.BytesType)
	msg = protowire.AppendBytes(msg, sub)
	for ; len(key) > 0; key = key[20:] {
		sub = appendVarint(sub[:0], 1, uint64(u32(key)))
		sub = appendVarint(sub, 2, uint64(u32(key[4:])))
		sub = appendVarint(sub, 3, u64(key[8:]))
		sub = appendVarint(sub, 4, uint64(u32(key[16:])))
		msg = protowire.AppendTag(msg, 3, protowire.BytesType)
		msg = protowire.AppendBytes(msg, sub)
	}
	return msg, sub
}

func (m *merger) encodeLocation(msg, sub []byte, i int, key string) (location, scratch []byte) {
	msg = appendVarint(msg, 1, uint64(i)+1)
	msg = appendVarint(msg, 2, uint64(u32(key)))
	msg = appendVarint(msg, 3, u64(key[4:]))
	msg = appendVarint(msg, 5, uint64(key[12]))
	for key = key[13:]; len(key) > 0; key = key[12:] {
		sub = appendVarint(sub[:0], 1, uint64(u32(key)))
		sub = appendVarint(sub, 2, u64(key[4:]))
		msg = protowire.AppendTag(msg, 4, protowire.BytesType)
		msg = protowire.AppendBytes(msg, sub)
	}
	return msg, sub
}

// appendVarint appends a field, or nothing if it is zero, as proto3 does.
func appendVarint(b []byte, num protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, num, protowire.VarintType), v)
}

func u32(s string) uint32 {
	_ = s[3]
	return uint32(s[0]) | uint32(s[1])<<8 | uint32(s[2])<<16 | uint32(s[3])<<24
}

func u64(s string) uint64 { return uint64(u32(s)) | uint64(u32(s[4:]))<<32 }
