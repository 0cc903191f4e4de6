package drill

import (
	"context"
	"fmt"
	"strings"

	"github.com/agentmbx/agentmbx/relay/store/sqlite"
)

// compared are the parts of a store that a restore brings back as they were, in
// the order of the receipt.
var compared = []string{
	sqlite.PartItems, sqlite.PartHeld, sqlite.PartDedup, sqlite.PartEnrolments, sqlite.PartDenials, sqlite.PartDenyLists, sqlite.PartSenderLists,
	sqlite.PartEncKeys, sqlite.PartEncAds, sqlite.PartRotations, sqlite.PartAcks, sqlite.PartHeads,
}

// integrity has the restored store compare itself with itself.
func (d *drill) integrity(ctx context.Context) error {
	if err := d.st.Check(ctx); err != nil {
		return err
	}
	d.passed("integrity", "the restored store agrees with itself, counters included")
	return nil
}

// compare compares the restored store with what the verification read of the
// backup, every row of every queue.
func (d *drill) compare(ctx context.Context) error {
	got, err := d.contents(ctx, true)
	if err != nil {
		return err
	}
	for _, part := range compared {
		same, text := samePart(d.report.Read.Parts[part], got.Parts[part])
		d.check("same "+part, same, "%s", text)
	}
	d.check("revoked stay revoked", got.Revoked == d.report.Read.Revoked, "%d revoked and %d live hosts; the backup has %d and %d",
		got.Revoked, got.Live, d.report.Read.Revoked, d.report.Read.Live)
	if got.BadWires > 0 {
		d.failed("wire bytes", "%d items are not what was accepted, the first is %s", got.BadWires, got.BadWire)
	} else {
		d.passed("wire bytes", "every item has the hash it was accepted with")
	}
	if len(d.r.Failed()) > 0 {
		return errStop
	}
	return nil
}

func samePart(want, got sqlite.Part) (same bool, text string) {
	switch {
	case want == got:
		return true, fmt.Sprintf("%d rows, as in the backup", want.Rows)
	case want.Rows != got.Rows:
		return false, fmt.Sprintf("%d rows in the backup, %d in the restored store", want.Rows, got.Rows)
	}
	return false, fmt.Sprintf("%d rows in both, but not the same", want.Rows)
}

// contents is what the restored store holds of real hosts.
func (d *drill) contents(ctx context.Context, wires bool) (sqlite.Contents, error) {
	return d.st.Contents(ctx, sqlite.Look{Wires: wires, Except: d.keys(), Progress: d.rows("compare")})
}

// rows tells of rows as progress: how many there will be, nobody knows.
func (d *drill) rows(stage string) func(int64) {
	return func(n int64) { d.Progress(stage, n, 0) }
}

// untouched looks at the real queues again: the drill's own mail went past them.
func (d *drill) untouched(ctx context.Context) error {
	got, err := d.contents(ctx, false)
	if err != nil {
		return err
	}
	var differ []string
	for _, part := range compared {
		if same, _ := samePart(d.report.Read.Parts[part], got.Parts[part]); !same {
			differ = append(differ, part)
		}
	}
	if len(differ) > 0 {
		return d.failed("untouched", "the drill's own mail changed what is of others: %s", strings.Join(differ, ", "))
	}
	d.passed("untouched", "what is of real hosts is as before the drill's own mail")
	return nil
}
