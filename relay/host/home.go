package host

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

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

const maxFile = 1 << 20 // of a file that is read whole

// ErrNoHome is returned for a folder that Init has not made a home of.
var ErrNoHome = errors.New("no host here: make one with agentmbx init, or set MBX_HOME")

// ErrUnsafe matches the error for a home, or a file in it, that others may have
// placed, or may read.
var ErrUnsafe = errors.New("not safe to use")

// unsafeError is an ErrUnsafe that says what is wrong.
type unsafeError struct{ text string }

func (e *unsafeError) Error() string        { return e.text }
func (e *unsafeError) Is(target error) bool { return target == ErrUnsafe }

func unsafe(format string, args ...any) error { return &unsafeError{fmt.Sprintf(format, args...)} }

// ErrExists is returned by Init for a folder that is a home already.
var ErrExists = errors.New("this home has a host already")

// Config is what config.json says.
type Config struct {
	V     int    `json:"v"`
	Host  string `json:"host"`
	Relay string `json:"relay,omitempty"`
}

// checkPrivate refuses a file that others may have placed or may read. The
// error for a file that is not there matches os.ErrNotExist.
func checkPrivate(path string) error {
	fi, err := os.Lstat(path)
	if err != nil {
		return err
	}
	name := filepath.Base(path)
	switch {
	case fi.Mode()&fs.ModeSymlink != 0:
		return unsafe("%s is a symbolic link: put the file itself into the home", name)
	case !fi.Mode().IsRegular():
		return unsafe("%s is not a regular file", name)
	case fi.Mode().Perm()&0o077 != 0:
		return unsafe("%s can be read by others (mode %04o): run chmod 600 %s", name, fi.Mode().Perm(), path)
	}
	return nil
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
		return unsafe("%s can be entered by others (mode %04o): run chmod 700 %s", dir, fi.Mode().Perm(), dir)
	}
	return nil
}

// readPrivate reads a whole file that checkPrivate accepts.
func readPrivate(path string) ([]byte, error) {
	if err := checkPrivate(path); err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if fi.Size() > maxFile {
		return nil, fmt.Errorf("%s is over %d bytes", filepath.Base(path), maxFile)
	}
	data := make([]byte, fi.Size())
	if _, err := f.ReadAt(data, 0); err != nil {
		return nil, err
	}
	return data, nil
}

// writePrivate puts data under its final name in one step: a crash leaves the
// old file or the new one.
func writePrivate(path string, data []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // 0600
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) // after the rename there is nothing under it
	_, err = tmp.Write(data)
	if err == nil {
		err = tmp.Sync()
	}
	if err := errors.Join(err, tmp.Close()); err != nil {
		return err
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func readConfig(home string) (Config, error) {
	data, err := readPrivate(filepath.Join(home, configFile))
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
	return writePrivate(filepath.Join(home, configFile), append(data, '\n'))
}
