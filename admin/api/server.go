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
	"github.com/agentmbx/agentmbx/admin/jobs"
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

// handler serves a Service. A GET only reads, a POST changes something.
func handler(s admin.Service) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, r *http.Request) {
		status, err := s.Status(r.Context())
		answer(w, status, err)
	})
	mux.HandleFunc("GET /v1/log", func(w http.ResponseWriter, r *http.Request) {
		limit, err := number(r.URL.Query().Get("limit"), "limit")
		if err != nil {
			answer(w, nil, err)
			return
		}
		entries, err := s.Log(r.Context(), admin.LogFilter{Op: r.URL.Query().Get("op"), Limit: int(limit)})
		answer(w, entries, err)
	})
	mux.HandleFunc("POST /v1/rotate-epoch", func(w http.ResponseWriter, r *http.Request) {
		var a admin.Action
		if err := read(w, r, &a); err != nil {
			answer(w, nil, err)
			return
		}
		epoch, err := s.RotateEpoch(r.Context(), a)
		answer(w, epochAnswer{epoch}, err)
	})
	handleJobs(mux, s)
	return mux
}

func handleJobs(mux *http.ServeMux, s admin.Service) {
	mux.HandleFunc("GET /v1/jobs", func(w http.ResponseWriter, r *http.Request) {
		list, err := s.Jobs(r.Context())
		answer(w, list, err)
	})
	mux.HandleFunc("GET /v1/runs", func(w http.ResponseWriter, r *http.Request) {
		limit, err := number(r.URL.Query().Get("limit"), "limit")
		if err != nil {
			answer(w, nil, err)
			return
		}
		list, err := s.Runs(r.Context(), r.URL.Query().Get("job"), int(limit))
		answer(w, list, err)
	})
	mux.HandleFunc("POST /v1/runs", func(w http.ResponseWriter, r *http.Request) {
		var q jobs.Request
		if err := read(w, r, &q); err != nil {
			answer(w, nil, err)
			return
		}
		run, err := s.StartJob(r.Context(), q)
		answer(w, run, err)
	})
	mux.HandleFunc("GET /v1/runs/{id}", func(w http.ResponseWriter, r *http.Request) {
		id, err := number(r.PathValue("id"), "run")
		if err != nil {
			answer(w, nil, err)
			return
		}
		run, err := s.Run(r.Context(), id)
		answer(w, run, err)
	})
	mux.HandleFunc("GET /v1/backups", func(w http.ResponseWriter, r *http.Request) {
		list, err := s.Backups(r.Context())
		answer(w, list, err)
	})
	mux.HandleFunc("POST /v1/backups/prune", func(w http.ResponseWriter, r *http.Request) {
		var q pruneRequest
		if err := read(w, r, &q); err != nil {
			answer(w, nil, err)
			return
		}
		done, err := s.PruneBackups(r.Context(), q.DryRun, q.Action)
		answer(w, done, err)
	})
}

type pruneRequest struct {
	admin.Action
	DryRun bool `json:"dry_run"`
}

// read takes over a call's body: one JSON object, with no field that is none.
func read(w http.ResponseWriter, r *http.Request, to any) error {
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10))
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		return fmt.Errorf("%w: %w", admin.ErrBadRequest, err)
	}
	return nil
}

func number(text, what string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("%w: %s: want a number", admin.ErrBadRequest, what)
	}
	return n, nil
}

type epochAnswer struct {
	Epoch string `json:"epoch"`
}

// problem is how an error travels.
type problem struct {
	Error string `json:"error"`
	Code  string `json:"code,omitempty"`
}

func answer(w http.ResponseWriter, v any, err error) {
	status := http.StatusOK
	if err != nil {
		status = http.StatusInternalServerError
		p := problem{Error: err.Error(), Code: admin.Kind(err)}
		var refusal *relay.Error
		if errors.As(err, &refusal) && p.Code == "" {
			p.Code = refusal.Code
		}
		if errors.Is(err, admin.ErrBadRequest) {
			status = http.StatusBadRequest
		} else if p.Code != "" {
			status = http.StatusConflict
		}
		v = p
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the caller has gone: nobody is left to tell
}
