package main

import (
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/agentmbx/agentmbx/relay"
)

// A settingsCase is a command line and what surrounds it. $STORE and $HOME in
// it stand for two new folders; file is written to the store's, config to
// $HOME/my.yaml.
type settingsCase struct {
	name   string
	args   []string
	env    map[string]string
	file   string
	config string
}

// read reads the settings as a command with every flag would.
func (c settingsCase) read(t *testing.T) (s Settings, expand func(string) string, err error) {
	t.Helper()
	store, home := t.TempDir(), t.TempDir()
	expand = strings.NewReplacer("$STORE", store, "$HOME", home).Replace
	for _, st := range new(Settings).table() {
		for _, name := range st.env {
			t.Setenv(name, "") // an empty variable counts as none
		}
	}
	t.Setenv("HOME", home)
	t.Setenv("MBX_RELAY_DIR", store)
	for k, v := range c.env {
		t.Setenv(k, expand(v))
	}
	for path, content := range map[string]string{
		filepath.Join(store, settingsFile): c.file,
		filepath.Join(home, "my.yaml"):     c.config,
	} {
		if content == "" {
			continue
		}
		if err := os.WriteFile(path, []byte(expand(content)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	flags.SetOutput(io.Discard)
	r := bindSettings(flags, "store-dir", "port", "bind", "trust-proxy", "public-url")
	var args []string
	for _, a := range c.args {
		args = append(args, expand(a))
	}
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	s, err = r.read()
	return s, expand, err
}

func TestSettingsDefaults(t *testing.T) {
	s, expand, err := settingsCase{env: map[string]string{"MBX_RELAY_DIR": ""}}.read(t)
	want := Settings{
		StoreDir:       expand("$HOME/.local/share/agentmbx-relay"),
		Port:           7374,
		Bind:           "127.0.0.1",
		LogFormat:      "text",
		Accounts:       AccountSettings{Authority: "host-key"},
		BackupDir:      expand("$HOME/.local/share/agentmbx-relay/backups"),
		BackupSchedule: "17 3 * * *",
		BackupKeep:     7,
		DrillSchedule:  "43 4 * * 0",
		Limits:         relay.DefaultLimits(),
	}
	if err != nil || s != want {
		t.Errorf("got %+v, %v; want %+v", s, err, want)
	}
}

func TestSettingsPrecedence(t *testing.T) {
	port := func(s Settings) any { return s.Port }
	dir := func(s Settings) any { return s.StoreDir }
	proxy := func(s Settings) any { return s.TrustProxy }
	days := func(s Settings) any { return int(s.Limits.RetentionDays) }
	tests := []struct {
		settingsCase
		get  func(Settings) any
		want any
	}{
		{settingsCase{name: "flag first", args: []string{"--port", "1"}, env: map[string]string{"MBX_RELAY_PORT": "2", "PORT": "3"}, file: "port: 4"}, port, 1},
		{settingsCase{name: "flag of the default's value", args: []string{"--port", "7374"}, env: map[string]string{"MBX_RELAY_PORT": "2"}}, port, 7374},
		{settingsCase{name: "own variable before PORT", env: map[string]string{"MBX_RELAY_PORT": "2", "PORT": "3"}, file: "port: 4"}, port, 2},
		{settingsCase{name: "PORT before the file", env: map[string]string{"PORT": "3"}, file: "port: 4"}, port, 3},
		{settingsCase{name: "empty variable is none", env: map[string]string{"MBX_RELAY_PORT": "", "PORT": "3"}}, port, 3},
		{settingsCase{name: "file before the default", file: "port: 4"}, port, 4},
		{settingsCase{name: "port 0", args: []string{"--port=0"}}, port, 0},
		{settingsCase{name: "leading zero is no octal", env: map[string]string{"PORT": "010"}}, port, 10},
		{settingsCase{name: "store by flag", args: []string{"--store-dir", "$STORE/a/../b"}}, dir, "$STORE/b"},
		{settingsCase{name: "store on Railway", env: map[string]string{"MBX_RELAY_DIR": "", "RAILWAY_VOLUME_MOUNT_PATH": "$STORE/vol"}}, dir, "$STORE/vol"},
		{settingsCase{name: "own store variable before Railway's", env: map[string]string{"RAILWAY_VOLUME_MOUNT_PATH": "$STORE/vol"}}, dir, "$STORE"},
		{settingsCase{name: "store in --config", args: []string{"--config", "$HOME/my.yaml"}, env: map[string]string{"MBX_RELAY_DIR": ""}, config: "store_dir: $HOME/x"}, dir, "$HOME/x"},
		{settingsCase{name: "variable before --config", args: []string{"--config", "$HOME/my.yaml"}, config: "store_dir: $HOME/x"}, dir, "$STORE"},
		{settingsCase{name: "--config instead of the store's file", args: []string{"--config", "$HOME/my.yaml"}, file: "port: 4\nbogus: 1", config: "port: 5"}, port, 5},
		{settingsCase{name: "proxy flag alone", args: []string{"--trust-proxy"}}, proxy, "xff"},
		{settingsCase{name: "proxy flag with a mode", args: []string{"--trust-proxy=real-ip"}, file: "trust_proxy: xff"}, proxy, "real-ip"},
		{settingsCase{name: "proxy 1", env: map[string]string{"MBX_RELAY_TRUST_PROXY": "1"}}, proxy, "xff"},
		{settingsCase{name: "proxy true in the file", file: "trust_proxy: true"}, proxy, "xff"},
		{settingsCase{name: "proxy 1 in the file", file: "trust_proxy: 1"}, proxy, "xff"},
		{settingsCase{name: "proxy switched off", env: map[string]string{"MBX_RELAY_TRUST_PROXY": "0"}, file: "trust_proxy: cloudflare"}, proxy, ""},
		{settingsCase{name: "retention", env: map[string]string{"MBX_RELAY_RETENTION_DAYS": "3"}}, days, 3},
		{settingsCase{name: "retention as a limit", env: map[string]string{"MBX_RELAY_LIMIT_RETENTION_DAYS": "4"}}, days, 4},
		{settingsCase{name: "retention in the file", file: "limits:\n  retention_days: 5"}, days, 5},
		{settingsCase{name: "public URL", env: map[string]string{"MBX_RELAY_PUBLIC_URL": "https://relay.example/mail/"}},
			func(s Settings) any { return s.PublicURL }, "https://relay.example/mail"},
		{settingsCase{name: "all interfaces", args: []string{"--bind", "::"}}, func(s Settings) any { return s.Bind }, "::"},
		{settingsCase{name: "host name", args: []string{"--bind", "localhost"}}, func(s Settings) any { return s.Bind }, "localhost"},
		{settingsCase{name: "log format", file: "log_format: json"}, func(s Settings) any { return s.LogFormat }, "json"},
		{settingsCase{name: "backups of a store", args: []string{"--store-dir", "$STORE/x"}}, func(s Settings) any { return s.BackupDir }, "$STORE/x/backups"},
		{settingsCase{name: "backups elsewhere", file: "backup: {dir: $HOME/b, keep: 3}"}, func(s Settings) any { return s.BackupDir }, "$HOME/b"},
		{settingsCase{name: "backups kept", file: "backup: {dir: $HOME/b, keep: 3}"}, func(s Settings) any { return s.BackupKeep }, 3},
		{settingsCase{name: "no backups by themselves", env: map[string]string{"MBX_BACKUP_SCHEDULE": "off"}}, func(s Settings) any { return s.BackupSchedule }, "off"},
		{settingsCase{name: "drills", file: "drill:\n  schedule: 0 5 1 * *"}, func(s Settings) any { return s.DrillSchedule }, "0 5 1 * *"},
		{settingsCase{name: "a desk over TCP", file: "admin: {listen: \"127.0.0.1:7375\"}"}, func(s Settings) any { return s.Admin.Listen }, "127.0.0.1:7375"},
		{settingsCase{name: "a desk switched off", env: map[string]string{"MBX_ADMIN_LISTEN": "off"}, file: "admin: {listen: \"127.0.0.1:7375\"}"}, func(s Settings) any { return s.Admin.Listen }, ""},
		{settingsCase{name: "a token's hash", env: map[string]string{"MBX_ADMIN_READONLY_TOKEN_SHA256": strings.Repeat("0A", 32)}},
			func(s Settings) any { return s.Admin.ReadOnlyToken[31] }, byte(10)},
		{settingsCase{name: "a certificate", env: map[string]string{"MBX_ADMIN_TLS_CERT": "$HOME/c.pem"}}, func(s Settings) any { return s.Admin.TLSCert }, "$HOME/c.pem"},
		{settingsCase{name: "comments only", file: "# nothing\n"}, port, 7374},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, expand, err := tt.read(t)
			want := tt.want
			if w, ok := want.(string); ok {
				want = expand(w)
			}
			if got := tt.get(s); err != nil || got != want {
				t.Errorf("got %v, %v; want %v", got, err, want)
			}
		})
	}
}

// Every limit can be set by its variable and its key, to both of its bounds.
func TestSettingsLimits(t *testing.T) {
	var def relay.Limits
	for i, f := range relay.LimitFields(&def) {
		name := "MBX_RELAY_LIMIT_" + strings.ToUpper(f.Name)
		for _, bound := range []int64{f.Min, f.Max} {
			v := itoa(bound)
			for _, c := range []settingsCase{
				{name: name + "=" + v, env: map[string]string{name: v, "MBX_RELAY_LIMIT_MAX_ITEM_BYTES": "1024"}},
				{name: f.Name + ": " + v, file: "limits: {" + f.Name + ": " + v + "}", env: map[string]string{"MBX_RELAY_LIMIT_MAX_ITEM_BYTES": "1024"}},
			} {
				if f.Name == "max_item_bytes" {
					delete(c.env, "MBX_RELAY_LIMIT_MAX_ITEM_BYTES")
					if c.file == "" {
						c.env[name] = v
					}
				}
				t.Run(c.name, func(t *testing.T) {
					s, _, err := c.read(t)
					if err != nil {
						t.Fatal(err)
					}
					if got := *relay.LimitFields(&s.Limits)[i].Value; got != bound {
						t.Errorf("got %d; want %d", got, bound)
					}
				})
			}
		}
		for _, out := range []int64{f.Min - 1, f.Max + 1} {
			c := settingsCase{env: map[string]string{name: itoa(out)}}
			t.Run(name+"="+itoa(out), func(t *testing.T) {
				_, _, err := c.read(t)
				wantUsage(t, err, name+` is "`+itoa(out)+`": want `+itoa(f.Min)+" to "+itoa(f.Max))
			})
		}
	}
}

func TestSettingsRefused(t *testing.T) {
	tests := []struct {
		settingsCase
		want string // part of the error
	}{
		{settingsCase{name: "port flag", args: []string{"--port", "65536"}}, `--port is "65536": want 0 to 65535`},
		{settingsCase{name: "port variable", env: map[string]string{"PORT": "-1"}}, `PORT is "-1": want 0 to 65535`},
		{settingsCase{name: "port in the file", file: "port: 70000"}, `port in $STORE/agentmbx.yaml is "70000": want 0 to 65535`},
		{settingsCase{name: "no number", env: map[string]string{"MBX_RELAY_PORT": "http"}}, `MBX_RELAY_PORT is "http": want 0 to 65535`},
		{settingsCase{name: "hexadecimal", env: map[string]string{"MBX_RELAY_PORT": "0x10"}}, `MBX_RELAY_PORT is "0x10"`},
		{settingsCase{name: "too large for an integer", env: map[string]string{"MBX_RELAY_LIMIT_POLLS": "99999999999999999999"}}, "MBX_RELAY_LIMIT_POLLS is"},
		{settingsCase{name: "limit in the file", file: "limits:\n  max_batch: 0"}, `limits.max_batch in $STORE/agentmbx.yaml is "0": want 1 to 10000`},
		{settingsCase{name: "mistyped limit", env: map[string]string{"MBX_RELAY_LIMIT_MAXBATCH": "1"}}, `"MBX_RELAY_LIMIT_MAXBATCH" is no setting`},
		{settingsCase{name: "a setting of no version", env: map[string]string{"MBX_RELAY_OPEN": "no"}}, `"MBX_RELAY_OPEN" is no setting`},
		{settingsCase{name: "an authority of no version", env: map[string]string{"MBX_RELAY_AUTHORITY": "JWKS"}}, `MBX_RELAY_AUTHORITY is "JWKS": want host-key or jwks`},
		{settingsCase{name: "a folder as the file", args: []string{"--config", "/"}}, "/ is not a file"},
		{settingsCase{name: "retention", env: map[string]string{"MBX_RELAY_RETENTION_DAYS": "0"}}, `MBX_RELAY_RETENTION_DAYS is "0": want 1 to 3650`},
		{settingsCase{name: "proxy", env: map[string]string{"MBX_RELAY_TRUST_PROXY": "nginx"}}, `MBX_RELAY_TRUST_PROXY is "nginx": want xff, cloudflare or real-ip`},
		{settingsCase{name: "no schedule", env: map[string]string{"MBX_BACKUP_SCHEDULE": "daily"}}, `MBX_BACKUP_SCHEDULE is "daily": want five fields of cron, in UTC, or off`},
		{settingsCase{name: "a schedule with a time zone", file: "drill: {schedule: CRON_TZ=Europe/Paris 3 3 * * *}"}, "drill.schedule in $STORE/agentmbx.yaml is"},
		{settingsCase{name: "a schedule of no hour", env: map[string]string{"MBX_DRILL_SCHEDULE": "3 24 * * *"}}, "MBX_DRILL_SCHEDULE is"},
		{settingsCase{name: "no backup kept", env: map[string]string{"MBX_BACKUP_KEEP": "0"}}, `MBX_BACKUP_KEEP is "0": want 1 to 1000`},
		{settingsCase{name: "mistyped backup setting", env: map[string]string{"MBX_BACKUP_KEEPS": "1"}}, `"MBX_BACKUP_KEEPS" is no setting`},
		{settingsCase{name: "a desk without a port", env: map[string]string{"MBX_ADMIN_LISTEN": "127.0.0.1"}}, `MBX_ADMIN_LISTEN is "127.0.0.1": want host:port, or off`},
		{settingsCase{name: "a desk without a host", env: map[string]string{"MBX_ADMIN_LISTEN": ":7375"}}, `MBX_ADMIN_LISTEN is ":7375": want host:port, or off`},
		{settingsCase{name: "a desk at a port beyond", env: map[string]string{"MBX_ADMIN_LISTEN": "127.0.0.1:65536"}}, "MBX_ADMIN_LISTEN is"},
		{settingsCase{name: "no hash", file: "admin: {token_sha256: abc}"}, "admin.token_sha256 in $STORE/agentmbx.yaml is refused (not shown, it may be a token): want the SHA-256 of a token"},
		{settingsCase{name: "a token in place of a file", env: map[string]string{"MBX_ADMIN_TOKEN": "x"}}, `"MBX_ADMIN_TOKEN" is no setting`},
		{settingsCase{name: "mistyped desk setting", env: map[string]string{"MBX_ADMIN_TLS_CERTS": "x"}}, `"MBX_ADMIN_TLS_CERTS" is no setting`},
		{settingsCase{name: "bind with a port", args: []string{"--bind", "127.0.0.1:80"}}, `--bind is "127.0.0.1:80"`},
		{settingsCase{name: "mistyped address", args: []string{"--bind", "127.0.0"}}, `--bind is "127.0.0"`},
		{settingsCase{name: "empty flag", args: []string{"--bind", ""}}, "--bind is empty"},
		{settingsCase{name: "empty store", args: []string{"--store-dir", ""}}, "--store-dir is empty"},
		{settingsCase{name: "URL without a scheme", args: []string{"--public-url", "relay.example"}}, `--public-url is "relay.example"`},
		{settingsCase{name: "URL of another scheme", args: []string{"--public-url", "ftp://relay.example"}}, "--public-url is"},
		{settingsCase{name: "URL with a query", args: []string{"--public-url", "https://relay.example/?"}}, "without user, query and fragment"},
		{settingsCase{name: "log format", env: map[string]string{"MBX_LOG_FORMAT": "xml"}}, `MBX_LOG_FORMAT is "xml": want text or json`},
		{settingsCase{name: "unknown key", file: "port: 1\nprot: 2"}, `$STORE/agentmbx.yaml:2: unknown key "prot"`},
		{settingsCase{name: "unknown key, nested", file: "limits:\n  max_batches: 2"}, `$STORE/agentmbx.yaml:2: unknown key "limits.max_batches"`},
		{settingsCase{name: "unknown key in --config", args: []string{"--config", "$HOME/my.yaml"}, config: "prot: 2"}, `$HOME/my.yaml:1: unknown key "prot"`},
		{settingsCase{name: "unknown key without a value", file: "prot:"}, `unknown key "prot"`},
		{settingsCase{name: "other case", file: "Port: 1"}, `unknown key "Port"`},
		{settingsCase{name: "dotted key", file: "limits.max_batch: 1"}, `unknown key "limits.max_batch"`},
		{settingsCase{name: "merge key", file: "<<: {port: 1}"}, `unknown key "<<"`},
		{settingsCase{name: "key twice", file: "port: 1\nport: 2"}, "agentmbx.yaml:2: port is set twice"},
		{settingsCase{name: "text for a number", file: `port: "80"`}, "agentmbx.yaml:1: port wants a whole number"},
		{settingsCase{name: "fraction", file: "port: 80.5"}, "port wants a whole number"},
		{settingsCase{name: "boolean for a number", file: "port: true"}, "port wants a whole number"},
		{settingsCase{name: "nothing for a number", file: "port:"}, "port wants a whole number"},
		{settingsCase{name: "list for a number", file: "port: [1]"}, "port wants a whole number"},
		{settingsCase{name: "number for a text", file: "bind: 1"}, "bind wants a text"},
		{settingsCase{name: "number for a group", file: "limits: 3"}, "limits wants settings as key: value below it"},
		{settingsCase{name: "list for a file", file: "- port"}, "want settings as key: value"},
		{settingsCase{name: "two documents", file: "port: 1\n---\nport: 2"}, "want one YAML document"},
		{settingsCase{name: "not YAML", file: "port: [1"}, "$STORE/agentmbx.yaml: not YAML"},
		{settingsCase{name: "alias", file: "bind: &a x\npublic_url: *a"}, "public_url wants a text"},
		{settingsCase{name: "store dir in the store", file: "store_dir: /tmp"}, "store_dir has no place in the store's own file"},
		{settingsCase{name: "no such file", args: []string{"--config", "$HOME/none.yaml"}}, "$HOME/none.yaml"},
		{settingsCase{name: "huge file", file: "#" + strings.Repeat("x", maxSettingsFile)}, "is over 1048576 bytes"},
		{settingsCase{name: "no home", env: map[string]string{"HOME": "", "MBX_RELAY_DIR": ""}}, "set --store-dir or MBX_RELAY_DIR"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, expand, err := tt.read(t)
			wantUsage(t, err, expand(tt.want))
		})
	}
}

// What may be a secret, put in a wrong place, is not repeated.
func TestSettingsErrorsHideSecrets(t *testing.T) {
	for _, c := range []settingsCase{
		{name: "password in a URL", args: []string{"--public-url", "https://me:hunter2@relay.example"}},
		{name: "URL that does not parse", args: []string{"--public-url", "https://me:hunter2@relay.example:x"}},
		{name: "under a wrong key", file: "token: hunter2"},
		{name: "of a wrong kind", file: "port: hunter2"},
		{name: "not YAML", file: "port: {hunter2"},
		{name: "a token for its hash", env: map[string]string{"MBX_ADMIN_TOKEN_SHA256": "hunter2"}},
		{name: "a token for its hash in the file", file: "admin: {readonly_token_sha256: hunter2}"},
		{name: "a token in the environment", env: map[string]string{"MBX_ADMIN_TOKEN": "hunter2"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := c.read(t)
			wantUsage(t, err, "")
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("got %q; want no value in it", err)
			}
		})
	}
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

func wantUsage(t *testing.T, err error, part string) {
	t.Helper()
	if err == nil {
		t.Fatalf("got nil; want an error with %q", part)
	}
	if code := exitCode(err); code != codeUsage || !strings.Contains(err.Error(), part) || strings.Contains(err.Error(), "\n") {
		t.Errorf("got %q, exit code %d; want one line with %q and code 2", err, code, part)
	}
}
