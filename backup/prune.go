package backup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Decision is what becomes of a backup, and why.
type Decision struct {
	Path   string `json:"path"`
	N      int64  `json:"n"`
	Remove bool   `json:"remove"`
	Why    string `json:"why"`

	entry Entry
}

// Plan says what Prune would do. It is an error, ErrRefused, when no verified
// backup would be left.
func (f *Folder) Plan(ctx context.Context) ([]Decision, error) {
	list, err := f.List(ctx)
	if err != nil {
		return nil, err
	}
	return f.plan(list)
}

func (f *Folder) plan(list []Entry) (plan []Decision, err error) {
	if f.Keep < 1 {
		return nil, fmt.Errorf("%w: to keep %d backups is to keep none", ErrRefused, f.Keep)
	}
	rank, ours := 0, 0
	for _, e := range list {
		d := Decision{Path: e.Path, N: e.Receipt.N, entry: e}
		switch {
		case !e.Ours:
			d.Why = e.Problem + ": never pruned"
		case e.Receipt.N == 0:
			d.Why = "made to a file of your choosing: never pruned"
		case !e.Verified && e.Receipt.Verified:
			d.Why = e.Problem + ": kept, look at it"
			ours++
		case !e.Verified:
			d.Why = "not verified: kept, look at it"
			ours++
		default:
			rank++
			ours++
			switch {
			case rank == 1:
				d.Why = "newest verified"
			case rank <= f.Keep:
				d.Why = fmt.Sprintf("one of the last %d", f.Keep)
			default:
				d.Remove, d.Why = true, fmt.Sprintf("older than the last %d verified", f.Keep)
			}
		}
		plan = append(plan, d)
	}
	if ours > 0 && rank == 0 {
		return plan, fmt.Errorf("%w: %s holds no verified backup, so nothing is pruned: take one with agentmbx relay backup", ErrRefused, f.Dir)
	}
	return plan, nil
}

// Prune removes what Plan says and answers what it did.
func (f *Folder) Prune(ctx context.Context) (done []Decision, err error) {
	plan, err := f.Plan(ctx)
	if err != nil || len(plan) == 0 {
		return plan, err
	}
	if err := f.prepare(); err != nil {
		return nil, err
	}
	for i, d := range plan {
		if !d.Remove {
			continue
		}
		if err := ctx.Err(); err != nil {
			return plan[:i], err
		}
		if err := f.remove(d.entry); err != nil {
			return plan[:i], fmt.Errorf("prune %s: %w", d.Path, err)
		}
		f.log().Info("backup removed", "file", d.Path, "why", d.Why)
	}
	return plan, nil
}

// remove takes a backup away, the way it came: its receipt stops to count first,
// and goes last.
//
//	NAME, NAME.json.partial   the sweep gives the receipt its name again: whole
//	NAME.json.partial         swept
func (f *Folder) remove(e Entry) error {
	if e.Receipt.N == 0 || !e.Ours {
		return fmt.Errorf("%w: it is not one of the folder's own", ErrRefused)
	}
	// Once more: what stands there must be what was listed.
	if st, err := os.Lstat(e.Path); err != nil {
		return err
	} else if !st.Mode().IsRegular() || st.Size() != e.Receipt.Bytes || filepath.Dir(e.Path) != f.Dir {
		return fmt.Errorf("%w: it is not what it was", ErrRefused)
	}
	receipt := e.Path + receiptSuffix
	aside := receipt + f.suffix()
	f.at("set receipt aside")
	if err := os.Rename(receipt, aside); err != nil {
		return err
	}
	f.at("sync receipt aside")
	if err := syncDir(f.Dir); err != nil {
		return err
	}
	f.at("remove file")
	if err := os.Remove(e.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(err, os.Rename(aside, receipt))
	}
	f.at("sync removal")
	if err := syncDir(f.Dir); err != nil {
		return err
	}
	f.at("remove receipt")
	return os.Remove(aside)
}
