package backup

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/store/sqlite"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// store looks at what a file that is a store holds.
func (v *verification) store(ctx context.Context, f *sqlite.File) error {
	in := f.Info()
	v.r.Info = in
	v.ok(CheckStore, "a relay's, schema %d", in.Schema)
	switch sealed, whole := v.seal.Whole(); {
	case !sealed:
		v.ok(CheckChecksum, "it carries none: it was not made by agentmbx relay backup")
	case !whole:
		_ = v.fail(CheckChecksum, "bytes of the file have changed since it was made")
	default:
		v.ok(CheckChecksum, "every byte is as it was made")
	}
	switch {
	case in.RelayKey.IsZero():
		_ = v.fail(CheckKey, "it names none")
	case !v.Key.IsZero() && in.RelayKey != v.Key:
		_ = v.fail(CheckKey, "it is another relay's store: it belongs to %s, this relay is %s", in.RelayKey.Fingerprint(), v.Key.Fingerprint())
	case v.Key.IsZero():
		v.ok(CheckKey, "%s; no key was given to compare it with", in.RelayKey.Fingerprint())
	default:
		v.ok(CheckKey, "%s", in.RelayKey.Fingerprint())
	}
	if err := v.facts(f); err != nil {
		return v.broken(ctx, CheckFacts, err)
	}
	v.Progress("check", 0, 0)
	if err := f.Check(ctx); err != nil {
		return v.broken(ctx, CheckIntegrity, err)
	}
	v.ok(CheckIntegrity, "the pages, the indexes and every counter agree")
	if err := v.items(ctx, f); err != nil {
		return v.broken(ctx, CheckItems, err)
	}
	if err := v.records(ctx, f); err != nil {
		return v.broken(ctx, CheckRecords, err)
	}
	if err := v.times(ctx, f); err != nil {
		return v.broken(ctx, CheckTimes, err)
	}
	v.date()
	return nil
}

// times fails a store with a time that nobody could have given it: neither a
// receipt nor an answer of the relay can name it.
func (v *verification) times(ctx context.Context, f *sqlite.File) error {
	n, first := v.r.Read.BadTimes, v.r.Read.BadTime
	in := v.r.Info
	for _, t := range []struct {
		name string
		at   time.Time
	}{{"expiry_from", in.ExpiryFrom}, {"created_at", in.CreatedAt}, {"heartbeat", in.Heartbeat}} {
		if !t.at.IsZero() && !sqlite.TimeInRange(t.at.UnixMilli()) {
			n, first = n+1, t.name
		}
	}
	more, table, err := f.BadTimes(ctx)
	if err != nil {
		return err
	}
	if n += more; first == "" {
		first = table
	}
	if n > 0 {
		return v.fail(CheckTimes, "%d times are before 1970 or after the year 9999, one of them in %s", n, first)
	}
	v.ok(CheckTimes, "every time is one")
	return nil
}

// broken turns an error of reading the file into a failed check, unless somebody
// stopped the reading.
func (v *verification) broken(ctx context.Context, check string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if errors.Is(err, errFailed) {
		return err
	}
	return v.fail(check, "%s", firstLine(err))
}

// firstLine keeps a long list of faults short.
func firstLine(err error) string {
	text, more, cut := bytes.Cut([]byte(err.Error()), []byte("\n"))
	if n := bytes.Count(more, []byte("\n")) + 1; cut {
		return fmt.Sprintf("%.500s; and %d more", text, n)
	}
	return fmt.Sprintf("%.500s", text)
}

// facts counts, and compares with the receipt.
func (v *verification) facts(f *sqlite.File) (err error) {
	if v.r.Rows, err = f.Rows(); err != nil {
		return err
	}
	if err := f.View(func(r store.Reader) (err error) { v.r.Totals, err = r.Totals(); return err }); err != nil {
		return err
	}
	in, t, r := v.r.Info, v.r.Totals, v.r.Receipt
	counted := fmt.Sprintf("epoch %s, %d items, %d hosts", in.Epoch, t.Items, t.Enrolments)
	switch {
	case in.Epoch == "" || in.Heartbeat.IsZero() || v.r.Rows["totals"] == 0:
		_ = v.fail(CheckFacts, "it has no epoch, no heartbeat or no totals")
	case r == nil:
		v.ok(CheckFacts, "%s", counted)
	case r.key != in.RelayKey || r.Epoch != in.Epoch || r.Schema != in.Schema || r.Items != t.Items || r.ItemBytes != t.Bytes || r.Enrolments != t.Enrolments:
		_ = v.fail(CheckFacts, "%s; the receipt says epoch %.100q, %d items, %d hosts of the relay %s, schema %d", counted, r.Epoch, r.Items, r.Enrolments, r.Fingerprint, r.Schema)
	default:
		v.ok(CheckFacts, "%s, as the receipt says", counted)
	}
	return nil
}

// items reads every row of mail and compares it with its hash.
func (v *verification) items(ctx context.Context, f *sqlite.File) error {
	total := int64(0)
	for table, n := range v.r.Rows {
		if table != "ops" && table != "job_runs" {
			total += n
		}
	}
	v.Progress("items", 0, total)
	c, err := f.Contents(ctx, sqlite.Look{Wires: true, Progress: func(rows int64) { v.Progress("items", min(rows, total), total) }})
	if err != nil {
		return err
	}
	v.r.Contents, v.r.Read = Contents(c), c
	items := c.Parts[sqlite.PartItems].Rows + c.Parts[sqlite.PartHeld].Rows
	switch r := v.r.Receipt; {
	case c.BadWires > 0:
		_ = v.fail(CheckItems, "%d of %d items are not what was accepted, the first is %s", c.BadWires, items, c.BadWire)
	case r != nil && r.Contents != "" && r.Contents != v.r.Contents:
		_ = v.fail(CheckItems, "the rows sum up to %s; the receipt says %s", v.r.Contents, r.Contents)
	default:
		v.ok(CheckItems, "%d items read, every one has the hash it was accepted with", items)
	}
	return nil
}

// Contents is one digest of all that c sums up: two stores have the same one when
// they hold the same mail, hosts, lists, keys, heads and acks, whatever their
// epoch and their log.
func Contents(c sqlite.Contents) string {
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(c.Parts)) {
		p := c.Parts[name]
		h.Write(append(binary.BigEndian.AppendUint64([]byte(name+"\x00"), uint64(p.Rows)), p.Digest[:]...))
	}
	return hex.EncodeToString(h.Sum(nil))
}

// date says how old the backup is. Clocks lie: one from the future is told, and
// no reason to refuse what may be the only one.
func (v *verification) date() {
	at := v.r.Info.Heartbeat
	if r := v.r.Receipt; r != nil {
		at = r.At
	}
	age := v.Now().Sub(at)
	if age < -wire.MaxAhead {
		v.ok(CheckDate, "WARNING: %s is in the future: a clock was or is wrong", wire.FormatTime(at))
		return
	}
	v.ok(CheckDate, "%s, %s ago", wire.FormatTime(at), max(age, 0).Round(time.Second))
}
