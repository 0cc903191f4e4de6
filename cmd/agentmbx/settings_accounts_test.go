package main

import (
	"maps"
	"testing"
)

// Where an issuer is named, nobody on the way to it may change what it says.
func TestIssuerURLs(t *testing.T) {
	for _, tt := range []struct {
		url          string
		issuer, keys bool // taken as the issuer, and as the place of keys or deny list
	}{
		{"https://accounts.example", true, true},
		{"https://accounts.example/", true, true},
		{"https://accounts.example:8443/tenant/7", true, true},
		{"http://127.0.0.1:9000", true, true},
		{"http://[::1]:9000/x", true, true},
		{"http://localhost:9000", true, true},
		{"http://LocalHost", true, true},
		{"https://accounts.example/deny?aud=relay", false, true},
		{"http://accounts.example", false, false},
		{"http://localhost.example", false, false},
		{"http://10.0.0.1", false, false},
		{"http://0.0.0.0:9000", false, false},
		{"https://me:hunter2@accounts.example", false, false},
		{"https://me@accounts.example", false, false},
		{"https://accounts.example/#keys", false, false},
		{"https://accounts.example/#", false, false},
		{"ftp://accounts.example", false, false},
		{"file:///etc/passwd", false, false},
		{"https://", false, false},
		{"https:accounts.example", false, false},
		{"accounts.example", false, false},
		{"https://accounts.example:x", false, false},
	} {
		for name, ok := range map[string]bool{"MBX_RELAY_ISSUER": tt.issuer, "MBX_RELAY_JWKS_URL": tt.keys, "MBX_RELAY_DENY_URL": tt.keys} {
			t.Run(name+"="+tt.url, func(t *testing.T) {
				s, _, err := settingsCase{env: map[string]string{name: tt.url}}.read(t)
				if !ok {
					wantUsage(t, err, name+" is ")
					return
				}
				got := map[string]string{"MBX_RELAY_ISSUER": s.Accounts.Issuer, "MBX_RELAY_JWKS_URL": s.Accounts.JWKSURL, "MBX_RELAY_DENY_URL": s.Accounts.DenyURL}[name]
				if err != nil || got != tt.url {
					t.Errorf("got %q, %v; want it as it is", got, err)
				}
			})
		}
	}
}

func TestAccountSettingsInTheFile(t *testing.T) {
	s, _, err := settingsCase{file: "authority: jwks\nissuer: https://a.example\njwks_url: https://a.example/k\ndeny_url: https://a.example/d\n"}.read(t)
	want := AccountSettings{Authority: "jwks", Issuer: "https://a.example", JWKSURL: "https://a.example/k", DenyURL: "https://a.example/d"}
	if err != nil || s.Accounts != want {
		t.Errorf("got %+v, %v; want %+v", s.Accounts, err, want)
	}
}

func TestKeysURL(t *testing.T) {
	for _, tt := range []struct {
		a    AccountSettings
		want string
	}{
		{AccountSettings{Issuer: "https://a.example"}, "https://a.example/.well-known/jwks.json"},
		{AccountSettings{Issuer: "https://a.example/t/"}, "https://a.example/t/.well-known/jwks.json"},
		{AccountSettings{Issuer: "https://a.example", JWKSURL: "https://b.example/k"}, "https://b.example/k"},
	} {
		if got := tt.a.keysURL(); got != tt.want {
			t.Errorf("%+v: got %s; want %s", tt.a, got, tt.want)
		}
	}
}

// What only together makes sense is refused by whoever serves a relay, with what is
// to be set; other commands on the same store need none of it.
func TestAccountSettingsTogether(t *testing.T) {
	whole := map[string]string{"MBX_RELAY_AUTHORITY": "jwks", "MBX_RELAY_ISSUER": "https://accounts.example", "MBX_RELAY_PUBLIC_URL": "https://relay.example"}
	with := func(change map[string]string) map[string]string {
		m := maps.Clone(whole)
		maps.Copy(m, change)
		return m
	}
	for _, tt := range []struct {
		name string
		env  map[string]string
		want string // part of the error, "" for none
	}{
		{"nothing", nil, ""},
		{"all there is", with(map[string]string{"MBX_RELAY_JWKS_URL": "https://k.example", "MBX_RELAY_DENY_URL": "https://d.example"}), ""},
		{"no more than needed", whole, ""},
		{"on one machine", with(map[string]string{"MBX_RELAY_ISSUER": "http://127.0.0.1:9", "MBX_RELAY_PUBLIC_URL": "http://localhost:7374"}), ""},
		{"no issuer", with(map[string]string{"MBX_RELAY_ISSUER": ""}), "set MBX_RELAY_ISSUER"},
		{"no public URL", with(map[string]string{"MBX_RELAY_PUBLIC_URL": ""}), "set MBX_RELAY_PUBLIC_URL"},
		{"a public URL that anybody may pretend to be", with(map[string]string{"MBX_RELAY_PUBLIC_URL": "http://relay.example"}), `MBX_RELAY_PUBLIC_URL is "http://relay.example": set an https URL`},
		{"an issuer without its authority", with(map[string]string{"MBX_RELAY_AUTHORITY": ""}), "MBX_RELAY_ISSUER is set, but MBX_RELAY_AUTHORITY is host-key"},
		{"keys without their authority", map[string]string{"MBX_RELAY_JWKS_URL": "https://k.example"}, "MBX_RELAY_JWKS_URL is set, but"},
		{"a deny list without its authority", map[string]string{"MBX_RELAY_DENY_URL": "https://d.example"}, "MBX_RELAY_DENY_URL is set, but"},
		{"a public URL of a host-key relay", map[string]string{"MBX_RELAY_PUBLIC_URL": "http://relay.example"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, _, err := settingsCase{env: tt.env}.read(t)
			if err != nil {
				t.Fatal(err)
			}
			if err = s.checkAccounts(); tt.want != "" {
				wantUsage(t, err, tt.want)
			} else if err != nil {
				t.Errorf("got %v; want nil", err)
			}
		})
	}
}
