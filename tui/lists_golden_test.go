package tui

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/charmbracelet/x/exp/golden"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/backup"
	"github.com/agentmbx/agentmbx/backup/drill"
)

// aDrill is the receipt of a drill in which one check failed.
func aDrill(passed bool) drill.Receipt {
	r := drill.Receipt{V: 1, Type: "relay-drill", At: clock.Add(-time.Minute), File: "/data/backups/" + backupNamed(70), Source: drill.FromBackup, Passed: passed,
		TakenAt: clock.Add(-12 * time.Hour), RPO: 43140, RTO: 1.42, Took: 8.3, Items: 12345}
	for _, c := range []string{"backup: file", "backup: receipt", "backup: sha256", "restore", "new epoch", "serve", "integrity", "same items", "same v2 sealing keys", "push again", "pull again", "ack"} {
		r.Checks = append(r.Checks, backup.Check{Name: c, OK: passed || c != "same items", Text: "what " + c + " found"})
	}
	return r
}

// Every screen of lists at two sizes: loading, empty, full, error, relay gone,
// read-only, and with a dialog open.
func TestViewsOfLists(t *testing.T) {
	t.Parallel()
	screens := []struct {
		name   string
		at     int
		dialog []string
	}{
		{"queues", atQueues, []string{"enter", "h"}},
		{"enrolments", atEnrolments, []string{"x"}},
		{"quarantine", atQuarantine, []string{"x"}},
		{"backups", atBackups, []string{"d"}},
	}
	states := []struct {
		name string
		play func(s *stage, at int, dialog []string)
		desk func() *fakeDesk
	}{
		{"loading", func(s *stage, at int, _ []string) { s.app.shown = at }, func() *fakeDesk { return full() }},
		{"empty", func(s *stage, at int, _ []string) { s.show(at) }, bare},
		{"full", func(s *stage, at int, _ []string) { s.show(at) }, func() *fakeDesk { return full() }},
		{"error", func(s *stage, at int, _ []string) {
			s.show(at)
			s.app.svc.(*fakeDesk).fail(errors.New("the disk does not answer"))
			s.later(3 * time.Second)
		}, func() *fakeDesk { return full() }},
		{"gone", func(s *stage, at int, _ []string) {
			s.show(at)
			s.app.svc.(*fakeDesk).fail(errGone)
			s.later(3 * time.Second)
		}, func() *fakeDesk { return full() }},
		{"read-only", func(s *stage, at int, _ []string) { s.show(at) }, func() *fakeDesk { return full() }},
		{"dialog", func(s *stage, at int, dialog []string) { s.show(at).press(dialog...) }, func() *fakeDesk { return full() }},
	}
	for _, sc := range screens {
		for _, st := range states {
			for _, size := range [][2]int{{80, 24}, {140, 45}} {
				t.Run(fmt.Sprintf("%s/%s/%dx%d", sc.name, st.name, size[0], size[1]), func(t *testing.T) {
					t.Parallel()
					var change []func(*Options)
					if st.name == "read-only" {
						change = append(change, readOnly)
					}
					s := newStage(t, st.desk(), change...)
					s.resize(size[0], size[1])
					st.play(s, sc.at, sc.dialog)
					golden.RequireEqual(t, s.view())
				})
			}
		}
	}
}

// What opens from a list.
func TestViewsOfWhatOpens(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		at   int
		play func(s *stage)
	}{
		{"items", atQueues, func(s *stage) { s.press("enter") }},
		{"items marked", atQueues, func(s *stage) { s.press("enter", " ", "j", " ", " ") }},
		{"items by sender", atQueues, func(s *stage) { s.press("enter", "o") }},
		{"items of one sender", atQueues, func(s *stage) { s.press("enter", "o", "enter") }},
		{"items filtered", atQueues, func(s *stage) { s.press("enter", "/").types("receipt").press("enter") }},
		{"one item", atQueues, func(s *stage) { s.press("enter", "j", "enter") }},
		{"hold many", atQueues, func(s *stage) { s.press("enter").types("        ").press("h") }},
		{"queues filter open", atQueues, func(s *stage) { s.press("/").types("stu") }},
		{"queues filtered", atQueues, func(s *stage) { s.press("/").types("stu").press("enter") }},
		{"queues by age", atQueues, func(s *stage) { s.press("s", "s") }},
		{"host", atEnrolments, func(s *stage) { s.press("enter") }},
		{"host revoked", atEnrolments, func(s *stage) { s.press("j", "j", "j", "enter") }},
		{"host blocked", atEnrolments, func(s *stage) { s.press("j", "j", "j", "j", "enter") }},
		{"host block", atEnrolments, func(s *stage) { s.press("enter", "b") }},
		{"deny list", atEnrolments, func(s *stage) { s.press("d") }},
		{"unblock", atEnrolments, func(s *stage) { s.press("d", "u") }},
		{"held item", atQuarantine, func(s *stage) { s.press("enter") }},
		{"refused push", atQuarantine, func(s *stage) { s.press("G", "enter") }},
		{"dismiss", atQuarantine, func(s *stage) { s.press("G", "d") }},
		{"release", atQuarantine, func(s *stage) { s.press("l") }},
		{"how to restore", atBackups, func(s *stage) { s.press("t") }},
		{"bad backup", atBackups, func(s *stage) { s.press("G", "k", "enter") }},
		{"drill failed", atBackups, func(s *stage) { s.press("l") }},
	} {
		for _, size := range [][2]int{{80, 24}, {140, 45}} {
			t.Run(fmt.Sprintf("%s/%dx%d", tt.name, size[0], size[1]), func(t *testing.T) {
				t.Parallel()
				f := full()
				f.entries = append([]admin.LogEntry{{ID: 500, At: clock, Op: "drill", Receipt: mustJSON(aDrill(false))}}, f.entries...)
				s := newStage(t, f)
				s.resize(size[0], size[1])
				s.show(tt.at)
				tt.play(s)
				golden.RequireEqual(t, s.view())
			})
		}
	}
}
