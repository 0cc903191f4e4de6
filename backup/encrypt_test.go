package backup

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"filippo.io/age"
)

func identity(t testing.TB) *age.X25519Identity {
	t.Helper()
	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// An encrypted backup was verified before, says so without its identity, and is
// verified again with it; what was decrypted for that is gone afterwards.
func TestEncrypted(t *testing.T) {
	s := filled(t, t.TempDir())
	f := folder(t, s)
	mine, second, stranger := identity(t), identity(t), identity(t)
	f.Recipients = []age.Recipient{mine.Recipient(), second.Recipient()}
	r := take(t, f, s)
	if want := []string{"relay-20261130T031700Z-000001.db.age", "relay-20261130T031700Z-000001.db.age.json"}; !reflect.DeepEqual(names(t, f.Dir), want) {
		t.Errorf("got %v; want %v", names(t, f.Dir), want)
	}
	if !r.Encrypted || r.PlainSHA256 == r.SHA256 || r.PlainBytes >= r.Bytes || !strings.Contains(r.Restore, "--identity") {
		t.Errorf("got %+v; want both hashes and a command with an identity", r)
	}
	b := string(mustRead(t, r.File))
	if !strings.HasPrefix(b, ageIntro) || strings.Contains(b, "SQLite") || strings.Contains(b, "item-") {
		t.Error("the file is not encrypted")
	}
	list, err := f.List(t.Context())
	if err != nil || len(list) != 1 || !list[0].Verified {
		t.Errorf("got %+v, %v; want one that was verified when it was made", list, err)
	}

	scratch := t.TempDir()
	report, err := Verify(t.Context(), r.File, Want{Key: relayKey, Scratch: scratch})
	if !errors.Is(err, ErrEncrypted) || report.Good || report.SHA256 != r.SHA256 || failures(report) != "" || len(report.Checks) != 3 {
		t.Errorf("without an identity: got %+v, %v; want ErrEncrypted, and size and hash looked at", report, err)
	}
	bare := filepath.Join(t.TempDir(), "renamed.bin") // known by its header, not its name
	for name, c := range map[string]struct {
		ids   []age.Identity
		path  string
		spoil func(path string)
		want  string
		says  string
	}{
		"its identity":                   {[]age.Identity{stranger, mine}, r.File, nil, "", ""},
		"the second identity":            {[]age.Identity{second}, r.File, nil, "", ""},
		"alone, under another name":      {[]age.Identity{mine}, bare, func(string) {}, "", ""},
		"another identity":               {[]age.Identity{stranger}, r.File, nil, "decrypt", "none of the identities"},
		"cut off":                        {[]age.Identity{mine}, bare, func(p string) { cut(t, p, r.Bytes-70_000) }, "decrypt", ""},
		"cut off at a chunk":             {[]age.Identity{mine}, bare, func(p string) { cut(t, p, r.Bytes-r.Bytes%65552) }, "decrypt", ""},
		"cut off in its header":          {[]age.Identity{mine}, bare, func(p string) { cut(t, p, 60) }, "decrypt", ""},
		"one byte of it changed":         {[]age.Identity{mine}, bare, func(p string) { flip(t, p, 100_000, 1) }, "decrypt", "damaged"},
		"one byte of its header changed": {[]age.Identity{mine}, bare, func(p string) { flip(t, p, 60, 1) }, "decrypt", ""},
		"something after its end":        {[]age.Identity{mine}, bare, func(p string) { mustWrite(t, p, append(mustRead(t, p), 1)) }, "decrypt", "damaged"},
		"text that is encrypted": {[]age.Identity{mine}, bare, func(p string) {
			plain := filepath.Join(t.TempDir(), "plain")
			mustWrite(t, plain, []byte(strings.Repeat("text ", 1000)))
			sum := newDigest()
			_, _ = sum.Write(mustRead(t, plain))
			_ = os.Remove(p)
			if _, err := encrypt(t.Context(), p, plain, sum.hex(), f.Recipients, func(int64, int64) {}); err != nil {
				t.Fatal(err)
			}
		}, "store", "what it decrypts to: not a store"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.spoil != nil {
				mustWrite(t, bare, []byte(b))
				c.spoil(bare)
			}
			report, err := Verify(t.Context(), c.path, Want{Key: relayKey, Identities: c.ids, Scratch: scratch})
			if err != nil || failures(report) != c.want || report.Good != (c.want == "") || !strings.Contains(report.Fault(), c.says) {
				t.Errorf("got %+v, %v; want failures %q with %q", report, err, c.want, c.says)
			}
			// Only what is for others may be good for all that is known.
			if lockedOut := name == "another identity"; report.OnlyUnopened() != lockedOut || err == nil && !report.Good && strings.Contains(report.Err().Error(), ErrBad.Error()) == lockedOut {
				t.Errorf("got unopened %v, %v; want %v", report.OnlyUnopened(), report.Err(), lockedOut)
			}
			if strings.Contains(report.Fault(), scratch) {
				t.Errorf("got %q; want no word of the scratch copy", report.Fault())
			}
			if got := names(t, scratch); got != nil {
				t.Errorf("got %v in the scratch folder; want nothing", got)
			}
		})
	}

	swept := *f
	swept.Dir = scratch
	ctx, stop := context.WithCancel(t.Context())
	_, err = Verify(ctx, r.File, Want{Key: relayKey, Identities: []age.Identity{mine}, Scratch: scratch, Progress: func(stage string, _, _ int64) {
		if stage == "decrypt" {
			if err := swept.SweepPartials(); err != nil || len(names(t, scratch)) != 1 {
				t.Errorf("swept while it is used: got %v, %v; want it to stay", names(t, scratch), err)
			}
			stop()
		}
	}})
	if !errors.Is(err, context.Canceled) || names(t, scratch) != nil {
		t.Errorf("stopped: got %v, %v left; want nothing left", err, names(t, scratch))
	}
	if _, err := Verify(t.Context(), r.File, Want{Identities: []age.Identity{mine}, Scratch: filepath.Join(scratch, "none")}); err == nil {
		t.Error("no scratch folder: got nil; want an error")
	}
}

// An encrypted backup to a file of the operator's choosing is under exactly that name.
func TestEncryptedToAFile(t *testing.T) {
	s := filled(t, t.TempDir())
	f := folder(t, s)
	id := identity(t)
	f.Recipients = []age.Recipient{id.Recipient()}
	dir := t.TempDir()
	r, err := f.Create(t.Context(), s, filepath.Join(dir, "mine.age"), nil)
	if err != nil || !reflect.DeepEqual(names(t, dir), []string{"mine.age", "mine.age.json"}) {
		t.Errorf("got %+v, %v, %v; want one file and its receipt", r, err, names(t, dir))
	}
	if report, err := Verify(t.Context(), r.File, Want{Key: relayKey, Identities: []age.Identity{id}}); err != nil || !report.Good {
		t.Errorf("got %+v, %v; want it good", report, err)
	}
}

func TestParseRecipients(t *testing.T) {
	a, b := identity(t), identity(t)
	pq, err := age.GenerateHybridIdentity()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		text string
		n    int
		says string
	}{
		{"", 0, ""}, {" ,\n", 0, ""},
		{a.Recipient().String(), 1, ""},
		{a.Recipient().String() + ", " + b.Recipient().String() + "\n", 2, ""},
		{pq.Recipient().String(), 1, ""},
		{pq.Recipient().String() + " " + a.Recipient().String(), 0, "cannot be used together"},
		{a.String(), 0, "is a secret key"},
		{strings.ToLower(a.String()), 0, "is a secret key"},
		{a.Recipient().String()[:30], 0, "recipient 1 is none"},
		{a.Recipient().String() + " ssh-ed25519", 0, "recipient 2 is none"},
		{"# comment", 0, "is none"},
	} {
		got, err := ParseRecipients(c.text)
		if len(got) != c.n && c.says == "" || (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%.40q: got %d, %v; want %d, %q", c.text, len(got), err, c.n, c.says)
		}
		if err != nil && strings.Contains(strings.ToUpper(err.Error()), "AGE-SECRET-KEY-1"+a.String()[16:30]) {
			t.Errorf("got %v; want no key in it", err)
		}
	}
}

func TestReadIdentities(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "id.txt")
	id := identity(t)
	mustWrite(t, path, []byte("# created: today\n"+id.String()+"\n"))
	if ids, err := ReadIdentities(path); err != nil || len(ids) != 1 {
		t.Errorf("got %v, %v; want one", ids, err)
	}
	for name, text := range map[string]string{
		"empty": "", "a public key": id.Recipient().String(), "half a key": id.String()[:40], "huge": strings.Repeat("#", maxIdentities+1),
		"encrypted": ageIntro + "x", "armoured": "-----BEGIN AGE ENCRYPTED FILE-----\n",
	} {
		mustWrite(t, path, []byte(text))
		if ids, err := ReadIdentities(path); err == nil || !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), id.String()[16:40]) {
			t.Errorf("%s: got %v, %v; want an error that names the file and no key", name, ids, err)
		}
	}
	if _, err := ReadIdentities(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v; want that it does not exist", err)
	}
	if _, err := ReadIdentities(dir); err == nil {
		t.Error("a folder: got nil; want an error")
	}
}
