package lan

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

// answering is a client, a caller and the address of a host that answers with h.
func answering(t *testing.T, h http.HandlerFunc) (*Client, Caller, string) {
	t.Helper()
	hs := httptest.NewServer(h)
	c := NewClient((&clock{t: day}).now)
	t.Cleanup(func() { c.Close(); hs.Close() })
	return c, Caller{Host: "work", Key: wiretest.Keys(t)["work"]}, hs.Listener.Addr().String()
}

func saying(status int, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
	}
}

// everyCall makes each call of the client.
func everyCall(c *Client, who Caller, addr string) map[string]error {
	ctx := context.Background()
	errs := map[string]error{}
	_, errs["status"] = c.Status(ctx, addr)
	_, errs["hello"] = c.Hello(ctx, addr)
	_, _, errs["join"] = c.Join(ctx, addr, JoinRequest{Host: "work", HostKey: who.Key.Public(), Nonce: "n", NonceA: "n", MAC: "m"})
	_, errs["rotate"] = c.Rotate(ctx, addr, [][]byte{[]byte(`{}`)})
	_, errs["envelopes"] = c.Envelopes(ctx, who, addr, [][]byte{[]byte(`{"id":"a"}`)})
	_, errs["receipts"] = c.Receipts(ctx, who, addr, [][]byte{[]byte(`{}`)})
	_, _, _, errs["enc-key"] = c.EncKey(ctx, who, addr)
	errs["unpair"] = c.Unpair(ctx, who, addr)
	return errs
}

func TestClientRefusesHostileAnswers(t *testing.T) {
	dirty := "\x1b[2J\u202e\n" + strings.Repeat("é", 10000)
	for name, tc := range map[string]struct {
		h      http.HandlerFunc
		status int // of a *StatusError; 0 for a plain error
	}{
		"redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		}, 307},
		"redirect to nowhere": {saying(302, ""), 302},
		"created":             {saying(201, `{"results":["accepted"]}`), 201},
		"no content":          {saying(204, ""), 204},
		"refused":             {saying(401, `{"error":"bad hop"}`), 401},
		"refused in html":     {saying(500, "<html>"+dirty), 500},
		"refused at length":   {saying(503, strings.Repeat("x", 5<<20)), 503},
		"dirty refusal":       {saying(400, `{"error":"\u001b[2J\u202e\n`+strings.Repeat("é", 10000)+`"}`), 400},
		"html":                {saying(200, "<html>"+dirty), 0},
		"5 MB":                {saying(200, `{"results":[],"x":"`+strings.Repeat("x", 5<<20)+`"}`), 0},
		"nothing":             {saying(200, ""), 0},
		"null":                {saying(200, "null"), 0},
		"a list":              {saying(200, "[]"), 0},
		"an empty object":     {saying(200, "{}"), 0},
		"a duplicate":         {saying(200, `{"v":1,"v":1}`), 0},
		"members of null":     {saying(200, `{"v":1,"service":null,"host":null,"host_pubkey":null,"results":null,"mac":null,"enc_pub":null,"sig":null}`), 0},
		"members of numbers":  {saying(200, `{"v":1,"service":7,"host":7,"host_pubkey":7,"results":7,"mac":7,"enc_pub":7,"sig":7}`), 0},
		"results of numbers":  {saying(200, `{"results":[7]}`), 0},
		"not http":            {hijack("SSH-2.0-" + dirty + "\r\n\r\n"), 0},
		"a bad header":        {hijack("HTTP/1.1 200 " + dirty + "\r\n" + strings.Repeat("\x01", 3000) + "\r\n\r\n"), 0},
		"a long header":       {hijack("HTTP/1.1 200 OK\r\nx: " + strings.Repeat("x", 100<<10) + "\r\n\r\n"), 0},
		"other protocols":     {hijack("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"), 101},
		"cut off":             {hijack("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"), 0},
		"closed":              {hijack(""), 0},
	} {
		t.Run(name, func(t *testing.T) {
			c, who, addr := answering(t, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/elsewhere" {
					t.Error("the redirect was followed")
				}
				tc.h(w, r)
			})
			for call, err := range everyCall(c, who, addr) {
				if call == "unpair" && err == nil && tc.status == 0 {
					continue // takes any 200
				}
				if err == nil {
					t.Errorf("%s: got no error", call)
					continue
				}
				if errors.Is(err, ErrUnreachable) {
					t.Errorf("%s: got %v; want it reachable", call, err)
				}
				var status *StatusError
				if errors.As(err, &status) != (tc.status != 0) || status != nil && status.Status != tc.status {
					t.Errorf("%s: got %v; want status %d", call, err, tc.status)
				}
				if text := err.Error(); len([]rune(text)) > 300 || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
					t.Errorf("%s: got %q; want it printable and short", call, text)
				}
			}
		})
	}
}

// hijack says text on the bare connection and closes it. For a 101 it leaves it
// open until the client closes it.
func hijack(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, text)
		if strings.Contains(text, " 101 ") {
			_, _ = io.Copy(io.Discard, conn)
		}
	}
}

func TestStatusErrorText(t *testing.T) {
	c, who, addr := answering(t, saying(403, `{"error":"`+strings.Repeat("é", 300)+`"}`))
	err := c.Unpair(t.Context(), who, addr)
	var status *StatusError
	if !errors.As(err, &status) || status.Reason != strings.Repeat("é", 200) {
		t.Errorf("got %v; want a reason of 200 characters", err)
	}
	if got := (&StatusError{Status: 404}).Error(); got != "answered 404" {
		t.Errorf("got %q", got)
	}
}

func TestStatusOfAnotherService(t *testing.T) {
	c, _, addr := answering(t, saying(200, `{"service":"other","v":1,"host":"home","host_pubkey":"`+strings.Repeat("A", 43)+`="}`))
	if s, err := c.Status(t.Context(), addr); err == nil {
		t.Errorf("got %+v; want an error", s)
	}
}

func TestEnvelopeResults(t *testing.T) {
	sent := [][]byte{[]byte(`{"id":"a"}`), []byte(`{"id":"b"}`), []byte(`{"id":"c"}`)}
	for name, tc := range map[string]struct {
		answer string
		want   []Result
	}{
		"all":         {`[{"id":"a","result":"accepted"},{"id":"b","result":"duplicate"},{"id":"c","result":"rejected:no"}]`, []Result{{"a", "accepted"}, {"b", "duplicate"}, {"c", "rejected:no"}}},
		"short":       {`[{"id":"a","result":"accepted"}]`, []Result{{"a", "accepted"}}},
		"none":        {`[]`, []Result{}},
		"long":        {`[{"id":"a","result":"1"},{"id":"b","result":"2"},{"id":"c","result":"3"},{"id":"d","result":"4"}]`, []Result{{"a", "1"}, {"b", "2"}, {"c", "3"}}},
		"other order": {`[{"id":"b","result":"accepted"},{"id":"a","result":"accepted"},{"id":"c","result":"accepted"}]`, []Result{{}, {}, {"c", "accepted"}}},
		"other case":  {`[{"id":"A","result":"accepted"}]`, []Result{{}}},
		"null":        {`[null,{"result":"accepted"},{"id":"c"}]`, []Result{{}, {}, {"c", ""}}},
		"dirty":       {`[{"id":"a","result":"rejected:\u001b[2J` + strings.Repeat("x", 300) + `"}]`, []Result{{"a", "rejected:?[2J" + strings.Repeat("x", 187)}}},
	} {
		t.Run(name, func(t *testing.T) {
			c, who, addr := answering(t, saying(200, `{"results":`+tc.answer+`}`))
			got, err := c.Envelopes(t.Context(), who, addr, sent)
			if err != nil || len(got) != len(tc.want) {
				t.Fatalf("got %v, %v; want %v", got, err, tc.want)
			}
			for i := range got {
				if got[i] != tc.want[i] {
					t.Errorf("%d: got %v; want %v", i, got[i], tc.want[i])
				}
			}
		})
	}
}

func TestReceiptResults(t *testing.T) {
	sent := [][]byte{[]byte(`{}`), []byte(`{}`)}
	for answer, want := range map[string][]string{
		`[]`: {}, `["accepted"]`: {"accepted"}, `["stale","rejected:x\n","more"]`: {"stale", "rejected:x?"}, `[null]`: {""},
	} {
		c, who, addr := answering(t, saying(200, `{"results":`+answer+`}`))
		for name, ask := range map[string]func() ([]string, error){
			"receipts": func() ([]string, error) { return c.Receipts(t.Context(), who, addr, sent) },
			"rotate":   func() ([]string, error) { return c.Rotate(t.Context(), addr, sent) },
		} {
			if got, err := ask(); err != nil || strings.Join(got, "|") != strings.Join(want, "|") || len(got) != len(want) {
				t.Errorf("%s %s: got %q, %v; want %q", name, answer, got, err, want)
			}
		}
	}
}

// What the client sends arrives as it was given.
func TestListsArriveRaw(t *testing.T) {
	r := newRig(t)
	list := [][]byte{[]byte(`{ "id":"a" }`), []byte(`{"id":"b","x":"\u00fc"}`)}
	got, err := r.client.Envelopes(t.Context(), r.work, r.addr, list)
	if err != nil || len(got) != 2 || got[0] != (Result{"a", "accepted"}) || got[1] != (Result{"b", "accepted"}) {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := r.client.Receipts(t.Context(), r.work, r.addr, list); err != nil {
		t.Error(err)
	}
	if _, err := r.client.Rotate(t.Context(), r.addr, list); err != nil {
		t.Error(err)
	}
	for _, got := range r.node.lists {
		if !equalLists(got, list) {
			t.Errorf("got %s; want %s", got, list)
		}
	}
}

func TestClientSendsNothingBad(t *testing.T) {
	c, who, addr := answering(t, func(http.ResponseWriter, *http.Request) { t.Error("a request was sent") })
	one := []byte(`{}`)
	for name, err := range map[string]error{
		"too many":  second(c.Envelopes(t.Context(), who, addr, make([][]byte, MaxEnvelopes+1))),
		"not json":  second(c.Receipts(t.Context(), who, addr, [][]byte{[]byte(`{}],"x":[`)})),
		"empty":     second(c.Rotate(t.Context(), addr, [][]byte{nil})),
		"too large": second(c.Rotate(t.Context(), addr, [][]byte{[]byte(`"` + strings.Repeat("x", MaxBody) + `"`)})),
		"no key":    second(c.Envelopes(t.Context(), Caller{Host: "work"}, addr, [][]byte{one})),
		"no name":   second(c.Envelopes(t.Context(), Caller{Key: who.Key}, addr, [][]byte{one})),
		"no addr":   second(c.Status(t.Context(), "http://"+addr)),
	} {
		if err == nil || errors.Is(err, ErrUnreachable) {
			t.Errorf("%s: got %v; want a plain error", name, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestUnreachable(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	c := NewClient(nil)
	defer c.Close()
	for call, err := range everyCall(c, Caller{Host: "work", Key: wiretest.Keys(t)["work"]}, addr) {
		if !errors.Is(err, ErrUnreachable) {
			t.Errorf("%s: got %v; want ErrUnreachable", call, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Status(ctx, addr); !errors.Is(err, ErrUnreachable) || !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled before: got %v; want both", err)
	}
}

// A host that was there for the call before and is gone now is unreachable.
func TestUnreachableAfterACall(t *testing.T) {
	r := newRig(t)
	if _, err := r.client.Status(t.Context(), r.addr); err != nil {
		t.Fatal(err)
	}
	r.http.Close()
	if _, err := r.client.Status(t.Context(), r.addr); !errors.Is(err, ErrUnreachable) {
		t.Errorf("got %v; want ErrUnreachable", err)
	}
}

func TestHang(t *testing.T) {
	inside, done := make(chan struct{}, 10), make(chan struct{})
	c, who, addr := answering(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.URL.Path == "/v1/enc-key" { // hangs in the middle of the answer
			_, _ = io.WriteString(w, `{"v":1`)
			_ = http.NewResponseController(w).Flush()
		}
		inside <- struct{}{}
		<-done
	})
	defer close(done)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-inside; cancel() }()
	if _, err := c.Status(ctx, addr); !errors.Is(err, context.Canceled) || errors.Is(err, ErrUnreachable) {
		t.Errorf("cancelled: got %v", err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, _, _, err := c.EncKey(ctx, who, addr); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrUnreachable) {
		t.Errorf("a deadline of the caller: got %v", err)
	}
	if c.timeout != 15*time.Second {
		t.Errorf("got %s for a call; want 15 s", c.timeout)
	}
	c.timeout = 300 * time.Millisecond
	if err := c.Unpair(context.Background(), who, addr); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrUnreachable) {
		t.Errorf("a deadline of the client: got %v", err)
	}
}

// The refusal of a large body is read, though the host stops listening to it.
func TestRefusedWhileSending(t *testing.T) {
	r := newRig(t)
	delete(r.node.peers, "work")
	big := [][]byte{[]byte(`{"id":"` + strings.Repeat("x", MaxBody-100) + `"}`)}
	for range 10 {
		if _, err := r.client.Envelopes(t.Context(), r.work, r.addr, big); !hasStatus(err, http.StatusUnauthorized) {
			t.Errorf("got %v; want 401", err)
		}
	}
}
