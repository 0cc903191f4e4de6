package backup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// A backup is one file of its own with a receipt that tells the truth.
func TestCreate(t *testing.T) {
	s := filled(t, t.TempDir())
	f := folder(t, s)
	stages := map[string]bool{}
	r, err := f.Create(t.Context(), s, "", func(stage string, done, total int64) { stages[stage] = true })
	if err != nil {
		t.Fatal(err)
	}
	const name = "relay-20261130T031700Z-000001.db"
	if got := names(t, f.Dir); !reflect.DeepEqual(got, []string{name, name + ".json"}) {
		t.Errorf("got %v in the folder; want the backup and its receipt", got)
	}
	for path, mode := range map[string]fs.FileMode{f.Dir: 0o700 | fs.ModeDir, r.File: 0o600, r.File + ".json": 0o600} {
		if st, err := os.Stat(path); err != nil || st.Mode() != mode {
			t.Errorf("%s: got %v, %v; want %v", path, st.Mode(), err, mode)
		}
	}
	b := mustRead(t, r.File)
	if r.Bytes != int64(len(b)) || r.SHA256 != wire.HashHex(b) {
		t.Errorf("got %d bytes, %s; want %d, %s", r.Bytes, r.SHA256, len(b), wire.HashHex(b))
	}
	if r.N != 1 || r.Items != 20 || r.Enrolments != 2 || r.Fingerprint != relayKey.Fingerprint() || !r.Verified || r.Epoch == "" || r.Encrypted {
		t.Errorf("got %+v; want number 1, 20 items, 2 hosts, verified", r)
	}
	if want := "agentmbx relay restore " + r.File + " --store-dir " + s.Dir(); r.Restore != want {
		t.Errorf("got command %q; want %q", r.Restore, want)
	}
	if on, err := ReadReceipt(r.File); err != nil || on.key != relayKey || on.SHA256 != r.SHA256 || !on.At.Equal(day0) {
		t.Errorf("receipt: got %+v, %v; want what was answered", on, err)
	}
	for _, stage := range []string{"copy", "verify: read", "verify: items"} {
		if !stages[stage] {
			t.Errorf("got stages %v; want %s among them", stages, stage)
		}
	}
	if next := take(t, f, s); next.N != 2 || next.Contents != r.Contents {
		t.Errorf("got number %d, contents %s; want 2 and the same contents", next.N, next.Contents)
	}
}

// A backup to a file of the operator's choosing has no number, and takes nobody's place.
func TestCreateToAFile(t *testing.T) {
	s := filled(t, t.TempDir())
	f := folder(t, s)
	dir := t.TempDir()
	file := filepath.Join(dir, "it's mine.db")
	r, err := f.Create(t.Context(), s, file, nil)
	if err != nil || r.N != 0 || r.File != file || !strings.Contains(r.Restore, `it'\''s mine.db' --store-dir`) {
		t.Errorf("got %+v, %v; want number 0 at %s and a quoted command", r, err, file)
	}
	if got := names(t, dir); len(got) != 2 {
		t.Errorf("got %v; want the file and its receipt", got)
	}
	before := mustRead(t, file)
	mustWrite(t, filepath.Join(dir, "receipt only.db.json"), []byte("{}"))
	mustWrite(t, filepath.Join(dir, "a file"), nil)
	if err := os.Symlink(filepath.Join(dir, "nowhere"), filepath.Join(dir, "link.db")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, file string
		want       error
	}{
		{"a file that exists", file, ErrExists},
		{"a receipt that exists", filepath.Join(dir, "receipt only.db"), ErrExists},
		{"a dangling link", filepath.Join(dir, "link.db"), ErrExists},
		{"a folder", dir, ErrExists},
		{"no folder", filepath.Join(dir, "none", "x.db"), fs.ErrNotExist},
		{"a file as its folder", filepath.Join(dir, "a file", "x.db"), ErrRefused},
		{"a relative path", "x.db", ErrRefused},
		{"a receipt's name", filepath.Join(dir, "x.json"), ErrRefused},
		{"an unfinished file's name", filepath.Join(dir, "x.partial"), ErrRefused},
		{"the store's database", filepath.Join(s.Dir(), "relay.db"), ErrRefused},
		{"the store's log", filepath.Join(s.Dir(), "relay.db-journal"), ErrRefused},
	} {
		was := names(t, dir)
		if _, err := f.Create(t.Context(), s, c.file, nil); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v; want %v", c.name, err, c.want)
		}
		if got := names(t, dir); !reflect.DeepEqual(got, was) {
			t.Errorf("%s: got %v; want %v, as before", c.name, got, was)
		}
	}
	if string(mustRead(t, file)) != string(before) {
		t.Error("the backup changed")
	}
}

// The folder is private, and is no link that could lead anywhere.
func TestCreateFolder(t *testing.T) {
	s := filled(t, t.TempDir())
	at := func(dir string) *Folder { f := folder(t, s); f.Dir = dir; return f }
	base := t.TempDir()
	mustWrite(t, filepath.Join(base, "file"), nil)
	for _, dir := range []string{"real", "open", "ours", "readable"} {
		if err := os.Mkdir(filepath.Join(base, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(base, "real"), filepath.Join(base, "link")); err != nil {
		t.Fatal(err)
	}
	mustWrite(t, filepath.Join(base, "open", "holiday.jpg"), nil)
	mustWrite(t, filepath.Join(base, "readable", "holiday.jpg"), nil)
	for dir, mode := range map[string]fs.FileMode{"open": 0o777, "ours": 0o777, "readable": 0o755} {
		if err := os.Chmod(filepath.Join(base, dir), mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name, dir, says string
	}{
		{"a file", "file", "is not a folder"},
		{"a link", "link", "is a symbolic link"},
		{"others may write and it holds their files", "open", "others may write"},
	} {
		if _, err := at(filepath.Join(base, c.dir)).Create(t.Context(), s, "", nil); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %v; want a refusal with %q", c.name, err, c.says)
		}
	}
	if got := names(t, filepath.Join(base, "real")); got != nil {
		t.Errorf("got %v behind the link; want nothing", got)
	}
	for dir, mode := range map[string]fs.FileMode{"ours": 0o700, "readable": 0o755, "new/deep": 0o700} {
		path := filepath.Join(base, dir)
		if _, err := at(path).Create(t.Context(), s, "", nil); err != nil {
			t.Errorf("%s: %v", dir, err)
		}
		if st, err := os.Stat(path); err != nil || st.Mode().Perm() != mode {
			t.Errorf("%s: got %v, %v; want mode %v", dir, st.Mode(), err, mode)
		}
	}
}

// failing is a store whose copy goes wrong.
type failing struct {
	Source
	copy func(path string) error
}

func (f failing) Copy(_ context.Context, path string, _ func(done, total int64)) error {
	return f.copy(path)
}

// Whatever fails, only what is whole stays, and what stood there stays as it was.
func TestCreateFails(t *testing.T) {
	s := filled(t, t.TempDir())
	f := folder(t, s)
	first := take(t, f, s)
	want := names(t, f.Dir)
	ctx, stop := context.WithCancel(t.Context())
	copied := func(change func(path string)) func(string) error {
		return func(path string) error {
			if err := s.Copy(t.Context(), path, nil); err != nil {
				return err
			}
			change(path)
			return nil
		}
	}
	for _, c := range []struct {
		name string
		copy func(path string) error
		want error
		says string
	}{
		{"the disk is full", func(string) error { return syscall.ENOSPC }, ErrNoRoom, "it filled up"},
		{"the disk is full, as the store says it", func(string) error { return store.ErrFull }, ErrNoRoom, "it filled up"},
		{"a read-only disk", func(string) error { return syscall.EROFS }, syscall.EROFS, ""},
		{"the copy is damaged", copied(func(path string) { flip(t, path, 20_000, 20) }), ErrBad, "does not verify"},
		{"the copy is of another store", func(path string) error {
			return otherStore(t, secret("another").Public()).Copy(t.Context(), path, nil)
		}, ErrBad, "another relay's store"},
		{"it is stopped", copied(func(string) { stop() }), context.Canceled, ""},
	} {
		_, err := f.Create(ctx, failing{s, c.copy}, "", nil)
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %v; want %v with %q", c.name, err, c.want, c.says)
		}
		if got := names(t, f.Dir); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %v; want %v", c.name, got, want)
		}
	}
	// Each step after the copy: a folder stands where the next file would.
	for _, obstacle := range []string{".json", ".json" + f.suffix(), ""} {
		path := filepath.Join(f.Dir, f.name(day0, 2))
		f.step = func(step string) {
			if step == "verify" {
				if err := os.Mkdir(path+obstacle, 0o700); err != nil {
					t.Fatal(err)
				}
			}
		}
		if _, err := f.Create(t.Context(), s, "", nil); !errors.Is(err, fs.ErrExist) && !errors.Is(err, ErrExists) {
			t.Errorf("a folder at %q: got %v; want an error that it exists", obstacle, err)
		}
		if err := os.Remove(path + obstacle); err != nil {
			t.Error(err)
		}
		if got := names(t, f.Dir); !reflect.DeepEqual(got, want) {
			t.Errorf("a folder at %q: got %v; want %v", obstacle, got, want)
		}
	}
	f.step = nil
	if r := take(t, f, s); r.N != 2 || r.N <= first.N {
		t.Errorf("got number %d; want 2", r.N)
	}
}

// The number decides which backup is newer, whatever the clock says.
func TestCreateWithTheClockBack(t *testing.T) {
	s := filled(t, t.TempDir())
	f := folder(t, s)
	f.Keep = 1
	take(t, f, s)
	f.Now = func() time.Time { return day0.Add(-2 * time.Hour) }
	back := take(t, f, s)
	f.Now = func() time.Time { return day0.AddDate(0, 0, 40) }
	ahead := take(t, f, s)
	f.Now = func() time.Time { return day0 }
	last := take(t, f, s)
	if back.N != 2 || ahead.N != 3 || last.N != 4 {
		t.Errorf("got numbers %d, %d, %d; want 2, 3, 4", back.N, ahead.N, last.N)
	}
	if _, err := f.Prune(t.Context()); err != nil {
		t.Fatal(err)
	}
	list, err := f.List(t.Context())
	if err != nil || len(list) != 1 || list[0].Receipt.N != 4 || !list[0].Verified {
		t.Errorf("got %+v, %v; want number 4 alone", list, err)
	}
}

// Room is looked at before anything is written; older backups go when that helps,
// and never the newest.
func TestCreateNoRoom(t *testing.T) {
	s := filled(t, t.TempDir())
	f := folder(t, s)
	for range 3 {
		take(t, f, s)
	}
	want := names(t, f.Dir)
	z, err := s.Size(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	need := z.Data + z.Log + mostLeft
	free := int64(0)
	f.Free = func(string) (int64, error) { return free, nil }

	if _, err := f.Create(t.Context(), s, "", nil); !errors.Is(err, ErrNoRoom) || !strings.Contains(err.Error(), mebibytes(need)) || !strings.Contains(err.Error(), "0 MiB are free") {
		t.Errorf("nothing free: got %v; want what is needed and what is free", err)
	}
	if _, err := f.Create(t.Context(), s, filepath.Join(t.TempDir(), "x.db"), nil); !errors.Is(err, ErrNoRoom) {
		t.Errorf("to a file: got %v; want ErrNoRoom", err)
	}
	if got := names(t, f.Dir); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v; want %v: what cannot help is not removed", got, want)
	}
	list, err := f.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	free = need - list[2].Receipt.Bytes - 1 // one is a byte too little, two are enough
	r, err := f.Create(t.Context(), s, "", nil)
	if err != nil || r.N != 4 {
		t.Fatalf("got %+v, %v; want number 4", r, err)
	}
	if list, err := f.List(t.Context()); err != nil || len(list) != 2 || list[1].Receipt.N != 3 {
		t.Errorf("got %+v, %v; want the new one and number 3", list, err)
	}
	f.Free = func(string) (int64, error) { return 0, errors.New("no such device") }
	if _, err := f.Create(t.Context(), s, "", nil); err == nil || !strings.Contains(err.Error(), "no such device") {
		t.Errorf("got %v; want why the room is not known", err)
	}
}

// limitedChild is createChild in a process that may write no file longer than so
// many bytes: dir, limit, recipient. A disk that is full fails the same calls.
func limitedChild(args []string) error {
	limit, _ := strconv.ParseUint(args[1], 10, 63)
	signal.Ignore(syscall.SIGXFSZ) // the write's error tells
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: limit, Max: limit}); err != nil {
		return err
	}
	if err := createChild([]string{args[0], "", "", "0", args[2]}); err == nil {
		return errors.New("the backup was taken")
	}
	return nil // as it should be
}

// Whichever write finds no room, of a plain backup or an encrypted one, nothing
// of the backup stays and those before it do.
func TestCreateWritesFail(t *testing.T) {
	dir := t.TempDir()
	s := filled(t, dir)
	f := folder(t, s)
	r := take(t, f, s)
	want := names(t, f.Dir)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	id := identity(t)
	for _, recipient := range []string{"", id.Recipient().String()} {
		for _, limit := range []int64{8192, r.Bytes / 2, r.Bytes - 1, r.Bytes} {
			if limit == r.Bytes && recipient == "" {
				continue // it fits
			}
			runChild(t, "limited", dir, fmt.Sprint(limit), recipient)
			if got := names(t, f.Dir); !reflect.DeepEqual(got, want) {
				t.Errorf("no file over %d bytes, encrypted %v: got %v; want %v", limit, recipient != "", got, want)
			}
		}
	}
	if report, err := Verify(t.Context(), r.File, Want{Key: relayKey}); err != nil || !report.Good {
		t.Errorf("got %+v, %v; want the backup before it good", report, err)
	}
}
