package loginname

import "strings"

// This file compares the names of fields.

// isField reports whether a server may take key for the field, and whether every one does.
func (f *Finder) isField(key string) (may, sure bool) {
	if key == f.Field {
		return true, true
	}
	key, field := bare(key), bare(f.Field)
	same := strings.EqualFold
	may = same(key, field) || same(underscored(key), underscored(field)) || same(stem(key), field) ||
		strings.ContainsAny(key, "[]") && same(unbracketed(key), unbracketed(field))
	return may, false
}

var quotes = strings.NewReplacer(`"`, "", "'", "", `\`, "")

// bare returns a key up to a NUL, without quotes and backslashes, and without blanks and
// what Spring takes for the mark of a default around it.
func bare(key string) string {
	key, _, _ = strings.Cut(quotes.Replace(key), "\x00")
	return strings.TrimLeft(strings.TrimSpace(key), "!\ufeff")
}

var underscores = strings.NewReplacer(".", "_", " ", "_", "[", "_")

// underscored returns a key as PHP does.
func underscored(key string) string { return underscores.Replace(key) }

// stem returns a key without what makes it an array, one of several values, or of a type.
func stem(key string) string {
	key = strings.TrimLeft(key, "[]")
	if end := strings.IndexAny(key, "[].:"); end >= 0 {
		key = key[:end]
	}
	return key
}

var brackets = strings.NewReplacer("[", "", "]", "")

// unbracketed returns a key whose brackets Rack may pair in another way.
func unbracketed(key string) string { return brackets.Replace(key) }
