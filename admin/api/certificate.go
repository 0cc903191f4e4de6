package api

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// certificate is read from its files again when they change, so that a renewed
// one needs no restart. While the new files do not fit together the old one stays.
type certificate struct {
	certFile, keyFile string
	log               *slog.Logger
	now               func() time.Time

	mu    sync.Mutex
	pair  *tls.Certificate
	read  stamps    // of the files that pair is of
	bad   stamps    // of those that were last read in vain
	tried time.Time // when that was
	said  string    // of what is wrong now, in the log; "" for nothing
	reads int       // of the files, for tests
}

// retry is how often files that could not be used are read again though they look
// as they did: what changed may be the leave to read them.
const retry = time.Second

// stamps tells two states of the files apart.
type stamps [2]struct {
	at   time.Time
	size int64
}

// loadCertificate reads the files a first time.
func loadCertificate(certFile, keyFile string, log *slog.Logger, now func() time.Time) (*certificate, error) {
	c := &certificate{certFile: certFile, keyFile: keyFile, log: log, now: now}
	files, err := c.stat()
	if err != nil {
		return nil, err
	}
	return c, c.load(files)
}

// config serves with the certificate as it is at each handshake.
func (c *certificate) config() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.get(), nil },
	}
}

func (c *certificate) get() *tls.Certificate {
	c.mu.Lock()
	defer c.mu.Unlock()
	files, err := c.stat()
	switch now := c.now(); {
	case err != nil, files == c.read:
	case files == c.bad && now.Sub(c.tried) < retry && !now.Before(c.tried):
		return c.pair
	default:
		if err = c.load(files); err != nil {
			c.bad, c.tried = files, now
		}
	}
	c.say(err)
	return c.pair
}

// say logs what is wrong with the files, once for as long as it stays so.
func (c *certificate) say(err error) {
	said := ""
	if err != nil {
		said = err.Error()
	}
	if said == c.said {
		return
	}
	c.said = said
	if err != nil {
		c.log.Warn("the desk's certificate changed and cannot be used: the one before stays", "err", err)
		return
	}
	c.log.Info("the files of the desk's certificate are well again and in use")
}

func (c *certificate) stat() (s stamps, err error) {
	for i, name := range []string{c.certFile, c.keyFile} {
		st, err := os.Stat(name)
		if err != nil {
			return stamps{}, err
		}
		if !st.Mode().IsRegular() { // opening a pipe would wait for its other end
			return stamps{}, fmt.Errorf("%s is not a file", name)
		}
		s[i].at, s[i].size = st.ModTime(), st.Size()
	}
	return s, nil
}

// load reads the files as stat saw them just now. Its errors quote neither.
func (c *certificate) load(files stamps) error {
	c.reads++
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		if _, is := errors.AsType[*os.PathError](err); is {
			return err
		}
		return fmt.Errorf("%s and %s are no certificate and its key: %w", c.certFile, c.keyFile, err)
	}
	c.pair, c.read = &pair, files
	return nil
}
