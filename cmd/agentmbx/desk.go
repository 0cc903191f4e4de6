package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/admin/api"
	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store/sqlite"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// desk finds the operator's Service of a store: that of the relay which runs
// on it, else one of our own under the store's lock. close gives it back.
func desk(ctx context.Context, s Settings) (svc admin.Service, running bool, close func() error, err error) {
	c, err := api.Dial(ctx, s.StoreDir)
	if err == nil {
		return c, true, func() error { return nil }, nil
	}
	if !errors.Is(err, api.ErrNotRunning) {
		return nil, false, nil, err
	}
	st, err := sqlite.Open(ctx, sqlite.Options{Dir: s.StoreDir, LockWait: time.Second})
	if err != nil {
		return nil, false, nil, protective(err)
	}
	r := relay.Detached(relay.Options{Store: st, Version: version, Limits: s.Limits})
	return admin.Local{Relay: r}, false, st.Close, nil
}

// withDesk runs fn with the Service of the store in the settings.
func withDesk(ctx context.Context, s Settings, fn func(svc admin.Service, running bool) error) error {
	svc, running, done, err := desk(ctx, s)
	if err != nil {
		return err
	}
	return errors.Join(fn(svc, running), done())
}

func newRotateEpoch(e env) *cobra.Command {
	var reason string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "rotate-epoch",
		Short: "Give the store a new epoch after a restore that agentmbx did not make",
		Long: `Give the store a new epoch: senders push again what is unconfirmed, receivers
pull from the start, and dedup keeps both harmless. It must follow any restore
that agentmbx did not make itself (a volume snapshot, a file copy).

A running relay does it itself; otherwise the store is opened under its lock.`,
		Example: `  agentmbx relay rotate-epoch --store-dir ./data --reason "restored the volume of 3 March"`,
	}
	r := bindSettings(cmd.Flags(), "store-dir")
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the relay log")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s, err := r.read()
		if err != nil {
			return err
		}
		return withDesk(cmd.Context(), s, func(svc admin.Service, _ bool) error {
			epoch, err := svc.RotateEpoch(cmd.Context(), admin.Action{Actor: actor(), Reason: reason})
			if errors.Is(err, admin.ErrBadRequest) {
				return usage(err)
			}
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(e.out, map[string]string{"epoch": epoch})
			}
			_, err = fmt.Fprintf(e.out, "epoch %s\n", epoch)
			return err
		})
	}
	return cmd
}

// actor names who runs a command, for the relay log.
func actor() string {
	name := fmt.Sprintf("uid %d", os.Getuid())
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	return "cli:" + name
}

func newLogCommand(e env) *cobra.Command {
	var asJSON bool
	f := admin.LogFilter{}
	cmd := &cobra.Command{
		Use:   "log",
		Short: "Show the relay log: restores, epochs, sweeps",
		Example: `  agentmbx relay log --store-dir ./data --limit 20
  agentmbx relay log --op rotate-epoch --json`,
	}
	r := bindSettings(cmd.Flags(), "store-dir")
	cmd.Flags().StringVar(&f.Op, "op", "", "only entries of this `kind`")
	cmd.Flags().IntVar(&f.Limit, "limit", 50, "how many, newest first")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s, err := r.read()
		if err != nil {
			return err
		}
		if f.Limit < 1 || f.Limit > admin.MaxLog {
			return usage(fmt.Errorf("--limit is %d: want 1 to %d", f.Limit, admin.MaxLog))
		}
		return withDesk(cmd.Context(), s, func(svc admin.Service, _ bool) error {
			entries, err := svc.Log(cmd.Context(), f)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(e.out, entries)
			}
			w := tabwriter.NewWriter(e.out, 0, 8, 2, ' ', 0)
			for _, l := range entries {
				fmt.Fprintf(w, "%s\t%s\t%s\n", wire.FormatTime(l.At), l.Op, l.Receipt)
			}
			return w.Flush()
		})
	}
	return cmd
}

func newStatus(e env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Say whether the relay is up, and how it is",
		Long: `Say whether a relay runs on the store, and how it is. The exit code is 5 when
none runs or it is not well.`,
		Example: `  agentmbx relay status --store-dir ./data
  agentmbx relay status --json`,
	}
	r := bindSettings(cmd.Flags(), "store-dir")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s, err := r.read()
		if err != nil {
			return err
		}
		return runStatus(cmd.Context(), e, s, asJSON)
	}
	return cmd
}

// statusFacts is what `relay status --json` prints.
type statusFacts struct {
	Running bool          `json:"running"`
	Healthy bool          `json:"healthy"`
	Dir     string        `json:"store_dir"`
	Relay   *relay.Status `json:"relay"`
}

func runStatus(ctx context.Context, e env, s Settings, asJSON bool) error {
	f := statusFacts{Dir: s.StoreDir}
	c, err := api.Dial(ctx, s.StoreDir)
	if err == nil {
		var st relay.Status
		if st, err = c.Status(ctx); err != nil {
			return unhealthy(fmt.Errorf("the relay does not answer: %w", err))
		}
		f.Running, f.Relay, f.Healthy = true, &st, len(st.Problems) == 0
	} else if !errors.Is(err, api.ErrNotRunning) {
		return err
	}
	if asJSON {
		err = printJSON(e.out, f)
	} else if f.Running {
		err = printStatus(e.out, f)
	} else {
		err = nil
	}
	switch {
	case err != nil:
		return err
	case !f.Running:
		if h, held, err := sqlite.ReadHolder(s.StoreDir); err == nil && held {
			return unhealthy(fmt.Errorf("a process has the store but does not answer on its socket: %s; it may be starting, or its admin.sock was removed", h))
		}
		return unhealthy(fmt.Errorf("%w: %s; start one with: agentmbx relay serve --store-dir %s", api.ErrNotRunning, s.StoreDir, s.StoreDir))
	case !f.Healthy:
		return unhealthy(errors.New(f.Relay.Problems[0]))
	}
	return nil
}

func printStatus(out io.Writer, f statusFacts) error {
	st := f.Relay
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintf(w, "relay\t%s, up %s\n", st.Version, time.Since(st.StartedAt).Round(time.Second))
	fmt.Fprintf(w, "store\t%s (schema %d)\n", f.Dir, st.Schema)
	fmt.Fprintf(w, "epoch\t%s\n", st.Epoch)
	fmt.Fprintf(w, "relay key\t%s\n", st.Fingerprint)
	fmt.Fprintf(w, "heartbeat\t%s\n", wire.FormatTime(st.Heartbeat))
	fmt.Fprintf(w, "hosts\t%d enrolled, %d long polls\n", st.Totals.Enrolments, st.LongPolls)
	fmt.Fprintf(w, "queued\t%d items, %d bytes\n", st.Totals.Items, st.Totals.Bytes)
	fmt.Fprintf(w, "disk\t%d bytes of data, %d of log, %d free\n", st.Store.Data, st.Store.Log, st.Store.Free)
	for _, p := range st.Problems {
		fmt.Fprintf(w, "PROBLEM\t%s\n", p)
	}
	return w.Flush()
}

func printJSON(out io.Writer, v any) error {
	var doc bytes.Buffer
	enc := json.NewEncoder(&doc)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	_, err := out.Write(escapeJSON(doc.Bytes()))
	return err
}
