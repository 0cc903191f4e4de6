package server

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// httpError is a refusal of this package's own.
type httpError struct {
	status     int
	code, text string
}

func (e *httpError) Error() string { return e.text }

var (
	errHop      = &httpError{http.StatusUnauthorized, "", "bad relay hop"}
	errPath     = &httpError{http.StatusNotFound, "NOT_FOUND", "not found"}
	errTooLarge = &httpError{http.StatusRequestEntityTooLarge, "TOO_LARGE", "the body is too large"}
	errBusy     = &httpError{http.StatusServiceUnavailable, "BUSY", "the relay is busy; try again"}
	errSlow     = &httpError{http.StatusRequestTimeout, "TIMEOUT", "the body took too long"}
	errBody     = &httpError{http.StatusBadRequest, "BAD_BODY", "the body could not be read"}
	errJSON     = &httpError{http.StatusBadRequest, "BAD_JSON", "bad json"}
	errBatch    = &httpError{http.StatusBadRequest, "BAD_BATCH", "bad batch"}
	errQuery    = &httpError{http.StatusBadRequest, "BAD_QUERY", "bad query"}
	errSigType  = &httpError{http.StatusBadRequest, "BAD_SIGNATURE", "the signature is not a string"}
	errNoToken  = &httpError{http.StatusBadRequest, "BAD_TOKEN", "the token is not a string"}
	errOwner    = &httpError{http.StatusBadRequest, "BAD_OWNER", "bad owner fingerprint"}
	errGone     = &httpError{http.StatusServiceUnavailable, "CLOSED", "the connection was closed"}
)

var statuses = map[relay.Kind]int{
	relay.BadRequest:   http.StatusBadRequest,
	relay.Unauthorized: http.StatusUnauthorized,
	relay.Forbidden:    http.StatusForbidden,
	relay.NotFound:     http.StatusNotFound,
	relay.Conflict:     http.StatusConflict,
	relay.TooMany:      http.StatusTooManyRequests,
	relay.Unavailable:  http.StatusServiceUnavailable,
}

// fail answers with an error.
func (c *call) fail(err error) {
	var ours *httpError
	var refusal *relay.Error
	switch {
	case errors.As(err, &ours):
		c.answerError(ours.status, ours.code, "", ours.text, nil)
	case errors.As(err, &refusal):
		c.answerError(statuses[refusal.Kind], refusal.Code, refusal.Reason, refusal.Text, refusal.At)
	case errors.Is(err, context.Canceled) && c.ctx.Err() != nil:
		// Seen by nobody, save for a client that closed only its sending half.
		c.gone = true
		c.answerError(errGone.status, errGone.code, "", errGone.text, nil)
	default:
		c.log.Error("request failed", "id", c.id, "method", c.r.Method, "path", c.logPath(), "err", err)
		c.answerError(http.StatusInternalServerError, "INTERNAL", "", "internal error, request "+c.id, nil)
	}
}

func (c *call) answerError(status int, code, reason, text string, at *relay.Position) {
	b := append(make([]byte, 0, 160), `{"error":`...)
	b = wire.AppendString(b, text)
	if code != "" {
		b = append(b, `,"code":`...)
		b = wire.AppendString(b, code)
	}
	if reason != "" {
		b = append(b, `,"reason":`...)
		b = wire.AppendString(b, reason)
	}
	if at != nil {
		b = append(b, `,"epoch":`...)
		b = wire.AppendString(b, at.Epoch)
		b = append(b, `,"head_seq":`...)
		b = strconv.AppendInt(b, at.Head, 10)
	}
	c.answer(status, append(b, '}'))
}

// The values of headers that are always the same; net/http only reads them.
var (
	typeJSON = []string{"application/json"}
	noStore  = []string{"no-store"}
	noSniff  = []string{"nosniff"}
	closing  = []string{"close"}
)

// header begins the answer. length is -1 when it is not known yet.
func (c *call) header(status, length int) {
	h := c.w.Header()
	h["Content-Type"] = typeJSON
	h["Cache-Control"] = noStore
	h["X-Content-Type-Options"] = noSniff
	h["X-Request-Id"] = []string{c.id}
	if length >= 0 {
		h["Content-Length"] = []string{strconv.Itoa(length)}
	}
	if c.unread {
		// What is left of the body would be taken for the next request. This
		// also stops net/http from reading it before it answers.
		h["Connection"] = closing
	}
	c.status = status
	c.w.WriteHeader(status)
}

// chunk is how much of an answer a client must take in Times.Write.
const chunk = 64 << 10

// answer sends a whole answer.
func (c *call) answer(status int, b []byte) {
	until := time.Now().Add(c.times.Answer)
	c.mayWrite(until)
	c.header(status, len(b))
	for len(b) > 0 {
		n := min(len(b), chunk)
		if _, err := c.w.Write(b[:n]); err != nil {
			return
		}
		if b = b[n:]; len(b) > 0 {
			c.mayWrite(until)
		}
	}
}

// mayWrite gives the client time for the next piece, within that for the whole.
func (c *call) mayWrite(until time.Time) {
	next := time.Now().Add(c.times.Write)
	if next.After(until) {
		next = until
	}
	_ = c.rc.SetWriteDeadline(next) // a test's recorder has none
}
