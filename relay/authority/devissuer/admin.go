package devissuer

import (
	"bytes"
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"path/filepath"
	"time"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// Kinds of errors of the issuer's own commands.
var (
	ErrNotFound   = errors.New("not found")
	ErrRefused    = errors.New("refused")
	ErrBadCall    = errors.New("bad call")
	ErrNotRunning = errors.New("no issuer runs on this folder: start it with agentmbx accounts dev")
)

// refusal is an error of one of those kinds, in words for people.
type refusal struct {
	kind error
	text string
}

func (r refusal) Error() string { return r.text }
func (r refusal) Unwrap() error { return r.kind }

// kinds are how they travel.
var kinds = map[string]error{"not_found": ErrNotFound, "refused": ErrRefused, "bad_call": ErrBadCall}

// approval is the body of an approval.
type approval struct {
	Code    string `json:"code"`
	Account string `json:"account"`
	Org     string `json:"org"`
	Deny    bool   `json:"deny"`
}

// admin answers the issuer's own commands, to whoever has the token.
func (i *Issuer) admin(token string) http.Handler {
	mux := http.NewServeMux()
	handle(mux, "POST /approve", func(_ context.Context, q approval) (any, error) {
		if q.Deny {
			return i.Deny(q.Code)
		}
		return i.Approve(q.Code, q.Account, q.Org)
	})
	handle(mux, "POST /hosts", func(context.Context, struct{}) (any, error) { return i.Hosts(), nil })
	handle(mux, "POST /rotate", func(_ context.Context, q struct {
		Drop bool `json:"drop"`
	}) (any, error) {
		return i.Rotate(q.Drop)
	})
	handle(mux, "POST /revoke", func(ctx context.Context, q struct {
		Who    string `json:"who"`
		Reason string `json:"reason"`
	}) (any, error) {
		return i.Revoke(ctx, q.Who, q.Reason)
	})
	want := []byte("Bearer " + token)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), want) != 1 {
			http.Error(w, "not for you", http.StatusUnauthorized)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// handle adds a call of JSON.
func handle[Q any](mux *http.ServeMux, pattern string, f func(context.Context, Q) (any, error)) {
	mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		var q Q
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		if err == nil {
			err = wire.Decode(body, &q)
		}
		if err != nil {
			reply(w, nil, refuse(http.StatusBadRequest, "bad_call", "the call is of another version than the issuer"))
			return
		}
		v, err := f(r.Context(), q)
		if err == nil {
			reply(w, v, nil)
			return
		}
		for code, kind := range kinds {
			if errors.Is(err, kind) {
				reply(w, nil, refuse(http.StatusConflict, code, "%s", err))
				return
			}
		}
		reply(w, nil, refuse(http.StatusInternalServerError, codeServer, "%s", err))
	})
}

// door is where a running issuer's own commands reach it, and with which token.
// Both are new at each start.
type door struct {
	URL   string `json:"url"`
	Token string `json:"token"`
}

// Client is for the commands of an issuer that runs in another process.
type Client struct {
	door door
	http http.Client
}

// Dial finds the issuer that runs on a folder. ErrNotRunning when none does; a
// call may answer that too.
func Dial(dir string) (*Client, error) {
	path := filepath.Join(dir, doorFile)
	doc, err := readPrivate(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNotRunning
	}
	if err != nil {
		return nil, err
	}
	c := &Client{http: http.Client{Timeout: pushTimeout + 10*time.Second}}
	if err := wire.Decode(doc, &c.door); err != nil || c.door.URL == "" || c.door.Token == "" {
		return nil, fmt.Errorf("%s is damaged: restart the issuer", path)
	}
	return c, nil
}

// Approve is Issuer.Approve.
func (c *Client) Approve(ctx context.Context, code, account, org string) (l Login, err error) {
	return l, c.call(ctx, "/approve", approval{Code: code, Account: account, Org: org}, &l)
}

// Deny is Issuer.Deny.
func (c *Client) Deny(ctx context.Context, code string) (l Login, err error) {
	return l, c.call(ctx, "/approve", approval{Code: code, Deny: true}, &l)
}

// Hosts is Issuer.Hosts.
func (c *Client) Hosts(ctx context.Context) (hosts []Host, err error) {
	return hosts, c.call(ctx, "/hosts", struct{}{}, &hosts)
}

// Rotate is Issuer.Rotate.
func (c *Client) Rotate(ctx context.Context, drop bool) (r Rotated, err error) {
	return r, c.call(ctx, "/rotate", map[string]bool{"drop": drop}, &r)
}

// Revoke is Issuer.Revoke.
func (c *Client) Revoke(ctx context.Context, who, reason string) (r Revoked, err error) {
	return r, c.call(ctx, "/revoke", map[string]string{"who": who, "reason": reason}, &r)
}

func (c *Client) call(ctx context.Context, path string, q, to any) error {
	body, err := json.Marshal(q)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.door.URL+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+c.door.Token)
	resp, err := c.http.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return ErrNotRunning // what an issuer leaves that was killed
	}
	defer resp.Body.Close()
	doc, err := io.ReadAll(io.LimitReader(resp.Body, maxStateFile))
	if err != nil {
		return fmt.Errorf("the issuer's answer did not come whole: %w", err)
	}
	switch resp.StatusCode {
	case http.StatusOK:
		return wire.Decode(doc, to)
	case http.StatusUnauthorized, http.StatusNotFound:
		return ErrNotRunning // another program has its port now
	}
	var p problem
	if err := wire.Decode(doc, &p); err != nil || p.Text == "" {
		return ErrNotRunning
	}
	if kind, known := kinds[p.Code]; known {
		return refusal{kind, p.Text}
	}
	return errors.New(p.Text)
}
