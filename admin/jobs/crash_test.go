package jobs

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/store/sqlite"
)

const childDir = "MBX_JOBS_CHILD" // the store of a child that is to be killed

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		if err := child(dir); err != nil {
			fmt.Println("error:", err)
		}
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// child runs one job that says that it has begun and never ends.
func child(dir string) error {
	st, err := sqlite.Open(context.Background(), sqlite.Options{Dir: dir, Free: smallDevice})
	if err != nil {
		return err
	}
	r, err := New(Options{Store: st, Jobs: []Job{{Name: "backup", Do: func(context.Context, *Task) (string, error) {
		fmt.Println("begun")
		select {}
	}}}})
	if err != nil {
		return err
	}
	run, err := r.Start(context.Background(), Request{Job: "backup", By: "child"})
	if err != nil {
		return err
	}
	_, err = r.Wait(context.Background(), run.ID, nil)
	return err
}

// A process that is killed in the middle of a run leaves its lease: the next one
// takes it over, the row says what happened, and the run is tried again.
func TestCrashLeavesALease(t *testing.T) {
	rounds := 2
	if n, err := strconv.Atoi(os.Getenv("MBX_TORTURE_ROUNDS")); err == nil {
		rounds = n
	}
	r, w := daily(t)
	ok(t, "close the runner", r.Close())
	for n := range rounds {
		ok(t, "close the store", r.store.Close())
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childDir+"="+r.dir)
		out, err := cmd.StdoutPipe()
		ok(t, "pipe", err)
		ok(t, "start the child", cmd.Start())
		sc := bufio.NewScanner(out)
		sc.Scan()
		same(t, "the child", sc.Text(), "begun")
		ok(t, "kill", cmd.Process.Kill())
		_ = cmd.Wait() // it was killed

		r.openStore()
		var left store.Run
		ok(t, "view", r.store.View(ctx, func(rd store.Reader) (err error) { left, err = rd.LastRun("backup", ""); return err }))
		r.wall.Store(left.StartedAt.Add(time.Minute).UnixMilli())
		r.boot()
		same(t, "before the first look", brief(r.stateOf("backup").Last), fmt.Sprintf("child crashed %q", crashedText))
		r.see()
		same(t, "a new store's schedule does not ask for it", w.times(), "")
		r.want("backup", "the test")
		r.see()
		same(t, "taken over", r.list("backup")[0].Outcome+" "+r.list("backup")[1].Outcome, "ok crashed")
		same(t, "rows", len(r.list("backup")), 2*n+2)
		w.times()
		ok(t, "close the runner", r.Close())
	}
	r.boot()
}
