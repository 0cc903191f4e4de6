package host

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/agentmbx/agentmbx/relay/host/homefile"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// Files of a home.
const (
	configFile = "config.json"
	keysFile   = "keys.json"
	nextKeys   = "keys.next.json" // a rotation that was begun
	keysLock   = "keys.lock"      // held while keys.json is replaced
	lockFile   = "daemon.lock"
)

// ErrNoHome is returned for a folder that Init has not made a home of.
var ErrNoHome = errors.New("no host here: make one with agentmbx init, or set MBX_HOME")

// ErrUnsafe matches the error for a home, or a file in it, that others may have
// placed, or may read.
var ErrUnsafe = homefile.ErrUnsafe

// ErrExists is returned by Init for a folder that is a home already.
var ErrExists = errors.New("this home has a host already")

// Config is what config.json says.
type Config struct {
	V     int    `json:"v"`
	Host  string `json:"host"`
	Relay string `json:"relay,omitempty"`
}

// checkHome refuses a home that others can look into.
func checkHome(dir string) error {
	fi, err := os.Stat(dir)
	if errors.Is(err, os.ErrNotExist) {
		return ErrNoHome
	}
	if err != nil {
		return err
	}
	if !fi.IsDir() {
		return fmt.Errorf("%s is not a folder", dir)
	}
	if fi.Mode().Perm()&0o077 != 0 {
		return homefile.Unsafe("%s can be entered by others (mode %04o): run chmod 700 %s", dir, fi.Mode().Perm(), dir)
	}
	return nil
}

func readConfig(home string) (Config, error) {
	data, err := homefile.Read(filepath.Join(home, configFile))
	if errors.Is(err, os.ErrNotExist) {
		return Config{}, ErrNoHome
	}
	if err != nil {
		return Config{}, err
	}
	var c Config
	if err := wire.Decode(data, &c); err != nil || c.V != 1 || !wire.ValidHostName(c.Host) {
		return Config{}, fmt.Errorf("%s is not a host's configuration: put back a copy of it", configFile)
	}
	return c, nil
}

func writeConfig(home string, c Config) error {
	data, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	return homefile.Write(filepath.Join(home, configFile), append(data, '\n'))
}
