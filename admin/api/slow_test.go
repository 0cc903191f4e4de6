package api

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// pipes serves a fake over pipes, whose deadlines follow the clock of the bubble.
func pipes(t *testing.T, f *fake) (dial func() net.Conn) {
	t.Helper()
	return pipesTo(t, newHandler(f, slog.New(slog.DiscardHandler), usualTimes))
}

func pipesTo(t *testing.T, h http.Handler) (dial func() net.Conn) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	l := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	done := make(chan error, 1)
	quiet := slog.New(slog.DiscardHandler)
	go func() { done <- serve(ctx, l, h, quiet, slog.LevelDebug, usualTimes) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serve: got %v; want nil after a stop", err)
		}
	})
	return func() net.Conn {
		ours, theirs := net.Pipe()
		l.conns <- theirs
		return ours
	}
}

type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	select {
	case <-l.closed:
	default:
		close(l.closed)
	}
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{} }

// drip writes a byte a second until the other end hangs up, and says how long
// that took.
func drip(c net.Conn) time.Duration {
	began := time.Now()
	for {
		if _, err := c.Write([]byte("x")); err != nil {
			return time.Since(began)
		}
		time.Sleep(time.Second) // of the bubble's clock
	}
}

// No client holds a connection by being slow.
func TestSlowClients(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, says string
		within     time.Duration
	}{
		{"nothing", "", usualTimes.header},
		{"half a header", "GET /v1/status HTTP/1.1\r\nHost: x\r\nX-Slow: ", usualTimes.header},
		{"half a body", "POST /v1/revoke HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n", usualTimes.body},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := pipes(t, &fake{})()
				go func() { _, _ = io.Copy(io.Discard, c) }()
				if _, err := io.WriteString(c, tt.says); err != nil {
					t.Fatal(err)
				}
				if took := drip(c); took > tt.within+2*time.Second {
					t.Errorf("held for %s; want at most %s", took, tt.within)
				}
			})
		})
	}
}

// Whoever the guard refuses is let go at once, whatever it says that it will send.
func TestSlowStrangers(t *testing.T) {
	t.Parallel()
	for _, kind := range []struct {
		name, target, header string
		spent                bool
		want                 string
	}{
		{"no token", "/v1/hold", "", false, "401"},
		{"a wrong token", "/v1/hold", "Authorization: Bearer a-guess-that-is-wrong\r\n", false, "401"},
		{"a token in the URL", "/v1/hold?token=x", "", false, "400"},
		{"an address that has failed too often", "/v1/hold", "Authorization: Bearer " + fullToken + "\r\n", true, "429"},
	} {
		for _, body := range []string{"Content-Length: 100", "Content-Length: 200000", "Content-Length: 99999999999", "Transfer-Encoding: chunked", "Content-Length: 100\r\nExpect: 100-continue"} {
			t.Run(kind.name+", "+body, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					now := time.Now()
					g := newGuard(&fake{}, &now)
					for kind.spent && !g.failures.Spent("pipe", now) {
						g.failures.Allow("pipe", now)
					}
					c := pipesTo(t, g)()
					answer := make(chan string, 1)
					go func() {
						b, _ := io.ReadAll(c)
						answer <- string(b)
					}()
					if _, err := fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\n%s%s\r\n\r\n", kind.target, kind.header, body); err != nil {
						t.Fatal(err)
					}
					if took := drip(c); took > 3*time.Second {
						t.Errorf("held for %s; want it gone at once", took)
					}
					if got := <-answer; !strings.HasPrefix(got, "HTTP/1.1 "+kind.want) {
						t.Errorf("got %q; want %s", got, kind.want)
					}
				})
			})
		}
	}
}

// A client that does not read its answer is let go.
func TestAnswerThatNobodyReads(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := pipes(t, &fake{})()
		if _, err := io.WriteString(c, "GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(usualTimes.answer + time.Second) // of the bubble's clock
		synctest.Wait()
		if b, err := io.ReadAll(c); err != nil || len(b) > 0 {
			t.Errorf("got %q, %v; want the connection closed", b, err)
		}
	})
}

// What the Service does may take longer than a client may take to ask: the call
// is neither cancelled nor its answer lost.
func TestLongWorkIsAnswered(t *testing.T) {
	t.Parallel()
	for _, body := range []string{"", `{"actor":"me"}`} {
		synctest.Test(t, func(t *testing.T) {
			f := &fake{hook: func(ctx context.Context) {
				select {
				case <-ctx.Done():
					t.Error("the call was cancelled")
				case <-time.After(10 * time.Minute):
				}
			}}
			c := pipes(t, f)()
			ask := "GET /v1/backups HTTP/1.1\r\nHost: x\r\n\r\n"
			if body != "" {
				ask = fmt.Sprintf("POST /v1/backups/prune HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
			}
			go func() { _, _ = io.WriteString(c, ask) }()
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(resp.Body)
			if err != nil || resp.StatusCode != 200 || !strings.HasPrefix(string(b), "[") {
				t.Errorf("got %d, %q, %v; want the answer", resp.StatusCode, b, err)
			}
			c.Close()
		})
	}
}
