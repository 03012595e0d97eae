package ops

var NewState = newState

// Wants reports whether a list of identifier, "" for all, has the record at key.
func Wants(identifier, key string) bool { return (&listing{identifier: identifier}).wants(key) }

// LoginConditions are what a target of the rule of logins may name.
var LoginConditions = loginConditions
