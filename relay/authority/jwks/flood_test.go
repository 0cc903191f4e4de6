package jwks_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/authority/jwks/jwkstest"
)

// hostileKid is text that would like to be something else in a log: that which is
// fetched for in each minute, too.
func hostileKid(rnd *rand.Rand, minute int) string {
	tails := []string{"", "\n{\"level\":\"ERROR\",\"msg\":\"owned\"}", "\x1b[2J", "\u202e", "\r\nGET / HTTP/1.1", "\"}", "%s%n", "\u2028", "\x00"}
	return fmt.Sprintf("%x%s", rnd.Uint64(), tails[minute%len(tails)])
}

// anyToken has the shape of a token of this kid, and no good signature.
func (r *rig) anyToken(kid string) json.RawMessage {
	token := forge(obj{"alg": "EdDSA", "kid": kid}, r.claims(), func([]byte) []byte { return make([]byte, 64) })
	return jwkstest.Marshal(obj{"token": token, "certificate": obj{"payload": obj{}, "sig": ""}, "cloud_sig": ""})
}

// gate is an issuer that hangs until it is opened, and says who came.
type gate struct {
	came, open chan struct{}
	then       http.Handler
}

func newGate(then http.Handler) *gate {
	return &gate{make(chan struct{}, 1000), make(chan struct{}), then}
}

func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.came <- struct{}{}
	select {
	case <-g.open:
		g.then.ServeHTTP(w, r)
	case <-r.Context().Done():
	}
}

// TestKidFlood sends 10,000 tokens with random key ids within ten minutes, to
// enrol and as deny lists. The issuer is asked once a minute at most, whether it
// answers or not, and hosts with good tokens get in between them all.
func TestKidFlood(t *testing.T) {
	r := newFreshRig(t)
	rnd := rand.New(rand.NewPCG(1, 2))
	const tokens, minutes = 10000, 10
	good := r.ed.Sign(nil, r.claims())
	for i := range tokens {
		if i == tokens/2 {
			r.issuer.Serve(jwkstest.Status(503))
		}
		r.clock.Set(t0.Add(minutes * time.Minute * time.Duration(i) / tokens))
		kid := hostileKid(rnd, i*minutes/tokens)
		if i%10 == 9 {
			_, err := r.auth.VerifyDenials(context.Background(), r.ed.Sign(obj{"typ": "mbx-deny+jwt", "kid": kid}, obj{}))
			if e, ok := err.(*relay.Error); !ok || e.Code != "TOKEN_KEY" {
				t.Fatalf("deny token %d: got %v; want TOKEN_KEY", i, err)
			}
		} else if got := r.code(r.applicant(r.anyToken(kid))); got != "TOKEN_KEY" {
			t.Fatalf("token %d: got %q; want TOKEN_KEY", i, got)
		}
		if i%100 == 0 {
			if got := r.code(r.applicant(r.proof(good))); got != "" {
				t.Fatalf("a good host after %d: got %q; want a grant", i, got)
			}
		}
	}
	r.fetched("the start and once a minute", 1+minutes)
	if lines := r.logs.lines(t); len(lines) > 1+minutes+2 {
		t.Errorf("got %d lines in the log; want one a fetch, and the trouble:\n%q", len(lines), lines)
	}
	for _, b := range r.logs.buf.Bytes() {
		if b != '\n' && (b < ' ' || b > '~') {
			t.Fatalf("got byte %#x in the log; want it escaped", b)
		}
	}
	if n := r.logs.count(t, logFetch); n != minutes {
		t.Errorf("got %d lines about fetches; want %d", n, minutes)
	}
	if n := r.logs.count(t, logTrouble); n != 1 {
		t.Errorf("got %d lines about the trouble; want 1", n)
	}
}

// TestGoodHostsWhileTheIssuerHangs would itself hang if they had to wait.
func TestGoodHostsWhileTheIssuerHangs(t *testing.T) {
	r := newFreshRig(t)
	g := newGate(jwkstest.Status(503))
	r.issuer.Serve(g)
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			if got := r.code(r.applicant(r.anyToken(fmt.Sprint(i)))); got != "TOKEN_KEY" {
				t.Errorf("an unknown key: got %q; want TOKEN_KEY", got)
			}
		})
	}
	<-g.came
	for range 100 {
		r.wants("a good host", r.ed, "")
		r.wants("a good host", r.es, "")
	}
	if s := r.auth.State(); !s.Usable || s.Trouble != "" {
		t.Errorf("got %+v; want it usable, and the fetch not yet over", s)
	}
	close(g.open)
	wg.Wait()
	r.fetched("the start and one for fifty", 2)
}

// TestColdStart has a thousand hosts wait for the first key set.
func TestColdStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, offline)
		g := newGate(jwkstest.Text("", jwkstest.Set(r.ed, r.es)))
		r.issuer.Serve(g)
		proofs := [2]json.RawMessage{r.proof(r.ed.Sign(nil, r.claims())), r.proof(r.es.Sign(nil, r.claims()))}
		var wg sync.WaitGroup
		for i := range 1000 {
			wg.Go(func() {
				if got := r.code(r.applicant(proofs[i%2])); got != "" {
					t.Errorf("got %q; want a grant", got)
				}
			})
		}
		wg.Go(func() { // the job, at the same time
			if _, err := r.auth.Refresh(t.Context()); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		close(g.open)
		wg.Wait()
		r.fetched("a thousand and the job", 1)
	})
}

// TestWhoAskedFirstGoesAway: others wait for its fetch.
func TestWhoAskedFirstGoesAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, offline)
		g := newGate(jwkstest.Text("", jwkstest.Set(r.ed)))
		r.issuer.Serve(g)
		who := r.applicant(r.proof(r.ed.Sign(nil, r.claims())))
		ctx, leave := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = r.auth.Authorize(ctx, who) })
		synctest.Wait()
		wg.Go(func() {
			if got := r.code(who); got != "" {
				t.Errorf("who waits: got %q; want a grant", got)
			}
		})
		gone, goNow := context.WithCancel(t.Context())
		wg.Go(func() { // does not wait to the end
			if g, err := r.auth.Authorize(gone, who); err == nil {
				t.Errorf("who left: got %+v; want an error", g)
			}
			goNow()
		})
		synctest.Wait()
		goNow()
		<-gone.Done()
		leave()
		synctest.Wait()
		close(g.open)
		wg.Wait()
		r.fetched("three hosts", 1)
	})
}

// TestHang: an issuer that does not answer, or not to the end, costs ten seconds.
func TestHang(t *testing.T) {
	trickle := transport(func(q *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(&drip{ctx: q.Context()}), Request: q}, nil
	})
	silent := transport(func(q *http.Request) (*http.Response, error) {
		<-q.Context().Done()
		return nil, q.Context().Err()
	})
	for name, trip := range map[string]http.RoundTripper{"silent": silent, "a byte a second": trickle} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newFreshRig(t, offline)
				r.trip = trip
				r.restart()
				for what, ask := range map[string]func(){
					"refresh": func() {
						if got := r.refreshFails(); got != "no answer within 10 s" {
							t.Errorf("got trouble %q", got)
						}
					},
					"an unknown key": func() {
						if got := r.code(r.applicant(r.anyToken("nobody"))); got != "TOKEN_KEY" {
							t.Errorf("got %q; want TOKEN_KEY", got)
						}
					},
					"the deny list": func() {
						if token, err := r.auth.FetchDenials(t.Context()); err == nil {
							t.Errorf("got a list %q; want an error", token)
						}
					},
				} {
					began := time.Now() // the bubble's
					ask()
					if took := time.Since(began); took != 10*time.Second {
						t.Errorf("%s: took %v; want 10 s", what, took)
					}
				}
				r.wants("a good host", r.ed, "")
			})
		})
	}
}

type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(q *http.Request) (*http.Response, error) { return f(q) }

// drip is a body of spaces, one a second.
type drip struct{ ctx context.Context }

func (d *drip) Read(p []byte) (int, error) {
	select {
	case <-time.After(time.Second):
		p[0] = ' '
		return 1, nil
	case <-d.ctx.Done():
		return 0, d.ctx.Err()
	}
}

// TestRefreshIsStopped: who stops the relay says nothing about the issuer.
func TestRefreshIsStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFreshRig(t, offline)
		r.issuer.Serve(newGate(jwkstest.Status(500)))
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := r.auth.Refresh(ctx); err == nil {
				t.Error("refresh: got no error")
			}
		})
		synctest.Wait()
		stop()
		wg.Wait()
		if s := r.auth.State(); s.Trouble != "" || !s.TroubleAt.IsZero() || !s.Usable {
			t.Errorf("got %+v; want no trouble", s)
		}
		if n := r.logs.count(t, logTrouble); n != 0 {
			t.Errorf("got %d lines about trouble; want none", n)
		}
	})
}
