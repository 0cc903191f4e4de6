package backup

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// planted is a folder with made-up backups: retention looks at receipts and sizes.
func planted(t testing.TB, keep int) *Folder {
	t.Helper()
	return &Folder{Dir: t.TempDir(), StoreDir: t.TempDir(), Key: relayKey, Keep: keep, Version: "test",
		Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return day0 }}
}

// plant puts a backup with number n into the folder, as change makes it.
func (f *Folder) plant(t testing.TB, n int64, change func(r *Receipt)) string {
	t.Helper()
	return f.plantAt(t, filepath.Join(f.Dir, f.name(day0.Add(time.Duration(n)*time.Hour), n)), n, change)
}

func (f *Folder) plantAt(t testing.TB, path string, n int64, change func(r *Receipt)) string {
	t.Helper()
	r := Receipt{V: 1, Type: receiptType, At: day0, File: path, N: n, Bytes: 4, SHA256: wire.HashHex([]byte("mail")), Schema: 2, Verified: true,
		RelayKey: relayKey.String(), Fingerprint: relayKey.Fingerprint()}
	if change != nil {
		change(&r)
	}
	b, err := r.encode()
	if err != nil {
		t.Fatal(err)
	}
	mustWrite(t, path, []byte("mail"))
	mustWrite(t, path+".json", b)
	return path
}

func decided(list []Decision) (out []string) {
	for _, d := range list {
		verb := "keep"
		if d.Remove {
			verb = "remove"
		}
		out = append(out, fmt.Sprintf("%d %s: %s", d.N, verb, d.Why))
	}
	return out
}

// Retention's table: who stays, and why.
func TestPlan(t *testing.T) {
	another := secret("another").Public()
	for _, c := range []struct {
		name  string
		keep  int
		plant func(t *testing.T, f *Folder)
		want  []string
		err   error
	}{
		{"nothing", 7, func(*testing.T, *Folder) {}, nil, nil},
		{"one", 1, func(t *testing.T, f *Folder) { f.plant(t, 1, nil) }, []string{"1 keep: newest verified"}, nil},
		{"nine of which seven are kept", 7, func(t *testing.T, f *Folder) {
			for n := range int64(9) {
				f.plant(t, n+1, nil)
			}
		}, []string{"9 keep: newest verified", "8 keep: one of the last 7", "7 keep: one of the last 7", "6 keep: one of the last 7", "5 keep: one of the last 7",
			"4 keep: one of the last 7", "3 keep: one of the last 7", "2 remove: older than the last 7 verified", "1 remove: older than the last 7 verified"}, nil},
		{"the number decides, not the clock", 1, func(t *testing.T, f *Folder) {
			f.plant(t, 1, func(r *Receipt) { r.At = day0.AddDate(10, 0, 0) })
			f.plant(t, 2, func(r *Receipt) { r.At = day0.AddDate(-10, 0, 0) })
		}, []string{"2 keep: newest verified", "1 remove: older than the last 1 verified"}, nil},
		{"what does not count takes no place", 2, func(t *testing.T, f *Folder) {
			f.plant(t, 1, nil)
			f.plant(t, 2, nil)
			f.plant(t, 3, nil)
			f.plant(t, 4, func(r *Receipt) { r.Verified = false })
			f.plant(t, 5, func(r *Receipt) { r.Bytes = 5 })
			if err := os.Remove(f.plant(t, 6, nil)); err != nil {
				t.Fatal(err)
			}
			f.plant(t, 7, func(r *Receipt) { r.RelayKey, r.Fingerprint = another.String(), another.Fingerprint() })
			mustWrite(t, f.plant(t, 8, nil)+".json", []byte("{"))
			f.plant(t, 9, func(r *Receipt) { r.File = "/elsewhere/" + f.name(day0, 1) })
		}, []string{
			fmt.Sprintf("9 keep: its receipt is that of another file, %q: never pruned", "relay-20261130T031700Z-000001.db"),
			"8 keep: its receipt cannot be used: PATH/relay-20261130T111700Z-000008.db.json: not a backup's receipt: it is not readable: never pruned",
			"7 keep: not ours: it belongs to the relay " + another.Fingerprint() + ": never pruned",
			"6 keep: its file is missing: kept, look at it",
			"5 keep: it has 4 bytes, its receipt says 5: kept, look at it",
			"4 keep: not verified: kept, look at it",
			"3 keep: newest verified", "2 keep: one of the last 2", "1 remove: older than the last 2 verified"}, nil},
		{"files of the operator's choosing", 1, func(t *testing.T, f *Folder) {
			f.plant(t, 1, nil)
			f.plant(t, 2, nil)
			f.plantAt(t, filepath.Join(f.Dir, "mine.db"), 0, nil)
		}, []string{"2 keep: newest verified", "1 remove: older than the last 1 verified", "0 keep: made to a file of your choosing: never pruned"}, nil},
		{"numbers that are not those of their names", 1, func(t *testing.T, f *Folder) {
			f.plant(t, 1, nil)
			f.plant(t, 2, nil)
			f.plant(t, 3, func(r *Receipt) { r.N = 0 })
			f.plant(t, 4, func(r *Receipt) { r.N = maxN })
			f.plantAt(t, filepath.Join(f.Dir, "mine.db"), 5, nil)
		}, []string{
			"999999999999999 keep: its receipt gives it the number 999999999999999, which is not that of its name: never pruned",
			"5 keep: its receipt gives it the number 5, which is not that of its name: never pruned",
			"2 keep: newest verified", "1 remove: older than the last 1 verified",
			"0 keep: its receipt gives it the number 0, which is not that of its name: never pruned"}, nil},
		{"the newest was overwritten", 2, func(t *testing.T, f *Folder) {
			for n := range int64(3) {
				f.plant(t, n+1, nil)
			}
			mustWrite(t, f.plant(t, 4, nil), make([]byte, 4))
			mustWrite(t, f.plant(t, 5, nil), []byte("MAIL"))
		}, []string{
			"5 keep: its bytes are not those that were verified: its SHA-256 is not the receipt's: kept, look at it",
			"4 keep: its bytes are not those that were verified: its SHA-256 is not the receipt's: kept, look at it",
			"3 keep: newest verified", "2 keep: one of the last 2", "1 remove: older than the last 2 verified"}, nil},
		{"all were overwritten", 1, func(t *testing.T, f *Folder) {
			mustWrite(t, f.plant(t, 1, nil), make([]byte, 4))
			mustWrite(t, f.plant(t, 2, nil), make([]byte, 4))
		}, []string{
			"2 keep: its bytes are not those that were verified: its SHA-256 is not the receipt's: kept, look at it",
			"1 keep: its bytes are not those that were verified: its SHA-256 is not the receipt's: kept, look at it"}, ErrRefused},
		{"no verified one would be left", 1, func(t *testing.T, f *Folder) {
			f.plant(t, 1, func(r *Receipt) { r.Verified = false })
		}, []string{"1 keep: not verified: kept, look at it"}, ErrRefused},
		{"to keep none", 0, func(t *testing.T, f *Folder) { f.plant(t, 1, nil) }, nil, ErrRefused},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := planted(t, c.keep)
			c.plant(t, f)
			was := names(t, f.Dir)
			plan, err := f.Plan(t.Context())
			got := decided(plan)
			for i := range got {
				got[i] = strings.ReplaceAll(got[i], f.Dir, "PATH")
			}
			if !errors.Is(err, c.err) || !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %v,\n%s; want %v,\n%s", err, strings.Join(got, "\n"), c.err, strings.Join(c.want, "\n"))
			}
			if now := names(t, f.Dir); !reflect.DeepEqual(now, was) {
				t.Errorf("got %v; want %v: a plan changes nothing", now, was)
			}
			gone := map[string]bool{}
			for _, d := range plan {
				if d.Remove && err == nil {
					gone[filepath.Base(d.Path)], gone[filepath.Base(d.Path)+".json"] = true, true
				}
			}
			var want []string
			for _, n := range was {
				if !gone[n] {
					want = append(want, n)
				}
			}
			if _, err := f.Prune(t.Context()); !errors.Is(err, c.err) {
				t.Errorf("prune: got %v; want %v", err, c.err)
			}
			if now := names(t, f.Dir); !reflect.DeepEqual(now, want) {
				t.Errorf("after the prune: got %v; want %v", now, want)
			}
		})
	}
}

// What others put into the folder is never touched, listed or followed, whatever
// it is called.
func TestFolderOfOthers(t *testing.T) {
	f := planted(t, 1)
	outside := t.TempDir()
	mustWrite(t, filepath.Join(outside, "precious"), []byte("mail"))
	path := func(name string) string { return filepath.Join(f.Dir, name) }
	f.plant(t, 1, nil)
	f.plant(t, 2, nil)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	receipt := mustRead(t, filepath.Join(f.Dir, f.name(day0.Add(time.Hour), 1)+".json"))
	for name, b := range map[string]string{
		"holiday.jpg": "x", "holiday.json": `{"at":"the sea"}`, "relay-notes.txt": "x", "relay-20261130T031700Z-000009.db": "no receipt",
		"somebody.partial": "x", "relay-20261130T031700Z-000009.db.partial": "x", ".hidden": "x",
		"relay-20261130T031700Z-000009.db.00000000.partial": "another relay's", "copied.db.json": string(receipt), "copied.db": "mail",
		"..json": string(receipt), ".json": "{}", ".decrypted-mine.partial": "x", ".decrypted-123.partial": "x",
		decryptedPrefix(secret("another").Public()) + "123.partial": "another relay's", decryptedPrefix(f.Key) + "mine.partial": "x",
		(&Folder{Key: secret("another").Public()}).noteName(): path("x.partial") + "\n",
	} {
		mustWrite(t, path(name), []byte(b))
	}
	must(os.Mkdir(path("lost+found"), 0o700))
	must(os.Mkdir(path("relay-20261130T041700Z-000003.db"), 0o700))
	must(os.Mkdir(path("relay-20261130T041700Z-000004.db.json"), 0o700))
	must(os.Mkdir(path("x"+f.suffix()), 0o700))
	must(os.Symlink(filepath.Join(outside, "precious"), path("relay-20261130T041700Z-000005.db")))
	must(os.Symlink(path("relay-20261130T041700Z-000001.db.json"), path("relay-20261130T041700Z-000006.db.json")))
	must(os.Symlink(filepath.Join(outside, "precious"), path("linked"+f.suffix())))
	must(os.Symlink(outside, path(DrillPrefix(f.Key)+"link")))
	must(os.Symlink(filepath.Join(outside, "precious"), path(decryptedPrefix(f.Key)+"1.partial")))
	must(os.Symlink(filepath.Join(outside, "precious"), path(f.noteName())))
	for _, n := range []string{"3", "5"} { // receipts of ours for what is no file of ours
		name := "relay-20261130T041700Z-00000" + n + ".db"
		b := strings.ReplaceAll(string(receipt), f.name(day0.Add(time.Hour), 1), name)
		mustWrite(t, path(name+".json"), []byte(strings.Replace(b, `"n": 1`, `"n": `+n, 1)))
	}
	was := names(t, f.Dir)

	list, err := f.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, e := range list {
		if e.Verified {
			count++
		}
		if strings.Contains(e.Path, "holiday") || strings.Contains(e.Path, "000006") {
			t.Errorf("got %+v in the list; want it left out", e)
		}
	}
	if count != 2 {
		t.Errorf("got %d backups that count, %+v; want the 2 of ours", count, list)
	}
	must(f.SweepPartials())
	if now := names(t, f.Dir); !reflect.DeepEqual(now, was) {
		t.Errorf("after a sweep: got %v; want %v", now, was)
	}
	if _, err := f.Prune(t.Context()); err != nil {
		t.Fatal(err)
	}
	gone := f.name(day0.Add(time.Hour), 1)
	var want []string
	for _, n := range was {
		if n != gone && n != gone+".json" {
			want = append(want, n)
		}
	}
	if now := names(t, f.Dir); !reflect.DeepEqual(now, want) {
		t.Errorf("after a prune: got %v; want %v", now, want)
	}
	if string(mustRead(t, filepath.Join(outside, "precious"))) != "mail" {
		t.Error("what a link leads to was touched")
	}
}

// What a crash left of ours goes, and only that.
func TestSweepPartials(t *testing.T) {
	s := filled(t, t.TempDir())
	f := folder(t, s)
	if err := f.SweepPartials(); err != nil || names(t, s.Dir()) == nil {
		t.Errorf("no folder: got %v; want nothing done", err)
	}
	r := take(t, f, s)
	want := names(t, f.Dir)
	for _, name := range []string{"relay-20261201T031700Z-000002.db", "relay-20261201T031700Z-000002.db.age", "relay-20261201T031700Z-000002.db.json"} {
		mustWrite(t, filepath.Join(f.Dir, name+f.suffix()), []byte("half"))
	}
	mustWrite(t, filepath.Join(f.Dir, decryptedPrefix(f.Key)+"123.partial"), []byte("half"))
	drill := filepath.Join(f.Dir, DrillPrefix(f.Key)+"123")
	if err := errors.Join(os.Mkdir(drill, 0o700), os.Symlink(r.File, filepath.Join(drill, "link"))); err != nil {
		t.Fatal(err)
	}
	if err := f.SweepPartials(); err != nil {
		t.Fatal(err)
	}
	if got := names(t, f.Dir); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v; want %v", got, want)
	}
	// A receipt aside that is not this file's never makes it a backup.
	mustWrite(t, filepath.Join(f.Dir, "relay-20261201T031700Z-000002.db"), []byte("mail"))
	mustWrite(t, filepath.Join(f.Dir, "relay-20261201T031700Z-000002.db.json"+f.suffix()), mustRead(t, r.File+".json"))
	if err := f.SweepPartials(); err != nil {
		t.Fatal(err)
	}
	if list, err := f.List(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("got %+v, %v; want the one backup", list, err)
	}
}

// A prune that cannot remove a file takes nothing from it.
func TestPruneRefusesWhatChanged(t *testing.T) {
	f := planted(t, 1)
	old := f.plant(t, 1, nil)
	f.plant(t, 2, nil)
	list, err := f.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	mustWrite(t, old, []byte("somebody else's by now"))
	if err := f.remove(list[1]); !errors.Is(err, ErrRefused) {
		t.Errorf("got %v; want a refusal", err)
	}
	if string(mustRead(t, old)) != "somebody else's by now" {
		t.Error("the file was touched")
	}
}
