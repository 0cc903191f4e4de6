package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/admin/api"
	"github.com/agentmbx/agentmbx/admin/jobs"
	"github.com/agentmbx/agentmbx/backup"
	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store"
)

// desk is a Service that says what it was asked.
type desk struct {
	admin.Service
	action  admin.Action
	filter  admin.LogFilter
	request jobs.Request
}

func (d *desk) Status(context.Context) (admin.Status, error) {
	return admin.Status{Status: relay.Status{Epoch: "e1"}, Jobs: []jobs.State{{Name: "sweep"}}}, nil
}

func (d *desk) StartJob(_ context.Context, q jobs.Request) (jobs.Run, error) {
	d.request = q
	switch q.Job {
	case "running":
		return jobs.Run{}, fmt.Errorf("%w: since yesterday", store.ErrRunning)
	case "none":
		return jobs.Run{}, jobs.ErrNoJob
	}
	return jobs.Run{ID: 7, Job: q.Job}, nil
}

func (d *desk) Run(_ context.Context, id int64) (jobs.Run, error) {
	return jobs.Run{ID: id, Outcome: "ok", Result: json.RawMessage(`{"n":1}`), Progress: &jobs.Progress{Stage: "copy", Done: 1, Total: 2}}, nil
}

func (d *desk) Runs(_ context.Context, job string, limit int) ([]jobs.Run, error) {
	return make([]jobs.Run, limit), nil
}

func (d *desk) Backups(context.Context) ([]backup.Entry, error) {
	return []backup.Entry{{Path: "/b", Receipt: backup.Receipt{N: 3}}}, nil
}

func (d *desk) PruneBackups(_ context.Context, dryRun bool, a admin.Action) ([]backup.Decision, error) {
	d.action = a
	return []backup.Decision{{Path: "/b", Remove: !dryRun}}, nil
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
	l, err := api.Listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	d := &desk{}
	done := make(chan error, 1)
	go func() { done <- api.Serve(ctx, l, d, slog.New(slog.DiscardHandler)) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: got %v; want nil after a stop", err)
		}
		if _, err := api.Dial(context.Background(), dir); !errors.Is(err, api.ErrNotRunning) {
			t.Errorf("Dial after the stop: got %v; want ErrNotRunning", err)
		}
	})
	return d
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

func TestJobsCrossTheSocket(t *testing.T) {
	dir := t.TempDir()
	d := serve(t, dir)
	c := dial(t, dir)
	if s, err := c.Status(t.Context()); err != nil || s.Job("sweep") == nil || s.Job("none") != nil {
		t.Errorf("Status: got %+v, %v; want the sweep's state", s, err)
	}
	q := jobs.Request{Job: "backup", By: "me", Args: json.RawMessage(`{"file":"/x"}`), Confirm: true}
	if r, err := c.StartJob(t.Context(), q); err != nil || r.ID != 7 || !reflect.DeepEqual(d.request, q) {
		t.Errorf("StartJob: got %+v, %v, asked %+v; want %+v", r, err, d.request, q)
	}
	if r, err := c.Run(t.Context(), 7); err != nil || r.ID != 7 || string(r.Result) != `{"n":1}` || r.Progress.Total != 2 {
		t.Errorf("Run: got %+v, %v; want the run", r, err)
	}
	if r, err := c.Runs(t.Context(), "backup", 3); err != nil || len(r) != 3 {
		t.Errorf("Runs: got %+v, %v; want three", r, err)
	}
	if b, err := c.Backups(t.Context()); err != nil || len(b) != 1 || b[0].Receipt.N != 3 {
		t.Errorf("Backups: got %+v, %v; want one", b, err)
	}
	done, err := c.PruneBackups(t.Context(), true, admin.Action{Actor: "me"})
	if err != nil || len(done) != 1 || done[0].Remove || d.action.Actor != "me" {
		t.Errorf("PruneBackups: got %+v, %v; want what would stay", done, err)
	}
	for _, tt := range []struct {
		job  string
		want error
	}{{"running", admin.ErrRefused}, {"none", admin.ErrNotFound}} {
		if _, err := c.StartJob(t.Context(), jobs.Request{Job: tt.job}); !errors.Is(err, tt.want) {
			t.Errorf("StartJob %s: got %v; want %v", tt.job, err, tt.want)
		}
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
		{"no limit", "GET", "/v1/log", "", 400},
		{"not JSON", "POST", "/v1/rotate-epoch", "{", 400},
		{"unknown member", "POST", "/v1/rotate-epoch", `{"actor":"me","force":true}`, 400},
		{"too large", "POST", "/v1/rotate-epoch", `{"actor":"` + strings.Repeat("x", 70_000) + `"}`, 400},
		{"a run that is no number", "GET", "/v1/runs/x", "", 400},
		{"a run below all", "GET", "/v1/runs/99999999999999999999", "", 400},
		{"runs without a limit", "GET", "/v1/runs", "", 400},
		{"a run of nothing", "POST", "/v1/runs", "[]", 400},
		{"a prune with a typo", "POST", "/v1/backups/prune", `{"dryrun":true}`, 400},
		{"no such call", "GET", "/v1/shutdown", "", 404},
		{"another method", "GET", "/v1/rotate-epoch", "", 405},
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
			if resp.StatusCode != tt.want {
				t.Errorf("got %d; want %d", resp.StatusCode, tt.want)
			}
		})
	}
}
