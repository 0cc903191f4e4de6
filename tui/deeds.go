package tui

import (
	"context"
	"fmt"
	"slices"
	"strings"

	tea "github.com/charmbracelet/bubbletea"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/relay"
)

// shownIDs is how many of the items an action is for are named in its dialog.
const shownIDs = 6

func (d desk) holdDialog(list []admin.Item) dialog {
	return dialog{
		title:  "Hold " + counted(int64(len(list)), "item") + "?",
		lines:  append(named(list), "", "What is held is not pulled, and acks pass it by. It stays charged, and expires at its time."),
		reason: true,
		do:     d.itemDeed("held", list, d.svc.Hold),
	}
}

func (d desk) releaseDialog(list []admin.Item) dialog {
	return dialog{
		title: "Release " + counted(int64(len(list)), "item") + "?",
		lines: append(named(list), "", theirs(list, "It goes to the end of its queue, under a new number.", "They go to the ends of their queues, under new numbers.")),
		do:    d.itemDeed("released", list, d.svc.Release),
	}
}

func (d desk) discardDialog(list []admin.Item) dialog {
	return dialog{
		title:  "Discard " + counted(int64(len(list)), "item") + "?",
		lines:  append(named(list), "", theirs(list, "Its sender is told", "Their senders are told")+" with the signed notice of expiry."),
		word:   "discard",
		reason: true,
		do:     d.itemDeed("discarded", list, d.svc.Discard),
	}
}

func theirs(list []admin.Item, one, many string) string {
	if len(list) == 1 {
		return one
	}
	return many
}

// named lists the first items by what they are pinned to.
func named(list []admin.Item) (lines []string) {
	for _, it := range list[:min(len(list), shownIDs)] {
		lines = append(lines, fmt.Sprintf("%s  seq %d of %s", it.ID, it.Seq, hostName(it.TargetHost)))
	}
	if n := len(list) - shownIDs; n > 0 {
		lines = append(lines, "… and "+count(int64(n))+" more")
	}
	return lines
}

// itemDeed does something to items that are pinned by where they stand.
func (d desk) itemDeed(did string, list []admin.Item, call func(context.Context, admin.ItemAction) (admin.ItemResult, error)) func(dialog) tea.Cmd {
	refs := make([]relay.ItemRef, len(list))
	names := map[relay.ItemRef]string{}
	for i, it := range list {
		refs[i] = it.ItemRef
		names[it.ItemRef] = fmt.Sprintf("%s to %s, seq %d", it.ID, hostName(it.TargetHost), it.Seq)
	}
	return func(g dialog) tea.Cmd {
		a := admin.ItemAction{Action: d.action(strings.TrimSpace(g.why)), Items: refs}
		return func() tea.Msg {
			var left []relay.ItemRef
			msg := act(func(ctx context.Context) (string, error) {
				r, err := call(ctx, a)
				if err != nil {
					return "", err
				}
				for _, o := range r.Outcomes {
					if o.Problem == relay.ProblemLater {
						left = append(left, o.ItemRef)
					}
				}
				return outcome(did, r, names)
			})()
			if done, ok := msg.(doneMsg); ok {
				done.left = left
				return done
			}
			return msg
		}
	}
}

// outcome says what became of items in one line; that not all of them were done is
// an error, with the reason first: the line may be cut.
func outcome(did string, r admin.ItemResult, names map[relay.ItemRef]string) (string, error) {
	text := did + " " + counted(int64(r.Done), "item")
	told, notices := 0, map[string]int{}
	for _, o := range r.Outcomes {
		if o.Done && o.Notice != "" {
			notices[o.Notice]++
			told++
		}
	}
	for _, n := range []struct{ notice, one, many string }{
		{relay.NoticeQueued, "its sender will hear", "%d senders will hear"},
		{relay.NoticeNone, "nobody waits to hear of it", "nobody waits to hear of %d"},
		{relay.NoticeBefore, "its sender was told before", "%d senders were told before"},
		{relay.NoticeNotEnrolled, "its sender is not enrolled any more", "the senders of %d are not enrolled any more"},
	} {
		switch c := notices[n.notice]; {
		case c == 1 && told == 1:
			text += "; " + n.one
		case c > 0:
			text += "; " + fmt.Sprintf(n.many, c)
		}
	}
	if r.Later > 0 {
		text += fmt.Sprintf(", %s left: press again for the rest", count(int64(r.Later)))
	}
	if r.Failed == 0 {
		return text, nil
	}
	why, which := "not done", ""
	if at := slices.IndexFunc(r.Outcomes, func(o relay.Outcome) bool { return !o.Done && o.Problem != relay.ProblemLater }); at >= 0 {
		why, which = r.Outcomes[at].Problem, names[r.Outcomes[at].ItemRef]
	}
	if r.Failed > 1 {
		which += fmt.Sprintf(" and %d more", r.Failed-1)
	}
	return "", fmt.Errorf("%s: %s of %d · not done: %s", why, text, len(r.Outcomes), which)
}
