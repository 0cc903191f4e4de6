package host

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/host/homefile"
	"github.com/agentmbx/agentmbx/relay/host/relayclient"
	"github.com/agentmbx/agentmbx/relay/wire"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

// FuzzKeysFile: keys.json is read whole or refused by one error that repeats
// nothing of it, and what was read is written back as the same keys.
func FuzzKeysFile(f *testing.F) {
	dir := f.TempDir()
	path, again := filepath.Join(dir, keysFile), filepath.Join(dir, "again.json")
	k := must(newKeyring())
	noError(f, k.write(path))
	f.Add(must(os.ReadFile(path)))
	next := must(k.next("alpha", t0))
	noError(f, next.write(path))
	f.Add(must(os.ReadFile(path)))
	f.Add([]byte(`{"v":1,"host_key":"","enc_key":"","retired_enc_keys":null,"rotations":["{}"]}`))
	f.Add([]byte(`{}`))
	f.Add([]byte(nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		noError(t, os.WriteFile(path, data, 0o600))
		k, err := readKeys(path)
		if err != nil {
			if !errors.Is(err, errBadKeys) && len(data) <= homefile.MaxSize {
				t.Fatalf("got %v; want %v", err, errBadKeys)
			}
			return
		}
		if k.key.IsZero() || k.enc.IsZero() {
			t.Fatal("a keyring without keys was read")
		}
		noError(t, k.write(again))
		k2, err := readKeys(again)
		noError(t, err)
		if k2.key.Seed() != k.key.Seed() || k2.enc.Seed() != k.enc.Seed() || len(k2.retired) != len(k.retired) || len(k2.rotations) != len(k.rotations) {
			t.Fatal("what was written is not what was read")
		}
	})
}

// FuzzConfigFile: config.json names a host, or is refused.
func FuzzConfigFile(f *testing.F) {
	home := f.TempDir()
	for _, s := range []string{
		`{"v":1,"host":"alpha"}`, `{"v":1,"host":"alpha","relay":"https://relay.example.org"}`,
		`{"v":2,"host":"alpha"}`, `{"v":1,"host":""}`, `{"v":1,"host":"a b","relay":7}`, `null`, `[]`, ``,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		noError(t, os.WriteFile(filepath.Join(home, configFile), data, 0o600))
		c, err := readConfig(home)
		if err != nil {
			hasPart(t, "error", err.Error(), configFile)
			return
		}
		if c.V != 1 || !wire.ValidHostName(c.Host) {
			t.Fatalf("got %+v; want a configuration that names a host", c)
		}
		noError(t, writeConfig(home, c))
		same(t, "written and read", must(readConfig(home)), c)
	})
}

// tables are those that mail from outside may change.
var tables = []string{"messages", "deliveries", "mailboxes", "receipts_out", "pruned_ids", "confirmations", "outbox", "relay_sent", "routes", "wires"}

// contents are the numbers of rows in them.
func contents(t *tx) (rows string, err error) {
	var b strings.Builder
	for _, table := range tables {
		var n int64
		if _, err := t.get("SELECT count(*) FROM "+table, nil, &n); err != nil {
			return "", err
		}
		b.WriteString(table + " " + time.Duration(n).String() + " ")
	}
	return b.String(), nil
}

// errUndo ends a transaction of a fuzz test: each input meets the same database.
var errUndo = errors.New("undo")

// FuzzItem has a host judge arbitrary bytes as mail, as a receipt and as a
// notice. Nothing panics, the result is a word of the protocol, and what is
// refused leaves nothing behind.
func FuzzItem(f *testing.F) {
	ctx := context.Background()
	o := Options{Home: filepath.Join(f.TempDir(), "beta"), Now: func() time.Time { return t0 }}
	noError(f, Init(ctx, o, "beta"))
	h := must(Open(ctx, o))
	f.Cleanup(func() { noError(f, h.Close()) })
	alpha, relayKey := wiretest.NewHost("alpha"), must(wire.GenerateKey())
	noError(f, h.db.write(ctx, func(t *tx) error { return h.addPeer(t, "alpha", alpha.Pub(), "", deadAddr) }))
	sent := must(h.Send(ctx, Draft{From: "builder", To: []string{"reviewer@alpha"}, Subject: "hello", Body: "hello"}))
	beta := &wiretest.Host{Name: "beta", Key: h.keyring().key, Enc: h.keyring().enc}
	noError(f, h.db.write(ctx, func(t *tx) error { return ensureMailbox(t, "reviewer", true) }))

	_, good := alpha.Envelope(beta, "hello", "hello")
	f.Add(good)
	_, open := alpha.PlainEnvelope(beta, "hello", "hello")
	f.Add(open)
	_, stranger := wiretest.NewHost("mallory").Envelope(beta, "hello", "hello")
	f.Add(stranger)
	for _, to := range []string{"*", "role:reviewer", "reviewer", "nobody-here", "reviewer@elsewhere", "x@beta"} {
		e := alpha.Draft(beta, "hello", "hello")
		e.To = []string{to}
		_, raw := alpha.Seal(e, beta)
		f.Add(raw)
	}
	f.Add(receiptOf(alpha.Key, sent.ID, "reviewer@alpha", "read", 1))
	f.Add(receiptOf(alpha.Key, wire.NewID(t0), "reviewer@alpha", "read", 1))
	_, notice := wire.MakeExpiryNotice(relayKey, sent.ID, alpha.Pub(), t0, t0)
	f.Add(notice)
	f.Add([]byte(`{}`))
	f.Add([]byte(`{"id":"` + wire.NewID(t0) + `"}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		judge := func(what string, fn func(x *tx) (string, error)) {
			err := h.db.write(ctx, func(x *tx) error {
				before, err := contents(x)
				noError(t, err)
				result, err := fn(x)
				noError(t, err)
				after, err := contents(x)
				noError(t, err)
				switch {
				case result == resultAccepted, result == resultDuplicate, result == resultStale:
				case !strings.HasPrefix(result, "rejected:"):
					t.Fatalf("%s: got %q; want a word of the protocol", what, result)
				case before != after:
					t.Fatalf("%s: %q left something: %s, then %s", what, result, before, after)
				}
				if what == "notice" || what == "receipt" {
					return errUndo
				}
				// The same once more changes nothing.
				if result == resultAccepted {
					second, err := fn(x)
					noError(t, err)
					same(t, what+" again", second, resultDuplicate)
				}
				return errUndo
			})
			if !errors.Is(err, errUndo) {
				t.Fatalf("%s: got %v", what, err)
			}
		}
		judge("envelope over a relay", func(x *tx) (string, error) { _, r, err := h.receiveEnvelope(x, raw, "", true); return r, err })
		judge("envelope over the LAN", func(x *tx) (string, error) { _, r, err := h.receiveEnvelope(x, raw, "alpha", false); return r, err })
		// What has the shape of mail, signed as alpha would sign it, gets further.
		if e, err := wire.ParseEnvelope(raw); err == nil {
			if sealed, err := wire.Seal(e, beta.Enc.Public(), alpha.Key, "alpha"); err == nil {
				judge("envelope signed by a peer", func(x *tx) (string, error) { _, r, err := h.receiveEnvelope(x, sealed, "alpha", false); return r, err })
			}
		}
		judge("receipt", func(x *tx) (string, error) { return h.acceptReceipt(x, raw, "") })
		judge("notice", func(x *tx) (string, error) { return h.takeNotice(x, relayKey.Public(), "expired:"+sent.ID, raw) })
		judge("rotation", func(x *tx) (string, error) {
			r, err := h.rotatePeer(x, raw)
			if r == "rotated" {
				r = resultStale
			}
			return r, err
		})
		for _, kind := range []string{wire.KindEnvelope, wire.KindReceipt, wire.KindExpired, ""} {
			if c := claimedHost(kind, raw); c != "" && !wire.ValidHostName(c) {
				t.Fatalf("got %q as the host that is claimed", c)
			}
		}
	})
}

// FuzzCheckPage: a page that is let through holds rising places after the
// position, ends where it says and within its head. So the position that is
// stored with it never skips an item and never goes back.
func FuzzCheckPage(f *testing.F) {
	seed := func(after, head, last int64, more bool, seqs ...int64) {
		f.Add(after, head, last, more, must(json.Marshal(seqs)))
	}
	seed(0, 3, 3, false, 1, 2, 3)
	seed(2, 3, 3, false, 3)
	seed(3, 3, 3, false)
	seed(0, 3, 2, true, 1, 2)
	seed(0, 3, 3, false, 1, 3, 2)
	seed(5, 3, 5, false)
	seed(0, 1<<53-1, 1<<53-1, true, 1<<53-1)
	f.Fuzz(func(t *testing.T, after, head, last int64, more bool, list []byte) {
		var seqs []int64
		if json.Unmarshal(list, &seqs) != nil {
			return
		}
		p := relayclient.Page{Epoch: "e", HeadSeq: head, LastSeq: last, More: more}
		for _, n := range seqs {
			p.Items = append(p.Items, relayclient.PulledItem{Seq: n})
		}
		err := checkPage(p, after)
		at, rising := after, true
		for _, n := range seqs {
			rising = rising && n > at
			at = n
		}
		good := rising && last == at && head >= at && !(more && len(seqs) == 0)
		var tr *trouble
		switch {
		case good && err != nil:
			t.Fatalf("got %v for a good page", err)
		case !good && !errors.As(err, &tr):
			t.Fatalf("got %v for a page that contradicts itself", err)
		case !good:
			same(t, "state", tr.state, relayBadAnswer)
		}
	})
}
