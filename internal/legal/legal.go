// Package legal says which keys memcached takes. The stores of this repository take the same.
package legal

import (
	"encoding/binary"
	"unsafe"
)

// maxKey is the length of the longest key.
const maxKey = 250

// Key reports whether memcached takes key: it is neither empty nor too long, and its bytes are
// legal.
func Key(key string) bool { return key != "" && len(key) <= maxKey && Text(key) }

// Text is [Bytes] of a text.
func Text(s string) bool { return Bytes(unsafe.Slice(unsafe.StringData(s), len(s))) }

// Bytes reports whether memcached takes the bytes of b in a key: neither a blank nor a control
// character of ASCII.
func Bytes(b []byte) bool {
	if len(b) >= 8 {
		for i := 0; i < len(b)-8; i += 8 {
			if !word(binary.NativeEndian.Uint64(b[i:])) {
				return false
			}
		}
		return word(binary.NativeEndian.Uint64(b[len(b)-8:]))
	}
	for _, c := range b {
		if c <= ' ' || c == 0x7f {
			return false
		}
	}
	return true
}

// word is Bytes for 8 bytes at once. Where a byte is less than n, up to 0x80,
// subtracting n from it sets its highest bit, which was not set. A byte above it may
// lose 1 to it, but then the answer is known.
func word(w uint64) bool {
	const each, highest = 0x0101010101010101, 0x8080808080808080
	blankOrControl := (w - each*(' '+1)) &^ w
	del := w ^ each*0x7f // 0 where it is one
	return (blankOrControl|(del-each)&^del)&highest == 0
}
