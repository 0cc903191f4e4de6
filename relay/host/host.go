package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/agentmbx/agentmbx/relay/host/account"
	"github.com/agentmbx/agentmbx/relay/host/lan"
	"github.com/agentmbx/agentmbx/relay/host/relayclient"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// Options says how to open a home.
type Options struct {
	// Home is the folder.
	Home string

	// RelayURL is the relay to use; it wins over the configuration's. "" leaves that.
	RelayURL string

	// Version is this program's, for GET /v1/status.
	Version string

	// Now is the clock; nil means time.Now.
	Now func() time.Time

	// Log hears what a person might want to know; nil for nothing.
	Log *slog.Logger

	// Transport carries the calls to a relay; nil for an own one.
	Transport http.RoundTripper

	// TokenCommand and TokenFile are where an account's tokens for the relay come
	// from, the command first; without either a sign-in is used for its relay.
	TokenCommand, TokenFile string
}

// Host is an open home. Safe for concurrent use.
type Host struct {
	opts   Options
	log    *slog.Logger
	now    func() time.Time
	db     *db
	lan    *lan.Client
	tokens *account.Source
	start  time.Time

	mu        sync.Mutex // guards what follows
	config    Config
	keys      *keyring
	keysFile  os.FileInfo // of the keys that are loaded
	client    *relayclient.Client
	clientURL string
	lanPort   int // where this host listens, 0 when it does not
	lanOff    bool
	patience  time.Duration // how long a pass waits for a token

	session     *session             // with the relay, as it was opened last
	hops        map[string]time.Time // the newest hop of each peer, by fold
	republished time.Time            // when the relay was last found without our sealing key

	ticking   sync.Mutex // one tick at a time
	receiving sync.Mutex // one reader of the relay's queue at a time

	woken chan struct{} // a tick is wanted

	// at, in tests, is told where a crash would matter.
	at func(point string)
	// group, in tests, is how many items are received in one transaction.
	group int
}

// Init makes a host of this name in a folder that has none.
func Init(ctx context.Context, o Options, name string) error {
	if !wire.ValidHostName(name) {
		return fmt.Errorf("%q can't name a host: want 1 to 63 letters, digits, dots, dashes or underscores", name)
	}
	if err := os.MkdirAll(o.Home, 0o700); err != nil {
		return err
	}
	if err := checkHome(o.Home); err != nil {
		return err
	}
	for _, f := range []string{configFile, keysFile, dbFile} {
		if _, err := os.Lstat(filepath.Join(o.Home, f)); err == nil && (f != keysFile && f != dbFile) {
			return ErrExists
		} else if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	// The configuration comes last: without it there is no host, and a call that
	// was cut short is simply made again.
	keys := filepath.Join(o.Home, keysFile)
	if _, err := os.Lstat(keys); errors.Is(err, os.ErrNotExist) {
		k, err := newKeyring()
		if err != nil {
			return err
		}
		if err := k.write(keys); err != nil {
			return err
		}
	}
	now := o.Now
	if now == nil {
		now = time.Now
	}
	d, err := openDB(ctx, o.Home, true, now)
	if err != nil {
		return err
	}
	err = d.write(ctx, func(t *tx) error { return ensureMailbox(t, "owner", true) })
	if err := errors.Join(err, d.close()); err != nil {
		return err
	}
	return writeConfig(o.Home, Config{V: 1, Host: name})
}

// Open opens a home. It returns ErrNoHome when there is none.
func Open(ctx context.Context, o Options) (*Host, error) {
	if err := checkHome(o.Home); err != nil {
		return nil, err
	}
	h := &Host{
		opts: o, log: o.Log, now: o.Now, woken: make(chan struct{}, 1),
		at: func(string) {}, group: 100, hops: map[string]time.Time{}, patience: tokenPatience,
	}
	if h.log == nil {
		h.log = slog.New(slog.DiscardHandler)
	}
	if h.now == nil {
		h.now = time.Now
	}
	h.start = h.now()
	var err error
	if h.config, err = readConfig(o.Home); err != nil {
		return nil, err
	}
	if err := h.loadKeys(); err != nil {
		return nil, err
	}
	if h.db, err = openDB(ctx, o.Home, false, h.now); err != nil {
		return nil, err
	}
	if err := h.noteRotations(ctx); err != nil {
		return nil, errors.Join(err, h.db.close())
	}
	h.lan = lan.NewClient(h.now)
	h.tokens = account.NewSource(account.SourceOptions{Home: o.Home, Command: o.TokenCommand, File: o.TokenFile, Now: h.now})
	return h, nil
}

// Close closes the home. Nothing of it may be used afterwards.
func (h *Host) Close() error {
	h.lan.Close()
	h.tokens.Close()
	h.mu.Lock()
	if h.client != nil {
		h.client.Close()
	}
	h.mu.Unlock()
	return h.db.close()
}

// Name is this host's name.
func (h *Host) Name() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.config.Host
}

// Key is this host's public key.
func (h *Host) Key() wire.PublicKey { return h.keyring().key.Public() }

func (h *Host) fold() string { return wire.FoldName(h.Name()) }

func (h *Host) keyring() *keyring {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.keys
}

// loadKeys reads keys.json when it is not the file that was read last.
func (h *Host) loadKeys() error {
	path := filepath.Join(h.opts.Home, keysFile)
	fi, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return errNoKeys
	}
	if err != nil {
		return err
	}
	h.mu.Lock()
	same := h.keysFile != nil && os.SameFile(fi, h.keysFile) && fi.ModTime().Equal(h.keysFile.ModTime())
	h.mu.Unlock()
	if same {
		return nil
	}
	k, err := readKeys(path)
	if err != nil {
		return err
	}
	h.mu.Lock()
	h.keys, h.keysFile = k, fi
	h.mu.Unlock()
	return nil
}

// reload takes over what another process changed in the home's files.
func (h *Host) reload(ctx context.Context) error {
	before := h.keyring()
	if err := h.loadKeys(); err != nil {
		return err
	}
	if h.keyring() != before {
		if err := h.noteRotations(ctx); err != nil {
			return err
		}
	}
	c, err := readConfig(h.opts.Home)
	if err != nil {
		return err
	}
	h.mu.Lock()
	h.config = c
	h.mu.Unlock()
	return nil
}

// wake asks for a tick soon.
func (h *Host) wake() {
	select {
	case h.woken <- struct{}{}:
	default:
	}
}
