package relay_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/wire"
)

func TestC12_LoadKey(t *testing.T) {
	t.Parallel()
	key, other := must(wire.GenerateKey()), must(wire.GenerateKey())
	jsonForm := string(wire.FormatKeyFile(key))
	mismatch := strings.Replace(jsonForm, key.Public().String(), other.Public().String(), 1)
	tests := []struct {
		name, text string
		good       bool
	}{
		{"raw", key.Seed(), true},
		{"raw with a line break", key.Seed() + "\n", true},
		{"JSON", jsonForm, true},
		{"JSON in other order", fmt.Sprintf(`{"privateKey":%q, "publicKey":%q}`, key.Seed(), key.Public()), true},
		{"another public key", mismatch, false},
		{"JSON without a public key", fmt.Sprintf(`{"privateKey":%q}`, key.Seed()), false},
		{"a member twice", fmt.Sprintf(`{"privateKey":%q,"privateKey":%q,"publicKey":%q}`, other.Seed(), key.Seed(), key.Public()), false},
		{"half a JSON", jsonForm[:60], false},
		{"half a seed", key.Seed()[:20], false},
		{"a seed and more", key.Seed() + "secret-tail", false},
		{"junk", "secret-junk", false},
		{"hex", strings.Repeat("secretab", 8), false},
		{"blank", " \n", false},
		{"far too long", strings.Repeat("secret", 10_000), false},
	}
	for _, tt := range tests {
		check := func(t *testing.T, got wire.PrivateKey, err error) {
			t.Helper()
			if tt.good {
				ok(t, "load", err)
				same(t, "key", got.Public(), key.Public())
				return
			}
			if !errors.Is(err, relay.ErrKeyFile) || !got.IsZero() {
				t.Fatalf("got %v; want ErrKeyFile and no key", err)
			}
			for i := 0; i+8 <= len(tt.text); i += 4 { // not eight characters of it
				if part := strings.TrimSpace(tt.text[i : i+8]); len(part) == 8 && strings.Contains(err.Error(), part) && !strings.Contains(`{"publicKey":…,"privateKey":…}`, part) {
					t.Errorf("error: got %q; want nothing of the input, it has %q", err, part)
				}
			}
		}
		t.Run(tt.name+", in the environment", func(t *testing.T) {
			dir := t.TempDir()
			got, source, err := relay.LoadKey(dir, tt.text, true)
			check(t, got, err)
			if tt.good {
				same(t, "source", source, "MBX_RELAY_KEY")
			}
			same(t, "files written", len(files(t, dir)), 0)
		})
		t.Run(tt.name+", in the file", func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, relay.KeyFile)
			ok(t, "write", os.WriteFile(path, []byte(tt.text), 0o600))
			got, source, err := relay.LoadKey(dir, "", true)
			check(t, got, err)
			if tt.good {
				same(t, "source", source, path)
			}
			same(t, "the file after", string(must(os.ReadFile(path))), tt.text)

			// The environment wins over whatever the file is.
			got, source, err = relay.LoadKey(dir, other.Seed(), true)
			ok(t, "load with MBX_RELAY_KEY", err)
			same(t, "key and source", got.Public().String()+source, other.Public().String()+"MBX_RELAY_KEY")
		})
	}
}

func files(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	ok(t, "list", err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestLoadKeyFirstStart(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "store")
	key, source, err := relay.LoadKey(dir, "", false)
	ok(t, "first start", err)
	path := filepath.Join(dir, relay.KeyFile)
	contains(t, "source", source, path)
	st, err := os.Stat(path)
	ok(t, "stat", err)
	same(t, "mode", st.Mode(), os.FileMode(0o600))
	same(t, "files", fmt.Sprint(files(t, dir)), "["+relay.KeyFile+"]")
	same(t, "form", string(must(os.ReadFile(path))), string(wire.FormatKeyFile(key)))
	for _, exists := range []bool{false, true} {
		again, source, err := relay.LoadKey(dir, "", exists)
		ok(t, "next start", err)
		same(t, "key", again.Public(), key.Public())
		same(t, "source", source, path)
	}

	ok(t, "lose it", os.Remove(path))
	got, _, err := relay.LoadKey(dir, "", true)
	if !errors.Is(err, relay.ErrKeyLost) || !got.IsZero() {
		t.Errorf("a store without its key: got %v; want ErrKeyLost and no key", err)
	}
	same(t, "files", len(files(t, dir)), 0)

	ok(t, "a folder in its place", os.Mkdir(path, 0o700))
	if _, _, err := relay.LoadKey(dir, "", false); !errors.Is(err, relay.ErrKeyFile) {
		t.Errorf("a folder: got %v; want ErrKeyFile", err)
	}
}

// Two first starts at once end with one key: whoever is answered without an
// error has the one in the file.
func TestLoadKeyTwoFirstStarts(t *testing.T) {
	t.Parallel()
	for range 20 {
		dir := t.TempDir()
		keys := make([]wire.PrivateKey, 4)
		errs := make([]error, len(keys))
		var all sync.WaitGroup
		for i := range keys {
			all.Go(func() { keys[i], _, errs[i] = relay.LoadKey(dir, "", false) })
		}
		all.Wait()
		kept, _, err := relay.LoadKey(dir, "", true)
		ok(t, "load what was written", err)
		good := 0
		for i, k := range keys {
			if errs[i] == nil {
				good++
				same(t, "key", k.Public(), kept.Public())
			}
		}
		if good != len(keys) {
			t.Errorf("got errors %v; want every start to find the one key", errs)
		}
		same(t, "files", fmt.Sprint(files(t, dir)), "["+relay.KeyFile+"]")
	}
}
