package main

import (
	"strings"
	"testing"
)

// Every screen as text, from a relay that runs and from a store without one.
func TestAdminOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := serve(t, dir)
	once := func(what string) {
		t.Helper()
		out, errw, code := desktop(t, dir, "relay", "admin", "--once", "--read-only")
		if head, _, _ := strings.Cut(out, "\n"); !strings.HasPrefix(head, "agentmbx relay ") || !strings.Contains(head, dir) || !strings.HasSuffix(head, "Z") || strings.Contains(out, "\n▸") {
			t.Errorf("%s: got %q; want where and when it was taken at its head, and nothing selected", what, out)
		}
		for _, want := range []string{"== 1 Overview ==", p.epoch, "== 3 Enrolments ==", "== 6 Jobs ==", "17 3 * * *", "== 7 Log =="} {
			if code != 0 || errw != "" || !strings.Contains(out, want) {
				t.Fatalf("%s: got code %d, %q, %q; want 0 and %q", what, code, out, errw, want)
			}
		}
		if strings.Contains(out, "\x1b") {
			t.Errorf("%s: got codes in %q", what, out)
		}
	}
	once("with a relay")
	p.kill()
	once("without a relay")
	if _, errw, code := desktop(t, dir+"/none", "relay", "admin", "--once"); code == 0 || strings.Count(errw, "\n") != 1 {
		t.Errorf("no store: got code %d, %q; want an error in one line", code, errw)
	}
	for _, bad := range []string{"0", "1ms", "-1s", "2h", "soon"} {
		if _, errw, code := desktop(t, dir, "relay", "admin", "--refresh="+bad); code != codeUsage || strings.Count(errw, "\n") != 1 {
			t.Errorf("--refresh %s: got code %d, %q; want %d and one line", bad, code, errw, codeUsage)
		}
	}
}
