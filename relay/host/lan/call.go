package lan

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"
	"strconv"
	"time"
)

// drainBytes of a refused body are read and thrown away at most.
const drainBytes = 2 * MaxBody

// call is one request on its way to its answer.
type call struct {
	*Server
	w   http.ResponseWriter
	r   *http.Request
	ctx context.Context
	rc  *http.ResponseController

	path   string // as sent, without its query: what is signed
	remote string // the client's address, as calls are counted
	body   []byte // once read
	held   int    // bytes of the budget
	unread bool   // there is a body and its end was not reached
	done   bool   // the answer was begun
}

// route is one call of the protocol.
type route struct {
	method string
	answer func(*call) (any, error) // the answer's document, or why there is none
}

// routes are found by the path exactly as it was sent: one spelling each.
var routes = map[string]route{
	"/v1/status":     {http.MethodGet, (*call).status},
	"/v1/pair/hello": {http.MethodGet, (*call).hello},
	"/v1/pair/join":  {http.MethodPost, (*call).join},
	"/v1/rotate":     {http.MethodPost, (*call).rotate},
	"/v2/envelopes":  {http.MethodPost, signed((*call).envelopes)},
	"/v1/receipts":   {http.MethodPost, signed((*call).receipts)},
	"/v1/enc-key":    {http.MethodGet, signed((*call).encKey)},
	"/v1/unpair":     {http.MethodPost, signed((*call).unpair)},
}

// refusal is an answer other than 200 that this package decides.
type refusal struct {
	status int
	text   string
}

func (e *refusal) Error() string { return e.text }

var (
	errPath    = &refusal{http.StatusNotFound, "not found"}
	errMethod  = &refusal{http.StatusMethodNotAllowed, "method not allowed"}
	errHop     = &refusal{http.StatusUnauthorized, "bad hop"}
	errNonce   = &refusal{http.StatusUnauthorized, "unknown nonce"}
	errLarge   = &refusal{http.StatusRequestEntityTooLarge, "the body is too large"}
	errTooMany = &refusal{http.StatusTooManyRequests, "too many requests; try again later"}
	errBusy    = &refusal{http.StatusServiceUnavailable, "the host is busy; try again"}
	errBody    = &refusal{http.StatusBadRequest, "the body could not be read"}
)

// serveHTTP runs a request through its call, and sees to it that there is one
// answer and nothing left behind.
func (s *Server) serveHTTP(w http.ResponseWriter, r *http.Request) {
	c := &call{
		Server: s, w: w, r: r, ctx: r.Context(), rc: http.NewResponseController(w),
		path: r.URL.EscapedPath(), remote: clientAddr(r),
		unread: r.Body != nil && r.Body != http.NoBody && r.ContentLength != 0,
	}
	defer func() {
		if p := recover(); p != nil {
			c.panicked(p)
		}
		c.releaseBody()
	}()
	if v, err := c.dispatch(); err != nil {
		c.fail(err)
	} else {
		c.answer(http.StatusOK, v)
	}
	if c.unread {
		c.drain()
	}
}

func (c *call) dispatch() (any, error) {
	rt, ok := routes[c.path]
	if !ok {
		return nil, errPath
	}
	if c.r.Method != rt.method {
		c.w.Header().Set("Allow", rt.method)
		return nil, errMethod
	}
	return rt.answer(c)
}

// panicked answers for a bug. The log has what happened, the peer does not.
func (c *call) panicked(p any) {
	c.log.Error("request panicked", "method", c.r.Method, "path", c.logPath(), "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
	if c.done {
		panic(http.ErrAbortHandler) // half an answer must not look whole
	}
	c.answerError(http.StatusInternalServerError, "internal error")
}

// fail answers with an error. What a node's error says beside its kind is for
// the log only.
func (c *call) fail(err error) {
	var ours *refusal
	switch {
	case errors.As(err, &ours):
		c.answerError(ours.status, ours.text)
	case errors.Is(err, ErrShape):
		c.answerError(http.StatusBadRequest, ErrShape.Error())
	case errors.Is(err, ErrRefused):
		c.answerError(http.StatusUnauthorized, ErrRefused.Error())
	case errors.Is(err, ErrConflict):
		c.answerError(http.StatusConflict, ErrConflict.Error())
	default:
		if c.ctx.Err() == nil { // a client that went away is no news
			c.log.Error("request failed", "method", c.r.Method, "path", c.logPath(), "err", err)
		}
		c.answerError(http.StatusInternalServerError, "internal error")
	}
}

func (c *call) logPath() string { return printable(c.path, maxText) }

func (c *call) answerError(status int, text string) {
	c.answer(status, struct {
		Error string `json:"error"`
	}{text})
}

// answer sends a whole answer.
func (c *call) answer(status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		panic("lan: answer: " + err.Error()) // not of the types that are answered with
	}
	_ = c.rc.SetWriteDeadline(time.Now().Add(writeTime)) // a test's recorder has none
	h := c.w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(b)))
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	if c.unread {
		// What is left of the body would be taken for the next request. This also
		// stops net/http from reading it before it answers.
		h.Set("Connection", "close")
	}
	c.done = true
	c.w.WriteHeader(status)
	_, _ = c.w.Write(b) // a client that went away
}

// drain reads on for a while after a refusal that left the body unread, so that
// a client which is still sending sees the answer and not a reset.
func (c *call) drain() {
	c.releaseBody()
	// A client that waits to be asked for its body sends none.
	if c.rc.Flush() != nil || c.r.Header.Get("Expect") != "" {
		return
	}
	_ = c.rc.SetReadDeadline(time.Now().Add(drainTime))
	_, _ = io.CopyN(io.Discard, c.r.Body, drainBytes)
}
