package main

import (
	"net"
	"net/netip"
	"strconv"

	"github.com/agentmbx/agentmbx/admin/api"
)

// AdminSettings open the operator's desk over TCP. Off by default.
type AdminSettings struct {
	// Listen is the address of the desk, host:port; "" for none.
	// MBX_ADMIN_LISTEN; file admin.listen.
	Listen string

	// Token and ReadOnlyToken are the SHA-256 of the tokens that open all of the
	// desk, and what only reads. MBX_ADMIN_TOKEN_SHA256,
	// MBX_ADMIN_READONLY_TOKEN_SHA256; file admin.token_sha256,
	// admin.readonly_token_sha256.
	Token, ReadOnlyToken api.TokenHash

	// TLSCert and TLSKey are PEM files, needed for an address that other machines
	// reach. MBX_ADMIN_TLS_CERT, MBX_ADMIN_TLS_KEY; file admin.tls_cert,
	// admin.tls_key.
	TLSCert, TLSKey string
}

// idle names what is set and has no effect while there is no address to listen on.
func (a *AdminSettings) idle() (names []string) {
	for _, st := range []struct {
		name string
		set  bool
	}{
		{"MBX_ADMIN_TOKEN_SHA256", a.Token != api.TokenHash{}},
		{"MBX_ADMIN_READONLY_TOKEN_SHA256", a.ReadOnlyToken != api.TokenHash{}},
		{"MBX_ADMIN_TLS_CERT", a.TLSCert != ""},
		{"MBX_ADMIN_TLS_KEY", a.TLSKey != ""},
	} {
		if st.set {
			names = append(names, st.name)
		}
	}
	return names
}

func adminSettings(a *AdminSettings) []setting {
	const wantHash = "the SHA-256 of a token, 64 hexadecimal digits (see agentmbx relay admin token)"
	return []setting{
		{key: "admin.listen", env: []string{"MBX_ADMIN_LISTEN"}, want: "host:port, or off", set: setListen(&a.Listen)},
		{key: "admin.token_sha256", env: []string{"MBX_ADMIN_TOKEN_SHA256"}, want: wantHash, secret: true, set: setTokenHash(&a.Token)},
		{key: "admin.readonly_token_sha256", env: []string{"MBX_ADMIN_READONLY_TOKEN_SHA256"}, want: wantHash, secret: true, set: setTokenHash(&a.ReadOnlyToken)},
		{key: "admin.tls_cert", env: []string{"MBX_ADMIN_TLS_CERT"}, want: "a file", set: setDir(&a.TLSCert)},
		{key: "admin.tls_key", env: []string{"MBX_ADMIN_TLS_KEY"}, want: "a file", set: setDir(&a.TLSKey)},
	}
}

func setListen(to *string) func(string) error {
	return func(v string) error {
		if v == "off" {
			*to = ""
			return nil
		}
		host, port, err := net.SplitHostPort(v)
		if err != nil {
			return err
		}
		if _, err := netip.ParseAddr(host); err != nil && !hostName.MatchString(host) {
			return errValue
		}
		if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			return err
		}
		*to = v
		return nil
	}
}

func setTokenHash(to *api.TokenHash) func(string) error {
	return func(v string) (err error) {
		*to, err = api.ParseTokenHash(v)
		return err
	}
}
