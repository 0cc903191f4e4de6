package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/admin/api"
)

// Where a relay elsewhere is reached, unless flags say otherwise.
const (
	envAdminURL       = "MBX_ADMIN_URL"
	envAdminTokenFile = "MBX_ADMIN_TOKEN_FILE"
)

// maxTokenFile is the largest file that is read as a token.
const maxTokenFile = 4 << 10

// deskReader finds the desk that a command works on: that of a store on this
// machine, or that of a relay elsewhere.
type deskReader struct {
	settings       *settingsReader
	cmd            *cobra.Command
	local          []string // flags that name a store here
	url, tokenFile string
}

// bindDesk gives a command --store-dir and --config, further settings as flags,
// and --url with --token-file for a relay elsewhere.
func bindDesk(cmd *cobra.Command, names ...string) *deskReader {
	names = append([]string{"store-dir"}, names...)
	d := &deskReader{cmd: cmd, settings: bindSettings(cmd.Flags(), names...), local: append(names, "config")}
	cmd.Flags().StringVar(&d.url, "url", "", "`URL` of the desk of a relay elsewhere (else "+envAdminURL+"), instead of a store here")
	cmd.Flags().StringVar(&d.tokenFile, "token-file", "", "`file` with the token for it (else "+envAdminTokenFile+")")
	return d
}

// with runs fn with the desk: that of the relay that runs, else one of our own
// under the store's lock. A desk elsewhere is always that of a running relay.
func (d *deskReader) with(ctx context.Context, e env, fn func(svc admin.Service, running bool) error) error {
	c, err := d.remote()
	if err != nil {
		return err
	}
	if c != nil {
		return fn(c, true)
	}
	s, err := d.settings.read()
	if err != nil {
		return err
	}
	return withDesk(ctx, e, s, fn)
}

// relayDesk is the desk of a relay that runs, now or later: every call answers
// api.ErrNotRunning as long as none does. It never opens the store.
type relayDesk struct {
	Service  admin.Service
	Where    string // the store's folder or the URL, for people
	StoreDir string // "" for a relay elsewhere
}

// service is the desk for a screen that stays open.
func (d *deskReader) service() (relayDesk, error) {
	c, err := d.remote()
	if err != nil {
		return relayDesk{}, err
	}
	if c != nil {
		return relayDesk{Service: c, Where: c.Place()}, nil
	}
	s, err := d.settings.read()
	if err != nil {
		return relayDesk{}, err
	}
	return relayDesk{api.At(s.StoreDir), s.StoreDir, s.StoreDir}, nil
}

// remote is the client of a relay elsewhere, nil when a store here is meant. A
// flag that names a store wins over an environment that names a URL.
func (d *deskReader) remote() (*api.Client, error) {
	flags := d.cmd.Flags()
	url, tokenFile, from := d.url, d.tokenFile, "--url"
	here := slices.ContainsFunc(d.local, flags.Changed)
	switch {
	case url != "" && here:
		return nil, usage(fmt.Errorf("--url is a relay elsewhere, --%s a store here: give one of the two", strings.Join(d.local, " and --")))
	case url == "" && flags.Changed("url"):
		return nil, usage(errors.New("--url is empty: want http://HOST:PORT or https://HOST:PORT"))
	case url == "" && !here:
		url, from = os.Getenv(envAdminURL), envAdminURL
	}
	if url == "" {
		if tokenFile != "" {
			return nil, usage(fmt.Errorf("--token-file is for a relay elsewhere: give --url or set %s, too", envAdminURL))
		}
		return nil, nil
	}
	if tokenFile == "" {
		tokenFile = os.Getenv(envAdminTokenFile)
	}
	if tokenFile == "" {
		return nil, usage(fmt.Errorf("a relay elsewhere wants a token: give --token-file or set %s", envAdminTokenFile))
	}
	token, err := readAdminToken(tokenFile)
	if err != nil {
		return nil, err
	}
	c, err := api.Remote(url, token)
	if err != nil {
		return nil, usage(fmt.Errorf("%s: %w", from, err))
	}
	return c, nil
}

// readAdminToken reads a file with a token. One that others of this machine may read
// is refused.
func readAdminToken(file string) (string, error) {
	st, err := os.Stat(file)
	if errors.Is(err, fs.ErrNotExist) {
		return "", notFound(fmt.Errorf("no token file %s", file))
	}
	if err != nil {
		return "", err
	}
	if st.Mode().IsRegular() && st.Mode().Perm()&0o077 != 0 {
		return "", refused(fmt.Errorf("others may read the token in %s: chmod 600 %s", file, file))
	}
	b, err := readBounded(file, maxTokenFile)
	if err != nil {
		return "", usage(fmt.Errorf("token file: %w", err))
	}
	return strings.TrimSpace(string(b)), nil
}
