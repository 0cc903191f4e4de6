package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"
)

func isTimeout(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout()
}

// print writes the table, as README has it.
func (b *bench) print() {
	w := b.out
	fmt.Fprintf(w, "\nMeasured on %s.\n", machine(b.disk))
	fmt.Fprintf(w, "%d senders, each a host with a key of its own, push items of %d wire bytes to %d targets over loopback;\n", b.senders, b.wireSize, b.targets)
	fmt.Fprintf(w, "%d rounds in which each relay had %s of load, ratios are medians over rounds. Load and relays share the cores.\n", b.rounds, b.window)
	fmt.Fprintln(w, "Queues are acked to their depth between windows, while no clock runs.")
	if b.quick {
		fmt.Fprintln(w, "A smoke run: these numbers say nothing.")
	}
	fmt.Fprintln(w, "\n| row | relay | naive | ratio | target | what limits it |")
	fmt.Fprintln(w, "|---|---|---|---|---|---|")
	for _, l := range b.table {
		fmt.Fprintf(w, "| %s | %s | %s | %s | %s | %s |\n", l.what, l.relay, dash(l.naive), dash(l.ratio), dash(l.target), l.limit)
	}
	fmt.Fprintln(w)
	for _, n := range b.notes {
		fmt.Fprintln(w, n)
	}
}

func dash(s string) string {
	if s == "" {
		return "–"
	}
	return s
}

// takeProfile writes a processor profile of the relay under load.
func (b *bench) takeProfile(ctx context.Context) error {
	s, err := b.fresh(ctx, ownRelay, 0, nil)
	if err != nil {
		return err
	}
	at := <-s.profiles
	got, err := b.load(ctx, s, b.bodies(max(3000/b.profileBatch, 48), b.profileBatch), b.profileBatch, b.window/2)
	if err != nil {
		return err
	}
	window := time.Duration(b.rounds) * b.window
	bodies := b.bodies(enough(got, window, b.profileBatch), b.profileBatch)
	done := make(chan error, 1)
	go func() {
		resp, err := http.Get(fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", at, int(max(window.Seconds()-1, 1))))
		if err != nil {
			done <- err
			return
		}
		defer resp.Body.Close()
		f, err := os.Create(b.profile)
		if err != nil {
			done <- err
			return
		}
		_, err = io.Copy(f, resp.Body)
		done <- errors.Join(err, f.Close())
	}()
	got, err = b.load(ctx, s, bodies, b.profileBatch, window)
	if err != nil {
		return err
	}
	fmt.Fprintf(b.out, "%.0f items/s, relay %.1f µs of processor an item, p50 %s, p99 %s\n", got.rate(), float64(got.cpu.Microseconds())/float64(got.items),
		show(percentile(got.latency, 50)), show(percentile(got.latency, 99)))
	return <-done
}
