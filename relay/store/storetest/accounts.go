package storetest

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

var accountTests = []subtest{
	{"an enrolment keeps its credential and its session until it is replaced", func(h *Harness) {
		a, b := Key("a"), Key("b")
		e := session(a, "alpha", "client-1", time.Hour+123*time.Millisecond)
		h.enrol(e)
		want(h, "first", h.enrolment(a), e)
		e = session(a, "alpha", "client-2", 2*time.Hour)
		h.enrol(e)
		want(h, "replaced", h.enrolment(a), e)
		h.enrol(session(b, "beta", "client-2", time.Hour))
		h.Write(func(tx store.Tx) error { _, err := tx.Revoke(a, epoch0); return err })
		e.RevokedAt = epoch0
		want(h, "revoked", h.enrolment(a), e)
		h.Reopen()
		want(h, "reopened", h.enrolment(a), e)
		e = host(a, "alpha", "")
		h.enrol(e)
		e.RevokedAt = epoch0
		want(h, "without either", h.enrolment(a), e)
		list := get(h, func(r store.Reader) (all []store.Enrolment, err error) {
			err = r.Enrolments(nil, func(e store.Enrolment) bool { all = append(all, e); return true })
			return all, err
		})
		want(h, "in the list", list, []store.Enrolment{e, h.enrolment(b)})
		want(h, "by name", get(h, func(r store.Reader) ([]store.Enrolment, error) { return r.LiveByName("beta", 2) }), list[1:])
		want(h, "by fingerprint", get(h, func(r store.Reader) ([]store.Enrolment, error) { return r.ByFingerprint(b.Fingerprint(), 2) }), list[1:])
		want(h, "in its account", get(h, func(r store.Reader) (store.Enrolment, error) { return r.LiveInAccount("acme", "beta") }), list[1])
	}},
	{"hosts of a credential are listed by key, revoked ones too", func(h *Harness) {
		keys := sorted("1", "2", "3", "4")
		for i, k := range keys {
			h.enrol(session(k, fmt.Sprint("host-", i), "client", time.Hour))
		}
		h.enrol(session(Key("5"), "other", "client-2", time.Hour))
		h.enrol(host(Key("6"), "none", ""))
		h.Write(func(tx store.Tx) error { _, err := tx.Revoke(keys[1], epoch0); return err })
		h.enrol(session(keys[2], "host-2", "client-2", time.Hour)) // another one now
		for _, tt := range []struct {
			client string
			limit  int
			want   []wire.PublicKey
		}{
			{"client", 9, []wire.PublicKey{keys[0], keys[1], keys[3]}},
			{"client", 2, keys[:2]},
			{"client", 0, nil},
			{"Client", 9, nil},
			{"client-3", 9, nil},
			{"", 9, nil},
		} {
			var got []wire.PublicKey
			for _, e := range get(h, func(r store.Reader) ([]store.Enrolment, error) { return r.ByClientID(tt.client, tt.limit) }) {
				want(h, "listed", e, h.enrolment(e.Key))
				got = append(got, e.Key)
			}
			want(h, fmt.Sprintf("%q up to %d", tt.client, tt.limit), got, tt.want)
		}
	}},
	{"a rotation takes credential and session along with the account", func(h *Harness) {
		for _, tt := range []struct {
			name     string
			old, own store.Enrolment // own.Name "": the new key is not enrolled
			client   string
			hours    int
		}{
			{"to a key that is not enrolled", session(Key("o1"), "n1", "client-o", time.Hour), store.Enrolment{}, "client-o", 1},
			{"to a key without an account", session(Key("o2"), "n2", "client-o", time.Hour), host(Key("w2"), "x2", ""), "client-o", 1},
			{"to a key with an account of its own", session(Key("o3"), "n3", "client-o", time.Hour), session(Key("w3"), "x3", "client-w", 2*time.Hour), "client-o", 1},
			{"from a key without an account", host(Key("o4"), "n4", ""), session(Key("w4"), "x4", "client-w", 2*time.Hour), "client-w", 2},
		} {
			h.enrol(tt.old)
			to := Key("new of " + tt.name)
			if tt.own.Name != "" {
				to = tt.own.Key
				h.enrol(tt.own)
			}
			h.rotateKeys(tt.old.Key, to, tt.old.Name)
			e := h.enrolment(to)
			want(h, tt.name+": credential", e.ClientID, tt.client)
			want(h, tt.name+": session", e.SessionEnds, epoch0.Add(time.Duration(tt.hours)*time.Hour))
			was := h.enrolment(tt.old.Key)
			want(h, tt.name+": the old key's credential", was.ClientID, tt.old.ClientID)
			found := get(h, func(r store.Reader) ([]store.Enrolment, error) { return r.ByClientID(tt.client, 100) })
			if !slices.ContainsFunc(found, func(f store.Enrolment) bool { return f.Key == to }) {
				h.Errorf("%s: the new key is not found by %s", tt.name, tt.client)
			}
		}
	}},
	{"the keys after are listed, the nearest first, up to a limit, round a cycle", func(h *Harness) {
		labels := []string{"k0", "k1", "k2", "k3", "k4"}
		h.enrol(host(Key("k0"), "alpha", ""))
		for i := range 4 {
			h.now.Add(1000)
			h.rotate(labels[i], labels[i+1], "alpha")
		}
		to := func(label string, limit int) (got []string) {
			for _, k := range get(h, func(r store.Reader) ([]wire.PublicKey, error) { return r.RotatedTo(Key(label), limit) }) {
				got = append(got, labels[slices.IndexFunc(labels, func(l string) bool { return Key(l) == k })])
			}
			return got
		}
		want(h, "all", to("k0", 10), []string{"k1", "k2", "k3", "k4"})
		want(h, "limit", to("k0", 2), []string{"k1", "k2"})
		want(h, "limit 0", to("k0", 0), []string(nil))
		want(h, "of one between", to("k2", 10), []string{"k3", "k4"})
		want(h, "of the last", to("k4", 10), []string(nil))
		want(h, "of a stranger", to("k9", 10), []string(nil))
		h.rotate("k4", "k1", "alpha") // a cycle: no caller does it, and it ends
		want(h, "into a cycle", to("k0", 100), []string{"k1", "k2", "k3", "k4"})
		want(h, "in a cycle", to("k2", 100), []string{"k3", "k4", "k1"})
		h.rotate("k4", "k0", "alpha") // another successor, in place of the first
		want(h, "replaced", to("k3", 100), []string{"k4", "k0", "k1", "k2"})
		h.Reopen()
		want(h, "reopened", to("k3", 1), []string{"k4"})
	}},
	{"denials that name exactly a host and a credential are listed, the last first", func(h *Harness) {
		h.deny(
			store.Denial{HostFP: "fp", Reason: "1"}, store.Denial{ClientID: "client", Reason: "2"},
			store.Denial{HostFP: "fp", ClientID: "client", Reason: "3"}, store.Denial{HostFP: "fp", Reason: "4", Until: epoch0.Add(-time.Hour)},
			store.Denial{HostFP: "fp", ClientID: "client-2", Reason: "5"}, store.Denial{HostFP: "fp-2", ClientID: "client", Reason: "6"},
			store.Denial{HostFP: "fp", ClientID: "client", Reason: "7", Until: epoch0.Add(time.Hour)}, store.Denial{HostFP: "fp", Reason: "8"},
		)
		for _, tt := range []struct {
			fp, client string
			stop       int // after so many
			want       []string
		}{
			{"fp", "", 9, []string{"8", "4", "1"}},
			{"fp", "client", 9, []string{"7", "3"}},
			{"", "client", 9, []string{"2"}},
			{"fp", "", 2, []string{"8", "4"}},
			{"fp", "client", 1, []string{"7"}},
			{"fp", "Client", 9, nil},
			{"", "client-2", 9, nil},
			{"fp-2", "", 9, nil},
			{"", "", 9, nil},
		} {
			var got []string
			h.Read(func(r store.Reader) error {
				got = nil
				return r.DenialsNaming(tt.fp, tt.client, func(d store.Denial) bool {
					want(h, "names", []string{d.HostFP, d.ClientID}, []string{tt.fp, tt.client})
					got = append(got, d.Reason)
					return len(got) < tt.stop
				})
			})
			want(h, fmt.Sprintf("%q and %q, stop after %d", tt.fp, tt.client, tt.stop), got, tt.want)
		}
	}},
	{"a host with many denials that are over, or of others, is denied by the one that is not", func(h *Harness) {
		over, later := epoch0.Add(-time.Hour), epoch0.Add(time.Hour)
		for _, force := range []store.Denial{{HostFP: "fp"}, {ClientID: "client"}, {HostFP: "fp", ClientID: "client"}} {
			for _, until := range []time.Time{{}, later} {
				for range 20 {
					h.deny(store.Denial{HostFP: "fp", Until: over}, store.Denial{ClientID: "client", Until: over}, store.Denial{HostFP: "fp", ClientID: "client", Until: over},
						store.Denial{HostFP: "fp", ClientID: "client-2"}, store.Denial{HostFP: "fp-2", ClientID: "client"}, store.Denial{HostFP: "fp-3"})
				}
				h.Read(func(r store.Reader) error {
					_, err := r.Denied("fp", "client", epoch0)
					wantErr(h, "before", err, store.ErrNotFound)
					return nil
				})
				force.Until, force.Reason = until, "in force"
				h.deny(force)
				d := get(h, func(r store.Reader) (store.Denial, error) { return r.Denied("fp", "client", epoch0) })
				want(h, "denied until "+stamp(until), []any{d.Reason, d.HostFP, d.ClientID, d.Until}, []any{"in force", force.HostFP, force.ClientID, until})
				h.Write(func(tx store.Tx) error { return tx.RemoveDenial(d.ID) })
			}
		}
	}},
	{"denials are pruned in the order in which they ended", func(h *Harness) {
		at := func(m int) time.Time { return epoch0.Add(time.Duration(m) * time.Minute) }
		add := func(name string, added int, until time.Time) store.Denial {
			return store.Denial{HostFP: name, AddedAt: at(added), Until: until}
		}
		h.deny(add("b", 0, at(20)), add("for ever", 0, time.Time{}), add("a", 0, at(10)), add("late", 30, at(10)), add("d", 0, at(40)), add("c", 1, at(30)))
		left := func() (names []string) {
			h.Read(func(r store.Reader) error {
				names = nil
				return r.Denials("", 0, func(d store.Denial) bool { names = append(names, d.HostFP); return true })
			})
			slices.Sort(names)
			return names
		}
		prune := func(ended, added, limit int) (n int64) {
			h.Write(func(tx store.Tx) (err error) { n, err = tx.PruneDenials(at(ended), at(added), limit); return err })
			return n
		}
		for _, tt := range []struct {
			name                string
			ended, added, limit int
			pruned              int64
			left                []string
		}{
			{"none is over", 10, 99, 9, 0, []string{"a", "b", "c", "d", "for ever", "late"}},
			{"none was added before", 99, 0, 9, 0, []string{"a", "b", "c", "d", "for ever", "late"}},
			{"a limit of none", 99, 99, 0, 0, []string{"a", "b", "c", "d", "for ever", "late"}},
			{"the first that ended", 99, 30, 1, 1, []string{"b", "c", "d", "for ever", "late"}},
			{"up to a time", 40, 30, 9, 2, []string{"d", "for ever", "late"}},
			{"up to a limit", 99, 99, 1, 1, []string{"d", "for ever"}},
			{"all that are over", 9999, 9999, 9, 1, []string{"for ever"}},
			{"again", 9999, 9999, 9, 0, []string{"for ever"}},
		} {
			want(h, tt.name+": pruned", prune(tt.ended, tt.added, tt.limit), tt.pruned)
			want(h, tt.name+": left", left(), tt.left)
		}
		h.Reopen()
		h.deny(store.Denial{HostFP: "new"})
		h.Read(func(r store.Reader) error {
			return r.Denials("", 0, func(d store.Denial) bool {
				if d.ID <= 6 {
					h.Errorf("a new denial has the id %d; want one that none had before it", d.ID)
				}
				return false
			})
		})
	}},
	{"deny lists are remembered by their jti, and forgotten but for the newest", denyLists},
	{"a closure sees its own denials and lists, a view those that stood before it", func(h *Harness) {
		l := store.DenyList{ID: "one", Source: "issuer", IAT: epoch0, Expires: epoch0}
		wantErr(h, "update", h.Update(h.Context(), func(tx store.Tx) error {
			err := errors.Join(tx.PutEnrolment(session(Key("a"), "alpha", "client", time.Hour)), tx.PutDenyList(l), tx.AddDenial(store.Denial{ClientID: "client", AddedAt: epoch0}))
			list, err2 := tx.ByClientID("client", 9)
			got, err3 := tx.NewestDenyList("issuer")
			_, err4 := tx.Denied("x", "client", epoch0)
			want(h, "seen", len(list), 1)
			want(h, "newest", got, l)
			return errors.Join(errBoom, err, err2, err3, err4)
		}), errBoom)
		h.Read(func(r store.Reader) error {
			for range 2 {
				list, err := r.ByClientID("client", 9)
				want(h, "hosts", len(list), 0)
				_, err2 := r.DenyList("one")
				wantErr(h, "list", err2, store.ErrNotFound)
				_, err3 := r.Denied("x", "client", epoch0)
				wantErr(h, "denied", err3, store.ErrNotFound)
				if err != nil {
					return err
				}
				h.Write(func(tx store.Tx) error {
					return errors.Join(tx.PutEnrolment(session(Key("a"), "alpha", "client", time.Hour)), tx.PutDenyList(l), tx.AddDenial(store.Denial{ClientID: "client", AddedAt: epoch0}))
				})
			}
			return nil
		})
	}},
}

func denyLists(h *Harness) {
	at := func(m int) time.Time { return epoch0.Add(time.Duration(m) * time.Minute) }
	put := func(id, source string, iat, expires int) store.DenyList {
		l := store.DenyList{ID: id, Source: source, IAT: at(iat), Expires: at(expires).Add(time.Millisecond)}
		h.Write(func(tx store.Tx) error { return tx.PutDenyList(l) })
		return l
	}
	// state is what is known: the ids, and the newest of each source.
	state := func() (s string) {
		h.Read(func(r store.Reader) error {
			s = ""
			for _, id := range []string{"a", "b", "c", "d", "x", "A"} {
				switch l, err := r.DenyList(id); {
				case err == nil:
					s += l.ID + " "
				case !errors.Is(err, store.ErrNotFound):
					return err
				}
			}
			for _, source := range []string{"push", "pull", "other"} {
				switch l, err := r.NewestDenyList(source); {
				case err == nil:
					s += source + ":" + l.ID + " "
				case !errors.Is(err, store.ErrNotFound):
					return err
				}
			}
			return nil
		})
		return s
	}
	forget := func(before int) (n int64) {
		h.Write(func(tx store.Tx) (err error) { n, err = tx.ForgetDenyLists(at(before)); return err })
		return n
	}
	want(h, "none", state(), "")
	want(h, "forgotten of none", forget(99), 0)
	put("b", "push", 5, 20)
	first := put("a", "push", 3, 30) // taken later, and older
	put("x", "pull", 1, 10)
	want(h, "known", state(), "a b x push:b pull:x ")
	want(h, "whole", get(h, func(r store.Reader) (store.DenyList, error) { return r.DenyList("a") }), first)
	put("x", "pull", 2, 11)
	want(h, "replaced", get(h, func(r store.Reader) (store.DenyList, error) { return r.DenyList("x") }),
		store.DenyList{ID: "x", Source: "pull", IAT: at(2), Expires: at(11).Add(time.Millisecond)})
	want(h, "forgotten before any is over", forget(11), 0)
	put("c", "push", 7, 8)
	put("d", "push", 6, 40)
	h.Reopen()
	want(h, "known", state(), "a b c d x push:c pull:x ")
	want(h, "forgotten", forget(25), 1) // c is over too, and the newest
	want(h, "left", state(), "a c d x push:c pull:x ")
	want(h, "forgotten", forget(999), 2)
	want(h, "left", state(), "c x push:c pull:x ")
	put("c", "other", 1, 2)
	want(h, "of another source now", state(), "c x pull:x other:c ")
}

// session is a live enrolment that an account's token granted.
func session(key wire.PublicKey, name, client string, lasts time.Duration) store.Enrolment {
	e := host(key, name, "acme")
	e.ClientID, e.SessionEnds = client, epoch0.Add(lasts)
	return e
}

// deny adds denials, each in a write of its own.
func (h *Harness) deny(list ...store.Denial) {
	h.Helper()
	for _, d := range list {
		if d.AddedAt.IsZero() {
			d.AddedAt = epoch0
		}
		h.Write(func(tx store.Tx) error { return tx.AddDenial(d) })
	}
}
