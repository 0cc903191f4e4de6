package main

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/agentmbx/agentmbx/"

// mayImport is the map of docs/architecture.md: what of ours each package may
// import, tests not counted. A package that is not here may not exist.
var mayImport = map[string][]string{
	"cmd/agentmbx":                  {"admin", "admin/api", "admin/jobs", "backup", "backup/drill", "relay", "relay/authority", "relay/authority/devissuer", "relay/authority/jwks", "relay/host", "relay/host/account", "relay/host/lan", "relay/server", "relay/store", "relay/store/sqlite", "relay/wire", "tui"},
	"admin":                         {"admin/jobs", "backup", "backup/drill", "relay", "relay/store", "relay/wire"},
	"admin/api":                     {"admin", "admin/jobs", "backup", "relay", "relay/ratelimit", "relay/wire"},
	"admin/jobs":                    {"relay/store"},
	"backup":                        {"relay/store", "relay/store/sqlite", "relay/wire"},
	"backup/drill":                  {"backup", "relay", "relay/authority", "relay/host/relayclient", "relay/server", "relay/store", "relay/store/sqlite", "relay/wire"},
	"relay":                         {"relay/ratelimit", "relay/store", "relay/wire"},
	"relay/authority":               {"relay"},
	"relay/authority/jwks":          {"relay", "relay/store", "relay/wire"},
	"relay/authority/jwks/jwkstest": {"relay/wire"},
	"relay/authority/devissuer":     {"relay/ratelimit", "relay/wire"},
	"relay/host":                    {"relay/host/account", "relay/host/homefile", "relay/host/lan", "relay/host/relayclient", "relay/wire"},
	"relay/host/account":            {"relay/host/homefile", "relay/host/relayclient", "relay/wire"},
	"relay/host/homefile":           {},
	"relay/host/lan":                {"relay/ratelimit", "relay/wire"},
	"relay/host/relayclient":        {"relay/wire"},
	"relay/ratelimit":               {},
	"relay/server":                  {"relay", "relay/store", "relay/wire"},
	"relay/store":                   {"relay/wire"},
	"relay/store/storetest":         {"relay/store", "relay/wire"},
	"relay/store/sqlite":            {"relay/store", "relay/wire"},
	"relay/wire":                    {},
	"relay/wire/wiretest":           {"relay/wire"},
	"tui":                           {"admin", "admin/jobs", "backup", "backup/drill", "relay", "relay/store", "relay/wire", "tui/noquery"},
	"tui/noquery":                   {},
	"relay/bench":                   {"relay", "relay/authority", "relay/server", "relay/store", "relay/store/sqlite", "relay/wire", "relay/wire/wiretest"},
}

func TestImportsPointOneWay(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", "{{.ImportPath}} {{join .Imports \" \"}}", module+"...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	seen := 0
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		pkg := strings.TrimPrefix(fields[0], module)
		allowed, known := mayImport[pkg]
		if !known {
			t.Errorf("%s is not on the map", pkg)
		}
		seen++
		for _, imp := range fields[1:] {
			ours, is := strings.CutPrefix(imp, module)
			if is && !slices.Contains(allowed, ours) {
				t.Errorf("%s imports %s; the map allows %v", pkg, ours, allowed)
			}
		}
	}
	if seen != len(mayImport) {
		t.Errorf("got %d packages; want the %d of the map", seen, len(mayImport))
	}
}
