package loginname

import (
	"slices"
	"strings"
)

// This file compares the names of fields.

// isField reports whether a server may take key for the field, and whether every one does.
func (f *Finder) isField(key string) (may, sure bool) {
	if key == f.Field {
		return true, true
	}
	key, field := bare(key), bare(f.Field)
	same := strings.EqualFold
	may = same(key, field) || same(underscored(key), underscored(field)) || leadsTo(key, field) || leadsTo(inPHP(key), inPHP(field)) ||
		strings.ContainsAny(key, "[]") && same(unbracketed(key), unbracketed(field))
	return may, false
}

// leadsTo reports whether key is that of field, or of a part of it, to servers that take
// brackets, dots and colons for steps into it, or do not care for what follows them: PHP
// takes user[name]x for user[name], ASP.NET user.name.
func leadsTo(key, field string) bool {
	steps, want := stepsOf(key), stepsOf(field)
	return len(want) > 0 && len(steps) >= len(want) && slices.EqualFunc(steps[:len(want)], want, strings.EqualFold)
}

// inPHP returns a key as PHP writes what stands before the first bracket.
func inPHP(key string) string {
	head, rest, found := strings.Cut(key, "[")
	if head = underscored(head); found {
		return head + "[" + rest
	}
	return head
}

// isOfModel reports whether key is that of the field with one more step before it, or one less.
// ASP.NET takes that step for the name of the object that has the field. It prefers model.user to
// user, and takes Email for Input.Email if no key begins with Input. Frameworks that write
// user[name] do not leave out steps.
func (f *Finder) isOfModel(key string) bool {
	steps, field := stepsOf(bare(key)), stepsOf(bare(f.Field))
	more := len(steps) > 1 && slices.EqualFunc(steps[1:], field, strings.EqualFold)
	head, _, dotted := strings.Cut(f.Field, ".")
	less := dotted && !strings.Contains(head, "[") && len(field) > 1 && slices.EqualFunc(steps, field[1:], strings.EqualFold)
	return more || less
}

// stepsOf returns what stands between brackets, dots and colons.
func stepsOf(key string) []string {
	return strings.FieldsFunc(key, func(r rune) bool { return strings.ContainsRune("[].:", r) })
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

// bare returns a key up to a NUL, without quotes and backslashes, and without what some servers
// drop before it: blanks, the mark of a query, a slash, and what is the mark of a default to
// Spring.
func bare(key string) string {
	key, _, _ = strings.Cut(quotes.Replace(key), "\x00")
	return strings.TrimLeft(strings.TrimSpace(key), "!?/\ufeff")
}

var underscores = strings.NewReplacer(".", "_", " ", "_", "[", "_")

// underscored returns a key as PHP does.
func underscored(key string) string { return underscores.Replace(key) }

var brackets = strings.NewReplacer("[", "", "]", "")

// unbracketed returns a key whose brackets Rack may pair in another way.
func unbracketed(key string) string { return brackets.Replace(key) }
