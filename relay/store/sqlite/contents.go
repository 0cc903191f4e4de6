package sqlite

import (
	"context"
	"crypto/sha256"
	"database/sql/driver"
	"encoding/binary"
	"fmt"
	"hash"
	"slices"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// Contents sums up the rows of a store part by part, so that two stores can be
// compared and neither has to be held in memory. What a store derives from its
// rows (counters) and what belongs to one copy of it alone (epoch, heartbeat, log,
// runs, state, when hosts were seen) is left out.
type Contents struct {
	Parts         map[string]Part
	Live, Revoked int64 // enrolments
	Head          int64 // the highest seq that any queue gave out
	// Queues are some of those that gave one out: the first there are, by key.
	Queues []wire.PublicKey
	// BadWires counts the items whose wire bytes are not those of their hash,
	// where they were read; BadWire says which the first one is.
	BadWires int64
	BadWire  string
	// BadTimes counts the times out of range; BadTime is the part of the first one.
	BadTimes int64
	BadTime  string
}

// Part is the rows of one kind, in the order of their keys.
type Part struct {
	Rows   int64
	Digest [sha256.Size]byte
}

// Parts of Contents.
const (
	PartItems       = "items"        // by queue and seq, without their wire bytes
	PartHeld        = "held"         // the same in quarantine
	PartDedup       = "dedup"        //
	PartEnrolments  = "enrolments"   // live and revoked
	PartDenials     = "denials"      //
	PartDenyLists   = "deny lists"   // left out where there are none
	PartSenderLists = "sender lists" //
	PartEncKeys     = "v1 sealing keys"
	PartEncAds      = "v2 sealing keys"
	PartHeads       = "heads" // of every queue
	PartAcks        = "acks"  // of every queue
	PartRotations   = "rotations"
)

// A Look says how Contents looks.
type Look struct {
	Wires    bool             // read the wire bytes too and compare them with their hash
	Except   []wire.PublicKey // leave out the rows that name one of these keys
	Progress func(rows int64) // told now and then; may be nil
}

const maxQueues = 100 // that Contents names

// parts lists how each part is read. keys are the columns that hold a host's key,
// since is the first schema that has the table.
var parts = []struct {
	name          string
	columns, from string
	order         string
	keys          []int
	times         []int // columns
	since         int
	wires         bool
	later         int // columns at its end that came later
}{
	{PartItems, itemColumns, "items", "target_pubkey, seq", []int{0, 4}, []int{8, 9}, 1, true, 0},
	{PartHeld, itemColumns + ", held_at, actor, reason", "quarantine", "target_pubkey, seq", []int{0, 4}, []int{8, 9, 10}, 2, true, 0},
	{PartDedup, "sender_pubkey, item_id, target_pubkey, wire_hash, seq, accepted_at", "dedup",
		"sender_pubkey, item_id, target_pubkey", []int{0, 2}, []int{5}, 1, false, 0},
	{PartEnrolments, enrolmentColumns, "enrolments", "host_pubkey", []int{0}, []int{6, 7, 9}, 1, false, 2},
	{PartDenials, "host_fp, client_id, reason, source, added_at, until", "deny", "id", nil, []int{4, 5}, 1, false, 0},
	{PartDenyLists, denyListColumns, "deny_lists", "jti", nil, []int{2, 3}, 4, false, 0},
	{PartSenderLists, "target_pubkey, senders, iat, record, sig", "sender_lists", "target_pubkey", []int{0}, nil, 1, false, 0}, // a host dates it as it likes
	{PartEncKeys, "host_pubkey, host_name, enc_pub, sig, at", "enc_ads", "host_pubkey", []int{0}, []int{4}, 1, false, 0},
	{PartEncAds, "host_pubkey, record, sig, at", "enc_ad_records", "host_pubkey", []int{0}, []int{3}, 1, false, 0},
	{PartHeads, "target_pubkey, next_seq", "seqs", "target_pubkey", []int{0}, nil, 1, false, 0},
	{PartAcks, "target_pubkey, acked_through", "acked", "target_pubkey", []int{0}, nil, 1, false, 0},
	{PartRotations, "old_pubkey, new_pubkey, host_name, record, at", "rotations", "old_pubkey", []int{0, 1}, []int{4}, 1, false, 0},
}

// Contents reads the file in full.
func (f *File) Contents(ctx context.Context, l Look) (c Contents, err error) {
	f.c.failed = nil
	err = f.c.during(ctx, func() error { c, err = contents(ctx, f.c, f.info.Schema, l); return err })
	return c, plain(err, f.path)
}

// Contents reads the store in full, over one snapshot.
func (s *Store) Contents(ctx context.Context, l Look) (c Contents, err error) {
	err = s.View(ctx, func(r store.Reader) error {
		conn := r.(reader).c
		return conn.during(ctx, func() error { c, err = contents(ctx, conn, 0, l); return err })
	})
	return c, err
}

// contents reads what c sees; schema is 0 for the newest.
func contents(ctx context.Context, c *conn, schema int, l Look) (Contents, error) {
	out := Contents{Parts: map[string]Part{}}
	except := map[wire.PublicKey]bool{}
	for _, k := range l.Except {
		except[k] = true
	}
	total := int64(0)
	for _, p := range parts {
		sum := summer{h: sha256.New(), later: p.later}
		if schema != 0 && schema < p.since {
			out.put(p.name, p.since, sum)
			continue
		}
		columns := c.enrolments(p.columns)
		if l.Wires && p.wires {
			columns += ", wire"
		}
		err := c.query(func(r row) error {
			if slices.ContainsFunc(p.keys, func(i int) bool { return except[r.key(i)] }) {
				return nil
			}
			if total++; total%1024 == 0 {
				if err := ctx.Err(); err != nil {
					return err
				}
				if l.Progress != nil {
					l.Progress(total)
				}
			}
			if l.Wires && p.wires {
				out.lookAtWire(r)
				r = r[:len(r)-1]
			}
			out.note(p.name, r)
			out.lookAtTimes(p.name, r, p.times)
			sum.add(r)
			return nil
		}, "SELECT "+columns+" FROM "+p.from+" ORDER BY "+p.order)
		if err != nil {
			return out, err
		}
		out.put(p.name, p.since, sum)
	}
	return out, nil
}

// put notes the sum of a part. A store that has nothing of what came with schema 4
// sums up as it did before: receipts of then are compared with it.
func (c *Contents) put(name string, since int, sum summer) {
	if since < 4 || sum.rows > 0 {
		c.Parts[name] = sum.part()
	}
}

// lookAtWire compares the last column of an item's row with its hash.
func (c *Contents) lookAtWire(r row) {
	if w := r.bytes(len(r) - 1); sha256.Sum256(w) == r.hash(6) && int64(len(w)) == r.int(7) {
		return
	}
	if c.BadWires++; c.BadWires == 1 {
		c.BadWire = fmt.Sprintf("seq %d for %s", r.int(1), r.key(0).Fingerprint())
	}
}

// lastTime is the last millisecond of the year 9999: no record can name a later one.
const lastTime = 253402300799999

// TimeInRange reports whether so many milliseconds are a time of ours.
func TimeInRange(ms int64) bool { return 0 <= ms && ms <= lastTime }

func (c *Contents) lookAtTimes(part string, r row, columns []int) {
	for _, i := range columns {
		if r[i] == nil || TimeInRange(r.int(i)) {
			continue
		}
		if c.BadTimes++; c.BadTimes == 1 {
			c.BadTime = part
		}
	}
}

// BadTimes counts the times out of range in what Contents leaves out: the log,
// the runs and when hosts were seen. table is one that has some.
func (f *File) BadTimes(ctx context.Context) (n int64, table string, err error) {
	f.c.failed = nil
	err = f.c.during(ctx, func() error {
		for _, look := range []struct {
			table, bad string
			since      int
		}{
			{"ops", "at NOT BETWEEN 0 AND ?1", 1},
			{"job_runs", "started_at NOT BETWEEN 0 AND ?1 OR finished_at NOT BETWEEN 0 AND ?1", 2},
			{"last_seen", "at NOT BETWEEN 0 AND ?1", 3},
		} {
			if f.info.Schema < look.since {
				continue
			}
			if _, err := f.c.one(func(r row) {
				if r.int(0) > 0 {
					n, table = n+r.int(0), look.table
				}
			}, "SELECT count(*) FROM "+look.table+" WHERE "+look.bad, int64(lastTime)); err != nil {
				return err
			}
		}
		return nil
	})
	return n, table, plain(err, f.path)
}

// note takes from a row what is told besides its part.
func (c *Contents) note(part string, r row) {
	switch {
	case part == PartEnrolments && r[7] == nil:
		c.Live++
	case part == PartEnrolments:
		c.Revoked++
	case part == PartHeads:
		c.Head = max(c.Head, r.int(1)-1)
		if len(c.Queues) < maxQueues {
			c.Queues = append(c.Queues, r.key(0))
		}
	}
}

// summer hashes rows, each value after its type and its length, so that no two
// different lists of rows read the same. The columns that came later are left out
// of a row that has nothing in any of them; such a row is followed by a key, and
// no column of them holds one.
type summer struct {
	h     hash.Hash
	rows  int64
	later int
	buf   []byte
}

func (s *summer) add(r row) {
	s.rows++
	s.buf = s.buf[:0]
	if first := len(r) - s.later; !slices.ContainsFunc(r[first:], func(v driver.Value) bool { return v != nil }) {
		r = r[:first]
	}
	for _, v := range r {
		switch v := v.(type) {
		case int64:
			s.buf = binary.BigEndian.AppendUint64(append(s.buf, 'i'), uint64(v))
		case string:
			s.buf = append(binary.BigEndian.AppendUint64(append(s.buf, 't'), uint64(len(v))), v...)
		case []byte:
			s.buf = append(binary.BigEndian.AppendUint64(append(s.buf, 'b'), uint64(len(v))), v...)
		default: // NULL
			s.buf = append(s.buf, 'n')
		}
	}
	s.h.Write(s.buf)
}

func (s *summer) part() (p Part) {
	p.Rows = s.rows
	s.h.Sum(p.Digest[:0])
	return p
}
