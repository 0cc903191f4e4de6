package relay_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/wire"
)

func put(t *testing.T, path, text string) {
	t.Helper()
	ok(t, "write", os.WriteFile(path, []byte(text), 0o600))
}

// TestKeepOldKey never loses a file and never overwrites one.
func TestKeepOldKey(t *testing.T) {
	t.Parallel()
	old, now := must(wire.GenerateKey()), must(wire.GenerateKey())
	fp := old.Public().Fingerprint()
	for _, tt := range []struct {
		name, text, want string
		there            map[string]string
	}{
		{"nothing", "", "", nil},
		{"the key of now", string(wire.FormatKeyFile(now)), "", nil},
		{"another key", old.Seed(), "relay.key." + fp + ".old", nil},
		{"no key", "junk", "relay.key.unreadable.old", nil},
		{"kept before", old.Seed(), "relay.key." + fp + ".old", map[string]string{"relay.key." + fp + ".old": old.Seed()}},
		{"another file of that name", old.Seed(), "relay.key." + fp + ".2.old", map[string]string{"relay.key." + fp + ".old": "other"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			if tt.text != "" {
				put(t, filepath.Join(dir, relay.KeyFile), tt.text)
			}
			for name, text := range tt.there {
				put(t, filepath.Join(dir, name), text)
			}
			kept, err := relay.KeepOldKey(dir, now.Public())
			ok(t, "keep", err)
			want := ""
			if tt.want != "" {
				want = filepath.Join(dir, tt.want)
				same(t, "kept", string(must(os.ReadFile(want))), tt.text)
			}
			same(t, "name", kept, want)
			for name, text := range tt.there {
				same(t, name, string(must(os.ReadFile(filepath.Join(dir, name)))), text)
			}
		})
	}
}

// TestFinishRekey follows the store: a staged key that it is bound to takes its
// place, any other is set aside: it may be the only copy.
func TestFinishRekey(t *testing.T) {
	t.Parallel()
	old, next := must(wire.GenerateKey()), must(wire.GenerateKey())
	dir := t.TempDir()
	ok(t, "put", relay.PutKey(dir, old))
	ok(t, "put again", relay.PutKey(dir, old))
	if err := relay.PutKey(dir, next); !errors.Is(err, relay.ErrKeyThere) {
		t.Errorf("another key: got %v; want ErrKeyThere", err)
	}
	load := func() wire.PublicKey {
		key, _, err := relay.LoadKey(dir, "", true)
		ok(t, "load", err)
		return key.Public()
	}
	ok(t, "stage", relay.StageKey(dir, must(wire.GenerateKey())))
	ok(t, "stage another", relay.StageKey(dir, next))
	same(t, "staged", relay.KeyStaged(dir), true)
	finished, kept, err := relay.FinishRekey(dir, old.Public())
	ok(t, "finish for the old key", err)
	same(t, "finished", finished, false)
	same(t, "staged", relay.KeyStaged(dir), false)
	same(t, "key", load(), old.Public())
	unused := filepath.Join(dir, "relay.key."+next.Public().Fingerprint()+".unused")
	same(t, "set aside as", kept, unused)
	same(t, "set aside", must(relay.ReadKey(unused)).Public(), next.Public())
	same(t, "its mode", must(os.Stat(unused)).Mode().Perm(), 0o600)
	ok(t, "stage it again", relay.StageKey(dir, next))
	_, kept, err = relay.FinishRekey(dir, old.Public())
	ok(t, "set it aside again", err)
	same(t, "set aside once", kept, unused)
	put(t, unused, "another file")
	ok(t, "stage it again", relay.StageKey(dir, next))
	_, kept, err = relay.FinishRekey(dir, old.Public())
	ok(t, "set it aside beside another file", err)
	same(t, "the other file", string(must(os.ReadFile(unused))), "another file")
	same(t, "set aside", must(relay.ReadKey(kept)).Public(), next.Public())

	ok(t, "stage", relay.StageKey(dir, next))
	finished, kept, err = relay.FinishRekey(dir, next.Public())
	ok(t, "finish", err)
	same(t, "finished", finished, true)
	same(t, "key", load(), next.Public())
	same(t, "kept", must(relay.ReadKey(kept)).Public(), old.Public())
	finished, _, err = relay.FinishRekey(dir, next.Public())
	ok(t, "finish twice", err)
	same(t, "finished", finished, false)

	put(t, filepath.Join(dir, "relay.key.next"), "junk")
	if _, _, err := relay.FinishRekey(dir, next.Public()); !errors.Is(err, relay.ErrKeyFile) {
		t.Errorf("a staged key that is none: got %v; want ErrKeyFile", err)
	}
}
