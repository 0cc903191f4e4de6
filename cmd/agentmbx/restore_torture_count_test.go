package main

import (
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agentmbx/agentmbx/relay/host"
	"github.com/agentmbx/agentmbx/relay/store/sqlite"
)

// rotate gives a host new keys. Its record reaches the others, now or after what
// comes next, as it would over the LAN.
func (x *torture) rotate() {
	x.t.Helper()
	x.tellRotation()
	h := x.hosts[x.rnd.IntN(len(x.hosts))]
	if _, err := h.host.RotateKey(x.t.Context()); err != nil {
		x.t.Fatal(err)
	}
	x.did["rotated"]++
	record := column[[]byte](h.homeDir, "SELECT record FROM rotations ORDER BY at DESC LIMIT 1")
	x.late = func() {
		for _, other := range x.hosts {
			if other == h {
				continue
			}
			if got, err := other.host.Rotate(x.t.Context(), record); err != nil || !slices.Equal(got, []string{"rotated"}) {
				x.t.Errorf("%s takes the rotation of %s: got %q, %v", other.name, h.name, got, err)
			}
		}
	}
	if x.rnd.IntN(2) == 0 {
		x.tellRotation()
	}
}

func (x *torture) tellRotation() {
	x.t.Helper()
	if tell := x.late; tell != nil {
		x.late = nil
		tell()
	}
}

// settle waits until nothing is on its way.
func (x *torture) settle(limit time.Duration) {
	x.t.Helper()
	x.tellRotation()
	began, hurried := time.Now(), time.Now()
	left := func() string {
		for _, h := range x.hosts {
			if what := x.onTheWay(h); what != "" {
				return what
			}
		}
		if n := x.queued(); n > 0 {
			return fmt.Sprintf("the relay has %d items", n)
		}
		return ""
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for _, h := range x.hosts {
		h.hurry()
	}
	tell := sync.OnceFunc(func() {
		for _, h := range x.hosts {
			x.t.Logf("%s\n%s\n%s", h.name, h.daemon.stderr, x.why(h))
		}
	})
	for what := left(); what != ""; what = left() {
		if time.Since(began) > limit/10 {
			tell()
		}
		if time.Since(began) > limit {
			x.t.Fatalf("after %s %s", limit, what)
		}
		if time.Since(hurried) > 2*time.Second {
			for _, h := range x.hosts {
				h.hurry()
			}
			hurried = time.Now()
		}
		<-tick.C
	}
	x.t.Logf("settled in %s", time.Since(began).Round(time.Millisecond))
}

// queued counts what the relay has for the hosts' keys. A store that was lost
// with a rotation may have more, for a key that nobody has any more: it expires.
func (x *torture) queued() (n int) {
	x.t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(x.dir, sqlite.FileName)+"?mode=ro&_pragma=busy_timeout(10000)")
	if err != nil {
		x.t.Fatal(err)
	}
	defer db.Close()
	for _, h := range x.hosts {
		key, one := h.host.Key(), 0
		if err := db.QueryRow("SELECT count(*) FROM items WHERE target_pubkey = ?", key[:]).Scan(&one); err != nil {
			x.t.Fatal(err)
		}
		n += one
	}
	return n
}

// onTheWay is what a host still has to do. It keeps waiting for the receipt of a
// message that was delivered and acked before a backup: when the receipt is in
// none, it is lost, and the relay knows the message to be done (scenario E1, h).
func (x *torture) onTheWay(h *tortured) string {
	x.t.Helper()
	for _, q := range []struct{ what, query string }{
		{"rows in the outbox", "SELECT count(*) FROM outbox"},
		{"receipts to send", "SELECT count(*) FROM receipts_out"},
		{"routes neither confirmed nor with the relay", "SELECT count(*) FROM routes WHERE state NOT IN ('confirmed', 'relay-accepted')"},
		{"wire bytes kept of what is confirmed", "SELECT count(*) FROM wires WHERE (msg, fold) NOT IN (SELECT msg, fold FROM relay_sent WHERE state = 'relay-accepted')"},
		{"relays with an ack to send", "SELECT count(*) FROM relays WHERE acked < position"},
	} {
		if n := column[int64](h.homeDir, q.query)[0]; n > 0 {
			return fmt.Sprintf("%s has %d %s", h.name, n, q.what)
		}
	}
	for _, id := range column[string](h.homeDir, "SELECT msg FROM routes WHERE state <> 'confirmed'") {
		if l := h.sent[id]; l.at.After(x.since) {
			return fmt.Sprintf("%s of %s, sent after the last restore, is not confirmed", id, h.name)
		}
	}
	return ""
}

// why says what a host knows of what it still has to do.
func (x *torture) why(h *tortured) string {
	var all []string
	for _, q := range []string{
		"SELECT 'outbox ' || msg || ' ' || fold || ' ' || state || ' ' || attempts || ' ' || coalesce(error, '') FROM outbox LIMIT 5",
		"SELECT 'receipt ' || msg || ' ' || fold || ' ' || attempts || ' ' || coalesce(error, '') FROM receipts_out LIMIT 5",
		"SELECT 'relay ' || state || ' ' || detail || ' ' || epoch || ' ' || position || ' ' || acked FROM relays",
		"SELECT 'sent ' || msg || ' ' || fold || ' ' || state || ' ' || epoch FROM relay_sent WHERE state <> 'settled' LIMIT 5",
		"SELECT 'quarantine ' || item_id || ' ' || reason FROM quarantine LIMIT 5",
		"SELECT 'alert ' || subject FROM messages WHERE kind = 'alert' LIMIT 5",
	} {
		all = append(all, column[string](h.homeDir, q)...)
	}
	return strings.Join(all, "\n")
}

func (x *torture) everyMessageOnce() {
	x.t.Helper()
	total, waits := 0, 0
	for _, to := range x.hosts {
		there := map[string]int{}
		for _, id := range column[string](to.homeDir, "SELECT msg FROM deliveries d JOIN messages m ON m.id = d.msg WHERE d.mailbox = 'owner' AND m.origin <> ''") {
			there[id]++
		}
		for _, from := range x.hosts {
			for id, l := range from.sent {
				if l.to != to.name {
					continue
				}
				if total++; there[id] != 1 {
					x.t.Errorf("%s from %s is %d times in the mailbox at %s; want once", id, from.name, there[id], to.name)
				}
				delete(there, id)
				switch states := column[string](from.homeDir, "SELECT state FROM confirmations WHERE msg = ?", id); {
				case len(states) == 0 && l.at.Before(x.since):
					waits++
				case len(states) != 1 || states[0] != host.StateDelivered:
					x.t.Errorf("%s has states %q of %s; want delivered", from.name, states, id)
				}
			}
		}
		if len(there) > 0 {
			x.t.Errorf("%s has messages that nobody sent: %v", to.name, slices.Collect(maps.Keys(there)))
		}
		if twice := column[string](to.homeDir, "SELECT subject FROM messages WHERE origin <> '' GROUP BY subject HAVING count(*) > 1"); len(twice) > 0 {
			x.t.Errorf("%s has messages twice under different ids: %q", to.name, twice)
		}
		for _, q := range []struct{ what, query string }{
			{"items in quarantine", "SELECT item_id || ': ' || reason FROM quarantine"},
			{"alerts", "SELECT subject FROM messages WHERE kind = 'alert'"},
		} {
			if list := column[string](to.homeDir, q.query); len(list) > 0 {
				x.t.Errorf("%s has %d %s: %q; want none", to.name, len(list), q.what, list[:min(3, len(list))])
			}
		}
	}
	x.t.Logf("%d messages, each once; the receipts of %d went with a store", total, waits)
}

// leavesGoodBackupsOnly ends everything and looks at what is left.
func (x *torture) leavesGoodBackupsOnly() {
	x.t.Helper()
	for _, h := range x.hosts {
		h.end()
	}
	x.backup(filepath.Join(x.apart, "last.db"))
	x.relay.stop(x.t)
	files := x.backups()
	for _, file := range files {
		if code, stdout, stderr := command(x.t, nil, "relay", "verify", "--store-dir", x.dir, file); code != 0 {
			x.t.Errorf("verify %s: exit %d: %s%s", file, code, stdout, stderr)
		}
	}
	x.t.Logf("%d backups and rollback copies are good", len(files))
	for _, dir := range []string{x.dir, x.apart} {
		if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			name := d.Name()
			if strings.Contains(name, ".partial") || strings.HasPrefix(name, ".drill-") || strings.HasPrefix(name, "restore.") {
				x.t.Errorf("%s is left", path)
			}
			return err
		}); err != nil {
			x.t.Error(err)
		}
	}
	s, err := sqlite.Open(x.t.Context(), sqlite.Options{Dir: x.dir, LockWait: 10 * time.Second})
	if err != nil {
		x.t.Fatal(err)
	}
	if err := errors.Join(s.Check(x.t.Context()), s.Close()); err != nil {
		x.t.Error(err)
	}
}
