package sqlite

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/store/storetest"
)

// listTaken is a deny list of the issuer's that was taken, with an entry for a host
// and one for a credential.
func listTaken(id string, iat time.Time) story {
	return func(tx store.Tx) error {
		return errors.Join(
			tx.PutDenyList(store.DenyList{ID: id, Source: "issuer", IAT: iat, Expires: iat.Add(time.Hour)}),
			tx.AddDenial(store.Denial{HostFP: "host of " + id, Reason: id, Source: "issuer", AddedAt: iat}),
			tx.AddDenial(store.Denial{ClientID: "client of " + id, Reason: id, Source: "issuer", AddedAt: iat, Until: restored.Add(time.Hour)}))
	}
}

func wantListTaken(t *testing.T, r store.Reader, id string, iat time.Time) {
	t.Helper()
	l, err := r.DenyList(id)
	if want := (store.DenyList{ID: id, Source: "issuer", IAT: iat, Expires: iat.Add(time.Hour)}); err != nil || l != want {
		t.Errorf("deny list: got %+v, %v; want %+v", l, err, want)
	}
	for _, who := range [][2]string{{"host of " + id, ""}, {"x", "client of " + id}} {
		if d, err := r.Denied(who[0], who[1], restored); err != nil || d.Reason != id {
			t.Errorf("%q: got %+v, %v; want it denied by %s", who, d, err, id)
		}
	}
}

// Whom the replaced store denies stays denied, and no list that it took is taken
// again, however old the backup is.
func TestCarryDenyLists(t *testing.T) {
	t.Parallel()
	again := func(id string, iat, expires time.Time) story {
		return func(tx store.Tx) error {
			return tx.PutDenyList(store.DenyList{ID: id, Source: "issuer", IAT: iat, Expires: expires})
		}
	}
	for _, tt := range []struct {
		name          string
		before, after story
		other         story // of a store that did not go on from the backup
		carried       int
		newest        string
	}{
		{"taken since", hosts, listTaken("two", late), nil, 1, "two"},
		{"before and since", all(hosts, listTaken("one", early)), listTaken("two", late), nil, 1, "two"},
		{"by another store", all(hosts, listTaken("one", early)), nil, all(enrol("beta"), listTaken("two", late)), 1, "two"},
		{"by another store, older ones", all(hosts, listTaken("two", late)), nil, listTaken("one", early), 1, "two"},
		{"the same by both", all(hosts, listTaken("two", late)), nil, listTaken("two", late), 0, "two"},
		{"forgotten since", all(hosts, again("one", early, early), listTaken("two", late)), func(tx store.Tx) error {
			n, err := tx.ForgetDenyLists(late)
			if err == nil && n != 1 {
				return fmt.Errorf("%d lists forgotten; want 1", n)
			}
			return err
		}, nil, 0, "two"},
		{"known by another time", all(hosts, again("two", early, early)), listTaken("two", late), nil, 1, "two"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			copied, current := replaced(t, tt.before, tt.after)
			if tt.other != nil {
				current = another(t, late, tt.other)
			}
			s, done := renewed(t, copied, current, Renewal{})
			if done.DenyLists != tt.carried {
				t.Errorf("got %+v; want %d deny lists carried", done, tt.carried)
			}
			looks(t, s, func(r store.Reader) error {
				wantListTaken(t, r, "two", late)
				if _, err := r.DenyList("one"); err == nil && tt.name != "forgotten since" {
					wantListTaken(t, r, "one", early)
				}
				l, err := r.NewestDenyList("issuer")
				if l.ID != tt.newest {
					t.Errorf("newest: got %+v; want %s", l, tt.newest)
				}
				return err
			})
		})
	}
}

// The replaced store may be of a schema before deny lists: whom it denies stays
// denied, whom it revoked stays revoked.
func TestCarryDenialsOfSchema3(t *testing.T) {
	t.Parallel()
	const dump = "testdata/schema_003.sql"
	mallory := storetest.Key("mallory")
	for name, copied := range map[string]string{
		"an older backup of it": changed(t, dump, "DELETE FROM deny", "DELETE FROM sqlite_sequence WHERE name = 'deny'", fmt.Sprintf("UPDATE enrolments SET revoked_at = NULL WHERE host_pubkey = X'%x'", mallory[:]), "UPDATE totals SET value = value + 1 WHERE name = 'enrolments'"),
		"a newer backup": func() string {
			copied, _ := replaced(t, all(hosts, listTaken("one", early), enrol("mallory")), nil)
			return copied
		}(),
	} {
		s, done := renewed(t, copied, foldedAt(t, restoreDump(t, dump)), Renewal{})
		if done.Denials != 4 || done.Revocations != 1 || done.DenyLists != 0 {
			t.Errorf("%s: got %+v; want 4 denials and a revocation", name, done)
		}
		looks(t, s, func(r store.Reader) error {
			wantLive(t, r, "mallory", false)
			for _, who := range [][2]string{{"fp", ""}, {mallory.Fingerprint(), ""}, {mallory.Fingerprint(), "client"}, {"x", "client"}} {
				if _, err := r.Denied(who[0], who[1], early); err != nil {
					t.Errorf("%s: %q: %v; want it denied", name, who, err)
				}
			}
			if name == "a newer backup" {
				wantListTaken(t, r, "one", early)
			}
			return nil
		})
		tell(t, s, denial4("next", "op", "next"))
		looks(t, s, func(r store.Reader) error {
			d, err := r.Denied("next", "", late)
			if d.ID <= 5 {
				t.Errorf("%s: a new denial has the number %d; want one that none had", name, d.ID)
			}
			return err
		})
	}
}

// A host that was denied since the backup stays so under the key that it had then
// and under those that it was rotated to.
func TestCarryDenialOfARotatedHost(t *testing.T) {
	t.Parallel()
	session := func(label, client string) story {
		return func(tx store.Tx) error {
			return tx.PutEnrolment(store.Enrolment{Key: key(label), Name: label, Account: "acct", AuthorizedBy: "account-token", ClientID: client, EnrolledAt: early, SessionEnds: late})
		}
	}
	fp := func(label string) string { return key(label).Fingerprint() }
	copied, current := replaced(t, all(session("beta", "client"), session("gamma", "client-2")),
		all(rotated("beta", "beta2", late), denial4(fp("beta"), "issuer", "old"), denial4(fp("beta2"), "issuer", "new"), revoke("gamma", late)))
	s, _ := renewed(t, copied, current, Renewal{})
	looks(t, s, func(r store.Reader) error {
		for _, label := range []string{"beta", "beta2"} {
			if _, err := r.Denied(fp(label), "client", late); err != nil {
				t.Errorf("%s: %v; want it denied", label, err)
			}
		}
		keys, err := r.RotatedTo(key("beta"), 9)
		e, err2 := r.Enrolment(key("beta2"))
		if len(keys) != 1 || keys[0] != key("beta2") || e.ClientID != "client" || !e.SessionEnds.Equal(late) {
			t.Errorf("got %v, %+v; want credential and session to follow", keys, e)
		}
		g, err3 := r.Enrolment(key("gamma"))
		if g.Live() || g.ClientID != "client-2" {
			t.Errorf("gamma: got %+v; want it revoked", g)
		}
		return errors.Join(err, err2, err3)
	})
}

// The issuer's keys are those of the replaced store: one that left them since the
// backup does not come back.
func TestCarryKeysOfTheIssuer(t *testing.T) {
	t.Parallel()
	const mine, theirs = `{"keys":["left","stayed"]}`, `{"keys":["stayed"]}`
	backup := all(hosts, stated("jwks", mine), stated("kept", "1"))
	forgotten := func(tx store.Tx) error { return tx.SetState("jwks", nil) }
	for _, tt := range []struct {
		name    string
		current func(t *testing.T) (copied, current string)
		want    string
	}{
		{"newer ones", func(t *testing.T) (string, string) { return replaced(t, backup, stated("jwks", theirs)) }, theirs},
		{"none any more", func(t *testing.T) (string, string) { return replaced(t, backup, forgotten) }, ""},
		{"as they were", func(t *testing.T) (string, string) { return replaced(t, backup, nil) }, mine},
		{"of another store", func(t *testing.T) (string, string) {
			copied, _ := replaced(t, backup, nil)
			return copied, another(t, late, stated("jwks", theirs))
		}, theirs},
		{"another store without any", func(t *testing.T) (string, string) {
			copied, _ := replaced(t, backup, nil)
			return copied, another(t, late, hosts)
		}, ""},
		{"a store of schema 3", func(t *testing.T) (string, string) {
			copied, _ := replaced(t, backup, nil)
			return copied, foldedAt(t, restoreDump(t, "testdata/schema_003.sql"))
		}, ""},
		{"a store of schema 1", func(t *testing.T) (string, string) {
			copied, _ := replaced(t, backup, nil)
			return copied, foldedAt(t, restoreDump(t, "testdata/schema_001.sql"))
		}, ""},
		{"no store", func(t *testing.T) (string, string) { copied, _ := replaced(t, backup, nil); return copied, "" }, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			copied, current := tt.current(t)
			s, _ := renewed(t, copied, current, Renewal{})
			looks(t, s, func(r store.Reader) error {
				v, err := r.State("jwks")
				if gone(err) != nil || string(v) != tt.want {
					t.Errorf("got %s, %v; want %q", v, err, tt.want)
				}
				v, err = r.State("kept")
				if string(v) != "1" {
					t.Errorf("kept: got %s; want it", v)
				}
				return err
			})
		})
	}
}
