package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// newToken makes a token as an operator does.
func newToken(t *testing.T) (file, hash string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "token")
	code, out, errw := command(t, nil, "relay", "admin", "token", file)
	hash = strings.TrimSpace(out)
	if code != 0 || len(hash) != 64 || !strings.Contains(errw, "MBX_ADMIN_TOKEN_SHA256="+hash) {
		t.Fatalf("got code %d, %q, %q; want 0 and a hash", code, out, errw)
	}
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 || st.Size() != 65 {
		t.Fatalf("got %v, %v; want 65 bytes of mode 0600", st, err)
	}
	return file, hash
}

// newCertificate makes a certificate for 127.0.0.1 and its key.
func newCertificate(t *testing.T) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for name, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: cert}, keyFile: {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certFile, keyFile
}

var saidDesk = regexp.MustCompile(`desk +(https?://\S+) \((.*)\)`)

// A relay's desk is used from elsewhere, over TLS, by who has a token, and the
// relay log says that it came from there.
func TestDeskElsewhere(t *testing.T) {
	t.Parallel()
	full, fullHash := newToken(t)
	reading, readingHash := newToken(t)
	cert, key := newCertificate(t)
	dir := t.TempDir()
	p := serve(t, dir, "MBX_ADMIN_LISTEN=127.0.0.1:0", "MBX_ADMIN_TOKEN_SHA256="+fullHash, "MBX_ADMIN_READONLY_TOKEN_SHA256="+readingHash,
		"MBX_ADMIN_TLS_CERT="+cert, "MBX_ADMIN_TLS_KEY="+key)
	m := saidDesk.FindStringSubmatch(p.says)
	if m == nil || !strings.HasPrefix(m[1], "https://127.0.0.1:") || m[2] != "full and read-only token" || strings.Contains(p.says, fullHash) {
		t.Fatalf("got %q; want where the desk is, and no hash", p.says)
	}
	url := m[1]
	trust := "SSL_CERT_FILE=" + cert
	world := filepath.Join(t.TempDir(), "token")
	b, err := os.ReadFile(full)
	if err != nil {
		t.Fatal(err)
	}
	secret := strings.TrimSpace(string(b))
	if err := os.WriteFile(world, b, 0o644); err != nil {
		t.Fatal(err)
	}
	other, _ := newToken(t)
	for _, tt := range []struct {
		name string
		env  []string
		args []string
		code int
		says string // part of stdout or stderr
	}{
		{"by flags", []string{trust}, []string{"jobs", "--url", url, "--token-file", full}, 0, "heartbeat"},
		{"by environment", []string{trust, "MBX_ADMIN_URL=" + url, "MBX_ADMIN_TOKEN_FILE=" + full}, []string{"jobs"}, 0, "heartbeat"},
		{"to read", []string{trust}, []string{"jobs", "--url", url, "--token-file", reading}, 0, "heartbeat"},
		{"to read only", []string{trust}, []string{"jobs", "run", "sweep", "--url", url, "--token-file", reading}, 3, "read-only"},
		{"to change", []string{trust}, []string{"jobs", "run", "sweep", "--url", url, "--token-file", full}, 0, "sweep: run"},
		{"with another token", []string{trust}, []string{"jobs", "--url", url, "--token-file", other}, 3, "does not take this token"},
		{"with a certificate that nobody trusts", nil, []string{"jobs", "--url", url, "--token-file", full}, 1, "not trusted"},
		{"over plain HTTP", []string{trust}, []string{"jobs", "--url", strings.Replace(url, "https", "http", 1), "--token-file", full}, 1, "400"},
		{"with the token in the URL", []string{trust}, []string{"jobs", "--url", url + "?token=" + secret, "--token-file", full}, 2, "is refused"},
		{"with the token as user", []string{trust, "MBX_ADMIN_URL=https://" + secret + "@127.0.0.1:1", "MBX_ADMIN_TOKEN_FILE=" + full}, []string{"jobs"}, 2, "MBX_ADMIN_URL"},
		{"over plain HTTP to another machine", nil, []string{"jobs", "--url", "http://relay.example", "--token-file", full}, 2, "plain http"},
		{"without a token", nil, []string{"jobs", "--url", url}, 2, "--token-file"},
		{"with a token that others read", nil, []string{"jobs", "--url", url, "--token-file", world}, 3, "chmod 600 " + world},
		{"with a token file that is not there", nil, []string{"jobs", "--url", url, "--token-file", world + "x"}, 4, "no token file"},
		{"with a folder", nil, []string{"jobs", "--url", url, "--token-file", dir}, 2, "is not a file"},
		{"and here", nil, []string{"jobs", "--url", url, "--token-file", full, "--store-dir", dir}, 2, "give one of the two"},
		{"a store by flag before a URL by environment", []string{"MBX_ADMIN_URL=http://127.0.0.1:1"}, []string{"jobs", "--store-dir", dir}, 0, "heartbeat"},
		{"a token for a store here", nil, []string{"jobs", "--store-dir", dir, "--token-file", full}, 2, "give --url"},
		{"a token file that exists", nil, []string{"token", full}, 3, "exists"},
		{"and the log says so", nil, []string{"jobs", "runs", "sweep", "--store-dir", dir, "--json"}, 0, "tcp:127.0.0.1 cli:"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			code, out, errw := command(t, append([]string{"NO_PROXY=127.0.0.1"}, tt.env...), append([]string{"relay", "admin"}, tt.args...)...)
			if code != tt.code || !strings.Contains(out+errw, tt.says) {
				t.Errorf("got code %d, %q, %q; want %d and %q", code, out, errw, tt.code, tt.says)
			}
			if strings.Contains(out+errw, secret) {
				t.Errorf("the output holds the token: %q, %q", out, errw)
			}
		})
	}
	p.kill()
	if strings.Contains(p.stderr.String(), secret) || strings.Contains(p.stderr.String(), fullHash) {
		t.Errorf("the log holds a token or its hash:\n%s", p.stderr)
	}
	code, _, errw := command(t, []string{trust}, "relay", "admin", "jobs", "--url", url, "--token-file", full)
	if code != 1 || !strings.Contains(errw, "no relay can be reached at "+url) {
		t.Errorf("without a relay: got code %d, %q; want 1 and where none is", code, errw)
	}
}

// A desk that would be open to anybody, or to nobody, keeps the relay from
// starting, before the store is touched.
func TestDeskThatMayNotOpen(t *testing.T) {
	t.Parallel()
	hash, other := "MBX_ADMIN_TOKEN_SHA256="+strings.Repeat("0a", 32), "MBX_ADMIN_READONLY_TOKEN_SHA256="+strings.Repeat("0a", 32)
	for _, tt := range []struct {
		name string
		env  []string
		says string
	}{
		{"without a token", []string{"MBX_ADMIN_LISTEN=127.0.0.1:0"}, "agentmbx relay admin token"},
		{"to other machines without TLS", []string{"MBX_ADMIN_LISTEN=0.0.0.0:0", hash}, "MBX_ADMIN_TLS_CERT"},
		{"with one token for both", []string{"MBX_ADMIN_LISTEN=127.0.0.1:0", hash, other}, "are the same"},
		{"with half a certificate", []string{"MBX_ADMIN_LISTEN=127.0.0.1:0", hash, "MBX_ADMIN_TLS_CERT=/c.pem"}, "belong together"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "store")
			code, out, errw := command(t, tt.env, "relay", "serve", "--store-dir", dir, "--port", "0")
			if code != 2 || out != "" || strings.Count(errw, "\n") != 1 || !strings.Contains(errw, tt.says) {
				t.Errorf("got code %d, %q, %q; want 2 and %q", code, out, errw, tt.says)
			}
			if _, err := os.Stat(dir); !os.IsNotExist(err) {
				t.Errorf("the store: got %v; want none made", err)
			}
		})
	}
}
