package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"github.com/spf13/viper"

	"github.com/agentmbx/agentmbx/admin/api"
	"github.com/agentmbx/agentmbx/relay"
)

// Settings is everything a relay can be told, filled and checked once by
// (*settingsReader).read. A flag wins over the environment, that over the
// settings file, that over the default.
type Settings struct {
	// StoreDir is the folder of the store, absolute. Flag --store-dir;
	// MBX_RELAY_DIR, else RAILWAY_VOLUME_MOUNT_PATH; file store_dir (only in a
	// --config file); default ~/.local/share/agentmbx-relay.
	StoreDir string

	// Port is the TCP port to listen on, 0 for any free one. Flag --port;
	// MBX_RELAY_PORT, else PORT; file port; default 7374.
	Port int

	// Bind is the address to listen on, an IP address or a host name. Flag
	// --bind; MBX_RELAY_BIND; file bind; default 127.0.0.1.
	Bind string

	// TrustProxy says which header of a proxy names the client: "" for none,
	// "xff", "cloudflare" or "real-ip". 1 and true mean xff, 0 and false none.
	// Flag --trust-proxy[=MODE]; MBX_RELAY_TRUST_PROXY; file trust_proxy.
	TrustProxy string

	// PublicURL is where hosts reach the relay, without a slash at its end; ""
	// when not known. Flag --public-url; MBX_RELAY_PUBLIC_URL; file public_url.
	PublicURL string

	// LogFormat is "text" or "json". MBX_LOG_FORMAT; file log_format; default
	// text.
	LogFormat string

	// Accounts says who may enrol.
	Accounts AccountSettings

	// BackupDir is the folder of the backups, absolute. Flag --backup-dir;
	// MBX_BACKUP_DIR; file backup.dir; default backups in the store's folder.
	BackupDir string

	// BackupSchedule and DrillSchedule say when a backup is taken and when one
	// is drilled: five fields of cron in UTC, or "off". MBX_BACKUP_SCHEDULE,
	// MBX_DRILL_SCHEDULE; file backup.schedule, drill.schedule; default every
	// day at 03:17, every Sunday at 04:43.
	BackupSchedule, DrillSchedule string

	// BackupKeep is how many verified backups are kept. MBX_BACKUP_KEEP; file
	// backup.keep; default 7.
	BackupKeep int

	// AgeRecipient encrypts backups to one or more age recipients; "" leaves
	// them plain. MBX_BACKUP_AGE_RECIPIENT; file backup.age_recipient.
	AgeRecipient string

	// AgeIdentityFile opens encrypted backups for the scheduled drill.
	// MBX_BACKUP_AGE_IDENTITY_FILE; file backup.age_identity_file.
	AgeIdentityFile string

	// RestoreFrom is a backup that serve restores before it starts, once for
	// each path. MBX_RELAY_RESTORE_FROM; file restore_from.
	RestoreFrom string

	// Admin opens the operator's desk over TCP.
	Admin AdminSettings

	// Limits bounds what the relay takes and holds. Each is
	// MBX_RELAY_LIMIT_<NAME> and, in the file, a key under limits. The days of
	// retention are also MBX_RELAY_RETENTION_DAYS, which wins.
	Limits relay.Limits
}

const (
	settingsFile    = "agentmbx.yaml" // looked for in the store dir
	maxSettingsFile = 1 << 20
)

// A setting is one row of the table that drives flags, environment, file and
// checks.
type setting struct {
	key  string   // its name in the file, with dots between levels
	flag string   // its flag, "" for none
	env  []string // its variables; the first that is not empty counts
	doc  string   // help text of the flag
	def  string
	kind kind
	want string             // what set accepts, for people
	set  func(string) error // takes the value over; its error is not shown
	// secret: a value that is refused may be a secret in the wrong place.
	secret bool
}

// kind says what a setting may look like in YAML.
type kind int

const (
	text   kind = iota
	number      // a whole number
	mode        // a text, a whole number or a boolean
)

// errValue is what every set answers to a value it does not take: what it
// does take stands in the setting's want.
var errValue = errors.New("not a value of this setting")

// table lists every setting, pointing into s.
func (s *Settings) table() []setting {
	home, err := os.UserHomeDir()
	storeDir := ""
	if err == nil {
		storeDir = filepath.Join(home, ".local", "share", "agentmbx-relay")
	}
	rows := []setting{
		{key: "store_dir", flag: "store-dir", env: []string{"MBX_RELAY_DIR", "RAILWAY_VOLUME_MOUNT_PATH"},
			doc: "`folder` of the store", def: storeDir, want: "a folder", set: setDir(&s.StoreDir)},
		{key: "port", flag: "port", env: []string{"MBX_RELAY_PORT", "PORT"},
			doc: "TCP `port` to listen on, 0 for any free one", def: "7374", kind: number, want: "0 to 65535", set: setPort(&s.Port)},
		{key: "bind", flag: "bind", env: []string{"MBX_RELAY_BIND"},
			doc: "`address` to listen on", def: "127.0.0.1", want: "an IP address or a host name, without a port", set: setBind(&s.Bind)},
		{key: "trust_proxy", flag: "trust-proxy", env: []string{"MBX_RELAY_TRUST_PROXY"},
			doc: "take the client's address from a proxy's header: xff, cloudflare or real-ip `mode`", kind: mode,
			want: "xff, cloudflare or real-ip", set: setTrustProxy(&s.TrustProxy)},
		{key: "public_url", flag: "public-url", env: []string{"MBX_RELAY_PUBLIC_URL"},
			doc: "`URL` where hosts reach this relay", want: "an http or https URL without user, query and fragment", set: setURL(&s.PublicURL)},
		{key: "backup.dir", flag: "backup-dir", env: []string{"MBX_BACKUP_DIR"},
			doc: "`folder` of the backups (default backups in the store's folder)", want: "a folder", set: setDir(&s.BackupDir)},
		{key: "backup.schedule", env: []string{"MBX_BACKUP_SCHEDULE"}, def: "17 3 * * *", want: wantSchedule, set: setSchedule(&s.BackupSchedule)},
		{key: "backup.keep", env: []string{"MBX_BACKUP_KEEP"}, def: "7", kind: number, want: "1 to 1000", set: setRange(&s.BackupKeep, 1, 1000)},
		{key: "backup.age_recipient", env: []string{"MBX_BACKUP_AGE_RECIPIENT"}, want: "age recipients (age1…), with commas between them",
			set: setRecipients(&s.AgeRecipient)},
		{key: "backup.age_identity_file", env: []string{"MBX_BACKUP_AGE_IDENTITY_FILE"}, want: "a file", set: setDir(&s.AgeIdentityFile)},
		{key: "drill.schedule", env: []string{"MBX_DRILL_SCHEDULE"}, def: "43 4 * * 0", want: wantSchedule, set: setSchedule(&s.DrillSchedule)},
		{key: "restore_from", env: []string{"MBX_RELAY_RESTORE_FROM"}, want: "a file", set: setDir(&s.RestoreFrom)},
		{key: "log_format", env: []string{"MBX_LOG_FORMAT"}, def: "text", want: "text or json", set: setOneOf(&s.LogFormat, "text", "json")},
	}
	return slices.Concat(rows, accountSettings(&s.Accounts), adminSettings(&s.Admin), limitSettings(&s.Limits))
}

// settingsReader reads the settings of one command. It has a viper of its
// own: two commands, or two tests, share nothing.
type settingsReader struct {
	v     *viper.Viper
	flags *pflag.FlagSet
}

// bindSettings gives a command the named settings as flags, and --config; the
// other settings reach it through environment and file. The command calls
// read once its flags are parsed.
func bindSettings(flags *pflag.FlagSet, names ...string) *settingsReader {
	r := &settingsReader{v: viper.New(), flags: flags}
	flags.String("config", "", "settings `file`, instead of "+settingsFile+" in the store dir")
	for _, st := range new(Settings).table() {
		for _, name := range names {
			if name != st.flag {
				continue
			}
			flags.String(name, st.def, st.doc)
			f := flags.Lookup(name)
			if st.kind == mode {
				f.NoOptDefVal = "xff"
			}
			if home, err := os.UserHomeDir(); err == nil {
				if rest, ok := strings.CutPrefix(st.def, home+"/"); ok {
					f.DefValue = "~/" + rest // in the help, which is the same for everybody
				}
			}
			_ = r.v.BindPFlag(st.key, f) // fails only for a flag that is nil
		}
		r.v.SetDefault(st.key, st.def)
		_ = r.v.BindEnv(append([]string{st.key}, st.env...)...) // fails only without a key
	}
	return r
}

// read fills the settings and checks them. Every error is a usage error that
// names the flag, variable or key the bad value came from.
func (r *settingsReader) read() (Settings, error) {
	var s Settings
	table := s.table()
	if err := checkEnvironment(table, os.Environ()); err != nil {
		return Settings{}, usage(err)
	}
	file, err := r.readFile(table)
	if err != nil {
		return Settings{}, usage(err)
	}
	for _, st := range table {
		value := r.v.GetString(st.key)
		if value == "" && st.def == "" && r.source(st, file) == "" {
			if st.key == "store_dir" { // no home folder to put one in
				return Settings{}, usage(errors.New("no folder for the store: set --store-dir or MBX_RELAY_DIR"))
			}
			continue
		}
		if st.set(value) != nil {
			shown := quoteValue(value)
			if st.secret {
				shown = "refused (not shown, it may be a token)"
			}
			return Settings{}, usage(fmt.Errorf("%s is %s: want %s", r.source(st, file), shown, st.want))
		}
	}
	if s.BackupDir == "" {
		s.BackupDir = filepath.Join(s.StoreDir, "backups")
	}
	return s, nil
}

// checkEnvironment refuses a variable of the relay's that is no setting: a
// mistyped limit would be in force by its default, and nobody would know.
func checkEnvironment(table []setting, environ []string) error {
	known := map[string]bool{
		"MBX_RELAY_KEY":   true, // taken by serve itself
		"MBX_RELAY_URL":   true, // a host's
		"MBX_RELAY_INIT":  true, // the platform's first start
		envAdminURL:       true, // of commands, for a relay elsewhere
		envAdminTokenFile: true,
	}
	for _, st := range table {
		for _, name := range st.env {
			known[name] = true
		}
	}
	for _, v := range environ {
		name, value, _ := strings.Cut(v, "=")
		ours := slices.ContainsFunc([]string{"MBX_RELAY_", "MBX_BACKUP_", "MBX_DRILL_", "MBX_ADMIN_"}, func(p string) bool { return strings.HasPrefix(name, p) })
		if ours && value != "" && !known[name] {
			return fmt.Errorf("%.100q is no setting of this version: unset it, or see the settings in README", name)
		}
	}
	return nil
}

// readFile reads the settings file, checks its shape against the table, and
// hands it to viper. It returns the path, or "" when there is no file.
func (r *settingsReader) readFile(table []setting) (path string, err error) {
	path, _ = r.flags.GetString("config")
	given := r.flags.Changed("config")
	if !given {
		dir := r.v.GetString("store_dir") // no file is read yet: flag, environment or default
		if dir == "" {
			return "", nil
		}
		path = filepath.Join(dir, settingsFile)
	}
	b, err := readBounded(path, maxSettingsFile)
	if !given && errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read settings: %w", err)
	}
	if err := checkSettingsFile(path, b, table); err != nil {
		return "", err
	}
	r.v.SetConfigType("yaml")
	if err := r.v.ReadConfig(bytes.NewReader(b)); err != nil {
		return "", fmt.Errorf("%s: not readable as YAML", path) // viper's text may quote the file
	}
	if !given && r.v.InConfig("store_dir") {
		return "", fmt.Errorf("%s: store_dir has no place in the store's own file: use --store-dir, MBX_RELAY_DIR or --config", path)
	}
	return path, nil
}

// source names where a setting's value comes from, in viper's order; "" is
// the default.
func (r *settingsReader) source(st setting, file string) string {
	if f := r.flags.Lookup(st.flag); f != nil && f.Changed {
		return "--" + st.flag
	}
	for _, name := range st.env {
		if os.Getenv(name) != "" {
			return name
		}
	}
	if file != "" && r.v.InConfig(st.key) {
		return st.key + " in " + file
	}
	return ""
}

// quoteValue shows a value that was refused. A URL or anything else with an @
// may hold a password, and what calls itself a secret may be one: neither is shown; nothing is shown at length.
func quoteValue(v string) string {
	switch {
	case v == "":
		return "empty"
	case strings.Contains(v, "@") && !strings.HasPrefix(v, "@"): // @daily is no secret
		return "refused (not shown, it may hold a password)"
	case strings.Contains(v, api.TokenPrefix):
		return "refused (not shown, it may be a token)"
	case strings.Contains(strings.ToUpper(v), "SECRET"): // an age identity in the place of a recipient
		return "refused (not shown, it may be a secret key)"
	case len(v) > 100:
		return strconv.Quote(v[:100]) + "…"
	}
	return strconv.Quote(v)
}

func readBounded(path string, limit int64) ([]byte, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() { // opening a pipe would wait for its other end
		return nil, fmt.Errorf("%s is not a file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("%s is over %d bytes", path, limit)
	}
	return b, err
}
