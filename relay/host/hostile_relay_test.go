package host

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/wire"
)

func TestAcceptsThatDoNotHold(t *testing.T) {
	stranger := must(wire.GenerateKey())
	results := func(edit func(r map[string]any)) func(w *world, c *passing) {
		return func(_ *world, c *passing) {
			c.change(func(m map[string]any) {
				list, _ := m["results"].([]any)
				for _, one := range list {
					edit(one.(map[string]any))
				}
			})
		}
	}
	resigned := func(edit func(a *wire.Accept)) func(w *world, c *passing) {
		return func(w *world, c *passing) { c.accept(w.relay.key, edit) }
	}
	for _, l := range []struct {
		name string
		lie  func(w *world, c *passing)
		bad  bool // the answer as a whole
	}{
		{name: "other bytes", lie: resigned(func(a *wire.Accept) { a.Targets[0].WireHash = wire.HashHex([]byte("other")) })},
		{name: "another target", lie: resigned(func(a *wire.Accept) { a.Targets[0].HostPubkey = stranger.Public() })},
		{name: "another sender", lie: resigned(func(a *wire.Accept) { a.SenderPubkey = stranger.Public() })},
		{name: "another item", lie: resigned(func(a *wire.Accept) { a.ItemID = wire.NewID(t0) })},
		{name: "another type", lie: resigned(func(a *wire.Accept) { a.Type = "relay-expired" })},
		{name: "no target", lie: resigned(func(a *wire.Accept) { a.Targets = nil })},
		{name: "no time", lie: resigned(func(a *wire.Accept) { a.At = "soon" })},
		{name: "no epoch", lie: resigned(func(a *wire.Accept) { a.Epoch = "" })},
		{name: "another relay's", lie: func(_ *world, c *passing) {
			c.accept(stranger, func(a *wire.Accept) { a.RelayPubkey = stranger.Public() })
		}},
		{name: "signed by another key", lie: func(_ *world, c *passing) { c.accept(stranger, func(*wire.Accept) {}) }},
		{name: "a time changed after signing", lie: results(func(r map[string]any) {
			r["accept"].(map[string]any)["at"] = "2999-01-01T00:00:00.000Z"
		})},
		{name: "no signature", lie: results(func(r map[string]any) { delete(r, "sig") })},
		{name: "no accept", lie: results(func(r map[string]any) { delete(r, "accept") })},
		{name: "a null accept", lie: results(func(r map[string]any) { r["accept"] = nil })},
		{name: "a duplicate without an accept", lie: results(func(r map[string]any) { r["status"] = "duplicate"; delete(r, "accept") })},
		{name: "a result of another item", lie: results(func(r map[string]any) { r["item_id"] = wire.NewID(t0) })},
		{name: "a word that is none", lie: results(func(r map[string]any) { r["status"] = "stored \x1b[2J" })},
		{name: "no results", lie: func(_ *world, c *passing) { c.answer = []byte(`{"results":[]}`) }},
		{name: "results of null", lie: func(_ *world, c *passing) { c.answer = []byte(`{"results":[null]}`) }, bad: true},
		{name: "an empty answer", lie: func(_ *world, c *passing) { c.answer = []byte(`{}`) }, bad: true},
		{name: "a member twice", lie: func(_ *world, c *passing) {
			c.answer = append([]byte(`{"results":[],`), c.answer[1:]...)
		}, bad: true},
	} {
		t.Run(l.name, func(t *testing.T) {
			w := newWorld(t)
			alpha, beta, msgs := twoOverRelay(w, "hello")
			relay := w.lies()
			relay.says(nil, lieOn(callPush, func(c *passing) { l.lie(w, c) }))

			r := alpha.tick()
			same(t, "accepted", r.Relay.Accepted, 0)
			same(t, "failed", r.Relay.Failed, 1)
			if l.bad {
				same(t, "state", r.Relay.State, relayBadAnswer)
			} else {
				same(t, "state", r.Relay.State, relayOK)
				same(t, "audited", alpha.audited("relay.bad_accept"), 1)
			}
			same(t, "outbox", alpha.outbox(), 1)
			same(t, "held by the relay, as far as alpha knows", alpha.count("relay_sent"), 0)
			if text := alpha.rowError(msgs[0]); text == "" || text != printable(text) {
				t.Errorf("got %q as the row's error; want a printable reason", text)
			}
			kept(alpha, beta, msgs...)

			relay.honest()
			arriveOnce(alpha, beta, msgs...)
			relay.sawNoBody()
		})
	}
}

// TestTimesOfAccepts: the relay says when it took an item and how long it keeps
// it, and neither moves the sender's own deadline out of reach.
func TestTimesOfAccepts(t *testing.T) {
	day := 24 * time.Hour
	for _, c := range []struct {
		at          string // "" for the honest one
		retention   any    // nil for the honest one
		least, most time.Duration
	}{
		{"", nil, 15 * day, 15 * day},
		{"2999-01-01T00:00:00.000Z", nil, 15 * day, 15*day + 5*time.Minute},
		{"1970-01-01T00:00:00.000Z", nil, 15 * day, 15 * day},
		{"0001-01-01T00:00:00.000Z", nil, 15 * day, 15 * day},
		{"", 10_000, 61 * day, 61 * day},
		{"2999-01-01T00:00:00.000Z", 10_000, 61 * day, 61*day + 5*time.Minute},
		{"", -5, 15 * day, 15 * day}, // no relay keeps mail for so long: the usual time
		{"", 1e300, 15 * day, 61 * day},
		{"", "for ever", 15 * day, 15 * day},
		{"", 0.5, 15 * day, 15 * day},
	} {
		t.Run(fmt.Sprint(c.at, " ", c.retention), func(t *testing.T) {
			w := newWorld(t)
			alpha, beta, msgs := twoOverRelay(w, "hello")
			relay := w.lies()
			relay.says(nil, func(p *passing) {
				switch {
				case p.call == callPush && c.at != "":
					p.accept(w.relay.key, func(a *wire.Accept) { a.At = c.at })
				case p.call == callInfo && c.retention != nil:
					p.change(func(m map[string]any) { m["limits"].(map[string]any)["retention_days"] = c.retention })
				case p.call == callPull: // what it took, it never hands out
					p.page(func(s *servedPage) { s.Items, s.Last, s.More = []servedItem{}, after(p), false })
				}
			})
			start := w.clock()
			same(t, "accepted", alpha.tick().Relay.Accepted, 1)
			left := time.UnixMilli(ask[int64](alpha, "SELECT deadline FROM relay_sent")).Sub(start)
			if left < c.least || left > c.most {
				t.Errorf("got a deadline in %s; want %s to %s", left, c.least, c.most)
			}
			w.pass(left)
			same(t, "unconfirmed at the deadline", alpha.tick().Unconfirmed, 0)
			w.pass(time.Millisecond)
			same(t, "unconfirmed after it", alpha.tick().Unconfirmed, 1)
			same(t, "state", alpha.sentState(msgs[0]), "unconfirmed")
			same(t, "alerts", len(alpha.alerts("builder")), 1)
			same(t, "outbox", alpha.outbox(), 0)
			same(t, "arrived", beta.arrived(msgs[0]), 0)
			relay.sawNoBody()
		})
	}
}

// after is the position that a pull asks from.
func after(c *passing) (n int64) {
	_, _ = fmt.Sscan(c.in.URL.Query().Get("after"), &n)
	return n
}

func TestEpochsThatChangeWithEveryCall(t *testing.T) {
	w := newWorld(t)
	alpha, beta, msgs := twoOverRelay(w, "one", "two", "three")
	relay := w.lies()
	n := 0
	next := func() string { n++; return fmt.Sprintf("epoch-%d", n) }
	relay.says(nil, func(c *passing) {
		relay.mu.Lock()
		defer relay.mu.Unlock()
		switch c.call {
		case callInfo:
			c.change(func(m map[string]any) { m["epoch"] = next() })
		case callPull:
			if c.status == http.StatusConflict {
				c.change(func(m map[string]any) { m["epoch"] = next() })
			}
		case callPush:
			c.accept(w.relay.key, func(a *wire.Accept) { a.Epoch, a.At = next(), wire.FormatTime(w.clock()) })
		}
	})
	for range 10 {
		before := relay.count("")
		alpha.tick()
		beta.tick()
		if calls := relay.count("") - before; calls > 40 {
			t.Errorf("got %d calls in a tick of two hosts; want a few", calls)
		}
		w.pass(time.Minute)
		kept(alpha, beta, msgs...)
	}
	same(t, "rows", alpha.outbox()+int(ask[int64](alpha, "SELECT count(*) FROM relay_sent WHERE state = 'relay-accepted'")), 3)
	if alpha.audited("relay.epoch_changed") == 0 {
		t.Error("no epoch change was noted")
	}
	relay.honest()
	arriveOnce(alpha, beta, msgs...)
	relay.sawNoBody()
}

// TestRelayThatStartsOverForEver: each new epoch has the mail accepted anew, and
// still the sender hears of an end.
func TestRelayThatStartsOverForEver(t *testing.T) {
	muchWork(t)
	w := newWorld(t)
	alpha, beta, msgs := twoOverRelay(w, "hello")
	relay := w.lies()
	relay.says(nil, func(c *passing) {
		switch c.call {
		case callInfo:
			c.change(func(m map[string]any) { m["epoch"] = fmt.Sprint("epoch-", w.clock().Unix()) })
		case callPush:
			c.accept(w.relay.key, func(a *wire.Accept) {
				a.Epoch, a.At = fmt.Sprint("epoch-", w.clock().Unix()), wire.FormatTime(w.clock())
			})
		}
	})
	days := 0
	for alpha.outbox() > 0 || alpha.sentState(msgs[0]) == "relay-accepted" {
		alpha.tick()
		w.pass(48 * time.Hour)
		if days += 2; days > 70 {
			t.Fatalf("after %d days the sender knows nothing; state %q", days, alpha.sentState(msgs[0]))
		}
	}
	same(t, "state", alpha.sentState(msgs[0]), "unconfirmed")
	same(t, "alerts", len(alpha.alerts("builder")), 1)
	same(t, "arrived", beta.arrived(msgs[0]), 0)
}

func TestRelayWithAnotherKey(t *testing.T) {
	w := newWorld(t)
	alpha, beta, msgs := twoOverRelay(w, "hello")
	relay := w.lies()
	other := must(wire.GenerateKey())
	relay.says(nil, func(c *passing) {
		switch c.call {
		case callInfo:
			c.change(func(m map[string]any) { m["relay_pubkey"] = other.Public().String() })
		case callPush:
			c.accept(other, func(a *wire.Accept) { a.RelayPubkey = other.Public() })
		}
	})
	before := relay.count("")
	for range 3 {
		same(t, "state", alpha.tick().Relay.State, relayMismatch)
		w.pass(time.Hour)
	}
	same(t, "calls", relay.count("")-before, 3)
	same(t, "audited once", alpha.audited("relay.key_changed"), 1)
	same(t, "outbox", alpha.outbox(), 1)
	same(t, "sealed for it", alpha.count("wires"), 0)
	relay.honest()
	arriveOnce(alpha, beta, msgs...)
	same(t, "state", alpha.relayRow().state, relayOK)
	relay.sawNoBody()
}

// TestReplayedSealingKey: a relay that shows an older, well signed advertisement
// once a newer one was taken gets nothing sealed for the old key.
func TestReplayedSealingKey(t *testing.T) {
	w := newWorld(t)
	alpha, beta, _ := twoOverRelay(w)
	lost := must(wire.GenerateEncKey())
	old, sig := wire.MakeEncAd(beta.keyring().key, "beta", lost.Public(), t0.Add(-time.Hour), t0.Add(20*24*time.Hour))
	first := alpha.sendByRelay(beta, "first") // takes the newer one

	relay := w.lies()
	relay.says(nil, lieOn(callEncKey, func(c *passing) {
		c.change(func(m map[string]any) { m["ad"], m["ad_sig"] = json.RawMessage(old), sig })
	}))
	second := alpha.send(beta, "second")
	alpha.lanFailedTwice()
	r := alpha.tick()
	same(t, "accepted", r.Relay.Accepted, 0)
	same(t, "failed", r.Relay.Failed, 1)
	same(t, "outbox", alpha.outbox(), 1)
	same(t, "sealed", ask[int64](alpha, "SELECT count(*) FROM wires WHERE msg = ?", second), int64(0))
	same(t, "audited", alpha.audited("enc_ad.refused"), 1)
	hasPart(t, "refused because", ask[string](alpha, "SELECT ad_refused FROM peers"), adReplay)
	relay.honest()
	arriveOnce(alpha, beta, first, second)
	same(t, "refusal kept", ask[string](alpha, "SELECT ad_refused FROM peers"), "")
	relay.sawNoBody()
}

// TestAbsurdLimits: what a relay says of its limits never stops the mail, nor
// makes a host ask for the impossible.
func TestAbsurdLimits(t *testing.T) {
	absurd := map[string]any{}
	for _, k := range []string{"max_batch", "max_pull", "max_pull_bytes", "max_targets", "max_item_bytes", "max_wait_s", "retention_days"} {
		absurd[k] = 0
	}
	edits := map[string]func(limits map[string]any){
		"nothing": func(l map[string]any) { clear(l) },
		"zeros": func(l map[string]any) {
			for k := range absurd {
				l[k] = 0
			}
		},
		"below zero": func(l map[string]any) {
			for k := range absurd {
				l[k] = -1
			}
		},
		"huge": func(l map[string]any) {
			for k := range absurd {
				l[k] = 1e9
			}
		},
		"beyond numbers": func(l map[string]any) {
			for k := range absurd {
				l[k] = json.Number("1e300")
			}
		},
		"words": func(l map[string]any) {
			for k := range absurd {
				l[k] = "many"
			}
		},
		"halves": func(l map[string]any) {
			for k := range absurd {
				l[k] = 0.5
			}
		},
		"ones": func(l map[string]any) {
			for _, k := range []string{"max_batch", "max_pull", "max_pull_bytes", "max_targets"} {
				l[k] = 1
			}
		},
	}
	for name, edit := range edits {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			alpha, beta, msgs := twoOverRelay(w, "one", "two", "three")
			relay := w.lies()
			relay.says(func(c *passing) bool {
				if c.call == callPull {
					var limit, wait int
					_, _ = fmt.Sscan(c.in.URL.Query().Get("limit"), &limit)
					_, _ = fmt.Sscan(c.in.URL.Query().Get("wait"), &wait)
					if limit < 1 || limit > 10_000 || wait > 25 {
						t.Errorf("got a pull of %d items with a wait of %d s", limit, wait)
					}
				}
				return false
			}, lieOn(callInfo, func(c *passing) {
				c.change(func(m map[string]any) { edit(m["limits"].(map[string]any)) })
			}))
			arriveOnce(alpha, beta, msgs...)
			relay.sawNoBody()
		})
	}
}

// TestItemLimitOfOne: what a relay says it can't take stays for the LAN, and
// its row says so.
func TestItemLimitOfOne(t *testing.T) {
	w := newWorld(t)
	alpha, beta, msgs := twoOverRelay(w, "hello")
	relay := w.lies()
	relay.says(nil, lieOn(callInfo, func(c *passing) {
		c.change(func(m map[string]any) { m["limits"].(map[string]any)["max_item_bytes"] = 1 })
	}))
	same(t, "failed", alpha.relayOnly().Failed, 1)
	hasPart(t, "the row", alpha.rowError(msgs[0]), "over the relay's limit")
	kept(alpha, beta, msgs...)
	relay.honest()
	arriveOnce(alpha, beta, msgs...)
}

// TestSenderListNeverTaken: a relay that calls every sender list too old does
// not have the host date them so far ahead that an honest one refuses them.
func TestSenderListNeverTaken(t *testing.T) {
	w := newWorld(t)
	alpha, beta, msgs := twoOverRelay(w, "hello")
	relay := w.lies()
	gamma := w.host("gamma")
	pair(beta, gamma, false) // the list changes
	for _, status := range []int{http.StatusConflict, http.StatusBadRequest} {
		relay.says(func(c *passing) bool {
			if c.call != callSenders {
				return false
			}
			c.status, c.answer = status, []byte(`{"error":"no","code":"NOT_NEWER"}`)
			return true
		}, nil)
		for range 40 { // 10 s further each time: beyond 5 minutes
			same(t, "state", beta.tick().Relay.State, relayOK)
		}
		if ahead := beta.relayRow().sendersIAT - w.now.Load(); ahead > 5*time.Minute.Milliseconds() {
			t.Errorf("after 40 answers of %d lists are dated %d ms ahead; want less than 5 minutes", status, ahead)
		}
	}
	relay.honest()
	for range 3 {
		beta.tick()
		w.pass(2 * time.Second)
	}
	if _, named := w.relay.accepts(beta, gamma); !named {
		t.Error("the list was not published once the relay was honest again")
	}
	arriveOnce(alpha, beta, msgs...)
}
