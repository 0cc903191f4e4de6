package backup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"
)

// mayBeCalled refuses names under which a file would be taken for something else.
func (m *making) mayBeCalled(dir, base string) error {
	low := strings.ToLower(base)
	for _, end := range []string{".partial", receiptSuffix, "-wal", "-shm", "-journal"} {
		if strings.HasSuffix(low, end) {
			return fmt.Errorf("%w: names with %s at their end are for unfinished files, receipts and what stands beside a database: choose another", ErrRefused, end)
		}
	}
	own := slices.ContainsFunc([]string{"relay.", "admin."}, func(p string) bool { return strings.HasPrefix(low, p) }) ||
		slices.Contains([]string{"reserve", rollbackFolder, "agentmbx.yaml"}, low)
	switch {
	case !utf8.ValidString(m.path):
		return fmt.Errorf("%w: %q is not UTF-8, and no receipt could name it: choose another", ErrRefused, m.path)
	case sameFolder(dir, m.StoreDir) && own || sameFolder(dir, filepath.Dir(m.Dir)) && base == filepath.Base(m.Dir):
		return fmt.Errorf("%w: %s is a name of the store's own: choose another", ErrRefused, m.path)
	case sameFolder(dir, filepath.Join(m.StoreDir, rollbackFolder)):
		return fmt.Errorf("%w: %s is where replaced stores are kept: choose another folder", ErrRefused, dir)
	case sameFolder(dir, m.Dir) && (ownName.MatchString(base) || strings.HasPrefix(base, notePrefix)):
		return fmt.Errorf("%w: %s is how the folder's own backups are called: choose another name, or give none", ErrRefused, base)
	}
	return nil
}

// sameFolder reports whether two paths lead to one folder that is there.
func sameFolder(a, b string) bool {
	sa, err := os.Stat(a)
	if err != nil {
		return false
	}
	sb, err := os.Stat(b)
	return err == nil && os.SameFile(sa, sb)
}

// absent refuses a place where something stands, or beside which something does
// that would make it a live store's database.
func (m *making) absent() error {
	for _, end := range []string{"", receiptSuffix, "-wal", "-shm", "-journal"} {
		p := m.path + end
		if _, err := os.Lstat(p); err == nil {
			return fmt.Errorf("%w: %s: move it away, or choose another name", ErrExists, p)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
