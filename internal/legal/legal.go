// Package legal says which keys memcached takes. The stores of this repository take the same.
package legal

// maxKey is the length of the longest key.
const maxKey = 250

// Key reports whether memcached takes key: it is neither empty nor too long, and has no blank
// and no control character of ASCII.
func Key(key string) bool {
	if key == "" || len(key) > maxKey {
		return false
	}
	for i := range len(key) {
		if key[i] <= ' ' || key[i] == 0x7f {
			return false
		}
	}
	return true
}
