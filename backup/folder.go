package backup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"filippo.io/age"
	"golang.org/x/sys/unix"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// Source is a store that can be copied while it is used.
type Source interface {
	Copy(ctx context.Context, path string, progress func(done, total int64)) error
	Size(ctx context.Context) (store.Size, error)
}

// Folder is where a relay's backups are kept. Whoever calls its methods that
// change something holds the store's lock and the lease of the job.
type Folder struct {
	Dir        string          // absolute
	StoreDir   string          // of the store they are of, absolute
	Key        wire.PublicKey  // of the relay
	Keep       int             // how many verified ones stay
	Recipients []age.Recipient // none: not encrypted
	Version    string
	Log        *slog.Logger
	Now        func() time.Time
	// Free tells the bytes left on a device; nil asks the system.
	Free func(dir string) (int64, error)

	step   func(name string)       // for tests: told as each step begins
	unlink func(path string) error // os.Remove, but in tests of devices that fail
}

func (f *Folder) removeFile(path string) error {
	if f.unlink != nil {
		return f.unlink(path)
	}
	return os.Remove(path)
}

// at tells a test how far the work is.
func (f *Folder) at(name string) {
	if f.step != nil {
		f.step(name)
	}
}

// ownName is how the folder's own backups and their receipts are called.
var ownName = regexp.MustCompile(`^relay-\d{8}T\d{6}Z-(\d{6,15})\.db(\.age)?(\.json)?$`)

// name is that of the n-th backup.
func (f *Folder) name(at time.Time, n int64) string {
	name := fmt.Sprintf("relay-%s-%06d.db", at.UTC().Format("20060102T150405Z"), n)
	if len(f.Recipients) > 0 {
		name += ".age"
	}
	return name
}

// shortKey is a relay's key in a file name: what another relay that shares the
// folder has there is not ours to sweep.
func shortKey(key wire.PublicKey) string {
	return strings.ReplaceAll(key.Fingerprint(), "-", "")[:8]
}

// suffix marks what this relay writes until it is whole.
func (f *Folder) suffix() string { return "." + shortKey(f.Key) + ".partial" }

// partial matches the unfinished files of this relay in its folder.
func (f *Folder) partial() *regexp.Regexp {
	return regexp.MustCompile(`^.+` + regexp.QuoteMeta(f.suffix()) + `$`)
}

// Entry is a file in the folder.
type Entry struct {
	Receipt  Receipt       `json:"receipt"`
	Path     string        `json:"path"`
	Age      time.Duration `json:"age_ns"`
	Verified bool          `json:"verified"` // by its receipt, and the file has the size it says
	Ours     bool          `json:"ours"`     // made by this relay: others' are shown, and never counted or touched
	Problem  string        `json:"problem,omitempty"`
}

// pruned reports whether retention may ever remove it.
func (e Entry) pruned() bool { return e.Ours && e.Verified && e.Receipt.N > 0 }

// verified picks the backups that count, in the order of list.
func verified(list []Entry) (kept []Entry) {
	for _, e := range list {
		if e.pruned() {
			kept = append(kept, e)
		}
	}
	return kept
}

// List lists the backups with receipts in the folder, newest first by N. A folder
// that does not exist holds none. It reads receipts, not the files.
func (f *Folder) List(ctx context.Context) ([]Entry, error) {
	files, err := os.ReadDir(f.Dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case errors.Is(err, unix.ENOTDIR):
		return nil, f.noFolder()
	case err != nil:
		return nil, fmt.Errorf("list the backups: %w", err)
	}
	var list []Entry
	for _, file := range files {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if name, ok := strings.CutSuffix(file.Name(), receiptSuffix); ok && file.Type().IsRegular() {
			if e, ok := f.entry(name); ok {
				list = append(list, e)
			}
		}
	}
	slices.SortStableFunc(list, func(a, b Entry) int {
		switch {
		case a.Receipt.N != b.Receipt.N:
			return int(min(max(b.Receipt.N-a.Receipt.N, -1), 1))
		case !a.Receipt.At.Equal(b.Receipt.At):
			return b.Receipt.At.Compare(a.Receipt.At)
		}
		return strings.Compare(b.Path, a.Path)
	})
	return list, nil
}

// entry looks at the file of this name and at its receipt. ok is false for a
// receipt of something else, which is nobody's business here.
func (f *Folder) entry(name string) (e Entry, ok bool) {
	path := filepath.Join(f.Dir, name)
	r, err := ReadReceipt(path)
	if err != nil {
		if !ownName.MatchString(name) {
			return Entry{}, false
		}
		e = Entry{Path: path, Problem: "its receipt cannot be used: " + err.Error()}
		e.Receipt.File, e.Receipt.N = path, numberIn(name)
		return e, true
	}
	e = Entry{Receipt: r, Path: path, Age: f.now().Sub(r.At)}
	st, err := os.Lstat(path)
	switch {
	case filepath.Base(r.File) != name:
		e.Problem = fmt.Sprintf("its receipt is that of another file, %.100q", filepath.Base(r.File))
	case r.key != f.Key:
		e.Problem = "not ours: it belongs to the relay " + r.Fingerprint
	case r.N != numberIn(name):
		e.Problem = fmt.Sprintf("its receipt gives it the number %d, which is not that of its name", r.N)
	case errors.Is(err, fs.ErrNotExist):
		e.Ours, e.Problem = true, "its file is missing"
	case err != nil:
		e.Ours, e.Problem = true, err.Error()
	case !st.Mode().IsRegular():
		e.Problem = "it is not a regular file"
	case st.Size() != r.Bytes:
		e.Ours, e.Problem = true, fmt.Sprintf("it has %d bytes, its receipt says %d", st.Size(), r.Bytes)
	case !r.Verified:
		e.Ours, e.Problem = true, "not verified"
	default:
		e.Ours, e.Verified = true, true
	}
	return e, true
}

func (f *Folder) log() *slog.Logger {
	if f.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return f.Log
}

func (f *Folder) now() time.Time {
	if f.Now == nil {
		return time.Now()
	}
	return f.Now()
}

// numberIn is the number in the name of one of a folder's own backups, 0 in any
// other name.
func numberIn(name string) (n int64) {
	if m := ownName.FindStringSubmatch(name); m != nil {
		n, _ = strconv.ParseInt(m[1], 10, 64) // digits, by the pattern
	}
	return n
}

// next is the number of the next backup: above that of each of ours. What others
// say of theirs is their business, and so is what a receipt says that nobody of
// us could have written.
func (f *Folder) next(list []Entry) (int64, error) {
	n, last := int64(0), ""
	for _, e := range list {
		if e.Ours && e.Receipt.N > n {
			n, last = e.Receipt.N, e.Path
		}
	}
	if n >= maxN {
		return 0, fmt.Errorf("%w: %s has the highest number there is, so that no backup can be newer: somebody gave it that; move it out of the folder with its receipt",
			ErrRefused, last)
	}
	return n + 1, nil
}
