package account

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/agentmbx/agentmbx/relay/host/relayclient"
	"github.com/agentmbx/agentmbx/relay/wire"
)

const (
	maxAnswer = 64 << 10
	callTime  = 15 * time.Second
	maxSkew   = time.Minute // of an issuer's clock from this host's
)

// IssuerError is an answer of an issuer that is not a success.
type IssuerError struct {
	What   string // the call
	Status int
	Code   string // OAuth's error, "" for none
	Text   string // what it says about it, as it can be shown
	Skew   time.Duration
}

func (e *IssuerError) Error() string {
	s := e.What + ": the issuer answered " + strconv.Itoa(e.Status)
	if e.Code != "" {
		s += " " + e.Code
	}
	switch {
	case e.Status/100 == 3:
		s += ": a redirect, which is not followed: give the URL that it leads to"
	case e.Text != "":
		s += ": " + e.Text
	case http.StatusText(e.Status) != "" && e.Code == "":
		s += ": " + http.StatusText(e.Status)
	}
	if e.Skew.Abs() > maxSkew {
		s += fmt.Sprintf("; its clock is %s from this host's: set the one that is wrong", e.Skew.Abs().Round(time.Second))
	}
	return s
}

// errUnreachable matches an issuer without an answer: asking again may help.
var errUnreachable = errors.New("the issuer can't be reached")

// caller calls an issuer.
type caller struct {
	transport http.RoundTripper
	now       func() time.Time
	asJSON    bool // it takes no forms
}

func newCaller(t http.RoundTripper, now func() time.Time) *caller {
	c := &caller{transport: t, now: now}
	if c.transport == nil {
		c.transport = relayclient.NewTransport()
	}
	if c.now == nil {
		c.now = time.Now
	}
	return c
}

func (c *caller) close() {
	if t, ok := c.transport.(*http.Transport); ok {
		t.CloseIdleConnections()
	}
}

// post sends what OAuth sends, as a form; once more as JSON to an issuer that
// takes no forms, and as JSON at once from then on.
func (c *caller) post(ctx context.Context, what, to string, v url.Values) ([]byte, error) {
	if !c.asJSON {
		body, err := c.send(ctx, what, to, "application/x-www-form-urlencoded", []byte(v.Encode()), "")
		var e *IssuerError
		if !errors.As(err, &e) || e.Status != http.StatusUnsupportedMediaType &&
			(e.Status != http.StatusBadRequest || e.Code != "" && e.Code != "invalid_request") {
			return body, err
		}
	}
	m := map[string]string{}
	for name := range v {
		m[name] = v.Get(name)
	}
	body, err := c.json(ctx, what, to, "", m)
	var e *IssuerError
	// An error with a code is an answer to what was sent, and so was understood.
	if err == nil || errors.As(err, &e) && e.Code != "" && e.Code != "invalid_request" {
		c.asJSON = true
	}
	return body, err
}

// json sends a JSON document, with a bearer unless that is "".
func (c *caller) json(ctx context.Context, what, to, bearer string, v any) ([]byte, error) {
	doc, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return c.send(ctx, what, to, "application/json", doc, bearer)
}

// send makes a call. No error repeats the body or the bearer.
func (c *caller) send(parent context.Context, what, to, kind string, doc []byte, bearer string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(parent, callTime)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader(doc))
	if err != nil {
		return nil, fmt.Errorf("%s: no such request", what) // not reached: every URL was parsed
	}
	r.Header.Set("Content-Type", kind)
	r.Header.Set("Accept", "application/json")
	r.Header.Set("User-Agent", "agentmbx")
	if bearer != "" {
		r.Header.Set("Authorization", "Bearer "+bearer)
	}
	// Not an http.Client: it would follow redirects, and put the URL into its errors.
	res, err := c.transport.RoundTrip(r)
	var body []byte
	if err == nil {
		defer res.Body.Close()
		body, err = io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	}
	switch {
	case parent.Err() != nil:
		return nil, fmt.Errorf("%s: %w", what, parent.Err())
	case ctx.Err() != nil:
		return nil, fmt.Errorf("%s: %w: no answer within %s", what, errUnreachable, callTime)
	case err != nil:
		return nil, fmt.Errorf("%s: %w: %s", what, errUnreachable, quiet(clean(err.Error()), doc, bearer))
	case len(body) > maxAnswer:
		return nil, fmt.Errorf("%s: the issuer's answer is over %d bytes: is the URL an issuer's?", what, maxAnswer)
	case res.StatusCode/100 == 2:
		return body, nil
	}
	e := &IssuerError{What: what, Status: res.StatusCode}
	if date, err := http.ParseTime(res.Header.Get("Date")); err == nil {
		e.Skew = date.Sub(c.now())
	}
	var m struct {
		Error       jsontext.Value `json:"error"`
		Description jsontext.Value `json:"error_description"`
	}
	if wire.Decode(body, &m) == nil {
		if code := text(m.Error); validCode(code) {
			e.Code = quiet(code, doc, bearer)
		} else {
			e.Text = quiet(clean(code), doc, bearer)
		}
		if s := text(m.Description); s != "" {
			e.Text = quiet(clean(s), doc, bearer)
		}
	}
	return nil, e
}

// validCode takes what RFC 6749 lets an error be called, short.
func validCode(s string) bool {
	for i := range len(s) {
		if ch := s[i]; ch != '_' && ch != '-' && (ch < 'a' || ch > 'z') {
			return false
		}
	}
	return len(s) <= 64
}

// quiet is s unless it repeats a piece of what was sent, which may be a secret.
func quiet(s string, doc []byte, bearer string) string {
	const piece = 16
	for i := 0; i+piece <= len(s); i++ {
		if p := s[i : i+piece]; bytes.Contains(doc, []byte(p)) || bytes.Contains([]byte(bearer), []byte(p)) {
			return "(withheld: it repeats what was sent)"
		}
	}
	return s
}

var errAnswer = errors.New("the issuer's answer is not what it should be: is the URL an issuer's?")

// text reads a string, "" for anything else.
func text(v jsontext.Value) string {
	if v.Kind() != '"' {
		return ""
	}
	b, err := jsontext.AppendUnquote(nil, v)
	if err != nil {
		return ""
	}
	return string(b)
}

// number reads a number of at most the safe integers' size, 0 for anything else.
func number(v jsontext.Value) int64 {
	f, err := strconv.ParseFloat(string(v), 64)
	if v.Kind() != '0' || err != nil || f < -(1<<53) || f > 1<<53 {
		return 0
	}
	return int64(f)
}

// bearerOf reads an OAuth answer's access token.
func bearerOf(what string, body []byte) (string, error) {
	var a struct {
		Token jsontext.Value `json:"access_token"`
		Type  jsontext.Value `json:"token_type"`
	}
	if err := wire.Decode(body, &a); err != nil {
		return "", fmt.Errorf("%s: %w", what, errAnswer)
	}
	if kind := text(a.Type); kind != "" && !strings.EqualFold(kind, "bearer") {
		return "", fmt.Errorf("%s: the issuer gives tokens of another type than Bearer", what)
	}
	t := text(a.Token)
	if err := checkToken(t); err != nil {
		return "", fmt.Errorf("%s: %w", what, err)
	}
	return t, nil
}
