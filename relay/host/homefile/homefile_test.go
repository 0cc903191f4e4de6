package homefile

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// The tests of relay/host hold what Check and Read refuse, in a whole home.

func TestMakeKeepsWhatIsThere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cloud.key")
	if err := Make(path, []byte("first")); err != nil {
		t.Fatal(err)
	}
	if err := Make(path, []byte("second")); !errors.Is(err, os.ErrExist) {
		t.Errorf("got %v; want os.ErrExist", err)
	}
	if got, err := Read(path); err != nil || string(got) != "first" {
		t.Errorf("got %q, %v; want the first one", got, err)
	}
	if err := Write(path, []byte("third")); err != nil {
		t.Fatal(err)
	}
	if got, err := Read(path); err != nil || string(got) != "third" {
		t.Errorf("got %q, %v; want the new one", got, err)
	}
	if files, err := os.ReadDir(filepath.Dir(path)); err != nil || len(files) != 1 {
		t.Errorf("got %v, %v; want the file alone", files, err)
	}
}
