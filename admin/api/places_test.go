package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// queue is a listener of connections that the test makes; nil ends an Accept.
type queue struct{ conns chan net.Conn }

func (q *queue) Accept() (net.Conn, error) {
	if c := <-q.conns; c != nil {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (q *queue) Close() error   { return nil }
func (q *queue) Addr() net.Addr { return &net.TCPAddr{} }

// from is one end of a pipe that says it comes from an address.
type from struct {
	net.Conn
	at string
}

func (f from) RemoteAddr() net.Addr {
	a, err := net.ResolveTCPAddr("tcp", f.at)
	if err != nil {
		panic(err)
	}
	return a
}

// hall is places to sit in, and connections that come to it.
type hall struct {
	*places
	t *testing.T
}

func newHall(t *testing.T, all, each int, shut func(string) bool) hall {
	return hall{newPlaces(&queue{make(chan net.Conn, 1)}, all, each, shut), t}
}

// comes reports whether a connection from an address is let in.
func (h hall) comes(at string) (c *placedConn, in bool) {
	h.t.Helper()
	ours, theirs := net.Pipe()
	q := h.Listener.(*queue)
	q.conns <- from{ours, at}
	let := make(chan net.Conn, 1)
	go func() {
		c, _ := h.Accept()
		let <- c
	}()
	hungUp := make(chan struct{})
	go func() {
		_, _ = theirs.Read(make([]byte, 1))
		close(hungUp)
	}()
	select {
	case c := <-let:
		return c.(*placedConn), true
	case <-hungUp:
		q.conns <- nil
		<-let
		return nil, false
	}
}

// Each address has few places and all together some more. Who has shown a token
// takes none of its address's, and places come back.
func TestPlaces(t *testing.T) {
	t.Parallel()
	h := newHall(t, 5, 2, func(at string) bool { return at == "198.51.100.1" })
	want := func(at string, want bool) *placedConn {
		t.Helper()
		c, got := h.comes(at)
		if got != want {
			t.Fatalf("%s: let in %v; want %v", at, got, want)
		}
		return c
	}
	first := want("192.0.2.1:1", true)
	want("192.0.2.1:2", true)
	want("192.0.2.1:3", false)
	want("[::ffff:192.0.2.1]:4", false)
	want("198.51.100.1:1", false)
	first.known()
	first.known()
	want("192.0.2.1:5", true)
	want("192.0.2.1:6", false)
	for range 2 {
		_ = first.Close()
	}
	want("192.0.2.1:7", false) // a place that was given back is not given twice
	want("[2001:db8::1]:1", true)
	want("[2001:db8::2]:1", true)
	want("[2001:db8::3]:1", false) // one client has a whole /64
	last := want("192.0.2.3:1", true)
	want("192.0.2.4:1", false) // all are taken
	if err := last.Close(); err != nil {
		t.Fatal(err)
	}
	want("192.0.2.4:1", true)
}

// One address without a token cannot keep others from the desk.
func TestDoorStaysOpen(t *testing.T) {
	t.Parallel()
	_, address := open(t, nil)
	var client *Client
	for range maxConnsEach + 2 { // each keeps its connection, which counts no more
		client = remote(t, "http://"+address, fullToken)
		if _, err := client.Status(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	var held []net.Conn
	for range maxConns + maxConnsEach {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, c)
	}
	defer func() {
		for _, c := range held {
			c.Close()
		}
	}()
	shut := 0
	for _, c := range held[maxConnsEach:] { // those beyond the address's places are closed at once
		if err := c.SetReadDeadline(time.Now().Add(4 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 1)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			shut++
		}
	}
	if shut != maxConns {
		t.Errorf("got %d connections closed at once; want %d", shut, maxConns)
	}
	if _, err := client.Status(t.Context()); err != nil {
		t.Errorf("with a connection of its own: got %v; want nil", err)
	}
}

// Whose failed tries are spent is not even listened to, and is again after the
// minute.
func TestSpentAddressIsShutOut(t *testing.T) {
	t.Parallel()
	now := time.Now()
	_, address := open(t, func(d *Door) { d.Now = func() time.Time { return now } })
	for i := range maxFailures {
		_, err := remote(t, "http://"+address, "a-guess-that-is-wrong").Status(t.Context())
		if err == nil || !strings.Contains(err.Error(), "does not take this token") {
			t.Fatalf("try %d: got %v; want a refusal", i, err)
		}
	}
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if b, err := io.ReadAll(c); len(b) > 0 {
		t.Errorf("got %q, %v; want it closed without a word", b, err)
	}
	_, err = remote(t, "http://"+address, fullToken).Status(t.Context())
	if err == nil || errors.Is(err, ErrNotRunning) || !strings.Contains(err.Error(), "failed tries") {
		t.Errorf("got %v; want a word of what may be why", err)
	}
}

// failing is a listener whose Accept fails for a while.
type failing struct {
	*pipeListener
	left int
	err  error
}

func (f *failing) Accept() (net.Conn, error) {
	if f.left > 0 {
		f.left--
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: f.err}
	}
	return f.pipeListener.Accept()
}

// A relay that has no files or no memory for a connection goes on, says so once a
// minute, and answers when it has some again; it stops at once when it is told to.
func TestAcceptThatFails(t *testing.T) {
	t.Parallel()
	for _, e := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED, syscall.EPERM, syscall.EPROTO} {
		for _, stays := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				var lines bytes.Buffer
				log := slog.New(slog.NewTextHandler(&lines, &slog.HandlerOptions{Level: slog.LevelWarn}))
				l := &failing{&pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}, 150, e}
				if stays {
					l.left = 1 << 30
				}
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() {
					done <- serve(ctx, l, newHandler(&fake{}, log, usualTimes), log, slog.LevelDebug, usualTimes)
				}()
				time.Sleep(150*time.Second + time.Millisecond) // of the bubble's clock
				synctest.Wait()
				if n := strings.Count(lines.String(), "\n"); n < 2 || n > 3 || !strings.Contains(lines.String(), e.Error()) {
					t.Errorf("%v: got %d lines, %.300q; want one a minute", e, n, lines.String())
				}
				if !stays {
					ours, theirs := net.Pipe()
					l.conns <- theirs
					go func() { _, _ = fmt.Fprint(ours, "GET /v1/status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n") }()
					if b, err := io.ReadAll(ours); err != nil || !strings.HasPrefix(string(b), fmt.Sprintf("HTTP/1.1 %d", http.StatusOK)) {
						t.Errorf("%v: got %.100q, %v; want an answer", e, b, err)
					}
				}
				at := time.Now()
				cancel()
				if err := <-done; err != nil || time.Since(at) > 100*time.Millisecond {
					t.Errorf("%v: got %v after %s; want a stop at once", e, err, time.Since(at))
				}
			})
		}
	}
}
