package sqlite

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// revocations keeps every key revoked that was. The keys that were rotated away
// are the rotations' own.
func (c *carry) revocations() error {
	return c.from.c.query(func(r row) error {
		e := enrolment(r)
		was, err := c.t.Enrolment(e.Key)
		switch {
		case errors.Is(err, store.ErrNotFound):
			err = c.putRevoked(e)
		case err != nil:
			return err
		case was.Live():
			_, err = c.t.Revoke(e.Key, e.RevokedAt)
		default:
			return nil
		}
		c.done.Revocations++
		return err
	}, c.from.c.enrolments("SELECT "+enrolmentColumns+` FROM enrolments
		WHERE revoked_at IS NOT NULL AND host_pubkey NOT IN (SELECT old_pubkey FROM rotations)`))
}

// putRevoked records a host that the backup does not know as what it is:
// revoked. PutEnrolment would enrol it.
func (c *carry) putRevoked(e store.Enrolment) error {
	delete(c.t.hosts, e.Key)
	if err := c.t.putEnrolment(e, ""); err != nil {
		return err
	}
	u, err := c.t.QueueUsage(e.Key)
	if err != nil {
		return err
	}
	return c.t.moveAccount("", e.Account, u)
}

// rotations applies again those that the backup does not know, a key's own only
// after those that led to it.
func (c *carry) rotations() error {
	var todo []store.Rotation
	if err := c.from.c.query(func(r row) error {
		known, err := c.rotatedAway(r.key(0))
		if err == nil && !known {
			todo = append(todo, store.Rotation{Old: r.key(0), New: r.key(1), Name: r.text(2), Record: r.bytes(3), At: r.time(4)})
		}
		return err
	}, "SELECT old_pubkey, new_pubkey, host_name, record, at FROM rotations ORDER BY at, old_pubkey"); err != nil {
		return err
	}
	leading := map[wire.PublicKey]int{} // how many of them still lead to a key
	for _, r := range todo {
		leading[r.New]++
	}
	for len(todo) > 0 {
		// A circle cannot be: a key that was rotated away is revoked.
		i := max(slices.IndexFunc(todo, func(r store.Rotation) bool { return leading[r.Old] == 0 }), 0)
		r := todo[i]
		todo = slices.Delete(todo, i, i+1)
		leading[r.New]--
		if err := c.rotate(r); err != nil {
			return err
		}
		c.done.Rotations++
	}
	return nil
}

// rotate brings one rotation into the restored store, as far as that knows the
// host. The new key is enrolled only in place of an old key that was live: no
// enrolment is carried.
func (c *carry) rotate(r store.Rotation) error {
	then, err := c.from.Enrolment(r.Old)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	was, err := c.t.Enrolment(r.Old)
	switch {
	case errors.Is(err, store.ErrNotFound):
		if !then.RevokedAt.IsZero() {
			if err := c.putRevoked(then); err != nil {
				return err
			}
		}
		if err := c.t.moveLists(r.Old, r.New); err != nil { // others may have named it
			return err
		}
		return c.recordRotation(r)
	case err != nil:
		return err
	case !was.Live(): // it ended in another way
		return c.recordRotation(r)
	}
	err = c.attempt(func() error { _, err := c.t.Rotate(r); return err })
	if errors.Is(err, store.ErrNameTaken) {
		c.warn("the rotation of %s to %s is kept and its mail follows, but its name %q is taken in its account: the host must enrol anew",
			r.Old.Fingerprint(), r.New.Fingerprint(), was.Name)
		err = c.followUnenrolled(r, was)
	}
	if err != nil || then.RevokedAt.IsZero() {
		return err
	}
	delete(c.t.hosts, r.Old)
	_, err = c.t.c.exec("UPDATE enrolments SET revoked_at = ? WHERE host_pubkey = ?", then.RevokedAt, r.Old)
	return err
}

// followUnenrolled is a rotation that leaves the new key's enrolment as it is.
func (c *carry) followUnenrolled(r store.Rotation, was store.Enrolment) error {
	account, err := c.t.accountOf(r.New)
	if err != nil {
		return err
	}
	if _, err := c.t.Revoke(r.Old, r.At); err != nil {
		return err
	}
	if _, err := c.t.moveQueue(r.Old, r.New, was.Account, account); err != nil {
		return err
	}
	if err := c.t.moveLists(r.Old, r.New); err != nil {
		return err
	}
	return c.recordRotation(r)
}

func (c *carry) recordRotation(r store.Rotation) error {
	clear(c.t.formerly)
	for _, q := range []string{"DELETE FROM enc_ads WHERE host_pubkey = ?", "DELETE FROM enc_ad_records WHERE host_pubkey = ?"} {
		if _, err := c.t.c.exec(q, r.Old); err != nil {
			return err
		}
	}
	_, err := c.t.c.exec("INSERT INTO rotations (old_pubkey, new_pubkey, host_name, record, at) VALUES (?, ?, ?, ?, ?)",
		r.Old, r.New, r.Name, r.Record, r.At)
	return err
}

// senderLists takes over what targets said since of who may push to them.
func (c *carry) senderLists() error {
	return c.from.c.query(func(r row) error {
		l := store.SenderList{Target: r.key(0), Senders: unpack(r.bytes(1)), IAT: r.time(2), Record: r.bytes(3), Sig: r.text(4)}
		if gone, err := c.rotatedAway(l.Target); gone || err != nil {
			return err
		}
		was, err := c.t.SenderList(l.Target)
		if err == nil && !l.IAT.After(was.IAT) {
			return nil
		}
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		c.done.SenderLists++
		return c.t.PutSenderList(l)
	}, "SELECT target_pubkey, senders, iat, record, sig FROM sender_lists")
}

// encKeys takes over newer v1 keys, which tell no time of their own: when they
// were received has to do. The same key published again is no news.
func (c *carry) encKeys() error {
	return c.from.c.query(func(r row) error {
		host, k := r.key(0), store.EncKey{EncPub: r.text(2), Sig: r.text(3), At: r.time(4)}
		if gone, err := c.rotatedAway(host); gone || err != nil {
			return err
		}
		was, err := c.t.EncKey(host)
		if err == nil && (k.EncPub == was.EncPub && k.Sig == was.Sig || !c.descends && !k.At.After(was.At)) {
			return nil
		}
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		c.done.EncAds++
		return c.t.PutEncKey(host, r.text(1), k)
	}, "SELECT host_pubkey, host_name, enc_pub, sig, at FROM enc_ads")
}

// encAds takes over newer v2 advertisements. A store that went on from the backup
// has the newer one whatever its clock said; between others the signed times tell.
func (c *carry) encAds() error {
	return c.from.c.query(func(r row) error {
		host, ad := r.key(0), store.EncAd{Record: r.bytes(1), Sig: r.text(2), At: r.time(3)}
		if gone, err := c.rotatedAway(host); gone || err != nil {
			return err
		}
		was, err := c.t.EncAd(host)
		if err == nil && (bytes.Equal(ad.Record, was.Record) && ad.Sig == was.Sig || !c.descends && !signedAfter(ad, was)) {
			return nil
		}
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		c.done.EncAdRecords++
		return c.t.PutEncAd(host, ad)
	}, "SELECT host_pubkey, record, sig, at FROM enc_ad_records")
}

// signedAfter reports whether a is newer than b by what their host signed. When
// they were received has to do where one of them does not tell, or both the same.
func signedAfter(a, b store.EncAd) bool {
	signedA, okA := signedAt(a)
	signedB, okB := signedAt(b)
	if okA && okB && !signedA.Equal(signedB) {
		return signedA.After(signedB)
	}
	return a.At.After(b.At)
}

// signedAt is the iat of an advertisement, which was checked when it came.
func signedAt(ad store.EncAd) (time.Time, bool) {
	var doc struct {
		IAT string `json:"iat"`
	}
	if json.Unmarshal(ad.Record, &doc) != nil {
		return time.Time{}, false
	}
	at, err := wire.ParseTime(doc.IAT)
	return at, err == nil
}
