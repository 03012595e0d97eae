// Package version tells the version of the command.
package version

import "runtime/debug"

// String returns the version that the command was built from, as in v0.4.0, or
// "unknown". A build of a clone has a pseudo-version.
func String() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "unknown"
	}
	return info.Main.Version
}
