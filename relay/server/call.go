package server

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/agentmbx/agentmbx/relay"
)

// call is one request on its way to its answer.
type call struct {
	*Server
	w   http.ResponseWriter
	r   *http.Request
	ctx context.Context
	rc  *http.ResponseController

	id     string
	target string // path and query, exactly as sent
	path   string // of target
	query  string // of target

	who   relay.Caller // once known is true
	known bool

	body   []byte // once read
	buf    *buffer
	unread bool // there is a body and its end was not reached

	status int  // of the answer, 0 before it
	cut    bool // the answer could not be sent to its end
	gone   bool // the client went away: no news for the log
}

// serveHTTP runs a request through its endpoint, and sees to it that there is
// one answer, one log line, and nothing left behind.
func (s *Server) serveHTTP(w http.ResponseWriter, r *http.Request) {
	c := &call{Server: s, w: w, r: r, ctx: r.Context(), rc: http.NewResponseController(w), id: s.ids.next()}
	c.target = requestTarget(r)
	c.path, c.query, _ = strings.Cut(c.target, "?")
	c.unread = r.Body != nil && r.Body != http.NoBody && r.ContentLength != 0
	began := s.now()
	defer func() {
		if p := recover(); p != nil {
			c.abandonBody()
			c.panicked(p)
		}
		c.releaseBody()
		c.logLine(s.now().Sub(began))
		if c.cut {
			panic(http.ErrAbortHandler) // half an answer must not look whole
		}
	}()
	if err := c.endpoint()(c); err != nil {
		c.fail(err)
	}
	if c.unread {
		c.drain()
	}
}

// requestTarget is the path and query that the client sent, escapes as they
// were: what it signed, and what endpoints are found by.
func requestTarget(r *http.Request) string {
	if strings.HasPrefix(r.RequestURI, "/") {
		return r.RequestURI
	}
	return r.URL.RequestURI() // absolute form, as sent to a proxy
}

// panicked answers for a bug.
func (c *call) panicked(p any) {
	c.log.Error("request panicked", "id", c.id, "method", c.r.Method, "path", c.logPath(), "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
	if c.status != 0 {
		c.cut = true
		return
	}
	c.answerError(http.StatusInternalServerError, "INTERNAL", "", "internal error, request "+c.id, nil)
}

// logLine tells of the request: never its query, body, signature or whole key.
func (c *call) logLine(took time.Duration) {
	level := slog.LevelDebug
	if c.status >= 500 && !c.gone {
		level = slog.LevelInfo
	}
	if !c.log.Enabled(c.ctx, level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("id", c.id), slog.String("method", c.r.Method), slog.String("path", c.logPath()),
		slog.Int("status", c.status), slog.Duration("took", took),
	}
	if c.known {
		attrs = append(attrs, slog.String("key", c.who.Key.Fingerprint()))
	}
	c.log.LogAttrs(c.ctx, level, "request", attrs...)
}

// logPath is the path, cut: a stranger's may be long.
func (c *call) logPath() string { return c.path[:min(len(c.path), 200)] }

// requestIDs are unique in this process, and told apart from another's.
type requestIDs struct {
	process string
	last    *atomic.Uint64
}

func newRequestIDs() requestIDs {
	var b [4]byte
	rand.Read(b[:])
	return requestIDs{hex.EncodeToString(b[:]) + "-", new(atomic.Uint64)}
}

func (r requestIDs) next() string { return r.process + strconv.FormatUint(r.last.Add(1), 10) }
