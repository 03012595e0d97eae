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

// IsField reports whether a server may take key for the field of a form.
func (f *Finder) IsField(key string) bool {
	may, _ := f.isField(key)
	return may && f.Field != ""
}

// isCharset reports whether a field tells the charset of its form to servers that ask for it.
func isCharset(key string) bool { return strings.EqualFold(bare(key), "_charset_") }

// checkCharset returns the error of the value of such a field, as it is sent.
func checkCharset(value string) error {
	if !isUTF8(value) {
		return unreadable("its _charset_ is not UTF-8")
	}
	return nil
}

// bare returns a key up to a NUL, without quotes and backslashes, and without blanks, what
// Spring takes for the mark of a default, and what some take for the mark of a query before
// it.
func bare(key string) string {
	key, _, _ = strings.Cut(quotes.Replace(key), "\x00")
	return strings.TrimLeft(strings.TrimSpace(key), "!?\ufeff")
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
