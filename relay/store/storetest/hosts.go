package storetest

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

var hostTests = []subtest{
	{"what was never stored is not found", func(h *Harness) {
		a, b := Key("a"), Key("b")
		h.Read(func(r store.Reader) error {
			_, err := r.Enrolment(a)
			wantErr(h, "enrolment", err, store.ErrNotFound)
			_, err = r.LiveInAccount("acme", "alpha")
			wantErr(h, "live in account", err, store.ErrNotFound)
			_, err = r.Denied("fp", "client", epoch0)
			wantErr(h, "denied", err, store.ErrNotFound)
			_, err = r.DenyList("jti")
			wantErr(h, "deny list", err, store.ErrNotFound)
			_, err = r.NewestDenyList("issuer")
			wantErr(h, "newest deny list", err, store.ErrNotFound)
			_, err = r.SenderList(a)
			wantErr(h, "sender list", err, store.ErrNotFound)
			_, err = r.EncKey(a)
			wantErr(h, "enc key", err, store.ErrNotFound)
			_, err = r.EncAd(a)
			wantErr(h, "enc ad", err, store.ErrNotFound)
			_, err = r.Dedup(a, "id", b)
			wantErr(h, "dedup", err, store.ErrNotFound)
			_, err = r.Item(a, 1)
			wantErr(h, "item", err, store.ErrNotFound)
			_, err = r.HeldItem(a, 1)
			wantErr(h, "held item", err, store.ErrNotFound)
			return nil
		})
		want(h, "facts", h.Facts(Scope{Hosts: map[string]wire.PublicKey{"a": a}}),
			"a head 0\na acked 0\na queue {Items:0 Bytes:0}\n"+
				"queue of a holds {Items:0 Bytes:0}, of it held {Items:0 Bytes:0}, oldest never, head 0, acked 0\n"+
				"a holds from []\na has in the queue of []\na seen never\na by its fingerprint: 0\n"+
				"a rotated from []\na rotated to []\na items end\na accepts a false false\na share of a {Items:0 Bytes:0}\n")
		wantErr(h, "rotation of a stranger", h.Update(h.Context(), func(tx store.Tx) error {
			_, err := tx.Rotate(store.Rotation{Old: a, New: b, Name: "n", Record: []byte("{}"), At: epoch0})
			return err
		}), store.ErrNotFound)
	}},
	{"an enrolment is kept whole and replaced", func(h *Harness) {
		a := Key("a")
		e := store.Enrolment{Key: a, Name: "Alpha-1", OwnerFP: "own", Account: "acme", Org: "org", AuthorizedBy: "jwks",
			EnrolledAt: epoch0.Add(123 * time.Millisecond)}
		h.enrol(e)
		want(h, "enrolment", h.enrolment(a), e)
		e = store.Enrolment{Key: a, Name: "other", AuthorizedBy: "host-key", EnrolledAt: epoch0.Add(time.Hour)}
		h.enrol(e)
		want(h, "replaced", h.enrolment(a), e)
		want(h, "live", h.totals().Enrolments, 1)
	}},
	{"a revoked enrolment stays revoked", func(h *Harness) {
		a, at := Key("a"), epoch0.Add(time.Minute)
		h.enrol(host(a, "alpha", "acme"))
		revoke := func(key wire.PublicKey, at time.Time) (was bool) {
			h.Write(func(tx store.Tx) (err error) { was, err = tx.Revoke(key, at); return err })
			return was
		}
		want(h, "revoked a stranger", revoke(Key("nobody"), at), false)
		want(h, "revoked", revoke(a, at), true)
		want(h, "revoked again", revoke(a, at.Add(time.Hour)), false)
		h.enrol(host(a, "alpha", "acme"))
		e := h.enrolment(a)
		want(h, "live after a new enrolment", e.Live(), false)
		want(h, "revoked at", e.RevokedAt, at)
		want(h, "live", h.totals().Enrolments, 0)
		h.Read(func(r store.Reader) error {
			_, err := r.LiveInAccount("acme", "alpha")
			wantErr(h, "live in account", err, store.ErrNotFound)
			list, err := r.LiveByName("alpha", 10)
			want(h, "live by name", len(list), 0)
			return err
		})
		h.enrol(host(Key("b"), "ALPHA", "acme")) // the name is free again
		before := h.enrolment(Key("b"))
		h.enrol(host(a, "alpha", "acme")) // the revoked key asks for it still
		want(h, "the name's new holder", h.enrolment(Key("b")), before)
		want(h, "the revoked key", h.enrolment(a).RevokedAt, at)
	}},
	{"a name is taken only inside a proven account, whatever its case", func(h *Harness) {
		tests := []struct {
			name, account string
			want          error
		}{
			{"mac", "acme", store.ErrNameTaken},
			{"MAC", "acme", store.ErrNameTaken},
			{"mac", "other", nil},
			{"mac", "", nil},
			{"mac-2", "acme", nil},
		}
		h.enrol(host(Key("first"), "Mac", "acme"))
		for i, tt := range tests {
			err := h.Update(h.Context(), func(tx store.Tx) error { return tx.PutEnrolment(host(Key(fmt.Sprint(i)), tt.name, tt.account)) })
			wantErr(h, fmt.Sprintf("%s in account %q", tt.name, tt.account), err, tt.want)
		}
		h.enrol(host(Key("first"), "MAC", "acme")) // its own name
		wantErr(h, "move into the account", h.Update(h.Context(), func(tx store.Tx) error {
			return tx.PutEnrolment(host(Key("3"), "mac", "acme"))
		}), store.ErrNameTaken)
		e := get(h, func(r store.Reader) (store.Enrolment, error) { return r.LiveInAccount("acme", "mAc") })
		want(h, "live in account", e.Key, Key("first"))
		want(h, "live", h.totals().Enrolments, 4)
		// ErrNameTaken is an answer, not a failure: the closure may go on.
		h.Write(func(tx store.Tx) error {
			wantErr(h, "inside a closure", tx.PutEnrolment(host(Key("9"), "mac", "acme")), store.ErrNameTaken)
			return tx.PutEnrolment(host(Key("9"), "mac-9", "acme"))
		})
	}},
	{"hosts of a name are listed without case and up to a limit", func(h *Harness) {
		for i, name := range []string{"box", "Box", "BOX", "box", "boxer", "bo_x"} {
			h.enrol(host(Key(fmt.Sprint(i)), name, ""))
		}
		h.Write(func(tx store.Tx) error { _, err := tx.Revoke(Key("3"), epoch0); return err })
		for _, tt := range []struct {
			name        string
			limit, want int
		}{{"bOx", 10, 3}, {"box", 2, 2}, {"boxer", 10, 1}, {"b%", 10, 0}, {"bo_x", 10, 1}} {
			list := get(h, func(r store.Reader) ([]store.Enrolment, error) { return r.LiveByName(tt.name, tt.limit) })
			want(h, fmt.Sprintf("live by name %s up to %d", tt.name, tt.limit), len(list), tt.want)
		}
	}},
	{"a denial matches a host when all it names match", denials},
	{"a sender list is kept, replaced and asked", senderLists},
	{"encryption keys are kept and replaced", func(h *Harness) {
		a, at := Key("a"), epoch0.Add(time.Minute)
		for i := range 2 {
			n := fmt.Sprint(i)
			k := store.EncKey{EncPub: "pub" + n, Sig: "sig" + n, At: at.Add(time.Duration(i) * time.Hour)}
			ad := store.EncAd{Record: []byte(`{"n":` + n + `}`), Sig: "ad-sig" + n, At: at.Add(time.Duration(i) * time.Minute)}
			h.Write(func(tx store.Tx) error { return errors.Join(tx.PutEncKey(a, "alpha", k), tx.PutEncAd(a, ad)) })
			want(h, "enc key", get(h, func(r store.Reader) (store.EncKey, error) { return r.EncKey(a) }), k)
			want(h, "enc ad", get(h, func(r store.Reader) (store.EncAd, error) { return r.EncAd(a) }), ad)
		}
	}},
}

func (h *Harness) enrolment(k wire.PublicKey) store.Enrolment {
	h.Helper()
	return get(h, func(r store.Reader) (store.Enrolment, error) { return r.Enrolment(k) })
}

func (h *Harness) totals() store.Totals {
	h.Helper()
	return get(h, func(r store.Reader) (store.Totals, error) { return r.Totals() })
}

func denials(h *Harness) {
	soon := epoch0.Add(time.Hour)
	for _, d := range []store.Denial{
		{HostFP: "fp-for-ever", Reason: "host", Source: "operator"},
		{ClientID: "client-for-ever", Reason: "client", Source: "issuer"},
		{HostFP: "fp-both", ClientID: "client-both", Reason: "both", Source: "issuer"},
		{HostFP: "fp-soon", Reason: "soon", Source: "operator", Until: soon},
		{ClientID: "client-soon", Reason: "client soon", Source: "issuer", Until: soon},
		{HostFP: "fp-twice", Reason: "over", Source: "operator", Until: epoch0.Add(time.Minute)},
		{HostFP: "fp-twice", Reason: "still", Source: "operator", Until: soon},
	} {
		d.AddedAt = epoch0
		h.Write(func(tx store.Tx) error { return tx.AddDenial(d) })
	}
	tests := []struct {
		name, fp, client string
		at               time.Time
		want             string // the reason, "" for none
	}{
		{"host alone", "fp-for-ever", "", epoch0, "host"},
		{"host with a client of no matter", "fp-for-ever", "x", epoch0, "host"},
		{"client alone", "x", "client-for-ever", epoch0, "client"},
		{"client of any host", "", "client-for-ever", epoch0, "client"},
		{"both", "fp-both", "client-both", epoch0, "both"},
		{"both named, the host alone", "fp-both", "", epoch0, ""},
		{"both named, another client", "fp-both", "x", epoch0, ""},
		{"both named, the client alone", "x", "client-both", epoch0, ""},
		{"a stranger", "x", "y", epoch0, ""},
		{"nobody", "", "", epoch0, ""},
		{"before its end", "fp-soon", "", soon.Add(-time.Millisecond), "soon"},
		{"at its end", "fp-soon", "", soon, ""},
		{"a client before its end", "", "client-soon", soon.Add(-time.Millisecond), "client soon"},
		{"a client after its end", "", "client-soon", soon.Add(time.Hour), ""},
		{"one over, one in force", "fp-twice", "", epoch0.Add(30 * time.Minute), "still"},
		{"case matters", "FP-FOR-EVER", "", epoch0, ""},
	}
	for _, tt := range tests {
		h.T.Run(tt.name, func(t *testing.T) {
			var d store.Denial
			err := h.View(t.Context(), func(r store.Reader) (err error) { d, err = r.Denied(tt.fp, tt.client, tt.at); return err })
			if tt.want == "" {
				wantErr(t, "denied", err, store.ErrNotFound)
			} else if err != nil || d.Reason != tt.want || d.Source == "" || !d.AddedAt.Equal(epoch0) {
				t.Errorf("got %+v, %v; want reason %q", d, err, tt.want)
			}
		})
	}
}

func senderLists(h *Harness) {
	target := Key("target")
	put := func(senders ...wire.PublicKey) store.SenderList {
		l := store.SenderList{Target: target, Senders: senders, IAT: epoch0.Add(time.Duration(len(senders)) * time.Second),
			Record: fmt.Append(nil, `{"n":`, len(senders), `}`), Sig: fmt.Sprint("sig-", len(senders))}
		h.Write(func(tx store.Tx) error { return tx.PutSenderList(l) })
		return l
	}
	accepts := func(target, sender wire.PublicKey) (a struct{ listed, named bool }) {
		h.Read(func(r store.Reader) (err error) { a.listed, a.named, err = r.Accepts(target, sender); return err })
		return a
	}
	type answer = struct{ listed, named bool }
	compare := func(l store.SenderList) {
		h.Helper()
		got := get(h, func(r store.Reader) (store.SenderList, error) { return r.SenderList(target) })
		order := func(a, b wire.PublicKey) int { return slices.Compare(a[:], b[:]) }
		slices.SortFunc(got.Senders, order)
		slices.SortFunc(l.Senders, order)
		want(h, "sender list", got, l)
	}
	want(h, "without a list", accepts(target, Key("s")), answer{})
	compare(put(Key("s"), Key("t")))
	want(h, "a sender on the list", accepts(target, Key("s")), answer{true, true})
	want(h, "a sender not on it", accepts(target, Key("u")), answer{true, false})
	want(h, "the list is the target's alone", accepts(Key("s"), target), answer{})

	many := make([]wire.PublicKey, 1024)
	for i := range many {
		many[i] = Key(fmt.Sprint("sender-", i))
	}
	compare(put(many...))
	for _, i := range []int{0, 1, 511, 512, 1023} {
		want(h, fmt.Sprintf("sender %d of 1024", i), accepts(target, many[i]), answer{true, true})
	}
	want(h, "a sender of the list before", accepts(target, Key("s")), answer{true, false})
	h.Reopen()
	compare(put()) // an empty list accepts nobody
	want(h, "an empty list", accepts(target, many[0]), answer{true, false})
}
