package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"time"

	exact "github.com/go-json-experiment/json"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// times bounds how long a client may take; how long the Service takes is its own
// matter.
type times struct {
	header, body, answer, idle, stop time.Duration
	// refused is how long the rest of a call is waited for that the guard refused:
	// long enough for what is on its way, so that its sender reads why.
	refused time.Duration
}

var usualTimes = times{
	header: 5 * time.Second, body: 30 * time.Second, answer: 30 * time.Second, idle: 2 * time.Minute, stop: 2 * time.Second,
	refused: 500 * time.Millisecond,
}

const maxHeaderBytes = 16 << 10

// Serve answers calls on l until ctx ends; then it lets those at hand finish,
// for a moment, and closes l.
func Serve(ctx context.Context, l net.Listener, s admin.Service, log *slog.Logger) error {
	h := newHandler(s, log, usualTimes)
	return serve(ctx, l, h, log, slog.LevelWarn, usualTimes)
}

func serve(ctx context.Context, l net.Listener, h http.Handler, log *slog.Logger, noise slog.Level, t times) error {
	srv := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: t.header,
		ReadTimeout:       t.body,
		IdleTimeout:       t.idle,
		MaxHeaderBytes:    maxHeaderBytes,
		ConnContext:       withConn,
		ErrorLog:          slog.NewLogLogger(log.Handler(), noise),

		DisableGeneralOptionsHandler: true, // OPTIONS * is a path like any other
	}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		bounded, cancel := context.WithTimeout(context.Background(), t.stop)
		defer cancel()
		if srv.Shutdown(bounded) != nil {
			_ = srv.Close() // what still hangs is cut
		}
	})
	err := srv.Serve(newPatient(l, ctx.Done(), log))
	if !stop() {
		<-stopped
	}
	if errors.Is(err, http.ErrServerClosed) && ctx.Err() != nil {
		return nil
	}
	return err
}

// handler serves a Service.
type handler struct {
	service admin.Service
	log     *slog.Logger
	times   times
	// from says where a call came from, to be put before the actor that it names.
	from func(*http.Request) string
}

func newHandler(s admin.Service, log *slog.Logger, t times) *handler {
	return &handler{s, log, t, func(*http.Request) string { return "" }}
}

// endpoints has the routes by method and path.
var endpoints = func() map[string]endpoint {
	m := make(map[string]endpoint, len(routes))
	for _, rt := range routes {
		method, path := rt.pattern()
		m[method+" "+path] = rt
	}
	return m
}()

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rt, known := endpoints[r.Method+" "+r.URL.Path]
	if !known {
		refuseCall(w, r)
		return
	}
	defer func() {
		if p := recover(); p != nil {
			h.log.Error("an admin call panicked", "call", rt.name(), "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			h.reply(w, nil, errors.New("the relay failed inside: see its log"))
		}
	}()
	v, err := rt.answer(w, r, h.service, h.from(r))
	h.reply(w, v, err)
}

// refuseCall answers a request that is none of the routes.
func refuseCall(w http.ResponseWriter, r *http.Request) {
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		if _, known := endpoints[method+" "+r.URL.Path]; known {
			w.Header().Set("Allow", method)
			send(w, http.StatusMethodNotAllowed, problem{Error: "this call wants " + method})
			return
		}
	}
	send(w, http.StatusNotFound, problem{Error: "this relay has no such call: it is of another version than who asks"})
}

// decodeBody takes over a call's body: one JSON object, strictly, with no member
// that is none of to's.
func decodeBody(w http.ResponseWriter, r *http.Request, most int64, to any) error {
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, most))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return fmt.Errorf("%w: a body of more than %d bytes", admin.ErrBadRequest, most)
	case err != nil:
		return fmt.Errorf("%w: the body did not come whole", admin.ErrBadRequest)
	}
	b = bytes.TrimSpace(b)
	if len(b) == 0 || b[0] != '{' || wire.CheckJSON(b) != nil {
		return fmt.Errorf("%w: want one JSON object", admin.ErrBadRequest)
	}
	if err := exact.Unmarshal(b, to, exact.RejectUnknownMembers(true)); err != nil {
		return fmt.Errorf("%w: %.300s", admin.ErrBadRequest, err.Error())
	}
	return nil
}

// problem is how an error travels.
type problem struct {
	Error string `json:"error"`
	Code  string `json:"code,omitempty"`
}

func (h *handler) reply(w http.ResponseWriter, v any, err error) {
	status := http.StatusOK
	if err != nil {
		p := problem{Error: err.Error(), Code: admin.Kind(err)}
		var refusal *relay.Error
		if errors.As(err, &refusal) && p.Code == "" {
			p.Code = refusal.Code
		}
		v, status = p, statusOf(err, p.Code)
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(h.times.answer))
	send(w, status, v)
}

func statusOf(err error, code string) int {
	switch {
	case errors.Is(err, admin.ErrBadRequest):
		return http.StatusBadRequest
	case code != "":
		return http.StatusConflict
	}
	return http.StatusInternalServerError
}

// encode writes v as it is: what json.Marshal does for web pages makes texts
// longer.
func encode(v any) ([]byte, error) {
	var doc bytes.Buffer
	enc := json.NewEncoder(&doc)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return doc.Bytes(), err
}

func send(w http.ResponseWriter, status int, v any) {
	doc, err := encode(v)
	if err != nil {
		doc, status = []byte(`{"error":"the answer cannot be written as JSON"}`), http.StatusInternalServerError
	}
	if len(doc) > maxAnswer {
		doc, status = []byte(`{"error":"the answer is too large: ask for fewer","code":"BAD_REQUEST"}`), http.StatusBadRequest
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(doc) // the caller has gone: nobody is left to tell
}
