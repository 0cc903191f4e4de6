package tui

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	tea "github.com/charmbracelet/bubbletea"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/backup"
	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/authority"
	"github.com/agentmbx/agentmbx/relay/store/sqlite"
	"github.com/agentmbx/agentmbx/relay/wire"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

// real is a real relay on a real store, its desk, and the screens over it. One
// clock is that of all of them.
type real struct {
	*stage
	store *sqlite.Store
	relay *relay.Relay
	local *admin.Local
	dir   string
}

func newReal(t testing.TB) *real {
	t.Helper()
	r := &real{dir: t.TempDir()}
	now := func() time.Time {
		if r.stage == nil {
			return clock
		}
		return r.stage.now
	}
	key, err := wire.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	free := func(string) (int64, int64, error) { return 40 << 20, 40 << 20, nil }
	if r.store, err = sqlite.Open(t.Context(), sqlite.Options{Dir: r.dir, Key: key.Public(), Now: now, Free: free}); err != nil {
		t.Fatal(err)
	}
	r.relay, err = relay.New(t.Context(), relay.Options{Store: r.store, Key: key, Version: "test", Limits: relay.DefaultLimits(), Authority: authority.HostKey{}, Now: now})
	if err != nil {
		t.Fatal(err)
	}
	r.local, err = admin.NewLocal(admin.Options{Relay: r.relay, Store: r.store, Key: key, Version: "test", Now: now,
		Backups: &backup.Folder{Dir: filepath.Join(r.dir, "backups"), StoreDir: r.dir, Key: key.Public(), Keep: 7, Version: "test", Log: slog.New(slog.DiscardHandler), Now: now}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(r.local.Close(), r.store.Check(context.Background()), r.store.Close()); err != nil {
			t.Error(err)
		}
	})
	r.stage = newStage(t, r.local, func(o *Options) {
		o.StoreDir = r.dir
		o.after = func(_ time.Duration, then func(time.Time) tea.Msg) tea.Cmd { return tea.Tick(5*time.Millisecond, then) }
	})
	return r
}

func (r *real) enrol(name string) *wiretest.Host {
	r.t.Helper()
	h := wiretest.NewHost(name)
	challenge, err := r.relay.Challenge(h.Name, h.Pub().String())
	if err == nil {
		err = r.relay.Enrol(r.t.Context(), relay.EnrolRequest{Host: h.Name, Key: h.Pub().String(), Sig: h.Key.Sign(wire.EnrolPayload(challenge, h.Name, h.Pub(), ""))})
	}
	if err != nil {
		r.t.Fatalf("enrol %q: %v", name, err)
	}
	return h
}

func (r *real) hop(h *wiretest.Host) (relay.Caller, error) {
	hop := relay.Hop{Host: h.Name, Key: h.Pub().String()}
	const path = "/v2/relay/items?after=0"
	hop.TS, hop.Sig = wire.SignHop(h.Key, "GET", path, nil, r.now)
	list, err := r.relay.Candidates(r.t.Context(), hop)
	if err != nil {
		return relay.Caller{}, err
	}
	return r.relay.Verify(list, hop, "GET", path, nil)
}

func (r *real) send1(from, to *wiretest.Host) (id string) {
	r.t.Helper()
	id, sealed := from.Envelope(to, "subject", "body")
	who, err := r.hop(from)
	if err != nil {
		r.t.Fatal(err)
	}
	res, err := r.relay.Push(r.t.Context(), who, []wire.PushItem{{ID: id, IDOK: true, Kind: "envelope", TargetsOK: true,
		Targets: []wire.PushTarget{{Key: to.Pub(), KeyOK: true, Wire: sealed, WireOK: true}}}})
	if err != nil || res[0].Status != "accepted" {
		r.t.Fatalf("push: got %+v, %v", res, err)
	}
	return id
}

// pulls is what a host gets after a seq, and the last seq of it.
func (r *real) pulls(h *wiretest.Host, after int64) (ids []string, last int64) {
	r.t.Helper()
	who, err := r.hop(h)
	if err != nil {
		r.t.Fatal(err)
	}
	p, err := r.relay.Pull(r.t.Context(), who, relay.PullQuery{After: after})
	if err != nil {
		r.t.Fatal(err)
	}
	for _, it := range p.Items {
		ids = append(ids, it.ID)
	}
	return ids, p.LastSeq
}

func (r *real) acks(h *wiretest.Host, through int64) {
	r.t.Helper()
	who, err := r.hop(h)
	if err != nil {
		r.t.Fatal(err)
	}
	in, err := r.relay.Info(r.t.Context(), nil)
	if err == nil {
		_, err = r.relay.Ack(r.t.Context(), who, in.Epoch, float64(through))
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

// logged is the newest receipt of a kind in the relay log.
func (r *real) logged(op string) string {
	r.t.Helper()
	list, err := r.local.Log(r.t.Context(), admin.LogFilter{Op: op, Limit: 1})
	if err != nil || len(list) != 1 {
		r.t.Fatalf("log of %s: got %v, %v; want a line", op, list, err)
	}
	return string(list[0].Receipt)
}

// The operator finds the queue whose mail waits longest, holds the item that is in
// the way, and releases it later: its receiver gets it once.
func TestJourneyStuckQueue(t *testing.T) {
	t.Parallel()
	r := newReal(t)
	sender, stuck, busy := r.enrol("sender"), r.enrol("stuck-host"), r.enrol("busy-host")
	poison := r.send1(sender, stuck)
	r.later(time.Hour)
	next := r.send1(sender, stuck)
	for range 5 {
		r.send1(sender, busy)
	}
	r.show(atQueues).sees("▸  busy-host", "stuck-host").press("s", "s").sees("waits longest", "1h00m")
	r.press("g", "enter").sees("stuck-host", "2 items", "▸", poison)
	r.press("h").sees("Hold 1 item?", poison).types("stops the host").press("enter", "y").sees("held 1 item", "1 held").lacks(poison)
	if log := r.logged("hold"); !strings.Contains(log, "cli:test") || !strings.Contains(log, "stops the host") || !strings.Contains(log, poison) {
		t.Errorf("got %s; want who held what, and why", log)
	}

	ids, last := r.pulls(stuck, 0)
	if len(ids) != 1 || ids[0] != next {
		t.Fatalf("got %v; want only what is not held", ids)
	}
	r.acks(stuck, last)

	r.show(atQuarantine).sees("held", "stops the host").press("enter").sees(poison, "held: its target does not get it", "stops the host")
	r.press("l", "y").sees("released 1 item", "GONE").press("esc").sees("nothing needs anybody")
	ids, last2 := r.pulls(stuck, last)
	if len(ids) != 1 || ids[0] != poison {
		t.Fatalf("got %v; want the released item at the tail", ids)
	}
	r.acks(stuck, last2)
	if ids, _ := r.pulls(stuck, 0); len(ids) != 0 {
		t.Errorf("got %v again; want nothing twice", ids)
	}
	r.show(atQueues).press("esc").lacks("stuck-host")
}

// A discarded item leaves for good, and its sender hears.
func TestJourneyDiscard(t *testing.T) {
	t.Parallel()
	r := newReal(t)
	sender, target := r.enrol("sender"), r.enrol("target")
	id := r.send1(sender, target)
	r.show(atQueues).press("enter", " ", "h").types("spam").press("enter", "y").sees("held 1 item")
	r.show(atQuarantine).press("x").types("spam").press("enter").types("discard").press("enter").sees("discarded 1 item; its sender will hear")
	if ids, _ := r.pulls(target, 0); len(ids) != 0 {
		t.Errorf("got %v; want nothing", ids)
	}
	if ids, _ := r.pulls(sender, 0); len(ids) != 1 || !strings.Contains(ids[0], id) {
		t.Errorf("got %v; want the notice of %s", ids, id)
	}
}

// A host is found by its name and revoked, by typing it.
func TestJourneyRevoke(t *testing.T) {
	t.Parallel()
	r := newReal(t)
	r.enrol("keeper")
	h := r.enrol("stolen-laptop")
	r.show(atEnrolments).sees("keeper").press("/").types("STOLEN").press("enter").lacks("keeper")
	r.press("enter").sees("does not end", "never", "Takes mail from any host", h.Pub().String())
	r.press("x").types("it was stolen").press("enter").types("stolen-laptop").press("enter").sees("stolen-laptop", "revoked", "session         ended")
	if _, err := r.hop(h); err == nil {
		t.Error("got a hop of a revoked host verified")
	}
	if log := r.logged("revoke"); !strings.Contains(log, "it was stolen") {
		t.Errorf("got %s; want why", log)
	}
}

// A host is blocked for a time, and let in again from the deny list.
func TestJourneyBlock(t *testing.T) {
	t.Parallel()
	r := newReal(t)
	h := r.enrol("noisy")
	r.show(atEnrolments).press("b", "enter").types("floods us").press("enter", "y").sees("blocked", "until 2026-03-05 15:06:07Z")
	if _, err := r.hop(h); err == nil {
		t.Error("got a hop of a blocked host verified")
	}
	r.press("d").sees("floods us", h.Pub().Fingerprint(), "1d00h").press("u", "y").sees("nobody is denied")
	if _, err := r.hop(h); err != nil {
		t.Errorf("got %v; want the host let in again", err)
	}
	r.press("esc").sees("live")
}

// A backup is taken, verified and drilled, down to the checklist.
func TestJourneyBackupAndDrill(t *testing.T) {
	t.Parallel()
	r := newReal(t)
	sender, target := r.enrol("sender"), r.enrol("target")
	r.send1(sender, target)
	r.resize(140, 45)
	r.show(atBackups).sees("no backup", "no drill yet").press("b").sees("Back up now?").press("y").sees("✓ backup: run", "verified", "relay-")
	r.press("v", "y").sees("a good backup", "ok    sha256").press("esc")
	r.press("d", "y").sees("✓ drill passed", "ok    backup: sha256", "ok    restore", "ok    serve", "lines 1-").press("G").sees("ok    untouched").lacks("FAIL")
	r.press("esc").sees("last drill passed 0s ago").press("l").sees("ok    integrity").press("esc")
	r.press("t").sees("agentmbx relay restore "+filepath.Join(r.dir, "backups")[:40], "--store-dir").press("esc")

	// The file rots: whoever verified it is not the only one to see that.
	files, err := filepath.Glob(filepath.Join(r.dir, "backups", "relay-*.db"))
	if err != nil || len(files) != 1 {
		t.Fatalf("got %q, %v; want one backup", files, err)
	}
	b, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	if err := os.WriteFile(files[0], b, 0o600); err != nil {
		t.Fatal(err)
	}
	r.resize(80, 24)
	r.press("v", "y").sees("NOT a good backup").press("esc").sees("NOT GOOD", filepath.Base(files[0]), "found bad 2026-03-04")
	r.press("t").sees("NOT GOOD", "Do not restore this one").lacks("agentmbx relay restore")
	r.show(atOverview).sees("2 ALARMS", "! the backup "+filepath.Base(files[0]), "agentmbx relay backup", "none verified yet")
	r.show(atLog).sees("run-job", "cli:test", "job=verify · relay-2026").press("enter").sees(`"job": "verify"`, `"file": "`)
}

// Names that try something with the terminal are shown as what they are, and hosts
// of such names can be acted upon.
func TestHostileNames(t *testing.T) {
	t.Parallel()
	f := full(hostile...)
	for _, size := range [][2]int{{80, 24}, {400, 100}} {
		for at := atQueues; at <= atBackups; at++ {
			for _, keys := range [][]string{nil, {"enter"}, {"enter", "enter"}, {"enter", "h"}, {"x"}, {"b"}, {"d"}, {"l"}, {"G", "enter"}, {"enter", "o"}} {
				if size[0] > 80 && len(keys) > 1 {
					continue
				}
				s := newStage(t, f)
				s.resize(size[0], size[1])
				s.show(at)
				for n := range len(hostile) { // each of them is selected once, where it is opened
					s.press(keys...)
					checkDrawn(t, fmt.Sprintf("screen %d after %q at %v", at, keys, size), s.view(), size[0], size[1])
					if keys == nil || n > 2 && at > atEnrolments {
						break
					}
					s.press("esc", "esc", "j")
				}
			}
		}
	}
}

// checkDrawn fails the test unless a view is safe for a terminal and has its size.
func checkDrawn(t *testing.T, what, view string, w, h int) {
	t.Helper()
	lines := strings.Split(view, "\n")
	if len(lines) > h {
		t.Fatalf("%s: got %d lines; want %d", what, len(lines), h)
	}
	for _, l := range lines {
		if width(l) > w {
			t.Fatalf("%s: got %q of %d cells; want %d at most", what, l, width(l), w)
		}
		if c := clean(l); c != l {
			t.Fatalf("%s: got %q; want %q", what, l, c)
		}
	}
}

// What is open is drawn into any room without a line too many.
func TestOpenViewsAtAnySize(t *testing.T) {
	t.Parallel()
	f := full()
	f.entries = append([]admin.LogEntry{{ID: 500, At: clock, Op: "drill", Receipt: mustJSON(aDrill(false))}}, f.entries...)
	for at := atQueues; at <= atBackups; at++ {
		for _, keys := range [][]string{nil, {"enter"}, {"enter", "enter"}, {"enter", "h"}, {"enter", "o"}, {"x"}, {"b"}, {"d"}, {"l"}, {"/"}, {"G", "enter"}} {
			s := newStage(t, f).show(at).press(keys...)
			for _, size := range [][2]int{{0, 0}, {1, 1}, {1, 30}, {30, 1}, {2, 2}, {7, 3}, {19, 5}, {79, 23}, {81, 2}, {200, 60}, {400, 100}} {
				w, h := size[0], size[1]
				checkDrawn(t, fmt.Sprintf("screen %d after %q at %v", at, keys, size), exactly(s.screen().view(w, h), w, h), w, max(1, h))
				if lines := strings.Split(s.screen().view(w, h), "\n"); len(lines) > max(1, h) {
					t.Errorf("screen %d after %q at %v: got %d lines", at, keys, size, len(lines))
				}
			}
		}
	}
}
