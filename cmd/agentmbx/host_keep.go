package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentmbx/agentmbx/relay/host"
)

func newRotateKey(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rotate-key",
		Short: "Give this host new keys",
		Long: `Give this host new keys. The old ones keep opening mail that is on its way; the
daemon tells the relay, and each paired host as soon as the LAN reaches it. Keep
a copy of keys.json afterwards.`,
		Example: `  agentmbx rotate-key`,
	}
	at := bindHome(cmd)
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return at.with(cmd.Context(), func(here *host.Host) error {
			r, err := here.RotateKey(cmd.Context())
			if err != nil {
				return err
			}
			if *asJSON {
				return printJSON(e.out, r)
			}
			if r.Resumed {
				fmt.Fprintln(e.errw, "a rotation that was begun before is complete now")
			}
			_, err = fmt.Fprintf(e.out, "fingerprint  %s\npeers        %d to be told\n", r.Fingerprint, r.Peers)
			return err
		})
	}
	return cmd
}

func newPrune(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Remove old mail that nobody needs any more",
		Long: `Remove messages older than an age that everybody here has acked and that are not
on their way. Mail that a relay holds and nobody has confirmed is never removed.`,
		Example: `  agentmbx prune --older-than 30d`,
	}
	at := bindHome(cmd)
	older := cmd.Flags().String("older-than", "", "`age`, such as 30d or 12h")
	asJSON := jsonFlag(cmd)
	_ = cmd.MarkFlagRequired("older-than") // fails only for a flag that is not there
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		age, err := parseAge(*older)
		if err != nil {
			return usage(fmt.Errorf("--older-than is %s: %w", quoteValue(*older), err))
		}
		return at.with(cmd.Context(), func(here *host.Host) error {
			p, err := here.Prune(cmd.Context(), age)
			if err != nil {
				return err
			}
			if *asJSON {
				return printJSON(e.out, p)
			}
			_, err = fmt.Fprintf(e.out, "removed %d; kept %d on their way, %d not acked\n", p.Removed, p.Kept.Outbox, p.Kept.Open)
			return err
		})
	}
	return cmd
}

// parseAge reads days, such as 30d, or a duration of Go's.
func parseAge(s string) (time.Duration, error) {
	const maxDays = 36_500
	if days, ok := strings.CutSuffix(s, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 32)
		if err != nil || n > maxDays {
			return 0, fmt.Errorf("want whole days up to %dd, or a duration such as 12h", maxDays)
		}
		return time.Duration(n) * 24 * time.Hour, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 || d > maxDays*24*time.Hour {
		return 0, fmt.Errorf("want whole days up to %dd, or a duration such as 12h", maxDays)
	}
	return d, nil
}
