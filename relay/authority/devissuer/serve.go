package devissuer

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
)

// How long a client may take.
const (
	headerTime = 10 * time.Second
	bodyTime   = 30 * time.Second
	answerTime = 60 * time.Second // a revocation waits for the relay
	idleTime   = 60 * time.Second
	stopTime   = 5 * time.Second
)

// Serve answers what comes in on l until ctx ends, and the issuer's own commands
// at a port of loopback that only the folder tells. Once both can be reached it
// calls ready, which may be nil. It closes l.
func (i *Issuer) Serve(ctx context.Context, l net.Listener, ready func() error) error {
	own, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return errors.Join(err, l.Close())
	}
	d := door{URL: "http://" + own.Addr().String(), Token: secret()}
	doc, err := json.Marshal(d)
	if err != nil {
		return errors.Join(err, own.Close(), l.Close())
	}
	path := filepath.Join(i.o.Dir, doorFile)
	if err := writeWhole(path, doc); err != nil {
		return errors.Join(err, own.Close(), l.Close())
	}
	defer os.Remove(path) // a command says the same of one that leads nowhere
	if ready != nil {
		if err := ready(); err != nil {
			return errors.Join(err, own.Close(), l.Close())
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return i.serve(ctx, l, i) })
	g.Go(func() error { return i.serve(ctx, own, i.admin(d.Token)) })
	return g.Wait()
}

func (i *Issuer) serve(ctx context.Context, l net.Listener, h http.Handler) error {
	srv := &http.Server{
		Handler: h, ReadHeaderTimeout: headerTime, ReadTimeout: bodyTime, WriteTimeout: answerTime, IdleTimeout: idleTime,
		MaxHeaderBytes:               16 << 10,
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     slog.NewLogLogger(i.o.Log.Handler(), slog.LevelDebug),
	}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
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
