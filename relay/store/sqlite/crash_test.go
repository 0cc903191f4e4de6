package sqlite

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/store/storetest"
)

const crashChild = "MBX_CRASH_CHILD" // the folder of the store, then a word that is new each round

func TestMain(m *testing.M) {
	if v := os.Getenv(crashChild); v != "" {
		dir, round, _ := strings.Cut(v, "|")
		fmt.Fprintln(os.Stderr, writeForEver(dir, round))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

var crashQueues = []string{"q0", "q1", "q2"}

// writeForEver pushes, acks and denies until it is killed. It prints a line for each
// write once that was answered nil, and only then.
func writeForEver(dir, round string) error {
	o := testOptions(dir)
	o.LockWait = 10 * time.Second
	s, err := Open(context.Background(), o)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	say := func(format string, args ...any) error {
		mu.Lock()
		defer mu.Unlock()
		_, err := fmt.Printf(format+" .\n", args...)
		return err
	}
	failed := make(chan error)
	for p := range 6 {
		go func() {
			q := crashQueues[p%len(crashQueues)]
			for i := 0; ; i++ {
				id := fmt.Sprintf("%s-%d-%d", round, p, i)
				var seq int64
				err := s.Update(context.Background(), func(tx store.Tx) (err error) {
					seq, err = tx.Insert(storetest.Mail(storetest.Key(q), storetest.Key(fmt.Sprint("sender-", p)), id, 50+i%7*1000))
					return err
				})
				if err == nil {
					err = say("put %s %s %d %d", q, id, p, seq)
				}
				if err != nil {
					failed <- err
					return
				}
			}
		}()
	}
	for _, q := range crashQueues {
		go func() {
			for {
				// The last of a page is left, so that there is always something.
				var through, before int64
				err := s.Update(context.Background(), func(tx store.Tx) error {
					through, before = 0, 0
					if err := tx.Page(storetest.Key(q), 0, 4, func(it store.Item) bool {
						through, before = before, it.Seq
						return true
					}); err != nil {
						return err
					}
					_, err := tx.AckThrough(storetest.Key(q), through)
					return err
				})
				if err == nil {
					err = say("ack %s %d", q, through)
				}
				if err != nil {
					failed <- err
					return
				}
			}
		}()
	}
	go func() {
		for i := 0; ; i++ {
			id := fmt.Sprintf("%s-list-%d", round, i)
			err := s.Update(context.Background(), func(tx store.Tx) error { return takeList(tx, id) })
			if err == nil {
				err = say("deny %s", id)
			}
			if err != nil {
				failed <- err
				return
			}
		}
	}()
	return <-failed
}

// takeList takes a deny list with an entry for a host and one for a credential.
func takeList(tx store.Tx, id string) error {
	at := faultTime
	if last, err := tx.NewestDenyList("issuer"); err == nil {
		at = last.IAT.Add(time.Second)
	} else if !errors.Is(err, store.ErrNotFound) {
		return err
	}
	return errors.Join(tx.AddDenial(store.Denial{HostFP: id, AddedAt: at}), tx.AddDenial(store.Denial{ClientID: id, AddedAt: at}), tx.PutDenyList(store.DenyList{ID: id, Source: "issuer", IAT: at, Expires: at.Add(time.Hour)}))
}

// verifyDenials looks for the lists that a killed process was told are stored. None
// is there in part.
func verifyDenials(t *testing.T, r store.Reader, when string, lists []string) {
	t.Helper()
	if newest, err := r.NewestDenyList("issuer"); err == nil {
		lists = append(slices.Clone(lists), newest.ID) // it need not have been told
	} else if len(lists) > 0 {
		t.Errorf("%s: newest deny list: %v; want one", when, err)
	}
	for _, id := range lists {
		l, err := r.DenyList(id)
		_, err2 := r.Denied(id, "", l.IAT)
		_, err3 := r.Denied("", id, l.IAT)
		if err := errors.Join(err, err2, err3); err != nil {
			t.Errorf("%s: deny list %s: %v; want it known, with its two entries", when, id, err)
		}
	}
	if err := r.Denials("", 0, func(d store.Denial) bool { // and no entry without its list
		if _, err := r.DenyList(d.HostFP + d.ClientID); err != nil {
			t.Errorf("%s: %+v: %v; want its list", when, d, err)
		}
		return true
	}); err != nil {
		t.Errorf("%s: denials: %v", when, err)
	}
}

// stored is an item that a killed process was told is stored.
type stored struct {
	queue, id, sender string
	seq               int64
}

// TestCrashKill kills a process that pushes, acks and denies, again and again on one
// store. MBX_TORTURE_ROUNDS says how often.
func TestCrashKill(t *testing.T) {
	t.Parallel()
	rounds := 3
	if n, err := strconv.Atoi(os.Getenv("MBX_TORTURE_ROUNDS")); err == nil && n > 0 {
		rounds = n
	}
	seed := storetest.Seed(t)
	rnd := rand.New(rand.NewPCG(seed, 2))
	dir := t.TempDir()
	heads := map[string]int64{} // the highest seq there was, by queue
	var puts []stored
	var lists []string
	for round := range rounds {
		stopAt := 1 + rnd.IntN(400)
		acked := map[string]int64{}
		for _, line := range killedAfter(t, dir, fmt.Sprint("r", round), stopAt) {
			f := strings.Fields(line)
			if len(f) == 0 || f[len(f)-1] != "." {
				continue // cut off by the kill: not said
			}
			switch f[0] {
			case "put":
				p := stored{queue: f[1], id: f[2], sender: "sender-" + f[3], seq: atoi(t, f[4])}
				if p.seq <= heads[p.queue] {
					t.Errorf("round %d: %s has seq %d in %s; want it above %d, the head before", round, p.id, p.seq, p.queue, heads[p.queue])
				}
				puts = append(puts, p)
			case "deny":
				lists = append(lists, f[1])
			case "ack":
				acked[f[1]] = max(acked[f[1]], atoi(t, f[2]))
			}
		}
		verifyCrashed(t, dir, fmt.Sprint("round ", round), puts, lists, acked, heads)
		if t.Failed() {
			t.Fatalf("round %d of %d, killed after %d answers", round, rounds, stopAt)
		}
	}
	t.Logf("%d rounds, %d answered pushes, %d deny lists", rounds, len(puts), len(lists))
	if len(lists) == 0 && len(puts) > 100 {
		t.Error("no deny list was taken; want some, or this shows nothing of them")
	}
}

func atoi(t *testing.T, s string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// killedAfter is all that a child said, which is killed once it has said n
// lines.
func killedAfter(t *testing.T, dir, round string, n int) (lines []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	child := exec.CommandContext(ctx, os.Args[0])
	child.Env = append(os.Environ(), crashChild+"="+dir+"|"+round)
	var stderr strings.Builder
	child.Stderr = &stderr
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	for sc := bufio.NewScanner(out); sc.Scan(); { // to its end: what was said before the kill counts
		if lines = append(lines, sc.Text()); len(lines) == n {
			if err := child.Process.Kill(); err != nil { // SIGKILL: no defers, no Close
				t.Error(err)
			}
		}
	}
	_ = child.Wait() // "signal: killed"
	if len(lines) < n {
		t.Fatalf("the child said %d lines; want %d; stderr: %s", len(lines), n, stderr.String())
	}
	return lines
}

// verifyCrashed opens what a killed process left: what it was told is stored
// is there once, what it was told is acked is gone, and the store agrees with
// itself. It notes the new heads.
func verifyCrashed(t *testing.T, dir, when string, puts []stored, lists []string, acked, heads map[string]int64) {
	t.Helper()
	s, err := Open(t.Context(), testOptions(dir))
	if err != nil {
		t.Fatalf("%s: open after the kill: %v", when, err)
	}
	defer checkedClose(t, s)
	if err := s.View(t.Context(), func(r store.Reader) error {
		verifyDenials(t, r, when, lists)
		for _, q := range crashQueues {
			key := storetest.Key(q)
			head, err := r.Head(key)
			if err != nil {
				return err
			}
			through, err := r.Acked(key)
			if err != nil {
				return err
			}
			if head < heads[q] || through < acked[q] {
				t.Errorf("%s: %s: got head %d, acked %d; want at least %d and %d", when, q, head, through, heads[q], acked[q])
			}
			heads[q] = head
			held := map[string]int64{}
			if err := r.Page(key, 0, 1<<30, func(it store.Item) bool {
				if _, twice := held[it.ID]; twice || it.Seq <= through || it.Seq > head {
					t.Errorf("%s: %s: got %s at %d, twice %v; want it once, above %d and not above %d", when, q, it.ID, it.Seq, twice, through, head)
				}
				held[it.ID] = it.Seq
				return true
			}); err != nil {
				return err
			}
			for _, p := range puts {
				if p.queue != q {
					continue
				}
				if seq, ok := held[p.id]; ok != (p.seq > through) || ok && seq != p.seq {
					t.Errorf("%s: %s: %s was answered as %d: got %d, queued %v; want it queued once unless acked through %d",
						when, q, p.id, p.seq, seq, ok, through)
				}
				if d, err := r.Dedup(storetest.Key(p.sender), p.id, key); err != nil || d.Seq != p.seq {
					t.Errorf("%s: %s: dedup of %s: got %+v, %v; want seq %d", when, q, p.id, d, err, p.seq)
				}
			}
		}
		return nil
	}); err != nil {
		t.Errorf("%s: %v", when, err)
	}
}

// A store that was killed while it was being made, or closed uncleanly, is a
// store still: the log is read back.
func TestKilledWriterLeavesItsLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	killedAfter(t, dir, "one", 1)
	st, err := os.Stat(filepath.Join(dir, FileName+"-wal"))
	if err != nil || st.Size() == 0 {
		t.Fatalf("log: got %v, %v; want one with bytes, or this shows nothing", st, err)
	}
	if _, err := Open(t.Context(), Options{Dir: dir, Key: storetest.Key("other relay")}); !errors.Is(err, ErrOtherKey) {
		t.Errorf("open with another key: got %v; want ErrOtherKey", err)
	}
	verifyCrashed(t, dir, "after a refusal", nil, nil, map[string]int64{}, map[string]int64{})
}
