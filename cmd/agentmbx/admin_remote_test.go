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
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 || st.Size() != 70 {
		t.Fatalf("got %v, %v; want 70 bytes of mode 0600", st, err)
	}
	if b, err := os.ReadFile(file); err != nil || !regexp.MustCompile("^mbxa_[0-9a-f]{64}\n$").Match(b) {
		t.Fatalf("got %q, %v; want what is seen to be a token", b, err)
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

// A token in the place of its hash is refused, under each of its names, and never
// shown; so is the hash of nothing.
func TestTokenInPlaceOfItsHash(t *testing.T) {
	t.Parallel()
	file, _ := newToken(t)
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	token := strings.TrimSpace(string(b))
	for _, name := range []string{"MBX_ADMIN_TOKEN_SHA256", "MBX_ADMIN_READONLY_TOKEN_SHA256", "MBX_ADMIN_LISTEN", "MBX_RELAY_BIND", "MBX_RELAY_TRUST_PROXY", "admin.token_sha256", "admin.readonly_token_sha256"} {
		for _, value := range []string{token, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"} {
			if value != token && !strings.Contains(strings.ToLower(name), "sha256") {
				continue
			}
			dir := filepath.Join(t.TempDir(), "store")
			args, env := []string{"relay", "serve", "--store-dir", dir, "--port", "0"}, []string{"MBX_ADMIN_LISTEN=127.0.0.1:0", name + "=" + value}
			if key, ok := strings.CutPrefix(name, "admin."); ok {
				config := filepath.Join(t.TempDir(), "agentmbx.yaml")
				if err := os.WriteFile(config, []byte("admin:\n  listen: 127.0.0.1:0\n  "+key+": \""+value+"\"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
				args, env = append(args, "--config", config), nil
			}
			code, out, errw := command(t, env, args...)
			if code != 2 || out != "" || strings.Count(errw, "\n") != 1 || !strings.Contains(errw, name) || strings.Contains(errw, token[5:13]) || strings.Contains(errw, value[:12]) {
				t.Errorf("%s=%.9s…: got code %d, %q, %q; want it refused and not shown", name, value, code, out, errw)
			}
			if _, err := os.Stat(dir); !os.IsNotExist(err) {
				t.Errorf("%s: the store: got %v; want none made", name, err)
			}
		}
	}
}

// What is set for a desk that is off has no effect, and the start says so in one
// line; a desk that is on, or of which nothing is set, is no news.
func TestDeskSettingsWithoutADesk(t *testing.T) {
	t.Parallel()
	hash := strings.Repeat("0a", 32)
	for _, tt := range []struct {
		name string
		env  []string
		says []string
	}{
		{"nothing", nil, nil},
		{"a desk", []string{"MBX_ADMIN_LISTEN=127.0.0.1:0", "MBX_ADMIN_TOKEN_SHA256=" + hash}, nil},
		{"a token", []string{"MBX_ADMIN_TOKEN_SHA256=" + hash}, []string{"MBX_ADMIN_TOKEN_SHA256"}},
		{"a token, off", []string{"MBX_ADMIN_LISTEN=off", "MBX_ADMIN_READONLY_TOKEN_SHA256=" + hash}, []string{"MBX_ADMIN_READONLY_TOKEN_SHA256"}},
		{"files", []string{"MBX_ADMIN_TLS_CERT=/c.pem", "MBX_ADMIN_TLS_KEY=/k.pem"}, []string{"MBX_ADMIN_TLS_CERT", "MBX_ADMIN_TLS_KEY"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := serve(t, t.TempDir(), tt.env...)
			p.kill()
			var lines []string
			for line := range strings.Lines(p.stderr.String()) {
				if strings.Contains(line, "MBX_ADMIN_") {
					lines = append(lines, line)
				}
			}
			if len(lines) != min(len(tt.says), 1) || strings.Contains(p.stderr.String(), hash) {
				t.Fatalf("got %q; want one line for %q, without a hash", lines, tt.says)
			}
			for _, name := range append(tt.says, "MBX_ADMIN_LISTEN", "WARN") {
				if len(lines) > 0 && !strings.Contains(lines[0], name) {
					t.Errorf("got %q; want a warning that names %s", lines[0], name)
				}
			}
		})
	}
}

// An address that the desk cannot have stops the start before a store is made, and
// the line says what is wrong with it.
func TestDeskWithoutAnAddress(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, taken, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	cert, key := newCertificate(t)
	withTLS := []string{"MBX_ADMIN_TLS_CERT=" + cert, "MBX_ADMIN_TLS_KEY=" + key}
	for _, tt := range []struct {
		name, bind, port, desk string
		code                   int
		says                   string
	}{
		{"the relay's own", "127.0.0.1", taken, "127.0.0.1:" + taken, 2, "the relay itself"},
		{"the relay's own, by name", "localhost", taken, "127.0.0.1:" + taken, 2, "the relay itself"},
		{"the relay has all", "0.0.0.0", taken, "127.0.0.1:" + taken, 2, "the relay itself"},
		{"the relay has all of both", "::", taken, "127.0.0.1:" + taken, 2, "the relay itself"},
		{"the desk wants all", "127.0.0.1", taken, "0.0.0.0:" + taken, 2, "the relay itself"},
		{"the desk wants all of both", "127.0.0.1", taken, "[::]:" + taken, 2, "the relay itself"},
		{"taken", "127.0.0.1", "0", "127.0.0.1:" + taken, 1, "stop what has it"},
		{"not ours", "127.0.0.1", "0", "192.0.2.1:0", 1, "this machine has no such address"},
		{"not ours, and a port", "127.0.0.1", "0", "192.0.2.1:" + taken, 1, "this machine has no such address"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "store")
			env := append([]string{"MBX_ADMIN_LISTEN=" + tt.desk, "MBX_ADMIN_TOKEN_SHA256=" + strings.Repeat("0a", 32)}, withTLS...)
			code, out, errw := command(t, env, "relay", "serve", "--store-dir", dir, "--bind", tt.bind, "--port", tt.port)
			if code != tt.code || out != "" || strings.Count(errw, "\n") != 1 || !strings.Contains(errw, tt.says) || !strings.Contains(errw, "MBX_ADMIN_LISTEN") {
				t.Errorf("got code %d, %q, %q; want %d and %q", code, out, errw, tt.code, tt.says)
			}
			if tt.code == 1 && strings.Contains(errw, "stop what") != (tt.name == "taken") {
				t.Errorf("got %q; want that nothing is to be stopped where nothing is in the way", errw)
			}
			if _, err := os.Stat(dir); !os.IsNotExist(err) {
				t.Errorf("the store: got %v; want none made", err)
			}
		})
	}
	// On a store that is there, the port may be that of the relay whose end is waited
	// for: it is asked for when the store is ours.
	dir := t.TempDir()
	serve(t, dir).kill()
	code, _, errw := command(t, []string{"MBX_ADMIN_LISTEN=127.0.0.1:" + taken, "MBX_ADMIN_TOKEN_SHA256=" + strings.Repeat("0a", 32)},
		"relay", "serve", "--store-dir", dir, "--port", "0")
	if code != 1 || !strings.Contains(errw, "stop what has it, or choose another MBX_ADMIN_LISTEN") {
		t.Errorf("on a store: got code %d, %q; want 1 and what to stop", code, errw)
	}
	code, _, errw = command(t, nil, "relay", "serve", "--store-dir", dir, "--bind", "192.0.2.1", "--port", "0")
	if code != 1 || !strings.Contains(errw, "this machine has no such address") || strings.Contains(errw, "stop what") {
		t.Errorf("a relay at no address of ours: got code %d, %q; want 1 and what is wrong", code, errw)
	}
}

// Other ports and other addresses of one machine are no clash.
func TestDeskBesideTheRelay(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		bind string
		port int
		desk string
		want bool
	}{
		{"127.0.0.1", 7374, "127.0.0.1:7374", true},
		{"127.0.0.1", 7374, "127.0.0.1:7375", false},
		{"127.0.0.1", 7374, "127.0.0.2:7374", false},
		{"127.0.0.1", 7374, "[::1]:7374", false},
		{"127.0.0.1", 0, "127.0.0.1:0", false},
		{"0.0.0.0", 7374, "127.0.0.1:7374", true},
		{"0.0.0.0", 7374, "[::1]:7374", false},
		{"0.0.0.0", 7374, "[::]:7374", true},
		{"::", 7374, "[::1]:7374", true},
		{"::", 7374, "127.0.0.1:7374", true},
		{"::1", 7374, "[::]:7374", true},
		{"::1", 7374, "0.0.0.0:7374", false},
		{"::ffff:127.0.0.1", 7374, "127.0.0.1:7374", true},
		{"no.such.host.invalid", 7374, "127.0.0.1:7374", false},
	} {
		s := Settings{Bind: tt.bind, Port: tt.port, Admin: AdminSettings{Listen: tt.desk}}
		if got := clashes(s); got != tt.want {
			t.Errorf("the relay on %s and port %d, the desk on %s: got %v; want %v", tt.bind, tt.port, tt.desk, got, tt.want)
		}
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
