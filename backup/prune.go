package backup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
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
func (f *Folder) Plan(ctx context.Context) ([]Decision, error) { return f.planned(ctx, 0) }

// planned is Plan where the backup with the number good is known to be good.
func (f *Folder) planned(ctx context.Context, good int64) ([]Decision, error) {
	list, err := f.List(ctx)
	if err != nil {
		return nil, err
	}
	plan, err := f.plan(list)
	removes := slices.ContainsFunc(plan, func(d Decision) bool { return d.Remove })
	if kept := verified(list); err != nil || !removes || kept[0].Receipt.N == good {
		return plan, err
	}
	if list, err = f.proven(ctx, list); err != nil {
		return nil, err
	}
	return f.plan(list)
}

// proven reads the newest verified backups of list until one is what its receipt
// says: those before it do not count any more. Older ones are removed for the sake
// of the newest, and a receipt does not know what became of its file.
func (f *Folder) proven(ctx context.Context, list []Entry) ([]Entry, error) {
	list = slices.Clone(list)
	for i := range list {
		e := &list[i]
		if !e.pruned() {
			continue
		}
		sum, err := hashFile(ctx, e.Path)
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err != nil:
			e.Problem = "it cannot be read: " + err.Error()
		case sum != e.Receipt.SHA256:
			e.Problem = "its bytes are not those that were verified: its SHA-256 is not the receipt's"
		default:
			return list, nil
		}
		e.Verified = false
		f.log().Error("a backup is damaged", "file", e.Path, "problem", e.Problem)
	}
	return list, nil
}

func hashFile(ctx context.Context, path string) (string, error) {
	in, _, err := openRegular(path)
	if err != nil {
		return "", err
	}
	defer in.Close()
	sum := newDigest()
	_, err = stream(ctx, sum, in, nil)
	return sum.hex(), err
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
func (f *Folder) Prune(ctx context.Context) (done []Decision, err error) { return f.prune(ctx, 0) }

// PruneAfter is Prune right after Create, which has just read the newest backup.
func (f *Folder) PruneAfter(ctx context.Context, r Receipt) (done []Decision, err error) {
	return f.prune(ctx, r.N)
}

func (f *Folder) prune(ctx context.Context, good int64) (done []Decision, err error) {
	plan, err := f.planned(ctx, good)
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
