package backup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"filippo.io/age"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/store/sqlite"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// Want is what a backup is checked against.
type Want struct {
	// Key is the relay key it must belong to; zero: any.
	Key wire.PublicKey
	// Identities open an encrypted backup.
	Identities []age.Identity
	// Scratch is a folder with room for a decrypted copy, private to us; "" is
	// the system's.
	Scratch  string
	Progress func(stage string, done, total int64) // may be nil
	Now      func() time.Time                      // nil means time.Now
}

// Check is one thing that was looked at.
type Check struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	Text string `json:"text"` // what was found
}

// Names of the checks of a verification, in their order. A file that fails one
// after which nothing can be read has no later ones.
const (
	CheckFile      = "file"      // a regular file at rest, not empty, not cut off
	CheckReceipt   = "receipt"   // beside the file, readable
	CheckSHA256    = "sha256"    // of the file, against the receipt's
	CheckDecrypt   = "decrypt"   // of an age file
	CheckStore     = "store"     // a store of a relay, of a schema we know
	CheckChecksum  = "checksum"  // the one that the file carries
	CheckKey       = "relay key" // whose store it is
	CheckFacts     = "facts"     // epoch, schema, counts against the receipt
	CheckIntegrity = "integrity" // SQLite's, and every counter with a full count
	CheckItems     = "items"     // every item read and hashed
	CheckRecords   = "records"   // every signed record
	CheckTimes     = "times"     // every one of them is a time that a record can name
	CheckDate      = "date"      // told, never failed
)

// Report is what a verification found. It is good when every check is.
type Report struct {
	File      string           `json:"file"`
	Good      bool             `json:"good"`
	Encrypted bool             `json:"encrypted,omitempty"`
	Unopened  bool             `json:"unopened,omitempty"` // encrypted to others: nothing is known of what it holds
	Checks    []Check          `json:"checks"`
	Info      store.Info       `json:"-"`
	Totals    store.Totals     `json:"totals"`
	Rows      map[string]int64 `json:"rows,omitempty"`
	Bytes     int64            `json:"bytes"`
	SHA256    string           `json:"sha256"` // of the file as it lies there
	Contents  string           `json:"contents_sha256,omitempty"`
	Read      sqlite.Contents  `json:"-"`                 // what was read, part by part
	Receipt   *Receipt         `json:"receipt,omitempty"` // the one beside it
}

// TakenAt is when the backup was taken, as its receipt says, or else the last sign
// of life in it: a store that no relay served for days has an old one.
func (r Report) TakenAt() time.Time {
	if r.Receipt != nil && r.Receipt.At.After(r.Info.Heartbeat) {
		return r.Receipt.At
	}
	return r.Info.Heartbeat
}

// Fault is the first check that failed, in words; "" for a good file.
func (r Report) Fault() string {
	for _, c := range r.Checks {
		if !c.OK {
			return c.Name + ": " + c.Text
		}
	}
	return ""
}

// Err is nil for a good file, and otherwise says what is wrong with it: ErrBad.
func (r Report) Err() error {
	if r.Good {
		return nil
	}
	if r.OnlyUnopened() {
		return &unopenedError{r.File}
	}
	return fmt.Errorf("%s: %w: %s", r.File, ErrBad, r.Fault())
}

// Verdict is the verification in one line.
func (r Report) Verdict() string {
	switch {
	case r.Good:
		return "a good backup"
	case r.OnlyUnopened():
		return "cannot be opened with these identities, so nothing is known of what it holds"
	case r.Fault() != "":
		return "NOT a good backup"
	}
	return "not verified: it is encrypted"
}

// OnlyUnopened reports whether nothing speaks against the file but that these
// identities do not open it.
func (r Report) OnlyUnopened() bool {
	failed := slices.DeleteFunc(slices.Clone(r.Checks), func(c Check) bool { return c.OK })
	return r.Unopened && len(failed) == 1
}

// unopenedError is ErrBad for who wanted to restore the file, and does not call it
// bad: it may be perfect.
type unopenedError struct{ file string }

func (e *unopenedError) Unwrap() error { return ErrBad }
func (e *unopenedError) Error() string {
	return e.file + " cannot be opened with these identities: none of the identities given is one it was encrypted to; it may be good: give another"
}

// Verify reads a backup in full: that it is a finished store file of a relay,
// whole, of a schema we know, of the right key, agreeing with itself and with its
// receipt where it has one, with real rows that can be read and decoded.
// A bad file is no error but a report that is not good; ErrEncrypted when it is
// encrypted and no identity is given, with a report of what could be looked at.
// The file is read once as bytes, then through SQLite, read-only and without a
// trace; what it takes of memory does not grow with it.
func Verify(ctx context.Context, path string, w Want) (Report, error) {
	if w.Progress == nil {
		w.Progress = func(string, int64, int64) {}
	}
	if w.Now == nil {
		w.Now = time.Now
	}
	v := &verification{Want: w, path: path, r: Report{File: path}}
	err := v.run(ctx)
	if errors.Is(err, errFailed) {
		err = nil
	}
	v.r.Good = err == nil && !slices.ContainsFunc(v.r.Checks, func(c Check) bool { return !c.OK })
	return v.r, err
}

type verification struct {
	Want
	path string // the file as it was named
	r    Report
	age  bool
	seal sqlite.Seal // of the plain bytes
}

// errFailed ends a verification after a check without which the others make no sense.
var errFailed = errors.New("a check failed")

func (v *verification) ok(name, format string, args ...any) {
	v.r.Checks = append(v.r.Checks, Check{name, true, fmt.Sprintf(format, args...)})
}

func (v *verification) fail(name, format string, args ...any) error {
	v.r.Checks = append(v.r.Checks, Check{name, false, fmt.Sprintf(format, args...)})
	return errFailed
}

func (v *verification) run(ctx context.Context) error {
	if err := v.file(); err != nil {
		return err
	}
	if err := v.receipt(); err != nil {
		return err
	}
	if err := v.bytes(ctx); err != nil {
		return err
	}
	if !v.age {
		f, err := sqlite.OpenFile(v.path)
		return v.opened(ctx, f, err, v.path)
	}
	plain, err := v.decrypt(ctx)
	if err != nil {
		return err
	}
	f, err := sqlite.OpenFile(plain.Name())
	// What is open can be read without its name: a crash from here on leaves nothing.
	if e := os.Remove(plain.Name()); e != nil && err == nil {
		err = errors.Join(e, f.Close())
	}
	return errors.Join(v.opened(ctx, f, err, plain.Name()), plain.Close())
}

// file looks at what stands at the path before anything of it is read: to open
// and close a live store's database would take the locks from whoever has it.
func (v *verification) file() error {
	st, err := os.Lstat(v.path)
	switch {
	case err != nil:
		return fmt.Errorf("verify: %w", err)
	case st.IsDir():
		return v.fail(CheckFile, "it is a folder")
	case st.Mode()&fs.ModeSymlink != 0:
		return v.fail(CheckFile, "it is a symbolic link: name the file it leads to")
	case !st.Mode().IsRegular():
		return v.fail(CheckFile, "it is not a regular file")
	}
	for _, log := range []string{"-wal", "-shm", "-journal"} {
		if beside, err := os.Lstat(v.path + log); err == nil && (log == "-shm" || beside.Size() > 0) {
			return v.fail(CheckFile, "it is not at rest but a live store's database, or was one: %s stands beside it; take a backup with agentmbx relay backup", v.path+log)
		}
	}
	if st.Size() == 0 {
		return v.fail(CheckFile, "it is empty")
	}
	v.ok(CheckFile, "%d bytes", st.Size())
	return nil
}

func (v *verification) receipt() error {
	r, err := ReadReceipt(v.path)
	switch {
	case err == nil:
		v.r.Receipt = &r
		v.ok(CheckReceipt, "of %s, number %d", wire.FormatTime(r.At), r.N)
	case errors.Is(err, fs.ErrNotExist):
		v.ok(CheckReceipt, "none stands beside the file")
	default:
		_ = v.fail(CheckReceipt, "%v", err)
	}
	return nil
}

// bytes reads the file as it lies there.
func (v *verification) bytes(ctx context.Context) error {
	f, st, err := openRegular(v.path)
	if err != nil {
		return err
	}
	defer f.Close()
	intro := make([]byte, len(ageIntro))
	if n, err := f.ReadAt(intro, 0); err != nil && err != io.EOF {
		return v.fail(CheckFile, "it cannot be read: %v", err)
	} else {
		v.age = bytes.HasPrefix(intro[:n], []byte(ageIntro))
	}
	sum := newDigest()
	if _, err := stream(ctx, io.MultiWriter(sum, &v.seal), f, func(n int64) { v.Progress("read", n, st.Size()) }); err != nil {
		if ctx.Err() != nil {
			return err
		}
		return v.fail(CheckFile, "it cannot be read: %v", err)
	}
	v.r.Bytes, v.r.SHA256, v.r.Encrypted = sum.n, sum.hex(), v.age
	r := v.r.Receipt
	switch {
	case sum.n != st.Size():
		return v.fail(CheckFile, "it changed while it was read: %d bytes, then %d", st.Size(), sum.n)
	case r == nil:
		v.ok(CheckSHA256, "%s", v.r.SHA256)
	case r.Bytes != sum.n:
		_ = v.fail(CheckSHA256, "%d bytes; the receipt says %d: %s", sum.n, r.Bytes, cutOrGrown(sum.n, r.Bytes))
	case r.SHA256 != v.r.SHA256:
		_ = v.fail(CheckSHA256, "%s; the receipt says %s: bytes of the file have changed", v.r.SHA256, r.SHA256)
	default:
		v.ok(CheckSHA256, "%s, as the receipt says", v.r.SHA256)
	}
	if r != nil && r.Encrypted != v.age {
		_ = v.fail(CheckReceipt, "it says encrypted %v, the file is %v", r.Encrypted, v.age)
	}
	return nil
}

func cutOrGrown(have, said int64) string {
	if have < said {
		return "the file is cut off"
	}
	return "something was added to the file"
}

// decrypt opens an age file into the scratch folder.
func (v *verification) decrypt(ctx context.Context) (plain *os.File, err error) {
	if len(v.Identities) == 0 {
		return nil, fmt.Errorf("%s: %w", v.path, ErrEncrypted)
	}
	v.seal = sqlite.Seal{}
	sum := newDigest()
	plain, err = decrypt(ctx, v.path, v.Scratch, decryptedPrefix(v.Key), v.Identities, io.MultiWriter(sum, &v.seal), func(done, total int64) {
		v.Progress("decrypt", done, total)
	})
	var bad *decryptError
	switch {
	case errors.As(err, &bad):
		v.r.Unopened = bad.others()
		return nil, v.fail(CheckDecrypt, "%v", bad)
	case err != nil:
		return nil, err
	}
	if r := v.r.Receipt; r != nil && r.Encrypted && r.PlainSHA256 != sum.hex() {
		_ = v.fail(CheckDecrypt, "it holds %s; the receipt says %s", sum.hex(), r.PlainSHA256)
	} else {
		v.ok(CheckDecrypt, "%d bytes", sum.n)
	}
	return plain, nil
}

// opened looks into the store file, or says why it was not opened as one.
func (v *verification) opened(ctx context.Context, f *sqlite.File, err error, plain string) error {
	if err != nil {
		return v.refused(err, plain)
	}
	return errors.Join(v.store(ctx, f), f.Close())
}

// refused says why a file was not opened as a store.
func (v *verification) refused(err error, plain string) error {
	text := strings.ReplaceAll(firstLine(err), plain+": ", "")
	text = strings.Replace(text, "is damaged; restore a backup", "it is damaged", 1)
	if v.age {
		text = "what it decrypts to: " + strings.ReplaceAll(text, plain, "it")
	}
	return v.fail(CheckStore, "%s", text)
}
