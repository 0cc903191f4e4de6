package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/agentmbx/agentmbx/backup"
	"github.com/agentmbx/agentmbx/relay/store"
)

// verdictsState is the name of the row that remembers which backups of the folder
// were found bad. A receipt says how a backup was when it was made; a file may rot
// after that, and whoever looks at the list must see it.
const verdictsState = "bad-backups"

// verdict is that of a verification that found a backup bad. It is of the file of
// that receipt, and goes with it, or when the file verifies well.
type verdict struct {
	SHA256 string    `json:"sha256"` // as the receipt has it
	At     time.Time `json:"at"`
	Fault  string    `json:"fault"`
}

// verdicts are the bad ones by the names of the files.
type verdicts map[string]verdict

func readVerdicts(r store.Reader) (verdicts, error) {
	b, err := r.State(verdictsState)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var v verdicts
	if err := json.Unmarshal(b, &v); err != nil {
		return nil, fmt.Errorf("what is known of bad backups: %w", err)
	}
	return v, nil
}

// of is the verdict on a file of the folder, if it was found bad.
func (v verdicts) of(e backup.Entry) (verdict, bool) {
	bad, known := v[filepath.Base(e.Path)]
	return bad, known && bad.SHA256 == e.Receipt.SHA256
}

// judge remembers what a verification found. Nothing is learnt of a file that was
// not opened, or that lies elsewhere.
func (l *Local) judge(ctx context.Context, r backup.Report) error {
	bad := !r.Good && !r.OnlyUnopened() && r.Fault() != ""
	if !bad && !r.Good || filepath.Dir(r.File) != filepath.Clean(l.o.Backups.Dir) {
		return nil
	}
	list, err := l.o.Backups.List(ctx)
	if err != nil {
		return err
	}
	now := l.o.Now().UTC()
	return l.o.Store.Update(ctx, func(tx store.Tx) error {
		was, err := readVerdicts(tx)
		if err != nil {
			return err
		}
		next := verdicts{}
		for _, e := range list {
			name := filepath.Base(e.Path)
			if name == filepath.Base(r.File) {
				if bad {
					next[name] = verdict{e.Receipt.SHA256, now, r.Fault()}
				}
			} else if v, known := was.of(e); known {
				next[name] = v
			}
		}
		if len(next) == 0 {
			if len(was) == 0 {
				return nil
			}
			return tx.SetState(verdictsState, nil)
		}
		b, err := json.Marshal(next)
		if err != nil {
			return err
		}
		return tx.SetState(verdictsState, b)
	})
}

// backups lists the folder, with what verifications found since; problems are those
// of our own.
func (l *Local) backups(ctx context.Context) (list []backup.Entry, problems []string, err error) {
	if list, err = l.o.Backups.List(ctx); err != nil {
		return nil, nil, err
	}
	var bad verdicts
	if err := l.o.Store.View(ctx, func(r store.Reader) (err error) { bad, err = readVerdicts(r); return err }); err != nil {
		return nil, nil, err
	}
	for i := range list {
		v, known := bad.of(list[i])
		if !known {
			continue
		}
		e := &list[i]
		e.Verified, e.Problem = false, "found bad "+v.At.Format(time.RFC3339)+": "+v.Fault
		if e.Ours {
			what, _, _ := strings.Cut(v.Fault, ":")
			problems = append(problems, fmt.Sprintf("the backup %s was found bad (%s); run: agentmbx relay backup", filepath.Base(e.Path), what))
		}
	}
	return list, problems, nil
}
