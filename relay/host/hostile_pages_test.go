package host

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/wire"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

// threeWaiting has three messages for beta wait at the relay.
func threeWaiting(w *world) (alpha, beta *testHost, msgs []string) {
	w.t.Helper()
	alpha, beta, msgs = twoOverRelay(w, "one", "two", "three")
	same(w.t, "accepted", alpha.relayOnly().Accepted, 3)
	return alpha, beta, msgs
}

// TestPagesThatContradictThemselves: of such a page nothing is processed, since
// an item could be skipped for ever.
func TestPagesThatContradictThemselves(t *testing.T) {
	for name, lie := range map[string]func(p *servedPage){
		"reordered":                 func(p *servedPage) { p.Items[0], p.Items[1] = p.Items[1], p.Items[0] },
		"backwards":                 func(p *servedPage) { slices.Reverse(p.Items); p.Last = p.Items[2].Seq },
		"an item twice":             func(p *servedPage) { p.Items = slices.Insert(p.Items, 1, p.Items[0]) },
		"one place twice":           func(p *servedPage) { p.Items[1].Seq = p.Items[0].Seq },
		"cut, with its old end":     func(p *servedPage) { p.Items = p.Items[:1] },
		"emptied, with its old end": func(p *servedPage) { p.Items = p.Items[:0] },
		"an end too low":            func(p *servedPage) { p.Last-- },
		"an end too high":           func(p *servedPage) { p.Last += 100 },
		"an end of nought":          func(p *servedPage) { p.Last = 0 },
		"items before the position": func(p *servedPage) { p.Items[0].Seq = 0 },
		"items below nought":        func(p *servedPage) { p.Items[0].Seq = -3 },
		"a head below its items":    func(p *servedPage) { p.Head = 1 },
		"a head below nought":       func(p *servedPage) { p.Head = -1 },
		"empty with more":           func(p *servedPage) { p.Items, p.Last, p.More = []servedItem{}, 0, true },
		"beyond exact numbers":      func(p *servedPage) { p.Items[2].Seq, p.Last, p.Head = 1<<60, 1<<60, 1<<60 },
		"no epoch":                  func(p *servedPage) { p.Epoch = "" },
		"items of null":             func(p *servedPage) { p.Items = nil },
		"more than was asked for": func(p *servedPage) {
			for p.Head = 3; len(p.Items) <= 500; p.Head++ {
				it := p.Items[0]
				it.Seq = p.Head + 1
				p.Items = append(p.Items, it)
			}
			p.Last = p.Head
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			alpha, beta, msgs := threeWaiting(w)
			relay := w.lies()
			relay.says(nil, lieOn(callPull, func(c *passing) { c.page(lie) }))
			for range 3 {
				r := beta.tick().Relay
				same(t, "state", r.State, relayBadAnswer)
				same(t, "received", r.Received+r.Duplicates+r.Quarantined, 0)
				w.pass(time.Minute)
			}
			same(t, "position", beta.relayRow().position, int64(0))
			same(t, "acks", relay.count(callAck), 0)
			same(t, "quarantine", beta.count("quarantine"), 0)
			same(t, "inbox", beta.inbox(), 0)
			same(t, "still at the relay", w.relay.queued(beta), 3)
			kept(alpha, beta, msgs...)
			relay.honest()
			arriveOnce(alpha, beta, msgs...)
			relay.sawNoBody()
		})
	}
}

// TestPagesOfHalfTruths: what can't be told from an honest answer costs time,
// never mail.
func TestPagesOfHalfTruths(t *testing.T) {
	for name, lie := range map[string]func(after int64, p *servedPage){
		"the last item kept back":   func(_ int64, p *servedPage) { p.Items = p.Items[:len(p.Items)-1]; fix(p) },
		"kept back, and more":       func(_ int64, p *servedPage) { p.Items = p.Items[:1]; fix(p); p.More = true },
		"a head far above":          func(_ int64, p *servedPage) { p.Head += 1 << 40 },
		"places far above":          func(_ int64, p *servedPage) { p.Items[2].Seq += 1 << 40; fix(p); p.Head = p.Last },
		"nothing at all":            func(after int64, p *servedPage) { p.Items, p.Last, p.More = []servedItem{}, after, false },
		"a head of nought, nothing": func(after int64, p *servedPage) { p.Items, p.Last, p.Head, p.More = []servedItem{}, after, 0, false },
		"other names": func(_ int64, p *servedPage) {
			for i := range p.Items {
				p.Items[i].ID, p.Items[i].Sender = "\x1b[2Jnobody", strings.Repeat("k", 5000)
			}
		},
		"an overlap": func(after int64, p *servedPage) { // the first item again under the next place
			if after < 10 {
				it := p.Items[0]
				it.Seq = p.Last + 1
				p.Items, p.Head = append(p.Items, it), p.Head+1
				fix(p)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			alpha, beta, msgs := threeWaiting(w)
			relay := w.lies()
			relay.says(nil, lieOn(callPull, func(c *passing) {
				c.page(func(p *servedPage) {
					if len(p.Items) > 0 {
						lie(after(c), p)
					}
				})
			}))
			for range 5 {
				oneState(t, "state", beta.tick().Relay.State)
				alpha.tick()
				kept(alpha, beta, msgs...)
				w.pass(time.Minute)
			}
			relay.honest()
			arriveOnce(alpha, beta, msgs...)
			same(t, "quarantine", beta.count("quarantine"), 0)
			relay.sawNoBody()
		})
	}
}

// fix makes a page's end that of its items.
func fix(p *servedPage) {
	p.Last = 0
	if n := len(p.Items); n > 0 {
		p.Last = p.Items[n-1].Seq
	}
}

// TestHeadsThatGoUpAndDown: a head below the position is a relay that went back
// in time. One that says so for ever costs a little each time.
func TestHeadsThatGoUpAndDown(t *testing.T) {
	for name, lie := range map[string]func(c *passing){
		"in the info": lieOn(callInfo, func(c *passing) {
			c.change(func(m map[string]any) {
				if you, is := m["you"].(map[string]any); is {
					you["head_seq"] = 0
				}
			})
		}),
		"in the page": lieOn(callPull, func(c *passing) {
			c.page(func(p *servedPage) {
				if after(c) > 0 {
					p.Items, p.Last, p.Head, p.More = []servedItem{}, after(c), 0, false
				}
			})
		}),
		"in the page, after all of it again": lieOn(callPull, func(c *passing) {
			c.page(func(p *servedPage) {
				if p.More = len(p.Items) > 0; !p.More && after(c) > 0 {
					p.Last, p.Head = after(c), 0
				}
			})
		}),
		"for the ack": func(c *passing) {
			if c.call == callAck {
				c.status, c.answer = http.StatusBadRequest, []byte(`{"error":"beyond the head","code":"BAD_ACK","epoch":"x","head_seq":0}`)
			}
		},
		"for the ack, with all of it again and more": lieOn(callPull, func(c *passing) {
			c.page(func(p *servedPage) { p.More = len(p.Items) > 0 })
		}),
		"for the ack, another epoch each time": func(c *passing) {
			if c.call == callAck {
				c.status, c.answer = http.StatusConflict, fmt.Appendf(nil, `{"error":"not the epoch","code":"EPOCH","epoch":"%x","head_seq":0}`, c.in.Header.Get("x-mbx-sig")[:8])
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			alpha, beta, msgs := threeWaiting(w)
			back := beta.send(alpha, "back")
			beta.lanFailedTwice()
			beta.relayOnly()
			relay := w.lies()
			relay.says(func(c *passing) bool {
				switch {
				case c.call != callAck || !strings.Contains(name, "again"):
					return false
				case strings.HasPrefix(name, "for the ack"):
					c.status, c.answer = http.StatusBadRequest, []byte(`{"error":"beyond the head","code":"BAD_ACK"}`)
				default: // says that it drops the items and keeps them
					return ackAll(c)
				}
				return true
			}, lie)
			for range 8 {
				before := relay.count("")
				alpha.tick()
				beta.tick()
				if calls := relay.count("") - before; calls > 30 {
					t.Errorf("got %d calls in a tick of two hosts; want a few", calls)
				}
				kept(alpha, beta, msgs...)
				kept(beta, alpha, back)
				w.pass(time.Minute)
			}
			same(t, "inbox meanwhile", beta.inbox(), 3)
			relay.honest()
			settle(alpha, beta)
			same(t, "back", alpha.arrived(back), 1)
			arriveOnce(alpha, beta, msgs...)
			relay.sawNoBody()
		})
	}
}

// ackAll takes any ack.
func ackAll(c *passing) bool {
	if c.call != callAck {
		return false
	}
	c.status, c.answer = http.StatusOK, []byte(`{"acked_through":0,"deleted":0,"head_seq":0}`)
	return true
}

// TestMoreForEver: the same items under rising places and always more to come. A
// tick ends all the same, and what was sent is there once.
func TestMoreForEver(t *testing.T) {
	muchWork(t)
	w := newWorld(t)
	alpha, beta, msgs := threeWaiting(w)
	relay := w.lies()
	var items []servedItem
	relay.says(ackAll, lieOn(callPull, func(c *passing) {
		c.page(func(p *servedPage) {
			relay.mu.Lock()
			defer relay.mu.Unlock()
			if items == nil {
				items = slices.Clone(p.Items)
			}
			p.Items = nil
			for i := range 20 {
				it := items[i%len(items)]
				it.Seq = after(c) + int64(i) + 1
				p.Items = append(p.Items, it)
			}
			fix(p)
			p.Head, p.More = p.Last+1000, true
		})
	}))
	same(t, "received", beta.tick().Relay.Received, 3)
	for range 3 {
		before := relay.count(callPull)
		r := beta.tick()
		same(t, "pages in a tick", relay.count(callPull)-before, maxPages)
		same(t, "received again", r.Relay.Received, 0)
		same(t, "is it news", r.news() && r.Relay.ReceiptsSent == 0, false)
	}
	same(t, "inbox", beta.inbox(), 3)
	relay.honest()
	arriveOnce(alpha, beta, msgs...)
	relay.sawNoBody()
}

// TestQuarantineFlood: what can't be accepted is kept, up to a bound. Then
// nothing more is received until a person has looked, and nothing is lost.
func TestQuarantineFlood(t *testing.T) {
	muchWork(t)
	w := newWorld(t)
	alpha, beta, msgs := threeWaiting(w)
	relay := w.lies()
	relay.says(ackAll, func(c *passing) {
		switch c.call {
		case callInfo:
			c.change(func(m map[string]any) {
				if you, is := m["you"].(map[string]any); is {
					you["head_seq"] = 1_000_000
				}
			})
		case callPull:
			c.page(func(p *servedPage) {
				p.Items = nil
				for i := range int64(500) {
					p.Items = append(p.Items, foreign(after(c)+i+1, "flood", "junk", beta.Key(), []byte("junk")))
				}
				fix(p)
				p.Head, p.More = 1_000_000, true
			})
		}
	})
	same(t, "quarantined in a tick", beta.tick().Relay.Quarantined, maxQuarantine)
	position := beta.relayRow().position
	for range 3 {
		before := relay.count(callPull)
		r := beta.tick().Relay
		same(t, "state", r.State, relayFull)
		same(t, "quarantined", r.Quarantined, 0)
		same(t, "pulls", relay.count(callPull)-before, 0)
	}
	same(t, "position", beta.relayRow().position, position)
	same(t, "kept", beta.count("quarantine"), maxQuarantine)
	back := beta.send(alpha, "sending goes on")
	beta.lanFailedTwice()
	same(t, "accepted while it is full", beta.tick().Relay.Accepted, 1)

	relay.honest()
	same(t, "state", beta.tick().Relay.State, relayFull)
	first := ask[int64](beta, "SELECT min(id) FROM quarantine")
	noError(t, beta.DiscardQuarantined(context.Background(), first))
	same(t, "audited", beta.audited("quarantine.discarded"), 1)
	settle(alpha, beta)
	same(t, "back", alpha.arrived(back), 1)
	arriveOnce(alpha, beta, msgs...)
	same(t, "state", beta.relayRow().state, relayOK)
	same(t, "the rest is kept", beta.count("quarantine"), maxQuarantine-1)
	relay.sawNoBody()
}

// TestItemsThatAreNone: each foreign item is kept with a reason, the mail around
// it is delivered, and a second look changes nothing.
func TestItemsThatAreNone(t *testing.T) {
	w := newWorld(t)
	alpha, beta, msgs := twoOverRelay(w, "one", "two")
	same(t, "accepted", alpha.relayOnly().Accepted, 2)
	relay := w.lies()

	at := func(h *testHost) *wiretest.Host {
		return &wiretest.Host{Name: h.Name(), Key: h.keyring().key, Enc: h.keyring().enc}
	}
	a, b, mallory := at(alpha), at(beta), wiretest.NewHost("mallory")
	draft := func(edit func(e *wire.Envelope)) (string, []byte) {
		e := a.Draft(b, "crafted", "crafted")
		edit(&e)
		return a.Seal(e, b)
	}
	type item struct {
		kind, id, reason string
		raw              []byte
	}
	var items []item
	add := func(reason, kind string) func(id string, raw []byte) {
		return func(id string, raw []byte) { items = append(items, item{kind, id, reason, raw}) }
	}
	add("rejected:host not paired", "envelope")(mallory.Envelope(b, "hello", "hello"))
	add("rejected:host not paired", "envelope")(draft(func(e *wire.Envelope) { e.From = "builder@mallory" }))
	add("rejected:sender host mismatch", "envelope")(mallory.Seal(a.Draft(b, "forged", "forged"), b))
	add("rejected:sender host mismatch", "envelope")("x", must(wire.Seal(a.Draft(b, "forged", "forged"), b.Enc.Public(), mallory.Key, "mallory")))
	add("rejected:bad signature", "envelope")("x", must(wire.Seal(a.Draft(b, "forged", "forged"), b.Enc.Public(), mallory.Key, "alpha")))
	add("rejected:bad sender address", "envelope")(draft(func(e *wire.Envelope) { e.From = "Ev\x1b[2Jil@alpha" }))
	add("rejected:undecryptable body", "envelope")(a.Seal(a.Draft(b, "for another", "for another"), mallory))
	add("rejected:envelope body is not sealed", "envelope")(a.PlainEnvelope(b, "open", "open"))
	add("rejected:unknown item kind", "letter")(a.Envelope(b, "kind", "kind"))
	add("rejected:unknown item kind", "")(a.Envelope(b, "kind", "kind"))
	add("rejected:unknown item kind", "\x1b[2J"+strings.Repeat("k", 300))(a.Envelope(b, "kind", "kind"))
	add("rejected:unreadable item", "envelope")("empty", nil)
	add("rejected:", "envelope")("junk", []byte("junk \xff\x00"))
	add("rejected:", "envelope")("deep", []byte(strings.Repeat("[", 100_000)))
	add("rejected:invalid receipt", "receipt")("junk", []byte(`{"rec":{},"sig":""}`))
	add("rejected:host not paired", "receipt")(mallory.Receipt(msgs[0], "read", 1))
	add("rejected:unknown message", "receipt")(a.Receipt(msgs[0], "read", 1))
	add("rejected:bad signature", "receipt")("x", wire.MakeReceipt(mallory.Key, wire.Receipt{Msg: msgs[0], Recipient: "reviewer@alpha", State: "read", At: t0, Seq: 1}))
	add("rejected:bad expiry notice", "expired")(wire.MakeExpiryNotice(mallory.Key, msgs[0], alpha.Key(), t0, t0))
	add("rejected:bad expiry notice", "expired")("expired:other", second(wire.MakeExpiryNotice(w.relay.key, msgs[0], alpha.Key(), t0, t0)))

	relay.says(nil, lieOn(callPull, func(c *passing) {
		if after(c) > 0 {
			return
		}
		c.page(func(p *servedPage) {
			real := p.Items
			p.Items = []servedItem{real[0]}
			for i, it := range items {
				p.Items = append(p.Items, foreign(int64(i)+10, it.kind, it.id, mallory.Pub(), it.raw))
			}
			noBase64 := foreign(900, "envelope", strings.Repeat("é", 5000), mallory.Pub(), nil)
			noBase64.Wire = "{not base64}"
			real[1].Seq = 1000
			p.Items = append(p.Items, noBase64, real[1])
			fix(p)
			p.Head = p.Last
		})
	}))
	r := beta.tick().Relay
	same(t, "state", r.State, relayOK)
	same(t, "received", r.Received, 2)
	same(t, "quarantined", r.Quarantined, len(items)+1)
	same(t, "inbox", beta.inbox(), 2)
	list := must(beta.Quarantine(context.Background(), 0, 100))
	for i, it := range items {
		hasPart(t, fmt.Sprintf("item %d", i), list[i].Reason, it.reason)
		same(t, fmt.Sprintf("item %d: bytes kept", i), list[i].Bytes, int64(len(it.raw)))
		if result := must(beta.RetryQuarantined(context.Background(), list[i].ID)); !strings.HasPrefix(result, "rejected:") {
			t.Errorf("item %d: got %q when it was tried again; want it refused", i, result)
		}
	}
	same(t, "no base64", list[len(items)].Reason, "rejected:unreadable item")
	must(beta.RetryQuarantined(context.Background(), list[len(items)].ID))
	same(t, "still there", beta.count("quarantine"), len(items)+1)

	relay.honest() // its head is below the position: everything comes once more
	arriveOnce(alpha, beta, msgs...)
	same(t, "quarantine", beta.count("quarantine"), len(items)+1)
	relay.sawNoBody()
}

func second[A, B any](_ A, b B) B { return b }

// TestLargePages: a page as large as a relay may serve is taken in, one that is
// larger is refused whole and the mail behind it waits.
func TestLargePages(t *testing.T) {
	muchWork(t)
	w := newWorld(t)
	alpha, beta, msgs := threeWaiting(w)
	junk := base64.StdEncoding.EncodeToString(make([]byte, 350<<10))
	page := func(items int64) {
		w.relay.on("GET", "/v2/relay/items", func(out http.ResponseWriter, in *http.Request, _ http.Handler) {
			if after(&passing{in: in}) != 0 {
				fmt.Fprintf(out, `{"epoch":%q,"head_seq":%s,"items":[],"last_seq":%[2]s,"more":false}`, w.relay.epoch(), in.URL.Query().Get("after"))
				return
			}
			fmt.Fprintf(out, `{"epoch":%q,"head_seq":%d,"last_seq":%[2]d,"more":false,"items":[`, w.relay.epoch(), items)
			for i := range items {
				sep := ","
				if i == 0 {
					sep = ""
				}
				_, err := fmt.Fprintf(out, `%s{"seq":%d,"kind":"envelope","item_id":"junk","sender_pubkey":"k","wire_b64":"%s"}`, sep, i+1, junk)
				if err != nil {
					return // it has read enough
				}
			}
			fmt.Fprint(out, "]}")
		})
	}
	page(500)
	r := beta.tick().Relay
	same(t, "500 items of 350 KiB: state", r.State, relayBadAnswer)
	same(t, "500 items of 350 KiB: taken", r.Received+r.Quarantined, 0)
	page(10)
	r = beta.tick().Relay
	same(t, "10 items of 350 KiB: quarantined", r.Quarantined, 10)
	w.relay.intercept(nil)
	arriveOnce(alpha, beta, msgs...)
}
