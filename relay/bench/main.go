// Command bench measures a relay: real ones, as child processes on a real
// disk, under real signed requests over loopback.
//
// Three kinds of relay take the same load in turns. "relay" is the agentmbx
// binary. "naive" does the same work item by item, one transaction each, the
// way a first version would (naive.go). "bare" has no database at all, only an
// append log that it syncs (bare.go): what any relay on this machine could
// reach. Shared machines are noisy, so a ratio is the median over rounds in
// which every kind had its turn. Nothing here passes or fails by time; the
// program fails when a relay lost, doubled or forged something.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	if kind := os.Getenv(childEnv); kind != "" {
		exit(child(kind))
	}
	o := config{out: os.Stdout, talk: os.Stderr, senders: 16, targets: 16, many: 100, enrolments: 100_000, items: 1_000_000, polls: 5000}
	flag.BoolVar(&o.quick, "quick", false, "a smoke run of a few seconds: small numbers, nothing to judge")
	flag.IntVar(&o.rounds, "rounds", 7, "rounds of each comparison")
	flag.DurationVar(&o.window, "window", 1500*time.Millisecond, "how long each relay is under load in one round")
	flag.DurationVar(&o.idle, "idle", 10*time.Second, "how long open long polls are watched")
	flag.StringVar(&o.only, "only", "", "measure only these rows: one, batch, depth, full, pull, poll, idle; with commas")
	flag.StringVar(&o.dir, "dir", "", "`folder` for the stores (default: a new one in the cache folder of the user); its disk is what is measured")
	flag.StringVar(&o.other, "other", "", "another agentmbx `binary` that takes its turns beside this tree's in the push rows: what a change is worth")
	flag.BoolVar(&o.presign, "presign", false, "sign hops before the clock runs: leaves the relay more of the processor")
	flag.IntVar(&o.plain, "body", 840, "`bytes` of text in an item; sealed, encoded and signed 840 make 3 KiB")
	flag.StringVar(&o.profile, "profile", "", "write a processor profile of the relay, run inside the bench's own child, to this `file` and stop")
	flag.IntVar(&o.profileBatch, "profile-batch", 100, "items per request under -profile")
	flag.Parse()
	if o.quick {
		o.small()
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	exit(run(ctx, o))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// config is what a run is told. small makes one for a smoke test of it.
type config struct {
	out, talk        io.Writer
	quick            bool
	rounds           int
	window, idle     time.Duration
	only, dir        string
	other            string // another build of the relay, or ""
	presign          bool
	plain            int // bytes of an item's text
	senders, targets int
	many             int // items in a request with many
	enrolments       int // of the full store
	items            int // in the full store
	polls            int
	profile          string
	profileBatch     int
}

func (o *config) small() {
	o.rounds, o.window, o.idle = 1, 300*time.Millisecond, 500*time.Millisecond
	o.enrolments, o.items, o.polls, o.many = 500, 2000, 50, 20
}

// rowNames are the rows in the order they are measured.
var rowNames = []string{"one", "batch", "depth", "full", "pull", "poll", "idle"}

func (o config) wants(row string) bool {
	return o.only == "" || slices.Contains(strings.Split(o.only, ","), row)
}

func run(ctx context.Context, o config) (err error) {
	for _, name := range strings.Split(o.only, ",") {
		if name != "" && !slices.Contains(rowNames, name) {
			return fmt.Errorf("no row %q; there are %s", name, strings.Join(rowNames, ", "))
		}
	}
	if err := raiseFiles(); err != nil {
		return err
	}
	dir, err := workFolder(o.dir)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, os.RemoveAll(dir))
		if o.dir == "" {
			_ = os.Remove(filepath.Dir(dir)) // ours; stays when another run is in it
		}
	}()
	disk, err := diskOf(dir)
	if err != nil {
		return err
	}
	b := &bench{config: o, dir: dir, disk: disk}
	fmt.Fprintf(o.talk, "stores in %s: %s\n", dir, disk)
	if disk.memory {
		return fmt.Errorf("%s is in memory (%s): durable writes cost nothing there; give a folder on a disk with -dir", dir, disk.fs)
	}
	defer func() { err = errors.Join(err, b.stopAll()) }()
	if o.profile != "" {
		return b.takeProfile(ctx)
	}
	if err := b.buildRelay(ctx); err != nil {
		return err
	}
	for _, row := range []struct {
		name    string
		measure func(context.Context) error
	}{
		{"one", b.one}, {"batch", b.batch}, {"depth", b.depth}, {"full", b.full},
		{"pull", b.pull}, {"poll", b.poll}, {"idle", b.idlePolls},
	} {
		if !o.wants(row.name) {
			continue
		}
		began := time.Now()
		fmt.Fprintf(o.talk, "row %s\n", row.name)
		if err := row.measure(ctx); err != nil {
			return fmt.Errorf("row %s: %w", row.name, err)
		}
		if err := b.stopAll(); err != nil {
			return err
		}
		fmt.Fprintf(o.talk, "  took %s\n", time.Since(began).Round(100*time.Millisecond))
	}
	b.print()
	return nil
}

// workFolder makes a folder of our own.
func workFolder(parent string) (string, error) {
	if parent == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			cache = "."
		}
		parent = filepath.Join(cache, "agentmbx-bench")
	}
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return "", err
	}
	return os.MkdirTemp(parent, "run-")
}
