package host

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/host/homefile"
)

// copyHome copies a closed home's files.
func copyHome(t testing.TB, from, to string) {
	t.Helper()
	noError(t, os.MkdirAll(to, 0o700))
	for _, e := range must(os.ReadDir(from)) {
		noError(t, os.WriteFile(filepath.Join(to, e.Name()), must(os.ReadFile(filepath.Join(from, e.Name()))), 0o600))
	}
}

// usedHome is a home with mail in it, closed.
func usedHome(t testing.TB, w *world) (home string) {
	t.Helper()
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	for i := range 40 {
		alpha.send(beta, fmt.Sprint("message ", i))
	}
	_, err := alpha.Send(context.Background(), Draft{From: "builder", To: []string{"reviewer@alpha"}, Subject: "here", Body: strings.Repeat("x", 100_000)})
	noError(t, err)
	alpha.tick()
	home = filepath.Join(t.TempDir(), "copy")
	noError(t, alpha.Close())
	copyHome(t, alpha.opts.Home, home)
	alpha.Host = must(Open(context.Background(), alpha.opts))
	return home
}

// use does what people do with a home. It must not panic; what it returns is the
// first error.
func use(o Options) error {
	ctx := context.Background()
	h, err := Open(ctx, o)
	if err != nil {
		return err
	}
	_, sendErr := h.Send(ctx, Draft{From: "builder", To: []string{"reviewer@beta"}, Subject: "s", Body: "b"})
	_, tickErr := h.Tick(ctx)
	_, onceErr := h.Once(ctx)
	inbox, inboxErr := h.Inbox(ctx, "reviewer", "", true, 1000)
	for _, m := range inbox {
		_, err := h.Read(ctx, "reviewer", m.ID)
		inboxErr = errors.Join(inboxErr, err)
	}
	_, sentErr := h.SentMails(ctx, 1000)
	_, peersErr := h.Peers(ctx)
	_, listErr := h.Quarantine(ctx, 0, 100)
	_, pruneErr := h.Prune(ctx, time.Hour)
	_, tokenErr := h.NewPairToken(ctx, time.Minute)
	return errors.Join(sendErr, tickErr, onceErr, inboxErr, sentErr, peersErr, listErr, pruneErr, tokenErr, h.Close())
}

// TestDamagedDatabase: host.db in any state gives an error that says what to do,
// or works; it is never made anew over what was there, and a copy put back works.
func TestDamagedDatabase(t *testing.T) {
	muchWork(t)
	w := newWorld(t)
	home := usedHome(t, w)
	whole := must(os.ReadFile(filepath.Join(home, dbFile)))
	other := filepath.Join(t.TempDir(), "other.db")
	func() {
		db := must(sql.Open("sqlite", other))
		must(db.Exec("CREATE TABLE cats (name TEXT); INSERT INTO cats VALUES ('Tom'); PRAGMA user_version = 3"))
		noError(t, db.Close())
	}()
	w.relay.stop()
	relayDB := must(os.ReadFile(filepath.Join(w.relay.dir, "relay.db")))
	w.relay.start()
	edited := func(pragma string) []byte {
		path := filepath.Join(t.TempDir(), "edited.db")
		noError(t, os.WriteFile(path, whole, 0o600))
		db := must(sql.Open("sqlite", path))
		must(db.Exec(pragma))
		noError(t, db.Close())
		return must(os.ReadFile(path))
	}
	header := func(edit func(b []byte)) []byte {
		b := append([]byte{}, whole...)
		edit(b)
		return b
	}
	for name, c := range map[string]struct {
		data []byte
		want error // nil for any
	}{
		"empty":                  {[]byte{}, ErrDamagedDB},
		"zeros":                  {make([]byte, len(whole)), ErrForeignDB},
		"text":                   {[]byte(strings.Repeat("not a database\n", 1000)), ErrForeignDB},
		"a byte":                 {[]byte{'S'}, ErrDamagedDB},
		"another program's":      {must(os.ReadFile(other)), ErrForeignDB},
		"a relay's":              {relayDB, ErrForeignDB},
		"newer":                  {edited("PRAGMA user_version = 99"), ErrNewerDB},
		"of another application": {edited("PRAGMA application_id = 7"), ErrForeignDB},
		"cut in half":            {whole[:len(whole)/2], ErrDamagedDB},
		"cut to its first page":  {whole[:4096], ErrDamagedDB},
		"cut in a page":          {whole[:len(whole)-1000], nil},
		"a header of junk":       {header(func(b []byte) { copy(b, "junk") }), ErrForeignDB},
		"no page size":           {header(func(b []byte) { b[16], b[17] = 0, 0 }), nil},
		"a schema of junk":       {header(func(b []byte) { copy(b[100:], strings.Repeat("\xff", 3000)) }), ErrDamagedDB},
		"a table that is gone":   {edited("DROP TABLE outbox"), nil},
	} {
		o := Options{Home: filepath.Join(t.TempDir(), "home"), Now: w.clock, RelayURL: w.relay.url}
		copyHome(t, home, o.Home)
		noError(t, os.WriteFile(filepath.Join(o.Home, dbFile), c.data, 0o600))
		err := use(o)
		switch {
		case c.want != nil && !errors.Is(err, c.want):
			t.Errorf("%s: got %v; want %v", name, err, c.want)
		case c.want == nil && name == "a table that is gone" && err == nil:
			t.Errorf("%s: got no error", name)
		}
		if err != nil && strings.Contains(err.Error(), "panic") {
			t.Errorf("%s: got %v", name, err)
		}
		if c.want != nil {
			if after := must(os.ReadFile(filepath.Join(o.Home, dbFile))); string(after) != string(c.data) {
				t.Errorf("%s: the file was changed", name)
			}
		}
		for _, f := range []string{dbFile + "-wal", dbFile + "-shm"} {
			_ = os.Remove(filepath.Join(o.Home, f))
		}
		noError(t, os.WriteFile(filepath.Join(o.Home, dbFile), whole, 0o600))
		if err := use(o); err != nil {
			t.Errorf("%s: a copy put back: got %v", name, err)
		}
	}
}

// TestFlippedBytes: whatever stands in host.db, nothing panics, and a database
// that fails its check does not get a daemon.
func TestFlippedBytes(t *testing.T) {
	muchWork(t)
	w := newWorld(t)
	home := usedHome(t, w)
	whole := must(os.ReadFile(filepath.Join(home, dbFile)))
	failed := 0
	for seed := range uint64(22) {
		r := rand.New(rand.NewPCG(seed, 1))
		data := append([]byte{}, whole...)
		for range 1 << (seed % 11) { // one byte to a thousand
			data[100+r.IntN(len(data)-100)] = byte(r.Uint32())
		}
		o := Options{Home: filepath.Join(t.TempDir(), "home"), Now: w.clock, RelayURL: w.relay.url}
		copyHome(t, home, o.Home)
		noError(t, os.WriteFile(filepath.Join(o.Home, dbFile), data, 0o600))
		if err := use(o); err != nil {
			failed++
		}
		h, err := Open(context.Background(), o)
		if err != nil {
			continue
		}
		damaged := h.db.check(context.Background())
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := h.Daemon(ctx, DaemonOptions{}); damaged != nil && err == nil {
			t.Errorf("seed %d: a daemon runs on a database with %v", seed, damaged)
		}
		_ = h.Close()
	}
	if failed == 0 {
		t.Error("no damage was noticed at all")
	}
}

// TestFilesOfAHome: each file must be a private file of its own kind; what is
// wrong with it is said by name, and nothing is read from anywhere else.
func TestFilesOfAHome(t *testing.T) {
	w := newWorld(t)
	home := usedHome(t, w)
	w.relay.intercept(refusing(503, ""))
	ways := map[string]struct {
		spoil func(path string)
		part  string // of the error
	}{
		"a link": {func(path string) {
			elsewhere := filepath.Join(t.TempDir(), "elsewhere")
			noError(t, os.Rename(path, elsewhere))
			noError(t, os.Symlink(elsewhere, path))
		}, "symbolic link"},
		"readable by all":    {func(path string) { noError(t, os.Chmod(path, 0o644)) }, "chmod 600"},
		"writable by others": {func(path string) { noError(t, os.Chmod(path, 0o620)) }, "chmod 600"},
		"a folder":           {func(path string) { noError(t, os.Remove(path)); noError(t, os.Mkdir(path, 0o700)) }, "not a regular file"},
		"a pipe":             {func(path string) { noError(t, os.Remove(path)); noError(t, syscall.Mkfifo(path, 0o600)) }, "not a regular file"},
		"cut":                {func(path string) { b := must(os.ReadFile(path)); noError(t, os.WriteFile(path, b[:len(b)/2], 0o600)) }, ""},
		"empty":              {func(path string) { noError(t, os.WriteFile(path, nil, 0o600)) }, ""},
		"10 MB":              {func(path string) { noError(t, os.WriteFile(path, []byte(strings.Repeat("x", 10<<20)), 0o600)) }, ""},
		"gone":               {func(path string) { noError(t, os.Remove(path)) }, ""},
	}
	for _, file := range []string{configFile, keysFile, dbFile} {
		for name, way := range ways {
			o := Options{Home: filepath.Join(t.TempDir(), "home"), Now: w.clock, RelayURL: w.relay.url}
			copyHome(t, home, o.Home)
			path := filepath.Join(o.Home, file)
			secret := string(must(os.ReadFile(filepath.Join(home, keysFile))))
			way.spoil(path)
			ended := make(chan error, 1)
			go func() { ended <- use(o) }()
			select {
			case err := <-ended:
				if err == nil {
					t.Errorf("%s %s: got no error", file, name)
					continue
				}
				hasPart(t, file+" "+name, err.Error(), way.part)
				if file != configFile || name != "gone" { // a folder without one is no home
					hasPart(t, file+" "+name, err.Error(), file)
				}
				for _, line := range strings.Split(secret, "\n") {
					if _, key, is := strings.Cut(line, `": "`); is && len(key) > 20 && strings.Contains(err.Error(), key[:20]) {
						t.Errorf("%s %s: the error repeats a key", file, name)
					}
				}
			case <-time.After(30 * time.Second):
				t.Fatalf("%s %s: it hangs", file, name)
			}
		}
	}
	// A file that goes bad while the host is open: ticks say so, and go on once it
	// is good again.
	o := Options{Home: filepath.Join(t.TempDir(), "home"), Now: w.clock, RelayURL: w.relay.url}
	copyHome(t, home, o.Home)
	h := must(Open(context.Background(), o))
	defer h.Close()
	for _, file := range []string{configFile, keysFile} {
		good := must(os.ReadFile(filepath.Join(o.Home, file)))
		noError(t, homefile.Write(filepath.Join(o.Home, file), []byte("junk")))
		if _, err := h.Tick(context.Background()); err == nil {
			t.Errorf("a tick over a spoilt %s: got no error", file)
		}
		noError(t, homefile.Write(filepath.Join(o.Home, file), good))
		_, err := h.Tick(context.Background())
		noError(t, err)
	}
}

func TestHomesThatOthersCanEnter(t *testing.T) {
	w := newWorld(t)
	home := usedHome(t, w)
	for _, mode := range []fs.FileMode{0o755, 0o710, 0o701, 0o770} {
		noError(t, os.Chmod(home, mode))
		_, err := Open(context.Background(), Options{Home: home})
		if err == nil {
			t.Errorf("%04o: got no error", mode)
			continue
		}
		hasPart(t, mode.String(), err.Error(), "chmod 700")
		if err := Init(context.Background(), Options{Home: home}, "again"); err == nil {
			t.Errorf("%04o: init got no error", mode)
		}
	}
	noError(t, os.Chmod(home, 0o700))
	h := must(Open(context.Background(), Options{Home: home}))
	noError(t, h.Close())
	if err := Init(context.Background(), Options{Home: home}, "again"); !errors.Is(err, ErrExists) {
		t.Errorf("init over a home: got %v; want %v", err, ErrExists)
	}
	_, err := Open(context.Background(), Options{Home: filepath.Join(home, "nowhere")})
	if !errors.Is(err, ErrNoHome) {
		t.Errorf("no folder: got %v; want %v", err, ErrNoHome)
	}
}

// TestTwoDaemonsOnOneHome: the second is refused, and takes over once the first
// has ended.
func TestTwoDaemonsOnOneHome(t *testing.T) {
	w := newWorld(t)
	alpha := w.host("alpha")
	second := must(Open(context.Background(), alpha.opts))
	defer second.Close()
	start := func(h *Host) (stop func() error) {
		ctx, cancel := context.WithCancel(context.Background())
		ready, ended := make(chan string, 1), make(chan error, 1)
		go func() {
			ended <- h.Daemon(ctx, DaemonOptions{Listen: "127.0.0.1:0", Ready: func(addr string) { ready <- addr }})
		}()
		select {
		case <-ready:
		case err := <-ended:
			t.Fatalf("the daemon ended: %v", err)
		}
		return func() error { cancel(); return <-ended }
	}
	for _, pair := range [][2]*Host{{alpha.Host, second}, {second, alpha.Host}} {
		stop := start(pair[0])
		if err := pair[1].Daemon(context.Background(), DaemonOptions{}); !errors.Is(err, ErrDaemonRuns) {
			t.Errorf("a second daemon: got %v; want %v", err, ErrDaemonRuns)
		}
		if _, err := pair[1].Once(context.Background()); !errors.Is(err, ErrDaemonRuns) {
			t.Errorf("once beside a daemon: got %v; want %v", err, ErrDaemonRuns)
		}
		_, err := pair[1].Send(context.Background(), Draft{To: []string{"owner@alpha"}, Subject: "beside", Body: "the daemon"})
		noError(t, err)
		noError(t, stop())
		_, err = pair[1].Once(context.Background())
		noError(t, err)
	}
	same(t, "sent beside it", len(must(alpha.Inbox(context.Background(), "owner", "", true, 10))), 2)
}

// diskFull lets a host's database grow no more; it returns what ends that.
func (h *testHost) diskFull() (space func()) {
	h.w.t.Helper()
	pragma := func(s string) (n int64) {
		h.db.writing.Lock()
		defer h.db.writing.Unlock()
		noError(h.w.t, h.db.writer.c.QueryRowContext(context.Background(), s).Scan(&n))
		return n
	}
	pragma(fmt.Sprintf("PRAGMA max_page_count = %d", pragma("PRAGMA page_count")+2))
	return func() { pragma("PRAGMA max_page_count = 4294967294") }
}

// TestFullDisk: what can't be stored is not taken. Nobody is told that it was,
// and when there is room again it goes on.
func TestFullDisk(t *testing.T) {
	for _, overLAN := range []bool{false, true} {
		t.Run(fmt.Sprint("LAN ", overLAN), func(t *testing.T) {
			w := newWorld(t)
			alpha, beta := w.host("alpha"), w.host("beta")
			pair(alpha, beta, overLAN)
			beta.tick()
			alpha.tick()
			large := strings.Repeat("x", 150_000)
			mail := func(h *testHost, to, subject string) (string, error) {
				s, err := h.Send(context.Background(), Draft{From: "builder", To: []string{"reviewer@" + to}, Subject: subject, Body: "the body of " + large})
				return s.ID, err
			}
			msg, err := mail(alpha, "beta", "hello")
			noError(t, err)
			if !overLAN {
				alpha.lanFailedTwice()
				same(t, "accepted", alpha.relayOnly().Accepted, 1)
			}

			space := beta.diskFull()
			before := beta.count("messages") + beta.count("routes") + beta.count("outbox")
			_, err = mail(beta, "alpha", "no room")
			if err == nil {
				t.Fatal("mail was sent with a full disk")
			}
			hasPart(t, "error", err.Error(), "the disk is full")
			same(t, "stored of it", beta.count("messages")+beta.count("routes")+beta.count("outbox")-before, 0)
			for range 3 {
				if overLAN {
					same(t, "sent", alpha.tick().LAN.Sent, 0)
				} else {
					_, err := beta.Tick(context.Background())
					if err == nil {
						t.Error("a page was received with a full disk")
					} else {
						hasPart(t, "error", err.Error(), "the disk is full")
					}
					same(t, "still at the relay", w.relay.queued(beta), 1)
				}
				w.pass(time.Minute)
				kept(alpha, beta, msg)
			}
			same(t, "arrived", beta.arrived(msg), 0)
			same(t, "quarantine", beta.count("quarantine"), 0)

			space()
			w.pass(time.Hour)
			arriveOnce(alpha, beta, msg)
			back, err := mail(beta, "alpha", "room again")
			noError(t, err)
			settle(alpha, beta)
			same(t, "sent after that", alpha.arrived(back), 1)
		})
	}
}

// TestFullDiskAtTheSender: a sender whose disk is full loses nothing that it has
// sent, whatever it could not note.
func TestFullDiskAtTheSender(t *testing.T) {
	w := newWorld(t)
	alpha, beta, msgs := twoOverRelay(w, "one", "two", "three")
	space := alpha.diskFull()
	for range 5 {
		_, _ = alpha.Tick(context.Background()) // may find room in a page that is free
		_, _ = beta.Tick(context.Background())
		kept(alpha, beta, msgs...)
		w.pass(time.Minute)
	}
	space()
	arriveOnce(alpha, beta, msgs...)
}

// TestTwoProcessesOnOneHome: commands that write beside a daemon. Each write is
// whole, and everything arrives once.
func TestTwoProcessesOnOneHome(t *testing.T) {
	const each = 15
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, true)
	cli := must(Open(context.Background(), alpha.opts)) // a database handle of its own, as another process has
	defer cli.Close()
	cli.listensAt(alpha.lanSrv.Listener.Addr())
	ctx := context.Background()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var out, in []string
	note := func(list *[]string, id string) { mu.Lock(); *list = append(*list, id); mu.Unlock() }
	send := func(h *Host, to string, list *[]string) {
		for i := range each {
			s, err := h.Send(ctx, Draft{From: "builder", To: []string{"reviewer@" + to}, Subject: fmt.Sprint(i), Body: "the body of it"})
			if err != nil {
				t.Errorf("send: %v", err)
				return
			}
			note(list, s.ID)
		}
	}
	wg.Go(func() { send(cli, "beta", &out) })
	wg.Go(func() { send(alpha.Host, "beta", &out) })
	wg.Go(func() { send(beta.Host, "alpha", &in) })
	done := make(chan struct{})
	var loops sync.WaitGroup
	loop := func(what string, fn func() error) {
		loops.Go(func() {
			for {
				if err := fn(); err != nil {
					t.Errorf("%s: %v", what, err)
					return
				}
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	tick := func(h *Host) func() error { return func() error { _, err := h.Tick(ctx); return err } }
	loop("the daemon's tick", tick(alpha.Host))
	loop("another tick", tick(cli))
	loop("beta's tick", tick(beta.Host))
	loop("reading and acking", func() error {
		list, err := cli.Inbox(ctx, "reviewer", "", false, 10)
		for _, m := range list {
			if err == nil {
				_, err = cli.Read(ctx, "reviewer", m.ID)
			}
			if err == nil {
				_, err = cli.Ack(ctx, "reviewer", m.ID, "done", "")
			}
		}
		return err
	})
	loop("looking", func() error {
		_, err := cli.SentMails(ctx, 100)
		_, err2 := cli.Prune(ctx, 1000*time.Hour)
		return errors.Join(err, err2)
	})
	wg.Wait()
	close(done)
	loops.Wait()
	settle(alpha, beta)
	same(t, "sent", len(out), 2*each)
	for _, id := range out {
		same(t, id, beta.arrived(id), 1)
	}
	for _, id := range in {
		same(t, id, alpha.arrived(id), 1)
	}
	same(t, "at beta", beta.inbox(), 2*each)
	same(t, "at alpha", alpha.inbox(), each)
	same(t, "alerts", len(alpha.alerts("builder"))+len(beta.alerts("builder")), 0)
}
