package main

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is the version of this program. A release may set another one with
// -ldflags "-X main.version=1.2.3"; nothing else writes it.
var version = "0.6.0"

// versionFacts is what `version --json` prints.
type versionFacts struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"` // the commit it was built from, when Go knew it
	Modified bool   `json:"modified"`           // built from files that differ from that commit
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func newVersion(e env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program",
		Example: `  agentmbx version
  agentmbx version --json`,
		RunE: func(*cobra.Command, []string) error { return runVersion(e.out, asJSON) },
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func runVersion(out io.Writer, asJSON bool) error {
	f := readVersion()
	if asJSON {
		return json.NewEncoder(out).Encode(f)
	}
	line := "agentmbx " + f.Version
	if f.Revision != "" {
		line += " " + f.Revision[:min(12, len(f.Revision))]
		if f.Modified {
			line += " (modified)"
		}
	}
	_, err := fmt.Fprintf(out, "%s %s %s\n", line, f.Go, f.Platform)
	return err
}

func readVersion() versionFacts {
	f := versionFacts{Version: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				f.Revision = s.Value
			case "vcs.modified":
				f.Modified = s.Value == "true"
			}
		}
	}
	return f
}
