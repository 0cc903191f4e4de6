package host

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// everyCall are the calls that a host makes of a relay.
var everyCall = []string{callInfo, callAsk, callEnrol, callAd, callAdV1, callSenders, callEncKey, callPush, callPull, callAck}

var fiveMB = []byte(`{"v":2,"x":"` + strings.Repeat("x", 5<<20) + `"}`)

// TestAnswersThatAreNone: whatever a relay answers instead of the protocol, to
// whichever call, the tick ends in a known state, the LAN has its turn, and the
// mail is where it was.
func TestAnswersThatAreNone(t *testing.T) {
	answers := map[string]func(c *passing){
		"a web page": func(c *passing) {
			c.status, c.answer = 200, []byte("<!doctype html><html><body>Sign in to the hotel's network</body></html>")
			c.header.Set("Content-Type", "text/html")
		},
		"nothing":       func(c *passing) { c.status, c.answer = 200, nil },
		"null":          func(c *passing) { c.status, c.answer = 200, []byte("null") },
		"a list":        func(c *passing) { c.status, c.answer = 200, []byte("[1,2,3]") },
		"an empty one":  func(c *passing) { c.status, c.answer = 200, []byte("{}") },
		"a deep one":    func(c *passing) { c.status, c.answer = 200, []byte(strings.Repeat(`{"a":`, 20_000)) },
		"204":           func(c *passing) { c.status, c.answer = 204, nil },
		"a redirect":    func(c *passing) { c.status, c.answer = 307, nil; c.header.Set("Location", "/elsewhere") },
		"a moved relay": func(c *passing) { c.status, c.answer = 301, nil; c.header.Set("Location", "http://127.0.0.1:1/") },
		"400":           func(c *passing) { c.status, c.answer = 400, []byte(`{"error":"no"}`) },
		"401":           func(c *passing) { c.status, c.answer = 401, []byte(`{"error":"bad relay hop"}`) },
		"403":           func(c *passing) { c.status, c.answer = 403, []byte(`{"error":"no","code":"REVOKED"}`) },
		"404":           func(c *passing) { c.status, c.answer = 404, []byte(`{"error":"not found"}`) },
		"409":           func(c *passing) { c.status, c.answer = 409, []byte(`{"error":"no","code":"EPOCH"}`) },
		"413":           func(c *passing) { c.status, c.answer = 413, []byte(`{"error":"too large"}`) },
		"429": func(c *passing) {
			c.status, c.answer = 429, []byte(`{"error":"slow down"}`)
			c.header.Set("Retry-After", "1000000000")
		},
		"500":             func(c *passing) { c.status, c.answer = 500, []byte("panic: \x1b[2J goroutine 1 [running]") },
		"503":             func(c *passing) { c.status, c.answer = 503, nil },
		"999":             func(c *passing) { c.status, c.answer = 999, nil },
		"5 MB":            func(c *passing) { c.status, c.answer = 200, []byte(`{"v":2,"x":"`+strings.Repeat("x", 5<<20)+`"}`) },
		"5 MB of refusal": func(c *passing) { c.status, c.answer = 500, fiveMB },
		"no answer":       func(c *passing) { c.status = 0 },
	}
	for name, lie := range answers {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			relay := w.lies()
			alpha, beta := w.host("alpha"), w.host("beta")
			pair(alpha, beta, false)
			near := w.host("near") // a third one, that is on the LAN
			pair(alpha, near, true)
			var msgs, nearby []string
			for i, call := range everyCall {
				relay.says(func(c *passing) bool {
					if c.call != call {
						return false
					}
					lie(c)
					return true
				}, nil)
				msgs = append(msgs, alpha.send(beta, fmt.Sprint("over the relay ", i)))
				nearby = append(nearby, alpha.send(near, fmt.Sprint("over the LAN ", i)))
				for _, h := range []*testHost{alpha, beta} {
					r := h.tick()
					oneState(t, call, r.Relay.State)
					if d := r.Relay.Detail; d != printable(d) || len(d) > 600 {
						t.Errorf("%s: got the detail %q; want it short and printable", call, d)
					}
				}
				w.pass(61 * time.Minute)
				kept(alpha, beta, msgs...)
				same(t, call+": LAN mail meanwhile", near.arrived(nearby[i]), 1)
			}
			same(t, "followed a redirect", relay.count("GET /elsewhere")+relay.count("POST /elsewhere"), 0)
			relay.honest()
			settle(alpha, beta, near)
			arriveOnce(alpha, beta, msgs...)
			same(t, "quarantine", beta.count("quarantine")+alpha.count("quarantine"), 0)
			relay.sawNoBody()
		})
	}
}

// TestHugePage: 40 MB for a page are not read to the end.
func TestHugePage(t *testing.T) {
	w := newWorld(t)
	alpha, beta, msgs := threeWaiting(w)
	wrote := make(chan int, 10)
	w.relay.on("GET", itemsPath, func(out http.ResponseWriter, _ *http.Request, _ http.Handler) {
		n := 0
		for n < 40<<20 {
			k, err := out.Write(make([]byte, 1<<20))
			n += k
			if err != nil {
				break
			}
		}
		wrote <- n
	})
	r := beta.tick().Relay
	same(t, "state", r.State, relayBadAnswer)
	if n := <-wrote; n > 36<<20 {
		t.Errorf("%d bytes of a page were read; want it given up at the bound", n)
	}
	w.relay.intercept(nil)
	arriveOnce(alpha, beta, msgs...)
}

// TestCallsThatHang: no call is waited for without end, whether nothing comes or
// a byte now and then.
func TestCallsThatHang(t *testing.T) {
	for name, hang := range map[string]func(out http.ResponseWriter, in *http.Request){
		"silence": func(_ http.ResponseWriter, in *http.Request) { <-in.Context().Done() },
		"a head and silence": func(out http.ResponseWriter, in *http.Request) {
			out.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(out).Flush()
			<-in.Context().Done()
		},
		"drops": func(out http.ResponseWriter, in *http.Request) {
			for in.Context().Err() == nil {
				if _, err := out.Write([]byte(" ")); err != nil {
					return
				}
				_ = http.NewResponseController(out).Flush()
				select {
				case <-in.Context().Done():
				case <-time.After(10 * time.Millisecond):
				}
			}
		},
		"half an answer": func(out http.ResponseWriter, _ *http.Request) {
			out.Header().Set("Content-Length", "1000")
			_, _ = out.Write([]byte(`{"results":[`))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			alpha, beta, msgs := twoOverRelay(w, "one", "two")
			for _, h := range []*testHost{alpha, beta} {
				h.opts.Transport = impatient{300 * time.Millisecond}
				h.reopen()
			}
			for _, call := range []string{callInfo, callEncKey, callPush, callPull, callAck} {
				method, path, _ := strings.Cut(call, " ")
				w.relay.on(method, path, func(out http.ResponseWriter, in *http.Request, _ http.Handler) {
					_, _ = io.Copy(io.Discard, in.Body) // until then its end is not noticed
					hang(out, in)
				})
				for _, h := range []*testHost{alpha, beta} {
					oneState(t, call, h.tick().Relay.State, relayOK, relayDown, relayBadAnswer)
				}
				w.pass(time.Minute)
				kept(alpha, beta, msgs...)
			}
			w.relay.intercept(nil)
			for _, h := range []*testHost{alpha, beta} {
				h.opts.Transport = nil
				h.reopen()
			}
			arriveOnce(alpha, beta, msgs...)
		})
	}
}

// TestSlowRelay: a relay that takes its time for every call keeps the LAN
// waiting for a while only, and what it was not given stays due.
func TestSlowRelay(t *testing.T) {
	w := newWorld(t)
	alpha, near := w.host("alpha"), w.host("near")
	pair(alpha, near, true)
	var far []*testHost
	var msgs []string
	for i := range 8 {
		h := w.host(fmt.Sprintf("far%02d", i))
		pair(alpha, h, false)
		h.tick()
		far = append(far, h)
	}
	alpha.tick()
	for _, h := range far {
		msgs = append(msgs, alpha.send(h, "far"))
	}
	alpha.lanFailedTwice()
	local := alpha.send(near, "near")
	relay := w.lies()
	relay.says(func(c *passing) bool { w.pass(14 * time.Second); return false }, nil)
	before := relay.count("")
	alpha.tick()
	if calls := relay.count("") - before; calls > 6 {
		t.Errorf("got %d slow calls in a tick; want it to leave the rest for the next one", calls)
	}
	same(t, "near", near.arrived(local), 1)
	for i, h := range far {
		kept(alpha, h, msgs[i])
	}
	relay.honest()
	settle(append(far, alpha, near)...)
	for i, h := range far {
		same(t, h.Name(), h.arrived(msgs[i]), 1)
	}
}
