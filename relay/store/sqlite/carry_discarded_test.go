package sqlite

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/agentmbx/agentmbx/relay/store"
)

// deedOf is what the log says of an item that was discarded or released.
func deedOf(op, target, sender, id string) string {
	return fmt.Sprintf(`{"v":1,"type":"relay-%s","at":"x","actor":"ops","reason":"why not","items":1,"groups":[{"target":"%s","sender":"%s","kind":"envelope","bytes":300,"items":[{"seq":1,"id":"%s"}]}]}`,
		op, key(target), key(sender), id)
}

// discard drops a queued item as an operator does, by way of the quarantine.
func discard(target, sender, id string) story {
	return all(heldNow(target, id, late, "ops"), discardHeld(target, sender, id))
}

func discardHeld(target, sender, id string) story {
	return func(tx store.Tx) error {
		var item store.Item
		if err := tx.Held(func(h store.HeldItem) bool {
			if h.Target == key(target) && h.ID == id {
				item = h.Item
			}
			return true
		}); err != nil {
			return err
		}
		item.Held = true
		return errors.Join(tx.Drop(item), tx.AppendLog(late, "discard", []byte(deedOf("discard", target, sender, id))))
	}
}

// What an operator discarded after the backup does not come back into a queue.
func TestCarryDiscarded(t *testing.T) {
	t.Parallel()
	mailed := all(hosts, pushed("beta", "alpha", "m1"), pushed("beta", "alpha", "m2"), pushed("beta", "gamma", "m3"), logged("backup", "{}", early))
	for _, c := range []struct {
		name           string
		before, after  story
		again, held    int // discarded, held
		warns          int
		target         string
		queued, inHeld []string
	}{
		{name: "queued in the backup", before: mailed, after: discard("beta", "alpha", "m1"), again: 1,
			target: "beta", queued: []string{"m2", "m3"}, inHeld: []string{"m1 beta ops"}},
		{name: "held in the backup", before: all(mailed, heldNow("beta", "m1", early, "first")), after: discardHeld("beta", "alpha", "m1"), again: 1,
			target: "beta", queued: []string{"m2", "m3"}, inHeld: []string{"m1 beta ops"}},
		{name: "both hosts rotated after it", before: mailed, again: 1,
			after:  all(discard("beta", "alpha", "m1"), rotated("beta", "beta2", late), rotated("alpha", "alpha2", late)),
			target: "beta2", queued: []string{"m2", "m3"}, inHeld: []string{"m1 beta2 ops"}},
		{name: "both hosts rotated before it", before: mailed, again: 1,
			after:  all(rotated("beta", "beta2", late), rotated("alpha", "alpha2", late), discard("beta2", "alpha", "m1")),
			target: "beta2", queued: []string{"m2", "m3"}, inHeld: []string{"m1 beta2 ops"}},
		{name: "another sender's item of that id", before: all(mailed, pushed("beta", "gamma", "m1")), after: discard("beta", "gamma", "m1"), again: 1,
			target: "beta", queued: []string{"m1", "m2", "m3"}, inHeld: []string{"m1 beta ops"}},
		{name: "discarded before the backup, and its id taken again", before: all(logged("discard", deedOf("discard", "beta", "alpha", "m1"), early), mailed),
			target: "beta", queued: []string{"m1", "m2", "m3"}},
		{name: "brought back by a restore, and released", before: mailed,
			after: all(logged("discard", deedOf("discard", "beta", "alpha", "m1"), late), logged("release", deedOf("release", "beta", "alpha", "m1"), late)), target: "beta", queued: []string{"m1", "m2", "m3"}},
		{name: "brought back by a restore, and held still", before: mailed, held: 1,
			after: all(logged("discard", deedOf("discard", "beta", "alpha", "m1"), late), heldNow("beta", "m1", late, "second")), target: "beta", queued: []string{"m2", "m3"}, inHeld: []string{"m1 beta second"}},
		{name: "lines that nobody can read", before: mailed, warns: 1, again: 1, after: all(
			logged("discard", `{"v":1,"type":"relay-discard","items":1,"groups":[{"items":[{"id":"m2"}]}]}`, late),
			logged("discard", `{"v":1,"type":"relay-discard","items":1}`, late),
			logged("discard", `{"v":1,"type":"relay-discard","items":1,"groups":[{"target":"no key","sender":"none","items":[{"id":"m2"}]}]}`, late),
			logged("discard", `[]`, late), logged("discard", `{"v":2}`, late), logged("release", `"x"`, late), logged("discard", `{"v":1,"type":"relay-hold"}`, late),
			discard("beta", "alpha", "m1")), target: "beta", queued: []string{"m2", "m3"}, inHeld: []string{"m1 beta ops"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			copied, current := replaced(t, c.before, c.after)
			s, done := renewed(t, copied, current, Renewal{})
			if done.Discarded != c.again || done.Held != c.held || done.HeldAgain != 0 || len(done.Warnings) != c.warns {
				t.Errorf("carried: got %+v; want %d discarded, %d held, none held again, %d warnings", done, c.again, c.held, c.warns)
			}
			looks(t, s, func(r store.Reader) error {
				wantQueue(t, r, c.target, c.queued...)
				wantHeld(t, r, c.inHeld...)
				return r.Held(func(h store.HeldItem) bool {
					if c.again > 0 && (!strings.HasSuffix(h.Reason, "discarded before the restore: why not") || !h.HeldAt.Equal(late)) {
						t.Errorf("%s: got held %s for %q; want the time and the reason of the discard", h.ID, h.HeldAt, h.Reason)
					}
					return true
				})
			})
		})
	}
	t.Run("a store that did not go on from the backup", func(t *testing.T) {
		t.Parallel()
		copied, _ := replaced(t, mailed, nil)
		s, done := renewed(t, copied, another(t, late, all(mailed, discard("beta", "alpha", "m1"))), Renewal{})
		if done.Discarded != 0 {
			t.Errorf("got %+v; want nothing held", done)
		}
		looks(t, s, func(r store.Reader) error { wantQueue(t, r, "beta", "m1", "m2", "m3"); return nil })
	})
}
