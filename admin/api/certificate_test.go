package api

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// certFiles is a certificate for 127.0.0.1 and its key.
type certFiles struct{ cert, key string }

func newCertFiles(t *testing.T) certFiles {
	dir := t.TempDir()
	f := certFiles{filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")}
	f.renew(t, 1)
	return f
}

func (f certFiles) renew(t *testing.T, serial int64) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "desk"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	f.write(t, f.cert, "CERTIFICATE", cert, serial)
	f.write(t, f.key, "PRIVATE KEY", private, serial)
}

func (f certFiles) write(t *testing.T, name, kind string, der []byte, serial int64) {
	t.Helper()
	if err := os.WriteFile(name, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	at := time.Unix(1e9+serial, 0) // as if they had been written at different times
	if err := os.Chtimes(name, at, at); err != nil {
		t.Fatal(err)
	}
}

func (f certFiles) pool(t *testing.T) *x509.CertPool {
	t.Helper()
	b, err := os.ReadFile(f.cert)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(b)
	return pool
}

// trust makes a client trust the certificate of the test.
func (c *Client) trust(pool *x509.CertPool) *Client {
	c.http.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: pool}
	return c
}

func TestDoorWithTLS(t *testing.T) {
	t.Parallel()
	files := newCertFiles(t)
	_, address := open(t, func(d *Door) { d.CertFile, d.KeyFile = files.cert, files.key })
	if _, err := remote(t, "https://"+address, fullToken).trust(files.pool(t)).Status(t.Context()); err != nil {
		t.Errorf("with trust: got %v; want nil", err)
	}
	_, err := remote(t, "https://"+address, fullToken).Status(t.Context())
	if err == nil || !strings.Contains(err.Error(), "not trusted") || errors.Is(err, ErrNotRunning) {
		t.Errorf("without trust: got %v; want an error about the certificate", err)
	}
	if _, err := remote(t, "http://"+address, fullToken).Status(t.Context()); err == nil || errors.Is(err, ErrNotRunning) {
		t.Errorf("without TLS: got %v; want an error", err)
	}
	_, err = tls.Dial("tcp", address, &tls.Config{RootCAs: files.pool(t), MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10})
	if err == nil {
		t.Error("with TLS 1.1: got a connection; want none")
	}
}

// A renewed certificate is served without a restart, and one that is not whole
// yet is not.
func TestCertificateIsRenewed(t *testing.T) {
	t.Parallel()
	files := newCertFiles(t)
	_, address := open(t, func(d *Door) { d.CertFile, d.KeyFile = files.cert, files.key })
	serial := func() int64 {
		c, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
	}
	if got := serial(); got != 1 {
		t.Errorf("got certificate %d; want 1", got)
	}
	old, err := os.ReadFile(files.key)
	if err != nil {
		t.Fatal(err)
	}
	files.renew(t, 2)
	renewed, err := os.ReadFile(files.key)
	if err != nil {
		t.Fatal(err)
	}
	for _, half := range [][]byte{old, []byte("half"), nil} {
		if err := os.WriteFile(files.key, half, 0o600); err != nil {
			t.Fatal(err)
		}
		if got := serial(); got != 1 {
			t.Errorf("half renewed: got certificate %d; want 1 still", got)
		}
	}
	if err := os.Remove(files.key); err != nil {
		t.Fatal(err)
	}
	if got := serial(); got != 1 {
		t.Errorf("without a key: got certificate %d; want 1 still", got)
	}
	if err := os.WriteFile(files.key, renewed, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := serial(); got != 2 {
		t.Errorf("renewed: got certificate %d; want 2", got)
	}
}

// What is wrong with the files is said once for each state that they get into, and
// once when they are well again; while they are bad they are not read at every
// handshake.
func TestBadCertificateIsLoggedOnce(t *testing.T) {
	t.Parallel()
	files := newCertFiles(t)
	now := time.Unix(1e9, 0)
	var lines bytes.Buffer
	c, err := loadCertificate(files.cert, files.key, slog.New(slog.NewTextHandler(&lines, nil)), func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	key, err := os.ReadFile(files.key)
	if err != nil {
		t.Fatal(err)
	}
	remove := func(name string) func() error { return func() error { return os.Remove(name) } }
	write := func(name string, b []byte, at int64) func() error {
		return func() error {
			return errors.Join(os.WriteFile(name, b, 0o600), os.Chtimes(name, time.Unix(at, 0), time.Unix(at, 0)))
		}
	}
	for _, tt := range []struct {
		name   string
		change func() error
		reads  int
		says   string // "" for nothing
	}{
		{"as it is", func() error { return nil }, 0, ""},
		{"no key", remove(files.key), 0, "no such file"},
		{"no key still", func() error { return nil }, 0, ""},
		{"half a key", write(files.key, key[:40], 2e9), 1, "no certificate and its key"},
		{"half a key still", func() error { return nil }, 0, ""},
		{"another half", write(files.key, key[40:], 2e9+1), 1, ""},
		{"no key again", remove(files.key), 0, "no such file"},
		{"all back", write(files.key, key, 2e9+2), 1, "in use"},
		{"all back still", func() error { return nil }, 0, ""},
	} {
		if err := tt.change(); err != nil {
			t.Fatal(err)
		}
		lines.Reset()
		before := c.reads
		for range 100 {
			if c.get() == nil {
				t.Fatalf("%s: got no certificate", tt.name)
			}
		}
		if got := c.reads - before; got != tt.reads {
			t.Errorf("%s: got %d reads in 100 handshakes; want %d", tt.name, got, tt.reads)
		}
		if n := strings.Count(lines.String(), "\n"); n > 1 || (n == 1) != (tt.says != "") || !strings.Contains(lines.String(), tt.says) {
			t.Errorf("%s: got %q; want one line with %q, or none", tt.name, lines.String(), tt.says)
		}
	}
	// What a look at the files does not show, like leave to read them, is seen a
	// little later.
	if err := write(files.key, key[:len(key)-1], 3e9)(); err != nil {
		t.Fatal(err)
	}
	if err := write(files.key, bytes.Repeat([]byte("x"), len(key)), 3e9)(); err != nil {
		t.Fatal(err)
	}
	c.get()
	if err := write(files.key, key, 3e9)(); err != nil {
		t.Fatal(err)
	}
	if c.get(); c.said == "" {
		t.Error("within a second: got the files read again")
	}
	now = now.Add(time.Second)
	if c.get(); c.said != "" {
		t.Errorf("a second later: got %s; want them read again", c.said)
	}
}
