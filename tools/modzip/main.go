// Command modzip puts a module into a module proxy made of files:
//
//	modzip PROXY VERSION DIR
//
// A go command with GOPROXY=file://PROXY then finds the module in DIR at VERSION.
package main

import (
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("modzip: ")
	if len(os.Args) != 4 {
		log.Fatal("usage: modzip PROXY VERSION DIR")
	}
	if err := add(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		log.Fatal(err)
	}
}

// add writes what the module proxy protocol asks for: the list of versions, and
// the info, mod and zip of this one.
func add(proxy, version, dir string) error {
	mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		return err
	}
	m := module.Version{Path: modfile.ModulePath(mod), Version: version}
	escaped, err := module.EscapePath(m.Path)
	if err != nil {
		return err
	}
	at := filepath.Join(proxy, filepath.FromSlash(escaped), "@v")
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	info := fmt.Appendf(nil, `{"Version": %q, "Time": %q}`, version, time.Now().UTC().Format(time.RFC3339))
	for name, text := range map[string][]byte{"list": []byte(version + "\n"), version + ".info": info, version + ".mod": mod} {
		if err := os.WriteFile(filepath.Join(at, name), text, 0o644); err != nil {
			return err
		}
	}
	f, err := os.Create(filepath.Join(at, version+".zip"))
	if err != nil {
		return err
	}
	return errors.Join(zip.CreateFromDir(f, m, dir), f.Close())
}
