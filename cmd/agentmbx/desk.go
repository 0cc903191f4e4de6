package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/user"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/admin/api"
	"github.com/agentmbx/agentmbx/backup"
	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/store/sqlite"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// desk finds the operator's Service of a store: that of the relay which runs
// on it, else one of our own under the store's lock. close gives it back.
func desk(ctx context.Context, e env, s Settings) (svc admin.Service, running bool, close func() error, err error) {
	c, err := api.Dial(ctx, s.StoreDir)
	if err == nil {
		return c, true, func() error { return nil }, nil
	}
	if !errors.Is(err, api.ErrNotRunning) {
		return nil, false, nil, deskError(err)
	}
	st, err := openExisting(ctx, s.StoreDir)
	if err != nil {
		return nil, false, nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, st.Close())
		}
	}()
	var in store.Info
	if err := st.View(ctx, func(r store.Reader) (err error) { in, err = r.Info(); return err }); err != nil {
		return nil, false, nil, err
	}
	// A drill and a discard sign; whatever else the desk does goes without the key.
	key, _, err := relay.LoadKey(s.StoreDir, takeSecret("MBX_RELAY_KEY"), true)
	if err != nil || key.Public() != in.RelayKey {
		key = wire.PrivateKey{}
	}
	log := newLog(s.LogFormat, io.Discard, io.Discard)
	r := relay.Detached(relay.Options{Store: st, Key: key, Version: version, Limits: s.Limits, Log: log})
	local, err := newLocal(s, st, r, nil, in.RelayKey, key, log)
	if err != nil {
		return nil, false, nil, err
	}
	local.Begin()
	return local, false, func() error { return errors.Join(local.Close(), st.Close()) }, nil
}

// newLocal makes the desk of a store that this process has. issuer is that of the
// relay which it serves, nil without one.
func newLocal(s Settings, st *sqlite.Store, r *relay.Relay, issuer admin.Issuer, pub wire.PublicKey, key wire.PrivateKey, log *slog.Logger) (*admin.Local, error) {
	folder := &backup.Folder{Dir: s.BackupDir, StoreDir: s.StoreDir, Key: pub, Keep: s.BackupKeep, Version: version, Log: log, Now: time.Now}
	var err error
	if s.AgeRecipient != "" {
		if folder.Recipients, err = backup.ParseRecipients(s.AgeRecipient); err != nil {
			return nil, usage(fmt.Errorf("MBX_BACKUP_AGE_RECIPIENT: %w", err))
		}
	}
	o := admin.Options{Relay: r, Store: st, Backups: folder, Key: key, Version: version, Hosted: s.Accounts.hosted(), Issuer: issuer,
		BackupSchedule: schedule(s.BackupSchedule), DrillSchedule: schedule(s.DrillSchedule), IdentityFile: s.AgeIdentityFile}
	return admin.NewLocal(o)
}

// schedule is a schedule as the desk takes it: "" is none.
func schedule(s string) string {
	if s == "off" {
		return ""
	}
	return s
}

// withDesk runs fn with the Service of the store in the settings.
func withDesk(ctx context.Context, e env, s Settings, fn func(svc admin.Service, running bool) error) error {
	svc, running, done, err := desk(ctx, e, s)
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
	cmd.PreRunE = func(*cobra.Command, []string) error { return isText(admin.Action{Actor: actor(), Reason: reason}) }
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s, err := r.read()
		if err != nil {
			return err
		}
		return withDesk(cmd.Context(), e, s, func(svc admin.Service, _ bool) error {
			epoch, err := svc.RotateEpoch(cmd.Context(), admin.Action{Actor: actor(), Reason: reason})
			if err != nil {
				return deskError(err)
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
		Short: "Show the relay log: backups, restores, drills, epochs, sweeps",
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
		return withDesk(cmd.Context(), e, s, func(svc admin.Service, _ bool) error {
			return printLog(cmd.Context(), e.out, svc, f, asJSON)
		})
	}
	return cmd
}

// printLog prints lines of the log as they come, an answer of the desk at a time: a
// log of long receipts is more than anybody wants in memory.
func printLog(ctx context.Context, out io.Writer, svc admin.Service, f admin.LogFilter, asJSON bool) error {
	doc := rows[admin.LogEntry]{bare: true, json: asJSON}
	for more := true; more && f.Limit > 0; {
		var list []admin.LogEntry
		var err error
		if list, more, err = admin.LogPage(ctx, svc, f); err != nil {
			return deskError(err)
		}
		if n := len(list); n > 0 {
			f.Before, f.Limit = list[n-1].ID, f.Limit-n
		}
		if asJSON {
			if err := doc.add(list); err != nil {
				return err
			}
			if err := doc.flush(out); err != nil {
				return err
			}
			continue
		}
		w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
		for _, l := range list {
			fmt.Fprintf(w, "%s\t%s\t%s\n", wire.FormatTime(l.At), printable(l.Op), l.Receipt)
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	doc.end("")
	return doc.flush(out)
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
	Relay   *admin.Status `json:"relay"`
}

func runStatus(ctx context.Context, e env, s Settings, asJSON bool) error {
	f := statusFacts{Dir: s.StoreDir}
	c, err := api.Dial(ctx, s.StoreDir)
	if err == nil {
		var st admin.Status
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
	printIssuer(w, st.Issuer)
	printWork(w, st)
	for _, p := range st.Problems {
		fmt.Fprintf(w, "PROBLEM\t%s\n", printable(p))
	}
	return w.Flush()
}

// printIssuer tells how the keys of the accounts issuer stand, where there is one.
func printIssuer(w io.Writer, st *relay.IssuerState) {
	if st == nil {
		return
	}
	keys := "no keys yet"
	if !st.FetchedAt.IsZero() {
		keys = fmt.Sprintf("%s, fetched %s ago", counted(len(st.Keys), "key", "keys"), time.Since(st.FetchedAt).Round(time.Second))
	}
	if !st.Usable {
		keys += "; new hosts are refused"
	}
	if st.Trouble != "" {
		keys += "; the last answer was bad: " + st.Trouble
	}
	fmt.Fprintf(w, "issuer\t%s, %s\n", printable(st.Issuer), printable(keys))
}

// printWork tells of the last backup and drill and of the next ones.
func printWork(w io.Writer, st *admin.Status) {
	for _, name := range []string{admin.JobBackup, admin.JobDrill} {
		j := st.Job(name)
		if j == nil {
			continue
		}
		last, next := "none yet", "on request only"
		if j.LastOK != nil {
			last = fmt.Sprintf("%s ago, %s", time.Since(j.LastOK.StartedAt).Round(time.Second), j.LastOK.Detail)
		}
		if !j.Next.IsZero() {
			next = "next " + wire.FormatTime(j.Next)
		}
		fmt.Fprintf(w, "%s\t%s; %s\n", name, last, next)
	}
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
