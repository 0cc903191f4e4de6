package drill

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	_ "modernc.org/sqlite"

	"github.com/agentmbx/agentmbx/backup"
	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/store/sqlite"
	"github.com/agentmbx/agentmbx/relay/wire"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

var t0 = time.Date(2026, 10, 2, 12, 0, 0, 0, time.UTC)

// site is a relay's store with real mail in it, its backups and a clock.
type site struct {
	t     testing.TB
	now   time.Time
	key   wire.PrivateKey
	dir   string // of the store
	store *sqlite.Store
	hosts []*wiretest.Host
}

func smallDisk(string) (free, size int64, err error) { return 40 << 20, 40 << 20, nil }

// newSite makes a store as months of use leave one: many queues, some of them
// acknowledged in part, items on hold, hosts that rotated, hosts that were
// revoked, lists, keys and denials.
func newSite(t testing.TB) *site {
	t.Helper()
	s := &site{t: t, now: t0, key: must(wire.GenerateKey()), dir: filepath.Join(t.TempDir(), "store")}
	s.open()
	t.Cleanup(s.close)
	for i := range 12 {
		s.hosts = append(s.hosts, wiretest.NewHost(fmt.Sprintf("host-%02d", i)))
	}
	s.write(func(tx store.Tx) error {
		for _, h := range s.hosts {
			if err := s.enrol(tx, h); err != nil {
				return err
			}
		}
		for i := range 240 {
			from, to := s.hosts[i%len(s.hosts)], s.hosts[(i*7+1)%len(s.hosts)]
			if err := s.mail(tx, from, to, strings.Repeat("the build is green ", 1+i)); err != nil {
				return err
			}
		}
		return nil
	})
	s.write(s.grow)
	return s
}

// grow does to the hosts what the years do.
func (s *site) grow(tx store.Tx) error {
	var errs []error
	pub := func(i int) wire.PublicKey { return s.hosts[i].Pub() }
	_, err := tx.AckThrough(pub(0), firstSeqs(tx, pub(0), 5)[4])
	errs = append(errs, err)
	for _, seq := range firstSeqs(tx, pub(1), 3) {
		errs = append(errs, tx.Hold(pub(1), seq, s.now, "test", "looked odd"))
	}
	for _, i := range []int{2, 3} { // two rotations, one after the other
		for range 2 {
			next := wiretest.NewHost(s.hosts[i].Name)
			rec := wire.MakeRotation(s.hosts[i].Key, next.Key, next.Name, next.Enc.Public(), s.now)
			_, err := tx.Rotate(store.Rotation{Old: pub(i), New: next.Pub(), Name: next.Name, Record: rec, At: s.now})
			errs = append(errs, err)
			s.hosts[i] = next
		}
	}
	for _, i := range []int{4, 5} {
		_, err := tx.Revoke(pub(i), s.now)
		errs = append(errs, err)
	}
	errs = append(errs, tx.AddDenial(store.Denial{HostFP: "dead-beef", Reason: "spam", Source: "test", AddedAt: s.now}),
		tx.PutDenyList(store.DenyList{ID: "jti", Source: "test", IAT: s.now, Expires: s.now}))
	list, sig := wire.MakeSenderList(s.hosts[6].Key, []wire.PublicKey{pub(7)}, s.now)
	errs = append(errs, tx.PutSenderList(store.SenderList{Target: pub(6), Senders: []wire.PublicKey{pub(7)}, IAT: s.now, Record: list, Sig: sig}))
	return errors.Join(errs...)
}

func firstSeqs(r store.Reader, target wire.PublicKey, n int) (seqs []int64) {
	_ = r.Page(target, 0, n, func(it store.Item) bool { seqs = append(seqs, it.Seq); return true })
	return seqs
}

func (s *site) enrol(tx store.Tx, h *wiretest.Host) error {
	ad, sig := wire.MakeEncAd(h.Key, h.Name, h.Enc.Public(), s.now, s.now.Add(wire.EncAdLifetime))
	return errors.Join(
		tx.PutEnrolment(store.Enrolment{Key: h.Pub(), Name: h.Name, AuthorizedBy: "host-key-challenge", EnrolledAt: s.now}),
		tx.PutEncAd(h.Pub(), store.EncAd{Record: ad, Sig: sig, At: s.now}),
		tx.PutEncKey(h.Pub(), h.Name, store.EncKey{EncPub: h.Enc.Public().String(), Sig: h.Key.Sign(wire.EncKeyV1Payload(h.Name, h.Enc.Public())), At: s.now}))
}

func (s *site) mail(tx store.Tx, from, to *wiretest.Host, body string) error {
	id, w := from.Envelope(to, "hello", body)
	_, err := tx.Insert(store.Item{
		Target: to.Pub(), Sender: from.Pub(), SenderHost: from.Name, Kind: store.KindEnvelope, ID: id, Hash: wire.Hash(w),
		Size: int64(len(w)), AcceptedAt: s.now, ExpiresAt: s.now.Add(14 * 24 * time.Hour), Wire: w,
	})
	return err
}

func (s *site) clock() time.Time { return s.now }

func (s *site) open() {
	s.t.Helper()
	s.store = must(sqlite.Open(context.Background(), sqlite.Options{Dir: s.dir, Key: s.key.Public(), Now: s.clock, Free: smallDisk}))
	s.write(func(tx store.Tx) error { return tx.SetHeartbeat(s.now) })
}

// close closes the live store; it may be called twice.
func (s *site) close() {
	if s.store == nil {
		return
	}
	if err := errors.Join(s.store.Check(context.Background()), s.store.Close()); err != nil {
		s.t.Errorf("close the live store: %v", err)
	}
	s.store = nil
}

func (s *site) write(fn func(tx store.Tx) error) {
	s.t.Helper()
	if err := s.store.Update(context.Background(), fn); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) folder() *backup.Folder {
	return &backup.Folder{Dir: filepath.Join(s.dir, "backups"), StoreDir: s.dir, Key: s.key.Public(), Keep: 7, Version: "test", Now: s.clock}
}

// backup takes a backup and answers its path.
func (s *site) backup() string {
	s.t.Helper()
	r, err := s.folder().Create(context.Background(), s.store, "", func(string, int64, int64) {})
	if err != nil {
		s.t.Fatal(err)
	}
	return r.File
}

func (s *site) options(file string) Options {
	return Options{
		File: file, Source: FromBackup, Scratch: filepath.Dir(file), Key: s.key, Limits: relay.DefaultLimits(), Version: "test", Now: s.clock,
	}
}

// drill drills and checks that nothing is left of it.
func (s *site) drill(ctx context.Context, o Options) (Receipt, error) {
	s.t.Helper()
	r, err := Run(ctx, o)
	if left := scratchIn(o.Scratch); len(left) > 0 {
		s.t.Errorf("got %v left in the scratch folder; want nothing", left)
	}
	return r, err
}

// scratchIn lists the folders of drills.
func scratchIn(dir string) []string { return must(filepath.Glob(filepath.Join(dir, ".drill-*"))) }

// fingerprint is all that can be seen of a folder and what is in it.
func fingerprint(t testing.TB, dir string) (lines []string) {
	t.Helper()
	if err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if strings.HasPrefix(d.Name(), ".drill-") {
			return filepath.SkipDir
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		if d.IsDir() { // whose time the scratch folder in it changes
			lines = append(lines, fmt.Sprintf("%s %v", path, st.Mode()))
			return nil
		}
		b, err := os.ReadFile(path)
		lines = append(lines, fmt.Sprintf("%s %v %v %x", path, st.Mode(), st.ModTime(), sha256.Sum256(b)))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return lines
}

func wantSame(t testing.TB, what string, before, after []string) {
	t.Helper()
	if !slices.Equal(before, after) {
		t.Errorf("%s: got\n%s\nwant\n%s", what, strings.Join(after, "\n"), strings.Join(before, "\n"))
	}
}

// wantGoroutines waits for those of a drill to be gone: the last of them end a
// moment after what they served.
func wantGoroutines(t testing.TB, before int) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; runtime.Gosched() {
		n := runtime.NumGoroutine()
		if n <= before {
			return
		}
		if time.Now().After(end) {
			buf := make([]byte, 1<<20)
			t.Fatalf("got %d goroutines; want the %d before\n%s", n, before, buf[:runtime.Stack(buf, true)])
		}
	}
}

// change runs statements on a store's file.
func change(t testing.TB, path string, statements ...string) {
	t.Helper()
	db := must(sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(5000)"))
	defer db.Close()
	for _, s := range statements {
		res, err := db.Exec(s)
		if err != nil {
			t.Errorf("%s: %v", s, err)
			continue
		}
		if n, _ := res.RowsAffected(); n == 0 && !strings.HasPrefix(s, "PRAGMA") {
			t.Errorf("%s: changed nothing", s)
		}
	}
}

func checkOf(r Receipt, name string) *backup.Check {
	for i := range r.Checks {
		if r.Checks[i].Name == name {
			return &r.Checks[i]
		}
	}
	return nil
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
