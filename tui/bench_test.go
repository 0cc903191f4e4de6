package tui

import (
	"strings"
	"testing"
	"time"
)

// fullest is a desk on which every list fills a window of 200×60.
func fullest() *fakeDesk {
	return full("studio", "全角文字の名前", "reviewer-with-a-long-name.example", "e\u0301tude")
}

// viewLimit is what a view of 200×60 may take.
const viewLimit = 5 * time.Millisecond

func BenchmarkView(b *testing.B) {
	for at, name := range []string{"Overview", "Queues", "Enrolments", "Quarantine", "Backups", "Jobs", "Log"} {
		b.Run(name, func(b *testing.B) {
			s := newStage(b, fullest(), func(o *Options) { o.Colour = true })
			s.resize(200, 60)
			s.show(at)
			for b.Loop() {
				if !strings.Contains(s.view(), "agentmbx") {
					b.Fatal("got no view")
				}
			}
			if each := b.Elapsed() / time.Duration(b.N); each > viewLimit {
				b.Errorf("a view took %s; want at most %s", each, viewLimit)
			}
		})
	}
}
