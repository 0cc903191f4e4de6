package host

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"

	"github.com/gofrs/flock"

	"github.com/agentmbx/agentmbx/relay/host/relayclient"
)

// ErrUnproven is returned by JoinPeer when the host that answered does not know
// the token: nothing was paired.
var ErrUnproven = errors.New("the host that answered does not know the token: nothing was paired; someone may be in between")

// ParseRelayURL checks a relay's URL and returns it in its one spelling. Its
// error repeats nothing of s.
func ParseRelayURL(s string) (string, error) { return relayclient.ParseURL(s) }

// RelayURL is the relay in use, that of Options or else of the configuration;
// "" for none.
func (h *Host) RelayURL() string { return h.relayURL() }

// SwitchLANOff makes this host call nobody over the LAN: its mail goes over the
// relay. Daemon does it by itself when it is not told to listen.
func (h *Host) SwitchLANOff() { h.switchLANOff() }

// MailboxesWith names the mailboxes here that have a message.
func (h *Host) MailboxesWith(ctx context.Context, id string) (boxes []string, err error) {
	err = h.db.read(ctx, func(t *tx) error {
		return t.each("SELECT mailbox FROM deliveries WHERE msg = ? ORDER BY mailbox", []any{id}, func(scan func(...any) error) error {
			var box string
			err := scan(&box)
			boxes = append(boxes, box)
			return err
		})
	})
	return boxes, err
}

// DaemonRuns says whether a daemon has this home, and where the last one served
// the LAN: "" when it did not, or when none has run yet.
func (h *Host) DaemonRuns(ctx context.Context) (runs bool, addr string, err error) {
	if runs, err = daemonRuns(h.opts.Home); err != nil {
		return false, "", err
	}
	addr, err = h.lanAddr(ctx)
	return runs, addr, err
}

// daemonRuns reports whether a process is the home's daemon. It makes no file.
func daemonRuns(home string) (bool, error) {
	path := filepath.Join(home, lockFile)
	if err := checkPrivate(path); errors.Is(err, os.ErrNotExist) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	// A shared lock, for a moment: a daemon that starts right now waits for it.
	l := flock.New(path, flock.SetFlag(os.O_RDONLY))
	free, err := l.TryRLock()
	return !free && err == nil, errors.Join(err, l.Close())
}

// noteLANAddr remembers where this home's daemon serves the LAN, for the
// commands beside it.
func (h *Host) noteLANAddr(ctx context.Context, addr string) error {
	old, err := h.lanAddr(ctx)
	if err != nil || old == addr {
		return err
	}
	return h.db.write(ctx, func(t *tx) error {
		_, err := t.exec("INSERT INTO facts (name, value) VALUES ('lan_addr', ?1) ON CONFLICT (name) DO UPDATE SET value = ?1", addr)
		return err
	})
}

func (h *Host) lanAddr(ctx context.Context) (addr string, err error) {
	err = h.db.read(ctx, func(t *tx) error {
		_, err := t.get("SELECT value FROM facts WHERE name = 'lan_addr'", nil, &addr)
		return err
	})
	return addr, err
}

// lanNetwork makes an IPv4 address mean IPv4: as "tcp" 0.0.0.0 would be every
// address of both.
func lanNetwork(listen string) string {
	host, _, err := net.SplitHostPort(listen)
	if ip := net.ParseIP(host); err == nil && ip != nil && ip.To4() != nil {
		return "tcp4"
	}
	return "tcp"
}
