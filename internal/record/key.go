package record

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"strings"
	"unsafe"

	"github.com/adaptivethrottler/throttler/internal/legal"
)

// MaxKey is the longest key that is written out in full. memcached takes 250
// bytes.
const MaxKey = 249

// HashedKey begins the keys that are not written out in full. No plain key
// begins like it, since an identifier is never empty and a plain one holds
// no '#'.
const HashedKey = "#sha256#"

// Key returns the memcached key of the record for a condition's value.
//
// It is identifier#name#value where those bytes make a legal key that can be
// taken apart again, as in the original, so that an operator can read it.
// Every other one is [HashedKey] and the SHA-256, in hexadecimal, of the three
// parts, each preceded by its length as 8 bytes, big endian. So two different
// triples never share a key, and no triple makes a key that memcached or its
// client refuses.
func Key(identifier, name, value string) string {
	var b [MaxKey]byte
	return string(AppendKey(b[:0], identifier, name, value))
}

// AppendKey appends the [Key] to b.
func AppendKey(b []byte, identifier, name, value string) []byte {
	if plain, ok := appendPlain(b, identifier, name, value); ok {
		return plain
	}
	return AppendHash(append(b, HashedKey...), identifier, name, value)
}

// HashSize is how many bytes follow [HashedKey].
const HashSize = 2 * sha256.Size

// AppendHash appends to b what follows [HashedKey] in the key of a triple that has no plain one.
func AppendHash(b []byte, identifier, name, value string) []byte {
	hash := sha256.New()
	var sum [sha256.Size]byte
	for _, part := range [...]string{identifier, name, value} {
		var length [8]byte
		binary.BigEndian.PutUint64(length[:], uint64(len(part)))
		hash.Write(length[:])
		hash.Write(unsafe.Slice(unsafe.StringData(part), len(part))) // not copied
	}
	return hex.AppendEncode(b, hash.Sum(sum[:0]))
}

// appendPlain appends identifier#name#value to b, and reports whether that is a legal key
// and the only triple to read so. The first two parts may not hold a '#', the last one may:
// all that follows the second '#' is the value.
func appendPlain(b []byte, identifier, name, value string) (plain []byte, ok bool) {
	if identifier == "" || len(identifier)+len(name)+len(value)+2 > MaxKey ||
		strings.IndexByte(identifier, '#') >= 0 || strings.IndexByte(name, '#') >= 0 {
		return nil, false
	}
	plain = append(append(b, identifier...), '#')
	plain = append(append(plain, name...), '#')
	plain = append(plain, value...)
	return plain, legal.Bytes(plain[len(b):])
}

// Prefix returns what the plain keys of all values begin with, or "" if there are none.
func Prefix(identifier, name string) string {
	var b [MaxKey]byte
	plain, ok := appendPlain(b[:0], identifier, name, "")
	if !ok {
		return ""
	}
	return string(plain)
}
