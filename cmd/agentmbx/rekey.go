package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/admin/api"
	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/store/sqlite"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// rekeyOptions are the flags of `relay rekey`.
type rekeyOptions struct {
	keyFile string // "" for a key of MBX_RELAY_KEY, or a new one
	confirm string // the present fingerprint, "" to ask for it
	reason  string
	json    bool
	step    func(name string) // for tests: what was just done; nil outside them
}

func newRekey(e env) *cobra.Command {
	var o rekeyOptions
	cmd := &cobra.Command{
		Use:   "rekey",
		Short: "Give the store a new relay key, when the old one is lost or stolen",
		Long: `Give the store a new relay key and a new epoch. Every host stops using the relay
until its owner confirms the new key; mail waits and nothing is lost. The old key
is not needed: this is the way on when it is lost.

The new key is the one of MBX_RELAY_KEY when that is another than the store's, or
of --key, else a new relay.key is made. A relay.key that stood there is kept as
relay.key.FINGERPRINT.old. The relay has to be stopped. You are asked to type the
store's present fingerprint, or give it with --confirm.

Backups of before belong to the old key and can no longer be restored into this
store: the next serve takes a new one.`,
		Example: `  agentmbx relay rekey --store-dir ./data
  agentmbx relay rekey --store-dir ./data --confirm 1f3a-09bc-77d0-e214 --reason "relay.key was lost"`,
	}
	r := bindSettings(cmd.Flags(), "store-dir")
	cmd.Flags().StringVar(&o.keyFile, "key", "", "`file` with the new key")
	cmd.Flags().StringVar(&o.confirm, "confirm", "", "the store's present `fingerprint`, instead of typing it")
	cmd.Flags().StringVar(&o.reason, "reason", "", "why, for the relay log")
	cmd.PreRunE = func(*cobra.Command, []string) error { return isText(admin.Action{Actor: actor(), Reason: o.reason}) }
	cmd.Flags().BoolVar(&o.json, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s, err := r.read()
		if err != nil {
			return err
		}
		return runRekey(cmd.Context(), e, s, o)
	}
	return cmd
}

// rekeyFacts is what `relay rekey --json` prints.
type rekeyFacts struct {
	sqlite.Rekeyed
	KeySource string `json:"key_source"`          // where the new key is
	OldKey    string `json:"old_key,omitempty"`   // where the old one is kept
	Confirm   string `json:"confirm_on_hosts"`    // the command for each host's owner
	Recovered bool   `json:"recovered,omitempty"` // an earlier rekey was finished first
}

func runRekey(ctx context.Context, e env, s Settings, o rekeyOptions) (err error) {
	secret := takeSecret("MBX_RELAY_KEY")
	if o.step == nil {
		o.step = func(string) {}
	}
	if len(o.reason) > 1000 {
		return usage(errors.New("--reason is too long: want at most 1000 bytes"))
	}
	if _, err := api.Dial(ctx, s.StoreDir); err == nil {
		return refused(fmt.Errorf("a relay runs on %s: stop it first", s.StoreDir))
	}
	st, err := openExisting(ctx, s.StoreDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	present, err := boundTo(ctx, st)
	if err != nil {
		return err
	}
	var f rekeyFacts
	if f.Recovered, _, err = relay.FinishRekey(s.StoreDir, present); err != nil {
		return err
	}
	if f.Recovered {
		fmt.Fprintf(e.errw, "an earlier rekey was cut off and is finished now: the store's key is %s\n", present.Fingerprint())
	}
	next, source, err := nextKey(s.StoreDir, secret, o.keyFile, present)
	if err != nil {
		return err
	}
	if err := confirmRekey(e, o.confirm, present.Fingerprint()); err != nil {
		return err
	}
	f.KeySource = source
	inFile := source != "MBX_RELAY_KEY"
	if inFile {
		if err := relay.StageKey(s.StoreDir, next); err != nil {
			return err
		}
		o.step("staged")
	}
	if f.Rekeyed, err = st.Rekey(ctx, present, next, time.Now(), actor(), o.reason); err != nil {
		return errors.Join(err, afterFailedRekey(st, s.StoreDir))
	}
	o.step("bound")
	if f.OldKey, err = relay.KeepOldKey(s.StoreDir, next.Public()); err != nil {
		return fmt.Errorf("the store has its new key, %s, but the old file could not be kept: %w; run agentmbx relay serve once that is put right",
			f.To, err)
	}
	o.step("kept")
	if inFile {
		if _, _, err := relay.FinishRekey(s.StoreDir, next.Public()); err != nil {
			return err
		}
		o.step("finished")
	} else if f.OldKey != "" {
		// Left in place it would be taken for the key once MBX_RELAY_KEY is gone.
		if err := relay.DropKey(s.StoreDir); err != nil {
			return err
		}
	}
	url := s.PublicURL
	if url == "" {
		url = "URL"
	}
	f.Confirm = fmt.Sprintf("agentmbx relay set %s --key %s", url, f.To)
	return printRekey(e, s, f, o.json)
}

func boundTo(ctx context.Context, st *sqlite.Store) (key wire.PublicKey, err error) {
	err = st.View(ctx, func(r store.Reader) error {
		in, err := r.Info()
		key = in.RelayKey
		return err
	})
	return key, err
}

// afterFailedRekey takes back what was staged, unless the store took it after all.
func afterFailedRekey(st *sqlite.Store, dir string) error {
	bound, err := boundTo(context.Background(), st)
	if err != nil {
		return err
	}
	_, _, err = relay.FinishRekey(dir, bound)
	return err
}

// nextKey finds the key to change to, and says where it is.
func nextKey(dir, secret, file string, present wire.PublicKey) (key wire.PrivateKey, source string, err error) {
	var inEnv wire.PrivateKey
	if secret != "" {
		if inEnv, err = wire.ParseKeyFile([]byte(secret)); err != nil {
			return key, "", usage(fmt.Errorf("MBX_RELAY_KEY: %w", err))
		}
	}
	path := filepath.Join(dir, relay.KeyFile)
	switch {
	case file != "":
		if key, err = readKeyFlag(file); err != nil {
			return key, "", err
		}
		source = path
		if secret != "" && inEnv.Public() != key.Public() {
			return key, "", usage(errors.New("MBX_RELAY_KEY holds another key than --key, and a relay takes that of MBX_RELAY_KEY: unset one of them"))
		}
		if secret != "" {
			source = "MBX_RELAY_KEY"
		}
	case secret != "":
		key, source = inEnv, "MBX_RELAY_KEY"
		if key.Public() == present {
			return key, "", usage(errors.New("MBX_RELAY_KEY holds the store's present key, and a relay would go on taking that: set it to the new key (agentmbx relay keygen), or unset it to have a relay.key made"))
		}
	default:
		if key, err = wire.GenerateKey(); err != nil {
			return key, "", err
		}
		return key, path, nil
	}
	if key.Public() == present {
		return key, "", refused(fmt.Errorf("the key given is the store's present one, %s: nothing was changed", present.Fingerprint()))
	}
	return key, source, nil
}

// confirmRekey has the operator name the key that goes.
func confirmRekey(e env, given, present string) error {
	where := "--confirm"
	if given == "" {
		where = "what you typed"
		if !byHand(e.in) {
			return usage(fmt.Errorf("a rekey has to be confirmed: type the store's present fingerprint at a terminal, or say --confirm %s", present))
		}
		fmt.Fprintf(e.errw, "Every host stops using this relay until its owner confirms the new key.\nThe store's present key is %s. Type it to go on: ", present)
		line, err := bufio.NewReader(io.LimitReader(e.in, 200)).ReadString('\n')
		if given = strings.TrimSpace(line); given == "" {
			fmt.Fprintln(e.errw)
			return usage(errors.Join(errors.New("nothing was typed, nothing was changed; in a script say --confirm FINGERPRINT"), ignoreEOF(err)))
		}
	}
	fp, err := wire.ParseFingerprint(given)
	if err != nil {
		return usage(fmt.Errorf("%s: %w; nothing was changed", where, err))
	}
	if fp != present {
		return refused(fmt.Errorf("%s is %s, the store's present key is %s: nothing was changed", where, fp, present))
	}
	return nil
}

func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func printRekey(e env, s Settings, f rekeyFacts, asJSON bool) error {
	if asJSON {
		return printJSON(e.out, f)
	}
	w := tabwriter.NewWriter(e.out, 0, 8, 2, ' ', 0)
	fmt.Fprintf(w, "relay key\t%s (from %s), was %s\n", f.To, f.KeySource, f.From)
	if f.OldKey != "" {
		fmt.Fprintf(w, "old key\tkept as %s\n", f.OldKey)
	}
	fmt.Fprintf(w, "epoch\t%s\n", f.Epoch)
	if f.Notices > 0 {
		fmt.Fprintf(w, "notices\t%d signed again\n", f.Notices)
	}
	if f.NoticesLeft > 0 {
		fmt.Fprintf(w, "notices\t%d could not be read and stay as they are: hosts put them into quarantine\n", f.NoticesLeft)
	}
	fmt.Fprintf(w, "next\tagentmbx relay serve --store-dir %s\n", s.StoreDir)
	fmt.Fprintf(w, "on each host\t%s\n", f.Confirm)
	return w.Flush()
}

// readKeyFlag reads the file of a --key.
func readKeyFlag(file string) (key wire.PrivateKey, err error) {
	key, err = relay.ReadKey(file)
	switch {
	case err == nil:
		return key, nil
	case isMissing(err):
		return key, notFound(fmt.Errorf("--key: %w", err))
	case errors.Is(err, relay.ErrKeyFile):
		return key, usage(fmt.Errorf("--key: %w", err))
	}
	return key, err
}
