package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/agentmbx/agentmbx/relay/host"
)

func newDoctor(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say how this host is, and what to do about it",
		Long: `Say how this host is, and what to do about it: a line a check, ok, info, warn
or fail, with the fix below it. It works on a home that nothing else can open,
reads only what is stored there, calls nobody and changes nothing.

The exit code is 5 when a check failed.`,
		Example: `  agentmbx doctor
  agentmbx doctor --json`,
	}
	h, asJSON := bindHome(cmd), jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		o, err := h.options()
		if err != nil {
			return err
		}
		d := host.Doctor(cmd.Context(), o)
		if *asJSON {
			err = printJSON(e.out, d)
		} else {
			_, err = fmt.Fprint(e.out, printableBody(d.String()))
		}
		if err != nil || d.Healthy {
			return err
		}
		return unhealthy(errors.New("this host is not well: see the lines that say fail"))
	}
	return cmd
}
