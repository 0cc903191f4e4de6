package api

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentmbx/agentmbx/admin"
)

func TestTrusted(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name           string
		uid, me, store int
		want           bool
	}{
		{"ours", 1000, 1000, 1000, true},
		{"root's", 0, 1000, 1000, true},
		{"a stranger's", 1001, 1000, 1000, false},
		{"a stranger's in the stranger's store", 1001, 1000, 1001, false},
		{"of the store's owner, for root", 1000, 0, 1000, true},
		{"a stranger's, for root", 1001, 0, 1000, false},
		{"a stranger's in root's store, for root", 1001, 0, 0, false},
	} {
		if got := trusted(tt.uid, tt.me, tt.store); got != tt.want {
			t.Errorf("%s: got %v; want %v", tt.name, got, tt.want)
		}
	}
}

// A socket, or its folder, that is a stranger's is refused before a word is said.
func TestWrongSocketOwner(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("only root can give files away")
	}
	for _, tt := range []struct {
		name   string
		folder string // below the store's, for a path that is too long
		give   func(dir, socket string) string
		want   bool
	}{
		{"root's", "", func(string, string) string { return "" }, true},
		{"the socket of another", "", func(_, socket string) string { return socket }, false},
		{"the private folder of another", strings.Repeat("d", 120), func(_, socket string) string { return filepath.Dir(socket) }, false},
		// root's socket in a store of another: root looks after it.
		{"the store of another", "", func(dir, _ string) string { return dir }, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), tt.folder)
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			l, err := Listen(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			if given := tt.give(dir, l.Addr().String()); given != "" {
				if err := os.Chown(given, 4242, 4242); err != nil {
					t.Fatal(err)
				}
			}
			_, err = Dial(t.Context(), dir)
			if tt.want != (err == nil) || err != nil && (!errors.Is(err, admin.ErrRefused) || !strings.Contains(err.Error(), "4242")) {
				t.Errorf("got %v; want trust %v", err, tt.want)
			}
			if tt.want { // nobody would answer
				return
			}
			if _, err := At(dir).Status(t.Context()); !errors.Is(err, admin.ErrRefused) {
				t.Errorf("Status: got %v; want a refusal", err)
			}
		})
	}
}
