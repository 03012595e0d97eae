package cli

import "github.com/alecthomas/kong"

// DefaultsOfServe returns the defaults of the flags that only serve has.
func DefaultsOfServe() map[string]string {
	defaults := map[string]string{}
	parser := kong.Must(new(commands), kong.Vars{"version": ""})
	for _, command := range parser.Model.Leaves(true) {
		if command.Name == "serve" {
			for _, flag := range command.Flags {
				defaults["-"+flag.Name] = flag.Default
			}
		}
	}
	return defaults
}
