package sqlite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/store/storetest"
)

func acking(target string, through int64) func(store.Tx) error {
	return func(tx store.Tx) error { _, err := tx.AckThrough(storetest.Key(target), through); return err }
}

func bigMail(target, id string, size int) func(store.Tx) error {
	return func(tx store.Tx) error {
		return push(tx, storetest.Mail(storetest.Key(target), storetest.Key("s"), id, size))
	}
}

func epochOf(t *testing.T, s *Store) (epoch string) {
	t.Helper()
	if err := s.View(context.Background(), func(r store.Reader) error {
		in, err := r.Info()
		epoch = in.Epoch
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return epoch
}

func TestNewMailIsRefusedBeforeTheDiskIsFull(t *testing.T) {
	t.Parallel()
	var free atomic.Int64
	const size, kept = 100 << 20, 10 << 20
	free.Store(kept)
	o := testOptions(t.TempDir())
	o.Free = func(string) (int64, int64, error) { return free.Load(), size, nil }
	s := mustOpen(t, o)
	reserve := filepath.Join(s.dir, reserveName)
	if st, err := os.Stat(reserve); err != nil || st.Size() != size/20 {
		t.Errorf("reserve: got %v, %v; want a twentieth of the device", st, err)
	}
	for i, step := range []struct {
		name string
		free int64
		want error
		low  bool
	}{
		{"just enough", kept, nil, false},
		{"a byte too little", kept - 1, store.ErrFull, true},
		{"nothing", 0, store.ErrFull, true},
		{"enough, but not by much", kept + kept/4 - 1, store.ErrFull, true},
		{"room again", kept + kept/4, nil, false},
		{"enough still", kept, nil, false},
	} {
		free.Store(step.free)
		id := fmt.Sprint("item-", i)
		if err := s.Update(t.Context(), inserting("a", id)); !errors.Is(err, step.want) {
			t.Errorf("%s: insert: got %v; want %v", step.name, err, step.want)
		}
		if got := slices.Contains(queued(t, s, "a"), id); got != (step.want == nil) {
			t.Errorf("%s: stored: got %v; want %v", step.name, got, step.want == nil)
		}
		if z, err := s.Size(t.Context()); err != nil || z.Low != step.low || z.Free != step.free {
			t.Errorf("%s: size: got %+v, %v; want low %v, free %d", step.name, z, err, step.low, step.free)
		}
		for what, fn := range map[string]func(store.Tx) error{
			"ack": acking("a", 1),
			"notice": func(tx store.Tx) error { // takes the place of a larger item
				it := storetest.Mail(storetest.Key("s"), relayKey, step.name, 200)
				it.Kind = store.KindExpired
				return push(tx, it)
			},
			"epoch":  func(tx store.Tx) error { return tx.SetEpoch(step.name) },
			"revoke": func(tx store.Tx) error { _, err := tx.Revoke(storetest.Key("a"), faultTime); return err },
			"room": func(tx store.Tx) error {
				if tx.Room() == step.low {
					return fmt.Errorf("room is %v", tx.Room())
				}
				return nil
			},
		} {
			if err := s.Update(t.Context(), fn); err != nil {
				t.Errorf("%s: %s: got %v; want nil", step.name, what, err)
			}
		}
	}
}

// setPages bounds the database as a full disk would, and answers how many
// pages it has.
func setPages(t *testing.T, s *Store, more int64) {
	t.Helper()
	direct := &call{done: make(chan struct{}), direct: func(c *conn) error {
		n, err := reader{c}.pragma("page_count")
		if err != nil {
			return err
		}
		_, err = c.exec(fmt.Sprintf("PRAGMA max_page_count = %d", n+more))
		return err
	}}
	s.serve(direct)
	if direct.err != nil {
		t.Fatal(direct.err)
	}
}

// SQLite rolls the whole transaction back by itself when a statement finds no
// room. What its savepoints held is gone, and what follows must not be
// committed by itself.
func TestFullDiskDropsNoMoreThanNewMail(t *testing.T) {
	t.Parallel()
	var free atomic.Int64
	free.Store(1 << 40)
	o := testOptions(memDir(t))
	o.Free = func(string) (int64, int64, error) { return free.Load(), 1 << 20, nil }
	s := openStill(t, o)
	for _, id := range []string{"1", "2", "3", "4"} {
		if err := s.serveAll(bigMail("a", id, 3000))[0]; err != nil {
			t.Fatal(err)
		}
	}
	epoch := epochOf(t, s)
	setPages(t, s, 0)

	t.Run("with the device as full, acks of the same group are stored", func(t *testing.T) {
		fullToo := func(tx store.Tx) error {
			err := bigMail("a", "too much", 100_000)(tx)
			if err != nil && !errors.Is(err, store.ErrFull) {
				free.Store(0) // the system says so too, from now on
			}
			return err
		}
		errs := s.serveAll(acking("a", 1), fullToo, acking("a", 2), bigMail("b", "small", 10))
		for i, want := range []error{nil, store.ErrFull, nil, store.ErrFull} {
			if !errors.Is(errs[i], want) {
				t.Errorf("call %d: got %v; want %v", i, errs[i], want)
			}
		}
		if got := queued(t, s, "a"); !slices.Equal(got, []string{"3", "4"}) {
			t.Errorf("queue: got %v; want what was not acked", got)
		}
		if z, err := s.Size(t.Context()); err != nil || !z.Low {
			t.Errorf("size: got %+v, %v; want it low", z, err)
		}
		if _, err := os.Stat(filepath.Join(s.dir, reserveName)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("reserve: got %v; want it given back", err)
		}
	})
	t.Run("a closure that looks away commits nothing after it", func(t *testing.T) {
		free.Store(1 << 40) // nothing but SQLite knows that it is full
		var seen error
		looksAway := func(tx store.Tx) error {
			_ = bigMail("a", "too much", 100_000)(tx)
			seen = tx.SetEpoch("stray")
			_ = tx.AppendLog(faultTime, "stray", []byte("{}"))
			return nil
		}
		errs := s.serveAll(acking("a", 3), looksAway)
		for i, err := range errs {
			if !errors.Is(err, store.ErrFull) {
				t.Errorf("call %d: got %v; want ErrFull", i, err)
			}
		}
		if seen == nil {
			t.Error("a statement after the full disk: got nil; want the same error")
		}
		if got := epochOf(t, s); got != epoch {
			t.Errorf("epoch: got %s; want it unchanged", got)
		}
		if got := queued(t, s, "a"); !slices.Equal(got, []string{"3", "4"}) {
			t.Errorf("queue: got %v; want it unchanged", got)
		}
		if err := s.serveAll(acking("a", 3))[0]; err != nil {
			t.Errorf("an ack alone: got %v; want nil", err)
		}
	})
	t.Run("with room it goes on, without being opened again", func(t *testing.T) {
		setPages(t, s, 1000)
		w := s.w
		for i, err := range s.serveAll(bigMail("a", "too much", 100_000), acking("a", 4)) {
			if err != nil {
				t.Errorf("call %d: got %v; want nil", i, err)
			}
		}
		if got := queued(t, s, "a"); !slices.Equal(got, []string{"too much"}) || s.w != w {
			t.Errorf("got %v, connection kept %v; want the new item on the same one", got, s.w == w)
		}
		if _, err := os.Stat(filepath.Join(s.dir, reserveName)); err != nil {
			t.Errorf("reserve: got %v; want it kept again", err)
		}
	})
	if err := s.Check(t.Context()); err != nil {
		t.Errorf("check: %v", err)
	}
}

// smallDisk is a file system of its own.
func smallDisk(t *testing.T, mib int) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can mount a small file system")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%dm", mib)); err != nil {
		t.Skipf("no small file system: mount: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return dir
}

// fill writes a file until not one byte more goes in.
func fill(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	for size := 1 << 20; size > 0; {
		_, err := f.Write(make([]byte, size))
		switch {
		case errors.Is(err, syscall.ENOSPC):
			size /= 2
		case err != nil:
			return err
		}
	}
	return nil
}

func freeBytes(t *testing.T, dir string) int64 {
	t.Helper()
	free, _, err := statfs(dir)
	if err != nil {
		t.Fatal(err)
	}
	return free
}

// TestFullDevice fills a real device to its last byte between a transaction's
// last statement and its COMMIT, while many push and ack.
func TestFullDevice(t *testing.T) {
	t.Parallel()
	for _, fillAfter := range []int{3, 40} {
		t.Run(fmt.Sprint("after commit ", fillAfter), func(t *testing.T) { fullDevice(t, fillAfter) })
	}
}

func fullDevice(t *testing.T, fillAfter int) {
	disk := smallDisk(t, 32)
	ballast := filepath.Join(disk, "ballast")
	o := testOptions(filepath.Join(disk, "store"))
	o.Free = nil // the system's own answer
	commits := 0
	isFull := make(chan struct{})
	o.fault = func(query string, done bool) error {
		if query != "COMMIT" || done {
			return nil
		}
		if commits++; commits == fillAfter {
			defer close(isFull)
			return fill(ballast)
		}
		return nil
	}
	s, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if s != nil {
			checkedClose(t, s)
		}
	})

	// Pushers go on until they are refused; one acks all the while, each ack a
	// seq of its own queue that nobody pushes to.
	const pushers = 6
	var wg sync.WaitGroup
	stored := make([][]string, pushers)
	for p := range pushers {
		wg.Go(func() {
			for i := range 10_000 {
				id := fmt.Sprintf("%d-%d", p, i)
				err := s.Update(context.Background(), bigMail("a", id, 8000))
				if errors.Is(err, store.ErrFull) {
					return
				}
				if err != nil {
					t.Errorf("push: got %v; want nil or ErrFull", err)
					return
				}
				stored[p] = append(stored[p], id)
			}
			t.Error("push: never refused")
		})
	}
	wg.Go(func() {
		for i := 0; ; i++ {
			err := s.Update(context.Background(), func(tx store.Tx) error { return tx.SetEpoch(fmt.Sprint("epoch-", i)) })
			if err != nil {
				t.Errorf("a write that is no mail: got %v; want nil, with the reserve given back", err)
				return
			}
			select {
			case <-isFull:
				return
			default:
			}
		}
	})
	wg.Wait()
	<-isFull
	_, err = os.Stat(filepath.Join(s.dir, reserveName))
	t.Logf("the reserve was needed: %v", errors.Is(err, os.ErrNotExist)) // not while the log writes over itself
	intact := func(when string, gone map[string]bool) {
		t.Helper()
		held := map[string]int{}
		for _, id := range queued(t, s, "a") {
			held[id]++
		}
		n := 0
		for _, list := range stored {
			for _, id := range list {
				if gone[id] {
					continue
				}
				if n++; held[id] != 1 {
					t.Errorf("%s: item %s was answered and is there %d times; want once", when, id, held[id])
				}
			}
		}
		if n != len(held) {
			t.Errorf("%s: got %d items; want the %d that were answered", when, len(held), n)
		}
	}
	intact("full", nil)

	// Acks and views go on, more than a handful.
	gone := map[string]bool{}
	acked := func(n int) {
		t.Helper()
		for range n {
			var first store.Item
			if err := s.Update(t.Context(), func(tx store.Tx) error {
				a := storetest.Key("a")
				if err := tx.Page(a, 0, 1, func(it store.Item) bool { first = it; return false }); err != nil {
					return err
				}
				_, err := tx.AckThrough(a, first.Seq)
				return err
			}); err != nil {
				t.Fatalf("ack on a full disk, %d bytes free: got %v; want nil", freeBytes(t, disk), err)
			}
			gone[first.ID] = true
		}
	}
	acked(5)
	intact("acked", gone)
	if err := s.Update(t.Context(), bigMail("a", "late", 8000)); !errors.Is(err, store.ErrFull) {
		t.Errorf("push on a full disk: got %v; want ErrFull", err)
	}

	// A start on the disk as it is.
	checkedClose(t, s)
	if s, err = Open(t.Context(), o); err != nil {
		t.Fatalf("open on a full disk, %d bytes free: %v", freeBytes(t, disk), err)
	}
	intact("opened again", gone)
	if err := s.Update(t.Context(), bigMail("a", "later", 8000)); !errors.Is(err, store.ErrFull) {
		t.Errorf("push after a start on a full disk: got %v; want ErrFull", err)
	}
	acked(1)

	// And with room again.
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if err := s.Update(t.Context(), bigMail("a", "at last", 8000)); err != nil {
		t.Errorf("push with room again: got %v; want nil", err)
	}
	gone["at last"] = false
	stored[0] = append(stored[0], "at last")
	intact("room again", gone)
	if z, err := s.Size(t.Context()); err != nil || z.Low {
		t.Errorf("size: got %+v, %v; want it not low", z, err)
	}
	if err := s.Update(t.Context(), func(store.Tx) error { return nil }); err != nil { // what the group before left to do is done
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(s.dir, reserveName)); err != nil {
		t.Errorf("reserve: got %v; want it kept again", err)
	}

	// The disk fills to the last byte while nothing runs: the reserve, kept
	// again, makes the room that opening needs.
	checkedClose(t, s)
	if err := fill(ballast); err != nil {
		t.Fatal(err)
	}
	if s, err = Open(t.Context(), o); err != nil {
		t.Fatalf("open on a disk that filled while it was closed: %v", err)
	}
	intact("opened after that", gone)
	acked(1)
	checkedClose(t, s)
}

// Without the reserve a full disk is told in words.
func TestNoRoomToOpenIsTold(t *testing.T) {
	t.Parallel()
	disk := smallDisk(t, 8)
	o := testOptions(filepath.Join(disk, "store"))
	o.Free = nil
	s, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	mustInsert(t, s, "a", "1")
	checkedClose(t, s)
	if err := os.Remove(filepath.Join(s.dir, reserveName)); err != nil {
		t.Fatal(err)
	}
	if err := fill(filepath.Join(disk, "ballast")); err != nil {
		t.Fatal(err)
	}
	if s, err := Open(t.Context(), o); err == nil {
		checkedClose(t, s) // some kernels find the room
	} else if !strings.Contains(err.Error(), filepath.Join(o.Dir, FileName)) || strings.Contains(err.Error(), "\n") {
		t.Errorf("got %q; want one line that names the file", err)
	}
	if err := os.Remove(filepath.Join(disk, "ballast")); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, o)
	if got := queued(t, s, "a"); !slices.Equal(got, []string{"1"}) {
		t.Errorf("got %v; want the item", got)
	}
	checkedClose(t, s) // before the disk goes
}

// Any write is enough to see that the disk has filled or has room, and room
// that the reserve file takes is none.
func TestRoomIsSeenByEveryWrite(t *testing.T) {
	t.Parallel()
	const size, kept, reserve = 100 << 20, 10 << 20, 5 << 20
	var free atomic.Int64 // of the device, were there no reserve file
	free.Store(size)
	o := testOptions(t.TempDir())
	path := filepath.Join(o.Dir, reserveName)
	o.Free = func(string) (int64, int64, error) {
		if st, err := os.Stat(path); err == nil {
			return max(free.Load()-st.Size(), 0), size, nil
		}
		return free.Load(), size, nil
	}
	s := mustOpen(t, o)
	beat := func() {
		t.Helper()
		if err := s.Update(t.Context(), func(tx store.Tx) error { return tx.SetHeartbeat(faultTime) }); err != nil {
			t.Fatalf("heartbeat: got %v; want nil", err)
		}
	}
	for _, step := range []struct {
		name string
		free int64
		low  bool
	}{
		{"full", reserve, true},
		{"still scarce", reserve + kept, true},
		{"enough but for the reserve", kept + kept/4 + reserve - 1, true},
		{"room", kept + kept/4 + 2*reserve, false},
	} {
		if step.name == "still scarce" { // the reserve went
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
		free.Store(step.free)
		beat()
		if z, err := s.Size(t.Context()); err != nil || z.Low != step.low {
			t.Errorf("%s: got %+v, %v; want low %v", step.name, z, err, step.low)
		}
	}
	beat() // what the group before left to do is done
	if st, err := os.Stat(path); err != nil || st.Size() != reserve {
		t.Errorf("reserve: got %v, %v; want it written anew", st, err)
	}
	for i := range 3 {
		if err := s.Update(t.Context(), inserting("a", fmt.Sprint("back-", i))); err != nil {
			t.Errorf("push %d after it: got %v; want nil", i, err)
		}
	}
}

// To hold an item or to release it writes it a second time: without room it stays
// where it is, and what makes room goes on.
func TestHoldAndReleaseNeedRoom(t *testing.T) {
	t.Parallel()
	const size, kept = 100 << 20, 10 << 20
	var free atomic.Int64
	free.Store(size)
	o := testOptions(t.TempDir())
	o.Free = func(string) (int64, int64, error) { return free.Load(), size, nil }
	s := mustOpen(t, o)
	a := storetest.Key("a")
	hold := func(seq int64) error {
		return s.Update(t.Context(), func(tx store.Tx) error { return tx.Hold(a, seq, faultTime, "operator", "reason") })
	}
	release := func(seq int64) error {
		return s.Update(t.Context(), func(tx store.Tx) error { _, err := tx.Release(a, seq); return err })
	}
	for _, id := range []string{"1", "2", "3", "4"} {
		mustInsert(t, s, "a", id)
	}
	if err := errors.Join(hold(1), hold(2)); err != nil {
		t.Fatal(err)
	}
	free.Store(kept - 1)
	for what, err := range map[string]error{"hold": hold(3), "release": release(1)} {
		if !errors.Is(err, store.ErrFull) {
			t.Errorf("%s without room: got %v; want ErrFull", what, err)
		}
	}
	for what, err := range map[string]error{"hold": hold(9), "release": release(9)} {
		if !errors.Is(err, store.ErrNotFound) {
			t.Errorf("%s of what is not there: got %v; want ErrNotFound", what, err)
		}
	}
	if got := queued(t, s, "a"); !slices.Equal(got, []string{"3", "4"}) {
		t.Errorf("queue: got %v; want it as it was", got)
	}
	if err := s.Update(t.Context(), func(tx store.Tx) error {
		_, err := tx.AckThrough(a, 3)
		return errors.Join(err, tx.Drop(store.Item{Target: a, Seq: 2, Held: true}))
	}); err != nil {
		t.Errorf("ack and drop: got %v; want nil", err)
	}
	free.Store(size)
	if err := errors.Join(release(1), hold(4)); err != nil {
		t.Errorf("with room again: got %v; want nil", err)
	}
	if got := queued(t, s, "a"); !slices.Equal(got, []string{"1"}) {
		t.Errorf("queue: got %v; want what was released", got)
	}
}
