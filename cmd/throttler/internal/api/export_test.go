package api

import (
	"maps"
	"slices"
)

// Paths returns those of all operations.
func Paths() []string { return slices.Collect(maps.Keys(new(api).operations())) }

// Statuses has the status of each kind of failure.
var Statuses = statuses
