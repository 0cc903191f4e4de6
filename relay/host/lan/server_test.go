package lan

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/wire"
)

func TestStatus(t *testing.T) {
	r := newRig(t)
	body := r.want(http.StatusOK, r.request("GET", "/v1/status?x=1", ""))
	want := `{"service":"agentmbx","v":1,"host":"home","host_pubkey":"` + r.keys["home"].Public().String() +
		`","version":"1.2.3","started_at":"2026-10-02T12:34:57.000Z"}`
	if body != want {
		t.Errorf("got %s; want %s", body, want)
	}
	s, err := r.client.Status(t.Context(), r.addr)
	if err != nil || s.Host != "home" || s.HostPubkey != r.keys["home"].Public() || s.Version != "1.2.3" || s.V != 1 {
		t.Errorf("got %+v, %v", s, err)
	}
}

func TestPathsAndMethods(t *testing.T) {
	r := newRig(t)
	for _, path := range []string{"/", "/v1", "/v1/", "/v1/status/", "//v1/status", "/v1/%73tatus", "/v1/envelopes", "/v2/receipts", "/V1/status"} {
		r.want(http.StatusNotFound, r.request("GET", path, ""))
	}
	for path, allowed := range map[string]string{
		"/v1/status": "GET", "/v1/pair/hello": "GET", "/v1/pair/join": "POST", "/v1/rotate": "POST",
		"/v2/envelopes": "POST", "/v1/receipts": "POST", "/v1/enc-key": "GET", "/v1/unpair": "POST",
	} {
		for _, method := range []string{"GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"} {
			if method == allowed {
				continue
			}
			status, header, _ := r.send(r.request(method, path, ""))
			if status != http.StatusMethodNotAllowed || header.Get("Allow") != allowed {
				t.Errorf("%s %s: got %d, allow %q; want 405, %s", method, path, status, header.Get("Allow"), allowed)
			}
		}
	}
	if len(r.node.asked) != 0 {
		t.Errorf("got %q looked up; want none", r.node.asked)
	}
}

// What is handed on is what was sent, to the byte, spaces and escapes included.
func TestListsAreRaw(t *testing.T) {
	r := newRig(t)
	docs := []string{`{ "id" : "a",  "b":1.0}`, `{"id":"\u0062","c":"<ü>"}`, `7`, `null`, `[ ]`}
	for _, tc := range []struct{ path, member, want string }{
		{"/v2/envelopes", "envelopes", `{"results":[{"id":"a","result":"accepted"},{"id":"b","result":"accepted"},{"id":"","result":"accepted"},{"id":"","result":"accepted"},{"id":"","result":"accepted"}]}`},
		{"/v1/receipts", "receipts", `{"results":["accepted","accepted","accepted","accepted","accepted"]}`},
		{"/v1/rotate", "records", `{"results":["rotated","rotated","rotated","rotated","rotated"]}`},
	} {
		body := "\n{\"other\":{\"" + tc.member + "\":[1]} ,\t\"" + tc.member + "\": [ " + strings.Join(docs, " ,\n") + " ] ,\"more\":2}\n"
		if got := r.want(http.StatusOK, r.signedRequest("POST", tc.path, body)); got != tc.want {
			t.Errorf("%s: got %s; want %s", tc.path, got, tc.want)
		}
		got := r.node.lists[len(r.node.lists)-1]
		for i, doc := range docs {
			if string(got[i]) != doc || cap(got[i]) != len(got[i]) {
				t.Errorf("%s %d: got %s, capacity %d; want %s", tc.path, i, got[i], cap(got[i]), doc)
			}
		}
		if got := r.want(http.StatusOK, r.signedRequest("POST", tc.path, `{"`+tc.member+`":[]}`)); got != `{"results":[]}` {
			t.Errorf("%s of nothing: got %s", tc.path, got)
		}
	}
}

func TestListBounds(t *testing.T) {
	for _, tc := range []struct {
		path, member string
		most         int
	}{{"/v2/envelopes", "envelopes", 200}, {"/v1/receipts", "receipts", 200}, {"/v1/rotate", "records", 50}} {
		r := newRig(t)
		for n, status := range map[int]int{tc.most: 200, tc.most + 1: 400} {
			body := `{"` + tc.member + `":[` + strings.TrimSuffix(strings.Repeat("{},", n), ",") + `]}`
			r.want(status, r.signedRequest("POST", tc.path, body))
		}
		if len(r.node.lists) != 1 {
			t.Errorf("%s: the node heard of %d lists; want 1", tc.path, len(r.node.lists))
		}
	}
}

func TestBadBodies(t *testing.T) {
	r := newRig(t)
	for name, body := range map[string]string{
		"empty":            ``,
		"not json":         `<html>`,
		"cut":              `{"envelopes":[{}]`,
		"more after it":    `{"envelopes":[]}{}`,
		"a list":           `[]`,
		"null":             `null`,
		"no list":          `{}`,
		"another case":     `{"Envelopes":[]}`,
		"list is null":     `{"envelopes":null}`,
		"list is object":   `{"envelopes":{}}`,
		"duplicate":        `{"envelopes":[],"envelopes":[]}`,
		"hidden duplicate": `{"envelopes":[],"\u0065nvelopes":[]}`,
		"duplicate inside": `{"envelopes":[{"id":"a","id":"b"}]}`,
		"lone surrogate":   `{"envelopes":[{"id":"\ud800"}]}`,
		"not utf-8":        "{\"envelopes\":[\"\xff\"]}",
		"too deep":         `{"envelopes":[` + strings.Repeat("[", 20000) + strings.Repeat("]", 20000) + `]}`,
		"byte order mark":  "\ufeff" + `{"envelopes":[]}`,
	} {
		t.Run(name, func(t *testing.T) {
			r.want(http.StatusBadRequest, r.signedRequest("POST", "/v2/envelopes", body))
			r.want(http.StatusBadRequest, r.signedRequest("POST", "/v1/receipts", strings.ReplaceAll(body, "nvelopes", "receipts")))
			r.want(http.StatusBadRequest, r.request("POST", "/v1/rotate", strings.ReplaceAll(body, "nvelopes", "records")))
		})
	}
	if len(r.node.lists) != 0 {
		t.Error("the node heard of a bad body")
	}
}

func TestNodeErrors(t *testing.T) {
	r := newRig(t)
	for _, tc := range []struct {
		err    error
		status int
	}{
		{errors.Join(errors.New("s3cr3t"), ErrShape), 400},
		{errors.Join(errors.New("s3cr3t"), ErrRefused), 401},
		{errors.Join(errors.New("s3cr3t"), ErrConflict), 409},
		{errors.New("s3cr3t"), 500},
	} {
		r.node.err = tc.err
		for _, req := range []*http.Request{
			r.signedRequest("POST", "/v2/envelopes", `{"envelopes":[{}]}`),
			r.signedRequest("POST", "/v1/receipts", `{"receipts":[{}]}`),
			r.signedRequest("GET", "/v1/enc-key", ""),
			r.signedRequest("POST", "/v1/unpair", ""),
			r.request("POST", "/v1/rotate", `{"records":[{}]}`),
			r.request("POST", "/v1/pair/join", r.joinBody(nil)),
		} {
			if body := r.want(tc.status, req); strings.Contains(body, "s3cr3t") {
				t.Errorf("%s: got %s; want no text of the node", req.URL.Path, body)
			}
		}
	}
}

// A list with too few results would make the peer give up what has none.
func TestNodeAnswersForTooFew(t *testing.T) {
	r := newRig(t)
	for _, texts := range [][]string{{}, {"accepted"}, {"accepted", "accepted", "accepted"}} {
		r.node.texts = texts
		r.want(http.StatusInternalServerError, r.signedRequest("POST", "/v2/envelopes", `{"envelopes":[{},{}]}`))
		r.want(http.StatusInternalServerError, r.signedRequest("POST", "/v1/receipts", `{"receipts":[{},{}]}`))
	}
}

func TestPanic(t *testing.T) {
	r := newRig(t)
	var log bytes.Buffer
	r.server.log = slog.New(slog.NewTextHandler(&log, nil))
	r.node.boom = true
	if body := r.want(http.StatusInternalServerError, r.signedRequest("POST", "/v2/envelopes", `{"envelopes":[{}]}`)); strings.Contains(body, "s3cr3t") {
		t.Errorf("got %s; want no text of the panic", body)
	}
	if r.http.Close(); !strings.Contains(log.String(), "s3cr3t") { // closed: the request is at its end
		t.Error("the log does not tell of the panic")
	}
	if r.server.bodies.used != 0 || len(r.server.bodies.by) != 0 {
		t.Errorf("%d bytes are still held", r.server.bodies.used)
	}
}

func TestUnpair(t *testing.T) {
	r := newRig(t)
	if err := r.client.Unpair(t.Context(), r.work, r.addr); err != nil {
		t.Error(err)
	}
	r.want(http.StatusOK, r.signedRequest("POST", "/v1/unpair", `{}`)) // any body is as good
	if len(r.node.unpaired) != 2 || r.node.unpaired[0] != "work" {
		t.Errorf("got %q unpaired; want work", r.node.unpaired)
	}
}

func TestServe(t *testing.T) {
	r := newRig(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.server.Serve(ctx, l) }()
	if _, err := r.client.Status(t.Context(), l.Addr().String()); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("got %v; want nil after a stop", err)
	}
	if _, err := r.client.Status(t.Context(), l.Addr().String()); !errors.Is(err, ErrUnreachable) {
		t.Errorf("after the stop: got %v; want ErrUnreachable", err)
	}
}

func TestServeStopIsBounded(t *testing.T) {
	r := newRig(t)
	r.server.stop = 20 * time.Millisecond
	r.node.block, r.node.inside = make(chan struct{}), make(chan struct{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended, called := make(chan error, 1), make(chan error, 1)
	go func() { ended <- r.server.Serve(ctx, l) }()
	go func() {
		_, err := r.client.Envelopes(context.Background(), r.work, l.Addr().String(), [][]byte{[]byte("{}")})
		called <- err
	}()
	<-r.node.inside
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("got %v; want nil after a stop", err)
	}
	if err := <-called; err == nil || errors.Is(err, ErrUnreachable) {
		t.Errorf("a call that was cut off: got %v; want an error, but not ErrUnreachable", err)
	}
	close(r.node.block)
}

func TestServeEndsUnasked(t *testing.T) {
	r := newRig(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if err := r.server.Serve(t.Context(), l); err == nil {
		t.Error("got nil; want an error: nobody asked for the stop")
	}
}

// joinBody is a join of work that is right in everything that a test does not
// change. A nil value takes the member away.
func (r *rig) joinBody(change map[string]any) string {
	r.Helper()
	m := map[string]any{
		"v": 1, "host": "work", "host_pubkey": r.keys["work"].Public().String(), "owner_pubkey": json.RawMessage("null"),
		"nonce": "bbbb", "addr": "192.0.2.7:7373", "mac": "cccc",
	}
	if _, ok := change["nonce_a"]; !ok {
		m["nonce_a"] = r.server.nonces.issue(r.clock.now())
	}
	for k, v := range change {
		if m[k] = v; v == nil {
			delete(m, k)
		}
	}
	b, err := wire.Marshal(m)
	if err != nil {
		r.Fatal(err)
	}
	return string(b)
}
