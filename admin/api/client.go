package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/admin/jobs"
	"github.com/agentmbx/agentmbx/backup"
)

// ErrNotRunning: no relay listens on the store's socket.
var ErrNotRunning = errors.New("no relay is running on this store")

// Client is the Service of the relay that runs on a store.
type Client struct{ http http.Client }

var _ admin.Service = (*Client)(nil)

// Dial finds the relay that runs on the store in dir, or ErrNotRunning.
func Dial(ctx context.Context, dir string) (*Client, error) {
	path := filepath.Join(dir, socketName)
	if other, err := address(filepath.Join(dir, addressName)); err == nil {
		path = other
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED), len(path) > maxPath && errors.Is(err, syscall.EINVAL):
		return nil, ErrNotRunning
	case err != nil:
		return nil, fmt.Errorf("admin socket: %w", err)
	}
	_ = c.Close() // it was only to see who is there
	return &Client{http.Client{
		Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return d.DialContext(ctx, "unix", path)
		}},
	}}, nil
}

// Status asks the running relay.
func (c *Client) Status(ctx context.Context) (s admin.Status, err error) {
	return s, c.call(ctx, http.MethodGet, "/v1/status", nil, &s)
}

// Log asks the running relay.
func (c *Client) Log(ctx context.Context, f admin.LogFilter) (entries []admin.LogEntry, err error) {
	q := url.Values{"op": {f.Op}, "limit": {strconv.Itoa(f.Limit)}}
	return entries, c.call(ctx, http.MethodGet, "/v1/log?"+q.Encode(), nil, &entries)
}

// RotateEpoch has the running relay do it.
func (c *Client) RotateEpoch(ctx context.Context, a admin.Action) (string, error) {
	var e epochAnswer
	err := c.call(ctx, http.MethodPost, "/v1/rotate-epoch", a, &e)
	return e.Epoch, err
}

// Jobs asks the running relay.
func (c *Client) Jobs(ctx context.Context) (list []jobs.State, err error) {
	return list, c.call(ctx, http.MethodGet, "/v1/jobs", nil, &list)
}

// Runs asks the running relay.
func (c *Client) Runs(ctx context.Context, job string, limit int) (list []jobs.Run, err error) {
	q := url.Values{"job": {job}, "limit": {strconv.Itoa(limit)}}
	return list, c.call(ctx, http.MethodGet, "/v1/runs?"+q.Encode(), nil, &list)
}

// StartJob has the running relay do it.
func (c *Client) StartJob(ctx context.Context, q jobs.Request) (r jobs.Run, err error) {
	return r, c.call(ctx, http.MethodPost, "/v1/runs", q, &r)
}

// Run asks the running relay.
func (c *Client) Run(ctx context.Context, id int64) (r jobs.Run, err error) {
	return r, c.call(ctx, http.MethodGet, "/v1/runs/"+strconv.FormatInt(id, 10), nil, &r)
}

// Backups asks the running relay.
func (c *Client) Backups(ctx context.Context) (list []backup.Entry, err error) {
	return list, c.call(ctx, http.MethodGet, "/v1/backups", nil, &list)
}

// PruneBackups has the running relay do it.
func (c *Client) PruneBackups(ctx context.Context, dryRun bool, a admin.Action) (done []backup.Decision, err error) {
	return done, c.call(patient(ctx), http.MethodPost, "/v1/backups/prune", pruneRequest{a, dryRun}, &done)
}

const (
	maxAnswer  = 64 << 20
	callAnswer = 30 * time.Second
)

// patient marks a call that may take as long as it needs.
func patient(ctx context.Context) context.Context { return context.WithValue(ctx, patience{}, true) }

type patience struct{}

func (c *Client) call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	if ctx.Value(patience{}) == nil {
		bounded, stop := context.WithTimeout(ctx, callAnswer)
		defer stop()
		ctx = bounded
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://relay"+path, body)
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("the relay did not answer within %s", callAnswer)
	}
	if err != nil {
		return fmt.Errorf("the relay went away: %v", err) // its missing socket is no file that somebody asked for
	}
	defer resp.Body.Close()
	d := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer))
	if resp.StatusCode == http.StatusOK {
		return d.Decode(out)
	}
	var p problem
	if err := d.Decode(&p); err != nil || p.Error == "" {
		return fmt.Errorf("the relay answered %s", resp.Status)
	}
	return admin.OfKind(p.Code, p.Error)
}
