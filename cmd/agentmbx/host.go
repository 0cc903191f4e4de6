package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/agentmbx/agentmbx/relay/host"
	"github.com/agentmbx/agentmbx/relay/host/account"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// home is the folder a host's command works on.
type home struct {
	dir string
	cmd *cobra.Command
}

// bindHome gives a command the flag --home.
func bindHome(cmd *cobra.Command) *home {
	h := &home{cmd: cmd}
	cmd.Flags().StringVar(&h.dir, "home", "", "`folder` of the host (default MBX_HOME, else ~/.agentmbx)")
	return h
}

// options says how to open the home, from flag and environment. Every error is
// a usage error that names where the bad value came from.
func (h *home) options() (host.Options, error) {
	if err := checkEnvironment(new(Settings).table(), os.Environ()); err != nil {
		return host.Options{}, usage(err)
	}
	o := host.Options{Version: version}
	dir := h.dir
	if h.cmd.Flags().Changed("home") {
		if dir == "" {
			return o, usage(errors.New("--home is empty: want a folder"))
		}
	} else if dir = os.Getenv("MBX_HOME"); dir == "" {
		user, err := os.UserHomeDir()
		if err != nil {
			return o, usage(errors.New("no folder for the host: set --home or MBX_HOME"))
		}
		dir = filepath.Join(user, ".agentmbx")
	}
	var err error
	if o.Home, err = filepath.Abs(dir); err != nil {
		return o, err
	}
	if url := os.Getenv("MBX_RELAY_URL"); url != "" {
		if o.RelayURL, err = host.ParseRelayURL(url); err != nil {
			return o, usage(fmt.Errorf("MBX_RELAY_URL is %w", err)) // the value may hold a password
		}
	}
	o.TokenCommand, o.TokenFile = os.Getenv(envTokenCommand), os.Getenv(envTokenFile)
	return o, checkTokenVariables(os.Environ())
}

// Where a host's tokens for a hosted relay come from.
const (
	envTokenCommand = "MBX_ACCOUNT_TOKEN_CMD"
	envTokenFile    = "MBX_ACCOUNT_TOKEN_FILE"
)

// checkTokenVariables refuses a mistyped one: the host would be without a token.
func checkTokenVariables(environ []string) error {
	for _, v := range environ {
		name, value, _ := strings.Cut(v, "=")
		if strings.HasPrefix(name, "MBX_ACCOUNT_") && value != "" && name != envTokenCommand && name != envTokenFile {
			return usage(fmt.Errorf("%.100q is no setting of this version: want %s or %s", name, envTokenCommand, envTokenFile))
		}
	}
	return nil
}

// with runs fn with the open host.
func (h *home) with(ctx context.Context, fn func(*host.Host) error) error {
	return h.withLog(ctx, nil, func(here *host.Host, _ string) error { return fn(here) })
}

// withLog runs fn with the open host, which logs to log, and the name of its folder.
func (h *home) withLog(ctx context.Context, log *slog.Logger, fn func(here *host.Host, dir string) error) error {
	o, err := h.options()
	if err != nil {
		return err
	}
	o.Log = log
	here, err := host.Open(ctx, o)
	if err != nil {
		return hostError(fmt.Errorf("%s: %w", o.Home, err))
	}
	return hostError(errors.Join(fn(here, o.Home), here.Close()))
}

// hostError gives a host's error its exit code.
func hostError(err error) error {
	var coded *exitError
	var key *host.KeyMismatchError
	switch {
	case err == nil || errors.As(err, &coded):
		return err
	case errors.As(err, &key):
		return refused(err)
	}
	for target, hint := range map[error]string{
		host.ErrNotQuarantined: "see agentmbx relay quarantine",
		host.ErrPairRefused:    "run agentmbx pair there again",
	} {
		if errors.Is(err, target) {
			err = fmt.Errorf("%w: %s", err, hint)
		}
	}
	for _, c := range []struct {
		code    int
		targets []error
	}{
		{codeNotFound, []error{host.ErrNoHome, account.ErrNoRecord, host.ErrNoPeer, host.ErrNoMessage, host.ErrNotQuarantined}},
		{codeUsage, []error{host.ErrBadMail, host.ErrBadName, host.ErrBadRelayKey, host.ErrBadTokenLife, wire.ErrBadToken}},
		{codeRefused, []error{host.ErrUnsafe, host.ErrExists, host.ErrDaemonRuns, host.ErrTaken, host.ErrPairRefused, host.ErrUnproven,
			host.ErrTooManyOpen, host.ErrForeignDB, host.ErrNewerDB}},
	} {
		for _, target := range c.targets {
			if errors.Is(err, target) {
				return withCode(c.code, err)
			}
		}
	}
	return err
}

// printable makes one line of a text from elsewhere that a terminal takes for
// nothing but text.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unprintable(r) {
			return '?'
		}
		return r
	}, s)
}

// printableBody is printable for text of several lines: newlines and tabs stay.
func printableBody(s string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && unprintable(r) {
			return '?'
		}
		return r
	}, strings.ReplaceAll(s, "\r\n", "\n"))
}

// unprintable finds what a terminal could take for a command or show in another
// order: control characters, separators of lines, embeddings and overrides of
// direction, and bytes that are no text.
func unprintable(r rune) bool {
	return r == utf8.RuneError || unicode.In(r, unicode.Cc, unicode.Zl, unicode.Zp) ||
		0x202a <= r && r <= 0x202e || 0x2066 <= r && r <= 0x2069
}

// escapeJSON writes such characters in a JSON document as its escapes: the
// document says the same, and a terminal that shows it is safe.
func escapeJSON(doc []byte) []byte {
	var out []byte
	done := 0 // bytes of doc that are in out
	for i, r := range string(doc) {
		if r < 0x7f || r == utf8.RuneError || !unprintable(r) {
			continue
		}
		out = append(out, doc[done:i]...)
		out = fmt.Appendf(out, `\u%04x`, r) // none of them is beyond 0xffff
		done = i + utf8.RuneLen(r)
	}
	return append(out, doc[done:]...)
}

// limitFlag checks a --limit.
func limitFlag(n int) error {
	if n < 1 || n > maxLimit {
		return usage(fmt.Errorf("--limit is %d: want 1 to %d", n, maxLimit))
	}
	return nil
}

const maxLimit = 1000

// jsonFlag gives a command the flag --json.
func jsonFlag(cmd *cobra.Command) *bool {
	return cmd.Flags().Bool("json", false, "print JSON")
}

// byHand reports whether a person may be typing the input.
func byHand(in io.Reader) bool {
	f, ok := in.(*os.File)
	if !ok {
		return false
	}
	fi, err := f.Stat()
	if err != nil || fi.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull)
	return err != nil || !os.SameFile(fi, null)
}
