package host

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// What the situations of letters D and E need beyond the rig: a relay that
// loses answers, lies, goes back in time, or holds what no honest one would.

const (
	itemsPath = "/v2/relay/items"
	ackPath   = "/v2/relay/ack"
	infoPath  = "/v2/relay/info"
)

// on puts fn between the relay and its hosts for one call; all others pass.
func (r *testRelay) on(method, path string, fn func(out http.ResponseWriter, in *http.Request, relay http.Handler)) {
	r.intercept(func(out http.ResponseWriter, in *http.Request, relay http.Handler) {
		if in.Method == method && in.URL.Path == path {
			fn(out, in, relay)
		} else {
			relay.ServeHTTP(out, in)
		}
	})
}

// hangUp ends a call without an answer.
func hangUp(out http.ResponseWriter) {
	if c, _, err := out.(http.Hijacker).Hijack(); err == nil {
		c.Close()
	}
}

// requestLost is a call that never gets to the relay.
func requestLost(out http.ResponseWriter, _ *http.Request, _ http.Handler) { hangUp(out) }

// answerLost is a call whose effect is there and whose answer is not.
func answerLost(out http.ResponseWriter, in *http.Request, relay http.Handler) {
	relay.ServeHTTP(httptest.NewRecorder(), in)
	hangUp(out)
}

// refusing answers with a status and a body.
func refusing(status int, body string) func(http.ResponseWriter, *http.Request, http.Handler) {
	return func(out http.ResponseWriter, _ *http.Request, _ http.Handler) {
		out.Header().Set("Content-Type", "application/json")
		out.WriteHeader(status)
		_, _ = out.Write([]byte(body))
	}
}

// altering has the relay do its part and changes what it says.
func altering(change func(body []byte) []byte) func(http.ResponseWriter, *http.Request, http.Handler) {
	return func(out http.ResponseWriter, in *http.Request, relay http.Handler) {
		rec := httptest.NewRecorder()
		relay.ServeHTTP(rec, in)
		refusing(rec.Code, string(change(rec.Body.Bytes())))(out, in, relay)
	}
}

// pushAnswer is the body of an answer to a push.
type pushAnswer struct {
	Results []pushAnswered `json:"results"`
}

type pushAnswered struct {
	ItemID  string          `json:"item_id"`
	Status  string          `json:"status"`
	Targets json.RawMessage `json:"targets"`
	Accept  json.RawMessage `json:"accept,omitempty"`
	Sig     string          `json:"sig,omitempty"`
}

// lying changes a push's first result. The accept it is given is the honest one.
func lying(change func(r *pushAnswered, a wire.Accept)) func(http.ResponseWriter, *http.Request, http.Handler) {
	return altering(func(body []byte) []byte {
		var d pushAnswer
		var a wire.Accept
		if json.Unmarshal(body, &d) != nil || len(d.Results) == 0 || json.Unmarshal(d.Results[0].Accept, &a) != nil {
			return body
		}
		change(&d.Results[0], a)
		return must(json.Marshal(d))
	})
}

// pushes records the targets of every item that is pushed, by item id.
func (r *testRelay) pushes() func() map[string][]string {
	seen := make(chan map[string][]string, 1)
	seen <- map[string][]string{}
	r.on("POST", itemsPath, func(out http.ResponseWriter, in *http.Request, relay http.Handler) {
		var b bytes.Buffer
		_, _ = b.ReadFrom(in.Body)
		var d struct {
			Items []struct {
				ID      string `json:"item_id"`
				Targets []struct {
					Key string `json:"host_pubkey"`
				}
			}
		}
		_ = json.Unmarshal(b.Bytes(), &d)
		all := <-seen
		for _, it := range d.Items {
			for _, t := range it.Targets {
				all[it.ID] = append(all[it.ID], t.Key)
			}
		}
		seen <- all
		again := in.Clone(in.Context())
		again.Body = io.NopCloser(&b)
		relay.ServeHTTP(out, again)
	})
	return func() map[string][]string {
		all := <-seen
		seen <- all
		return maps.Clone(all)
	}
}

// newEpoch is what must follow a restore: the store stays as it is.
func (r *testRelay) newEpoch() { must(r.relay.RotateEpoch(context.Background(), "test", "restored")) }

// plant puts an item into a host's queue that no push would.
func (r *testRelay) plant(to *testHost, kind, id string, sender wire.PublicKey, body []byte) {
	r.w.t.Helper()
	now := r.w.clock()
	noError(r.w.t, r.store.Update(context.Background(), func(t store.Tx) error {
		_, err := t.Insert(store.Item{
			Target: to.Key(), Kind: kind, ID: id, Sender: sender, Hash: wire.Hash(body), Size: int64(len(body)),
			AcceptedAt: now, ExpiresAt: now.Add(14 * 24 * time.Hour), Wire: body,
		})
		return err
	}))
}

// plantNotice puts a notice that key signed into the queue of the mail's sender.
func (r *testRelay) plantNotice(key wire.PrivateKey, sender *testHost, msg string, target wire.PublicKey) {
	r.w.t.Helper()
	now := r.w.clock()
	id, body := wire.MakeExpiryNotice(key, msg, target, now.Add(-14*24*time.Hour), now)
	r.plant(sender, wire.KindExpired, id, r.key.Public(), body)
}

// pin makes a host know another one, and not the other way round.
func (h *testHost) pin(other *testHost, addr string) {
	h.w.t.Helper()
	noError(h.w.t, h.db.write(context.Background(), func(t *tx) error {
		return h.addPeer(t, other.Name(), other.Key(), "", addr)
	}))
}

// sendByRelay sends what the relay takes at once.
func (h *testHost) sendByRelay(to *testHost, subject string) string {
	h.w.t.Helper()
	msg := h.send(to, subject)
	h.lanFailedTwice()
	if r := h.relayOnly(); r.Accepted != 1 {
		h.w.t.Fatalf("%s: got %+v; want it accepted by the relay", subject, r)
	}
	return msg
}

// receiveSilently receives what the relay has and loses the receipts for it.
func (h *testHost) receiveSilently() RelayReport {
	h.w.t.Helper()
	r := h.relayOnly()
	h.sql("DELETE FROM receipts_out")
	return r
}

// rowError is what a row of the outbox says about its last attempt.
func (h *testHost) rowError(msg string) string {
	return ask[string](h, "SELECT error FROM outbox WHERE msg = ?", msg)
}

// count counts the rows of a table.
func (h *testHost) count(table string) int { return int(ask[int64](h, "SELECT count(*) FROM "+table)) }

// reason is why the only item in quarantine is there.
func (h *testHost) reason() string {
	h.w.t.Helper()
	list := must(h.Quarantine(context.Background(), 0, 10))
	if len(list) != 1 {
		h.w.t.Errorf("got %d items in quarantine; want 1", len(list))
		return ""
	}
	return list[0].Reason
}

// alertText is the body of the newest alert in a mailbox.
func (h *testHost) alertText(mailbox string) (text string) {
	h.w.t.Helper()
	for _, m := range must(h.Inbox(context.Background(), mailbox, "", true, 1000)) {
		if m.Kind == "alert" {
			text = must(h.Read(context.Background(), mailbox, m.ID)).Body
		}
	}
	return text
}

// prune prunes; an error ends the test.
func (h *testHost) prune(age time.Duration) Pruned {
	h.w.t.Helper()
	p, err := h.Prune(context.Background(), age)
	noError(h.w.t, err)
	return p
}
