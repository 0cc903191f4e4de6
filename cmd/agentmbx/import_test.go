package main

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/wire"
)

const tsFixture = "../../relay/store/sqlite/testdata/typescript-relay"

// The keys of the fixture's hosts.
var tsSeeds = map[string]string{
	"home": "0+UbI4uoau8C5Ra8NcahvzizjjBGFQJVfYjo1uE6vew=",
	"work": "UjpPZDOte0JjAvcffacm66IfgOl+aNuYFpe7gD4LRfU=",
	"gone": "g4ntWMwb7dYBcMwHFgeYKWNdOHBMEjIerABwxFu5C14=",
}

// tsRelay is the folder of a TypeScript relay that was stopped a moment ago: the
// fixture, as if its mail had come today, so that none of it expires.
func tsRelay(t *testing.T, statements ...string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for _, name := range []string{"relay.db", "relay.key"} {
		b, err := os.ReadFile(filepath.Join(tsFixture, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	db, err := sql.Open("sqlite", filepath.Join(dir, "relay.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	now := time.Now()
	for _, q := range append([]string{
		fmt.Sprintf("UPDATE meta SET v = '%d' WHERE k = 'heartbeat'", now.Add(-5*time.Minute).UnixMilli()),
		fmt.Sprintf("UPDATE meta SET v = '%s' WHERE k = 'expiry_from'", wire.FormatTime(now.Add(-24*time.Hour))),
		fmt.Sprintf("UPDATE dedup SET accepted_at = '%s'", wire.FormatTime(now.Add(-time.Hour))),
		fmt.Sprintf("UPDATE items SET accepted_at = '%s', expires_at = '%s' WHERE expires_at IS NOT NULL",
			wire.FormatTime(now.Add(-time.Hour)), wire.FormatTime(now.Add(24*time.Hour))),
	}, statements...) {
		if _, err := db.Exec(q); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
	return dir
}

func tsClient(t *testing.T, name, host string) *client {
	t.Helper()
	key, err := wire.ParsePrivateKey(tsSeeds[name])
	if err != nil {
		t.Fatal(err)
	}
	c := newClient(host)
	c.Key = key
	return c
}

type tsExpected struct {
	Epoch string
	Home  int64 `json:"head_home"`
	Items []struct {
		Target string
		Seq    int64
		ID     string `json:"item_id"`
		Sender string
		Hash   string
	}
}

// TestImportServed moves a TypeScript relay over with its hosts' own keys: nobody
// notices. They pull the numbers and bytes of expected.json in the epoch they
// know; the revoked key stays revoked; a retry of what is queued, and of what was
// acked, is a duplicate.
func TestImportServed(t *testing.T) {
	t.Parallel()
	from, dir := tsRelay(t), filepath.Join(t.TempDir(), "data")
	var want tsExpected
	b, err := os.ReadFile(filepath.Join(tsFixture, "expected.json"))
	if err == nil {
		err = json.Unmarshal(b, &want)
	}
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"relay", "import", filepath.Join(from, "relay.db"), "--store-dir", dir}
	runProgram(t, nil, append(args, "--dry-run")...).want(t, 0, "would import  "+filepath.Join(from, "relay.db"))
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("--dry-run: got %v; want no folder made", err)
	}
	did := runProgram(t, nil, args...)
	did.want(t, 0, "epoch      "+want.Epoch+", as it was\nhosts      3, 1 of them revoked\nqueued     6 items, 4292 bytes\n")
	did.want(t, 0, "within 10 minutes, or the epoch is new")
	runProgram(t, nil, args...).want(t, 3, "an import never overwrites one")

	p := serve(t, dir)
	key := relayKey(t, p.url)
	if p.epoch != want.Epoch || key.Fingerprint() != "2241-28fe-77cd-67ad" {
		t.Errorf("got epoch %s and key %s; want those of before", p.epoch, key.Fingerprint())
	}
	home, work := tsClient(t, "home", "home"), tsClient(t, "work", "work")
	wires := map[string]string{}
	for _, c := range []*client{home, work} {
		pg, code, err := c.pull(p.url, 0, "&epoch="+want.Epoch)
		if err != nil || code != 200 {
			t.Fatalf("pull: status %d, %v", code, err)
		}
		for _, w := range want.Items {
			if w.Target != c.Pub().String() {
				continue
			}
			if len(pg.Items) == 0 {
				t.Fatalf("%s is missing", w.ID)
			}
			got := pg.Items[0]
			raw, err := wire.DecodeBase64(got.Wire)
			if err != nil || got.Seq != w.Seq || got.ID != w.ID || got.Sender != w.Sender || wire.HashHex(raw) != w.Hash {
				t.Errorf("got %d %s from %s, %s; want %+v", got.Seq, got.ID, got.Sender, wire.HashHex(raw), w)
			}
			wires[w.ID], pg.Items = got.Wire, pg.Items[1:]
		}
		if len(pg.Items) > 0 {
			t.Errorf("%s also got %+v", c.Name, pg.Items)
		}
	}
	gone := tsClient(t, "gone", "home")
	if _, code, err := gone.pull(p.url, 0, ""); err != nil || code < 400 {
		t.Errorf("the revoked key pulls: got status %d, %v; want it refused", code, err)
	}
	var ch struct{ Challenge string }
	if _, err := gone.call(p.url, "POST", "/v1/relay/challenge", map[string]any{"host": "home", "pubkey": gone.Pub()}, &ch); err != nil {
		t.Fatal(err)
	}
	sig := gone.Key.Sign(wire.EnrolPayload(ch.Challenge, "home", gone.Pub(), ""))
	in := map[string]any{"host": "home", "pubkey": gone.Pub(), "owner_fp": "", "sig": sig}
	if code, err := gone.call(p.url, "POST", "/v1/relay/enrol", in, nil); err != nil || code < 400 {
		t.Errorf("the revoked key enrols: got status %d, %v; want it refused", code, err)
	}

	retry := pushItem{"envelope", want.Items[1].ID, []pushTarget{{want.Items[1].Target, wires[want.Items[1].ID]}}}
	for _, when := range []string{"queued", "acked"} {
		results, err := work.push(p.url, key, retry)
		if err != nil || results[0].Status != "duplicate" || results[0].Targets[0].Seq != want.Items[1].Seq {
			t.Errorf("a retry while %s: got %+v, %v; want a duplicate of seq %d", when, results, err, want.Items[1].Seq)
		}
		if err := home.ack(p.url, want.Epoch, want.Items[1].Seq); err != nil {
			t.Fatal(err)
		}
	}
	// What home had acked before is remembered, too: other bytes under its id are a conflict.
	draft := work.Draft(home.Host, "subject", "other bytes")
	draft.ID = "01JB2Q3R4S5T6V7W8X9YZAB001"
	_, other := work.Seal(draft, home.Host)
	results, err := work.push(p.url, key, pushItem{"envelope", draft.ID, []pushTarget{{home.Pub().String(), wire.EncodeBase64(other)}}})
	if err != nil || results[0].Status != "rejected:conflict" {
		t.Errorf("other bytes under an acked id: got %+v, %v; want a conflict", results, err)
	}
	fresh := work.item(home)
	if results, err = work.push(p.url, key, fresh); err != nil || results[0].Status != "accepted" || results[0].Targets[0].Seq <= want.Home {
		t.Errorf("new mail: got %+v, %v; want a seq above %d", results, err, want.Home)
	}
	p.kill()
	// It can be backed up, and a backup of it can be restored.
	runProgram(t, nil, "relay", "backup", "--store-dir", dir).want(t, 0, "")
	runProgram(t, nil, "relay", "drill", "--store-dir", dir).want(t, 0, "")
	runProgram(t, nil, "relay", "log", "--store-dir", dir, "--op", "import").want(t, 0, `"type":"relay-import"`)
}

// TestImportRefusals have the exit code of their kind, name what is wrong, and
// leave nothing.
func TestImportRefusals(t *testing.T) {
	t.Parallel()
	other, err := wire.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	otherFile := filepath.Join(t.TempDir(), "other.key")
	if err := os.WriteFile(otherFile, wire.FormatKeyFile(other), 0o600); err != nil {
		t.Fatal(err)
	}
	from := tsRelay(t)
	lonely := filepath.Join(t.TempDir(), "relay.db") // without its key
	if err := os.Link(filepath.Join(from, "relay.db"), lonely); err != nil {
		t.Fatal(err)
	}
	good := filepath.Join(from, "relay.db")
	tests := []struct {
		name string
		env  []string
		args []string
		code int
		says string
	}{
		{"no file", nil, []string{good + ".none"}, 4, "there is no " + good + ".none"},
		{"no argument", nil, nil, 2, "the relay.db to import is missing"},
		{"no key", nil, []string{lonely}, 3, "give its file with --key"},
		{"another key", nil, []string{lonely, "--key", otherFile}, 3,
			"it belongs to 2241-28fe-77cd-67ad, the key given is " + other.Public().Fingerprint()},
		{"another key in the environment", []string{"MBX_RELAY_KEY=" + other.Seed()}, []string{good}, 3, "it belongs to 2241-28fe-77cd-67ad"},
		{"two keys", []string{"MBX_RELAY_KEY=" + other.Seed()}, []string{good, "--key", filepath.Join(from, "relay.key")}, 2, "unset one of them"},
		{"a key file that is none", nil, []string{good, "--key", "import_test.go"}, 2, "not a relay key"},
		{"no key file", nil, []string{good, "--key", otherFile + ".none"}, 4, "--key"},
		{"text", nil, []string{filepath.Join(from, "relay.key"), "--key", filepath.Join(from, "relay.key")}, 5, "not a relay store that can be imported"},
		{"a fresh heartbeat", nil, []string{filepath.Join(tsRelay(t, fmt.Sprintf("UPDATE meta SET v = '%d' WHERE k = 'heartbeat'", time.Now().Add(time.Hour).UnixMilli())), "relay.db")}, 3, "stop that relay first"},
		{"a newer schema", nil, []string{filepath.Join(tsRelay(t, "UPDATE meta SET v = '9' WHERE k = 'schema_version'"), "relay.db")}, 5, "it has schema 9"},
		{"hostile rows", nil, []string{filepath.Join(tsRelay(t, "UPDATE items SET kind = char(27) || '[2J'"), "relay.db")}, 5, "table items, row 1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "data")
			got := runProgram(t, tt.env, append([]string{"relay", "import", "--store-dir", dir}, tt.args...)...)
			got.want(t, tt.code, tt.says)
			if strings.Count(got.errw, "\n") != 1 || strings.ContainsRune(got.errw, 27) || got.out != "" {
				t.Errorf("got %q and %q; want one line of plain text", got.errw, got.out)
			}
			if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("got %v; want no folder left", err)
			}
		})
	}
	t.Run("another key in the folder", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "relay.key"), wire.FormatKeyFile(other), 0o600); err != nil {
			t.Fatal(err)
		}
		got := runProgram(t, nil, "relay", "import", good, "--key", filepath.Join(from, "relay.key"), "--store-dir", dir)
		got.want(t, 3, "another relay key is there")
	})
	t.Run("a store that is being served", func(t *testing.T) {
		dir := t.TempDir()
		serve(t, dir)
		runProgram(t, nil, "relay", "import", good, "--store-dir", dir, "--key", filepath.Join(dir, "relay.key")).want(t, 3, "")
	})
}
