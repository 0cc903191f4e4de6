package backup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/agentmbx/agentmbx/relay/store/sqlite"
)

// CutRestore refuses a folder without a store where a restore of one was cut off.
// It is called under the store's lock, before SweepRestore takes the traces away.
func CutRestore(storeDir string) error {
	exists, err := sqlite.Exists(storeDir)
	if err != nil || exists {
		return err
	}
	work := filepath.Join(storeDir, restoreWork)
	if _, err := os.Lstat(work); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	return fmt.Errorf("a restore into %s: %w: run agentmbx relay restore again, or remove %s to begin with an empty store", storeDir, sqlite.ErrCutOff, work)
}
