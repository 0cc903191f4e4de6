package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/admin/api"
	"github.com/agentmbx/agentmbx/admin/jobs"
	"github.com/agentmbx/agentmbx/relay"
)

// desk is a Service that says what it was asked.
type desk struct {
	admin.Service
	action admin.Action
	filter admin.LogFilter
}

func (d *desk) Status(context.Context) (admin.Status, error) {
	return admin.Status{Status: relay.Status{Epoch: "e1"}, Jobs: []jobs.State{{Name: "sweep"}}}, nil
}

func (d *desk) Log(_ context.Context, f admin.LogFilter) ([]admin.LogEntry, error) {
	d.filter = f
	return []admin.LogEntry{{ID: 1, At: time.UnixMilli(5).UTC(), Op: "sweep", Receipt: json.RawMessage(`{"n":1}`)}}, nil
}

func (d *desk) RotateEpoch(_ context.Context, a admin.Action) (string, error) {
	d.action = a
	if a.Reason == "fail" {
		return "", errors.New("no")
	}
	return "e2", nil
}

// serve runs a desk in dir until the test ends.
func serve(t *testing.T, dir string) *desk {
	t.Helper()
	d, stop := start(t, dir)
	t.Cleanup(stop)
	return d
}

// start runs a desk in dir until stop.
func start(t *testing.T, dir string) (d *desk, stop func()) {
	t.Helper()
	l, err := api.Listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	d = &desk{}
	done := make(chan error, 1)
	go func() { done <- api.Serve(ctx, l, d, slog.New(slog.DiscardHandler)) }()
	return d, func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: got %v; want nil after a stop", err)
		}
		if _, err := api.Dial(context.Background(), dir); !errors.Is(err, api.ErrNotRunning) {
			t.Errorf("Dial after the stop: got %v; want ErrNotRunning", err)
		}
	}
}

func dial(t *testing.T, dir string) *api.Client {
	t.Helper()
	c, err := api.Dial(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestCallsCrossTheSocket(t *testing.T) {
	for _, tt := range []struct{ name, dir string }{
		{"in the folder", t.TempDir()},
		{"in a folder too deep for a socket", filepath.Join(t.TempDir(), strings.Repeat("d", 120))},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if err := os.MkdirAll(tt.dir, 0o700); err != nil {
				t.Fatal(err)
			}
			d := serve(t, tt.dir)
			c := dial(t, tt.dir)
			if s, err := c.Status(t.Context()); err != nil || s.Epoch != "e1" {
				t.Errorf("Status: got %+v, %v; want epoch e1", s, err)
			}
			entries, err := c.Log(t.Context(), admin.LogFilter{Op: "sweep", Limit: 7})
			if err != nil || len(entries) != 1 || string(entries[0].Receipt) != `{"n":1}` || d.filter != (admin.LogFilter{Op: "sweep", Limit: 7}) {
				t.Errorf("Log: got %+v, %v, asked %+v; want one entry of the filter", entries, err, d.filter)
			}
			epoch, err := c.RotateEpoch(t.Context(), admin.Action{Actor: "me", Reason: "why"})
			if err != nil || epoch != "e2" || d.action != (admin.Action{Actor: "me", Reason: "why"}) {
				t.Errorf("RotateEpoch: got %s, %v, asked %+v; want e2", epoch, err, d.action)
			}
			if _, err := c.RotateEpoch(t.Context(), admin.Action{Reason: "fail"}); err == nil || err.Error() != "no" {
				t.Errorf("RotateEpoch that fails: got %v; want the service's error", err)
			}
		})
	}
}

// A client outlives the relay: while none runs every call says so, and once one
// runs again, calls reach it, wherever its socket is then.
func TestClientOutlivesTheRelay(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, dir string }{
		{"in the folder", t.TempDir()},
		{"in a folder too deep for a socket", filepath.Join(t.TempDir(), strings.Repeat("d", 120))},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if err := os.MkdirAll(tt.dir, 0o700); err != nil {
				t.Fatal(err)
			}
			c := api.At(tt.dir)
			for round := range 3 {
				if _, err := c.Status(t.Context()); !errors.Is(err, api.ErrNotRunning) {
					t.Errorf("round %d, before the start: got %v; want ErrNotRunning", round, err)
				}
				_, stop := start(t, tt.dir)
				if _, err := c.Status(t.Context()); err != nil {
					t.Errorf("round %d: got %v; want nil", round, err)
				}
				if _, err := c.RotateEpoch(t.Context(), admin.Action{Actor: "me"}); err != nil {
					t.Errorf("round %d: got %v; want nil", round, err)
				}
				stop()
			}
			if _, err := c.RotateEpoch(t.Context(), admin.Action{Actor: "me"}); !errors.Is(err, api.ErrNotRunning) {
				t.Errorf("at the end: got %v; want ErrNotRunning", err)
			}
		})
	}
}

// A call whose caller gave up is the caller's error, not the relay's.
func TestCallerGivesUp(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	serve(t, dir)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := api.At(dir).Status(ctx); !errors.Is(err, context.Canceled) || errors.Is(err, api.ErrNotRunning) {
		t.Errorf("got %v; want context.Canceled", err)
	}
}

// A socket that a killed process left is nobody's, and no obstacle.
func TestStaleSocket(t *testing.T) {
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, "admin.sock"))
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	if _, err := api.Dial(t.Context(), dir); !errors.Is(err, api.ErrNotRunning) {
		t.Errorf("Dial: got %v; want ErrNotRunning", err)
	}
	serve(t, dir)
	if _, err := dial(t, dir).Status(t.Context()); err != nil {
		t.Errorf("Status: got %v; want nil", err)
	}
	st, err := os.Stat(filepath.Join(dir, "admin.sock"))
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("admin.sock: got %v, %v; want mode 0600", st, err)
	}
}

// What a call cannot mean is refused by the socket itself.
func TestBadCalls(t *testing.T) {
	dir := t.TempDir()
	serve(t, dir)
	c := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", filepath.Join(dir, "admin.sock"))
	}}}
	for _, tt := range []struct {
		name, method, path, body string
		want                     int
	}{
		{"a limit that is no number", "GET", "/v1/log?limit=x", "", 400},
		{"a parameter that is none", "GET", "/v1/status?verbose=true", "", 400},
		{"a parameter twice", "GET", "/v1/log?limit=1&limit=2", "", 400},
		{"not JSON", "POST", "/v1/rotate-epoch", "{", 400},
		{"a member twice", "POST", "/v1/rotate-epoch", `{"actor":"me","actor":"you"}`, 400},
		{"two documents", "POST", "/v1/rotate-epoch", `{"actor":"me"}{}`, 400},
		{"a member of another case", "POST", "/v1/rotate-epoch", `{"Actor":"me"}`, 400},
		{"a query on a write", "POST", "/v1/rotate-epoch?dry_run=true", `{"actor":"me"}`, 400},
		{"a key that is none", "POST", "/v1/revoke", `{"actor":"me","key":"abc"}`, 400},
		{"no body", "POST", "/v1/revoke", "", 400},
		{"unknown member", "POST", "/v1/rotate-epoch", `{"actor":"me","force":true}`, 400},
		{"too large", "POST", "/v1/rotate-epoch", `{"actor":"` + strings.Repeat("x", 70_000) + `"}`, 400},
		{"a run that is no number", "GET", "/v1/run?id=x", "", 400},
		{"a run below all", "GET", "/v1/run?id=99999999999999999999", "", 400},
		{"a run of nothing", "POST", "/v1/runs", "[]", 400},
		{"a prune with a typo", "POST", "/v1/backups/prune", `{"dryrun":true}`, 400},
		{"no such call", "GET", "/v1/shutdown", "", 404},
		{"a path that is not clean", "GET", "/v1//status", "", 404},
		{"another method", "GET", "/v1/rotate-epoch", "", 405},
		{"a method of no call", "DELETE", "/v1/status", "", 405},
	} {
		t.Run(tt.name, func(t *testing.T) {
			req, err := http.NewRequest(tt.method, "http://relay"+tt.path, strings.NewReader(tt.body))
			if err != nil {
				t.Fatal(err)
			}
			resp, err := c.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			var said struct{ Error string }
			if err := json.NewDecoder(resp.Body).Decode(&said); err != nil || said.Error == "" || resp.StatusCode != tt.want {
				t.Errorf("got %d, %+v, %v; want %d and a problem", resp.StatusCode, said, err, tt.want)
			}
			if got := resp.Header.Get("Cache-Control"); got != "no-store" {
				t.Errorf("Cache-Control: got %q; want no-store", got)
			}
		})
	}
}
