package backup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"filippo.io/age"
)

// Whatever receipts others put into the folder, or somebody edited, the next
// backup gets the number after the newest of ours, counts, and is pruned in turn.
func TestNumberIsOurs(t *testing.T) {
	s := filled(t, t.TempDir())
	another := secret("another").Public()
	theirs := func(r *Receipt) { r.RelayKey, r.Fingerprint = another.String(), another.Fingerprint() }
	for name, plant := range map[string]func(f *Folder){
		"another relay's, under a free name": func(f *Folder) { f.plantAt(t, filepath.Join(f.Dir, "theirs.db"), 1<<50-1, theirs) },
		"another relay's, in our way":        func(f *Folder) { f.plantAt(t, filepath.Join(f.Dir, f.name(day0, maxN)), maxN, theirs) },
		"one that cannot be read":            func(f *Folder) { mustWrite(t, filepath.Join(f.Dir, f.name(day0, maxN)+".json"), []byte("{")) },
		"ours, under a free name":            func(f *Folder) { f.plantAt(t, filepath.Join(f.Dir, "ours.db"), maxN, nil) },
		"ours, edited":                       func(f *Folder) { f.plant(t, 7, func(r *Receipt) { r.N = maxN }) },
		"ours, edited beyond":                func(f *Folder) { f.plant(t, 7, func(r *Receipt) { r.N = maxN + 1 }) },
		"ours, renamed":                      func(f *Folder) { f.plantAt(t, filepath.Join(f.Dir, f.name(day0, maxN)), 7, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			f := planted(t, 1)
			plant(f)
			strange := names(t, f.Dir)
			for n := int64(1); n <= 3; n++ {
				if r := take(t, f, s); r.N != n || numberIn(filepath.Base(r.File)) != n {
					t.Fatalf("got number %d in %s; want %d", r.N, r.File, n)
				}
			}
			list, err := f.List(t.Context())
			if err != nil || len(verified(list)) != 3 {
				t.Fatalf("got %+v, %v; want three that count", list, err)
			}
			for _, e := range list {
				if e.Receipt.N > 3 && e.Problem == "" {
					t.Errorf("got %+v; want its problem told", e)
				}
			}
			if _, err := f.Prune(t.Context()); err != nil {
				t.Fatal(err)
			}
			last := f.name(day0, 3)
			if got := names(t, f.Dir); len(got) != len(strange)+2 || !strings.Contains(fmt.Sprint(got), last) {
				t.Errorf("got %v; want %v and number 3", got, strange)
			}
		})
	}
	f := planted(t, 1)
	f.plantAt(t, filepath.Join(f.Dir, f.name(day0, maxN)), maxN, nil)
	was := names(t, f.Dir)
	if _, err := f.Create(t.Context(), s, "", nil); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "move it out") {
		t.Errorf("no number left: got %v; want a refusal that says what to do", err)
	}
	if got := names(t, f.Dir); !reflect.DeepEqual(got, was) {
		t.Errorf("got %v; want %v", got, was)
	}
}

// A backup whose receipt would not be accepted when it is read is not taken.
func TestCreateReadsItsReceiptBack(t *testing.T) {
	s := filled(t, t.TempDir())
	f := folder(t, s)
	file := filepath.Join(t.TempDir(), "x.db")
	f.Version = strings.Repeat("x", maxReceipt)
	for _, to := range []string{"", file} {
		if _, err := f.Create(t.Context(), s, to, nil); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "too large") {
			t.Errorf("to %q: got %v; want a refusal", to, err)
		}
	}
	if _, err := f.Create(t.Context(), s, file+"\xff", nil); !errors.Is(err, ErrRefused) {
		t.Errorf("a name that JSON cannot hold: got %v; want a refusal", err)
	}
	if got := append(names(t, f.Dir), names(t, filepath.Dir(file))...); len(got) > 0 {
		t.Errorf("got %v; want nothing left", got)
	}
}

// What is in the way of a backup's last steps never leaves half of it, and never
// takes away what somebody else put there.
func TestCreateRemoveFails(t *testing.T) {
	s := filled(t, t.TempDir())
	f := folder(t, s)
	take(t, f, s)
	out := t.TempDir()
	want := names(t, f.Dir)
	for _, sealed := range []bool{false, true} {
		f.Recipients = nil
		calls := 2 // from the file's unfinished name and the receipt's
		if sealed {
			f.Recipients, calls = []age.Recipient{identity(t).Recipient()}, 3
		}
		for _, file := range []string{"", filepath.Join(out, "mine")} {
			for n := 1; n <= calls; n++ {
				left := n
				f.unlink = func(path string) error {
					if left--; left == 0 {
						return &fs.PathError{Op: "remove", Path: path, Err: syscall.EIO}
					}
					return os.Remove(path)
				}
				when := fmt.Sprintf("encrypted %v, to %q, call %d", sealed, file, n)
				if _, err := f.Create(t.Context(), s, file, nil); !errors.Is(err, syscall.EIO) {
					t.Errorf("%s: got %v; want what the device said", when, err)
				}
				if got := names(t, f.Dir); !reflect.DeepEqual(got, want) || names(t, out) != nil {
					t.Errorf("%s: got %v and %v; want %v and nothing", when, got, names(t, out), want)
				}
			}
			// A device that removes nothing at all: the next start sees to it.
			f.unlink = func(path string) error { return &fs.PathError{Op: "remove", Path: path, Err: syscall.EIO} }
			if _, err := f.Create(t.Context(), s, file, nil); !errors.Is(err, syscall.EIO) {
				t.Errorf("encrypted %v, to %q: got %v; want what the device said", sealed, file, err)
			}
			f.unlink = nil
			if err := f.SweepPartials(); err != nil {
				t.Fatal(err)
			}
			for _, dir := range []string{f.Dir, out} {
				for _, name := range names(t, dir) {
					_, err := os.Lstat(filepath.Join(dir, name+receiptSuffix))
					if !strings.HasSuffix(name, receiptSuffix) && err != nil || strings.HasPrefix(name, ".") || strings.HasSuffix(name, ".partial") {
						t.Errorf("encrypted %v, to %q: got %v; want whole backups alone", sealed, file, names(t, dir))
					}
				}
			}
			want = names(t, f.Dir)
			if file != "" {
				for _, name := range names(t, out) {
					if err := os.Remove(filepath.Join(out, name)); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
	}
	theirs := filepath.Join(out, "theirs")
	f.step = func(step string) {
		if step == "name file" {
			mustWrite(t, theirs, []byte("precious"))
		}
	}
	if _, err := f.Create(t.Context(), s, theirs, nil); !errors.Is(err, ErrExists) || string(mustRead(t, theirs)) != "precious" || len(names(t, out)) != 1 {
		t.Errorf("a file that came meanwhile: got %v, %v; want it left alone", err, names(t, out))
	}
}

// The note of a backup to a file is followed only to what can be ours.
func TestSweepNoted(t *testing.T) {
	f := planted(t, 1)
	out := t.TempDir()
	note := filepath.Join(f.Dir, f.noteName())
	half, theirs := filepath.Join(out, "x.db")+f.suffix(), filepath.Join(out, "x.db")+(&Folder{Key: secret("another").Public()}).suffix()
	for name, c := range map[string]struct {
		says string
		gone bool
	}{
		"ours":                  {half + "\n", true},
		"another relay's":       {theirs + "\n", false},
		"no unfinished file":    {filepath.Join(out, "precious") + "\n", false},
		"a torn one":            {half, false},
		"torn earlier":          {half[:len(half)-3], false},
		"empty":                 {"", false},
		"a relative path":       {filepath.Base(half) + "\n", false},
		"a path around corners": {out + "/../" + filepath.Base(out) + "/" + filepath.Base(half) + "\n", false},
		"two lines":             {half + "\n" + half + "\n", false},
		"a null byte":           {"/\x00" + half + "\n", false},
		"what is not there":     {filepath.Join(out, "none", "y.db") + f.suffix() + "\n", false},
		"a folder":              {filepath.Join(out, "folder") + f.suffix() + "\n", false},
		"a link":                {filepath.Join(out, "link") + f.suffix() + "\n", false},
	} {
		if err := os.RemoveAll(out); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.MkdirAll(filepath.Join(out, "folder"+f.suffix()), 0o700), os.Symlink(filepath.Join(out, "precious"), filepath.Join(out, "link"+f.suffix()))); err != nil {
			t.Fatal(err)
		}
		for _, p := range []string{half, theirs, filepath.Join(out, "precious")} {
			mustWrite(t, p, []byte("half"))
		}
		mustWrite(t, note, []byte(c.says))
		was := names(t, out)
		if err := f.SweepPartials(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		want := was
		if c.gone {
			want = nil
			for _, n := range was {
				if n != filepath.Base(half) {
					want = append(want, n)
				}
			}
		}
		if got := names(t, out); !reflect.DeepEqual(got, want) || names(t, f.Dir) != nil {
			t.Errorf("%s: got %v and %v; want %v and no note", name, got, names(t, f.Dir), want)
		}
	}
	// A link in the note's place, and what is too long for one, are not followed.
	real := filepath.Join(out, "note")
	mustWrite(t, real, []byte(half+"\n"))
	mustWrite(t, half, []byte("half"))
	if err := os.Symlink(real, note); err != nil {
		t.Fatal(err)
	}
	if err := f.SweepPartials(); err != nil || string(mustRead(t, half)) != "half" {
		t.Errorf("a link: got %v; want it left alone", err)
	}
}

// A folder that takes no note is in nobody's way: it may be why the operator wants
// the backup elsewhere.
func TestCreateWithoutANote(t *testing.T) {
	s := filled(t, t.TempDir())
	f := folder(t, s)
	mustWrite(t, f.Dir, []byte("no folder"))
	if r, err := f.Create(t.Context(), s, filepath.Join(t.TempDir(), "x.db"), nil); err != nil || !r.Verified {
		t.Errorf("got %+v, %v; want a backup", r, err)
	}
	f.Recipients = []age.Recipient{identity(t).Recipient()}
	if _, err := f.Create(t.Context(), s, filepath.Join(t.TempDir(), "x.db"), nil); !errors.Is(err, ErrRefused) {
		t.Errorf("encrypted: got %v; want a refusal: it has no private place", err)
	}
	if _, err := f.List(t.Context()); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "MBX_BACKUP_DIR") {
		t.Errorf("list: got %v; want a refusal that says what to do", err)
	}
}

// Names under which a backup would be taken for something else are refused, by
// whatever way the folder is named.
func TestCreateRefusesNames(t *testing.T) {
	s := filled(t, t.TempDir())
	f := folder(t, s)
	take(t, f, s)
	out := t.TempDir()
	alias := filepath.Join(out, "alias")
	if err := errors.Join(os.Symlink(s.Dir(), alias), os.Mkdir(filepath.Join(s.Dir(), rollbackFolder), 0o700)); err != nil {
		t.Fatal(err)
	}
	mustWrite(t, filepath.Join(out, "live.db-wal"), nil)
	for _, dir := range []string{s.Dir(), alias} {
		was := names(t, s.Dir())
		for _, name := range []string{"agentmbx.yaml", "relay.db", "relay.db-wal", "relay.key", "relay.key.next", "relay.lock", "RELAY.KEY", "admin.sock", "admin.addr", "admin.new",
			"reserve", "rollback", "restore.partial", "mine.db-wal", "mine.db-shm", "mine.db-journal", "rollback/mine.db", "backups/" + f.name(day0, 9), "backups/.making-x"} {
			_, err := f.Create(t.Context(), s, filepath.Join(dir, name), nil)
			if !errors.Is(err, ErrRefused) && !errors.Is(err, ErrExists) {
				t.Errorf("%s in %s: got %v; want a refusal", name, dir, err)
			}
		}
		if got := names(t, s.Dir()); !reflect.DeepEqual(got, was) {
			t.Errorf("got %v; want %v", got, was)
		}
	}
	other := *f
	other.Dir = filepath.Join(s.Dir(), "later")
	if _, err := other.Create(t.Context(), s, filepath.Join(alias, "later"), nil); !errors.Is(err, ErrRefused) {
		t.Errorf("the place of the backup folder: got %v; want a refusal", err)
	}
	if _, err := f.Create(t.Context(), s, filepath.Join(out, "live.db"), nil); !errors.Is(err, ErrExists) {
		t.Errorf("beside a log: got %v; want a refusal", err)
	}
	if _, err := f.Create(t.Context(), s, filepath.Join(s.Dir(), "mine.db"), nil); err != nil {
		t.Errorf("a name that is nobody's: got %v; want a backup", err)
	}
}

// Where nothing can be written the operator reads what to do.
func TestCreateNotWritable(t *testing.T) {
	s := filled(t, t.TempDir())
	f := folder(t, s)
	for _, errno := range []syscall.Errno{syscall.EROFS, syscall.EACCES, syscall.EPERM} {
		src := failing{s, func(path string) error { return &fs.PathError{Op: "open", Path: path, Err: errno} }}
		for file, says := range map[string]string{"": "set MBX_BACKUP_DIR to another folder", filepath.Join(t.TempDir(), "x.db"): "name a file elsewhere"} {
			if _, err := f.Create(t.Context(), src, file, nil); !errors.Is(err, errno) || !strings.Contains(err.Error(), says) {
				t.Errorf("%v, to %q: got %v; want %q", errno, file, err, says)
			}
		}
	}
}

// Older backups do not make room for the sake of a newest one that is none.
func TestRoomIsNotMadeOnTheWordOfAReceipt(t *testing.T) {
	s := filled(t, t.TempDir())
	f := folder(t, s)
	for range 2 {
		take(t, f, s)
	}
	last := take(t, f, s)
	mustWrite(t, last.File, make([]byte, last.Bytes))
	z, err := s.Size(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	need := z.Data + z.Log + mostLeft
	want := names(t, f.Dir)
	f.Free = func(string) (int64, error) { return need - 2*last.Bytes, nil } // two would do
	if _, err := f.Create(t.Context(), s, "", nil); !errors.Is(err, ErrNoRoom) || !reflect.DeepEqual(names(t, f.Dir), want) {
		t.Errorf("got %v, %v; want no room, and %v", err, names(t, f.Dir), want)
	}
	f.Free = func(string) (int64, error) { return need - last.Bytes, nil } // one will do
	r := take(t, f, s)
	list, err := f.List(t.Context())
	if err != nil || len(list) != 3 || r.N != 4 || list[2].Receipt.N != 2 {
		t.Errorf("got %+v, %v; want number 1 gone alone", list, err)
	}
}
