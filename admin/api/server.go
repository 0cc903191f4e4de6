package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/relay"
)

// Serve answers calls on l until ctx ends; then it lets those at hand finish,
// for a moment, and closes l.
func Serve(ctx context.Context, l net.Listener, s admin.Service, log *slog.Logger) error {
	srv := &http.Server{
		Handler:           handler(s),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       30 * time.Second,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		bounded, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		if srv.Shutdown(bounded) != nil {
			_ = srv.Close() // what still hangs is cut
		}
	})
	err := srv.Serve(l)
	if !stop() {
		<-stopped
	}
	if errors.Is(err, http.ErrServerClosed) && ctx.Err() != nil {
		return nil
	}
	return err
}

func handler(s admin.Service) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, r *http.Request) {
		status, err := s.Status(r.Context())
		answer(w, status, err)
	})
	mux.HandleFunc("GET /v1/log", func(w http.ResponseWriter, r *http.Request) {
		limit, err := strconv.Atoi(r.URL.Query().Get("limit"))
		if err != nil {
			answer(w, nil, fmt.Errorf("%w: limit: want a number", admin.ErrBadRequest))
			return
		}
		entries, err := s.Log(r.Context(), admin.LogFilter{Op: r.URL.Query().Get("op"), Limit: limit})
		answer(w, entries, err)
	})
	mux.HandleFunc("POST /v1/rotate-epoch", func(w http.ResponseWriter, r *http.Request) {
		var a admin.Action
		d := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10))
		d.DisallowUnknownFields()
		if err := d.Decode(&a); err != nil {
			answer(w, nil, fmt.Errorf("%w: %w", admin.ErrBadRequest, err))
			return
		}
		epoch, err := s.RotateEpoch(r.Context(), a)
		answer(w, epochAnswer{epoch}, err)
	})
	return mux
}

type epochAnswer struct {
	Epoch string `json:"epoch"`
}

const codeBadRequest = "BAD_REQUEST"

// problem is how an error travels.
type problem struct {
	Error string `json:"error"`
	Code  string `json:"code,omitempty"`
}

func answer(w http.ResponseWriter, v any, err error) {
	status := http.StatusOK
	if err != nil {
		status = http.StatusInternalServerError
		p := problem{Error: err.Error()}
		var refusal *relay.Error
		if errors.Is(err, admin.ErrBadRequest) {
			status, p.Code = http.StatusBadRequest, codeBadRequest
		} else if errors.As(err, &refusal) {
			status, p.Code = http.StatusConflict, refusal.Code
		}
		v = p
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the caller has gone: nobody is left to tell
}
