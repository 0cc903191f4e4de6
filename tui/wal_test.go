package tui

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	tea "github.com/charmbracelet/bubbletea"

	"github.com/agentmbx/agentmbx/relay/store"
)

// Screens that are left open under write load keep no reader that pins the
// write-ahead log: over 500 refreshes it is folded back each time, and does not
// grow.
func TestOpenScreensPinNothing(t *testing.T) {
	t.Parallel()
	r := newReal(t)
	sender, target := r.enrol("sender"), r.enrol("target")
	for range 3 {
		r.send1(sender, target)
	}
	d := desk{svc: r.local, actor: "cli:test", storeDir: r.dir}
	screens := []screen{newOverview(d), newQueues(d), newEnrolments(d), newQuarantine(d), newBackups(d), newJobs(d), newLog(d)}
	// The items of a queue and one host are open, too.
	for _, open := range []screen{newQueues(d), newEnrolments(d)} {
		open, _ = open.update(open.load()())
		open, _ = open.update(tea.KeyMsg{Type: tea.KeyEnter})
		screens = append(screens, open)
	}

	ctx, stop := context.WithCancel(t.Context())
	var writer sync.WaitGroup
	var written atomic.Int64
	writer.Go(func() {
		body := []byte(`"` + strings.Repeat("load", 16<<10) + `"`)
		for ctx.Err() == nil {
			err := r.store.Update(context.Background(), func(tx store.Tx) error { return tx.SetState("load", body) })
			if err != nil {
				t.Error(err)
				return
			}
			written.Add(int64(len(body)))
		}
	})
	defer writer.Wait()
	defer stop()

	const refreshes, enough = 500, 8 << 20
	worst := int64(0)
	for n := 0; n < refreshes || written.Load() < enough; n++ {
		i := n % len(screens)
		msg := screens[i].load()()
		if err := failure(msg); err != nil {
			t.Fatal(err)
		}
		screens[i], _ = screens[i].update(tickMsg(clock.Add(time.Duration(n) * time.Second)))
		screens[i], _ = screens[i].update(msg)
		_ = screens[i].view(80, 24)
		if n%10 != 9 {
			continue
		}
		if err := r.store.Maintain(t.Context()); err != nil {
			t.Fatal(err)
		}
		z, err := r.store.Size(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		worst = max(worst, z.Log)
	}
	// A pinned log holds all that was written since.
	t.Logf("at worst the log held %d of %d bytes written", worst, written.Load())
	if all := written.Load(); worst > all/2 {
		t.Errorf("the log grew to %d of %d bytes written: a reader pins it", worst, all)
	}
}
