package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/agentmbx/agentmbx/relay/host"
)

// inboxPage is what `inbox --json` prints.
type inboxPage struct {
	Mailbox  string         `json:"mailbox"`
	Messages []host.Message `json:"messages"`
	More     bool           `json:"more"` // ask again with --after the last id
}

func newInbox(e env) *cobra.Command {
	var after string
	var all, notify bool
	var limit int
	cmd := &cobra.Command{
		Use:   "inbox [MAILBOX]",
		Short: "List the mail of a mailbox that is not acked yet",
		Long: `List the mail of a mailbox (owner by default) that is not acked yet, oldest first,
without bodies. --notify marks what is listed as notified, which the sender hears.`,
		Example: `  agentmbx inbox
  agentmbx inbox reviewer --notify --json`,
		Args: nArgs(0, 1, ""),
	}
	at := bindHome(cmd)
	f := cmd.Flags()
	f.BoolVar(&all, "all", false, "list mail that is acked, too")
	f.StringVar(&after, "after", "", "list what comes after the message of this `id`")
	f.IntVar(&limit, "limit", 50, "how many at most")
	f.BoolVar(&notify, "notify", false, "mark what is listed as notified")
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := limitFlag(limit); err != nil {
			return err
		}
		page := inboxPage{Mailbox: "owner"}
		if len(args) == 1 {
			page.Mailbox = args[0]
		}
		return at.with(cmd.Context(), func(here *host.Host) error {
			msgs, err := here.Inbox(cmd.Context(), page.Mailbox, after, all, limit+1)
			if err != nil {
				return err
			}
			if len(msgs) == 0 {
				if err := mustHaveMailbox(cmd.Context(), here, page.Mailbox); err != nil {
					return err
				}
			}
			page.Messages, page.More = msgs[:min(len(msgs), limit)], len(msgs) > limit
			if *asJSON {
				err = printJSON(e.out, page)
			} else {
				err = printInbox(e, page)
			}
			for _, m := range page.Messages {
				if err != nil {
					return err
				}
				if notify && m.State == host.StateDelivered { // it has been shown now
					err = here.Notify(cmd.Context(), page.Mailbox, m.ID)
				}
			}
			return err
		})
	}
	return cmd
}

// mustHaveMailbox is an error when this host has no such mailbox.
func mustHaveMailbox(ctx context.Context, here *host.Host, name string) error {
	boxes, err := here.Mailboxes(ctx)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(boxes, func(b host.Mailbox) bool { return b.Name == name }) {
		return notFound(fmt.Errorf("no mailbox %s here: see agentmbx mailbox", name))
	}
	return nil
}

func printInbox(e env, page inboxPage) error {
	if len(page.Messages) == 0 {
		_, err := fmt.Fprintf(e.errw, "nothing for %s\n", page.Mailbox)
		return err
	}
	w := tabwriter.NewWriter(e.out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tSTATE\tKIND\tFROM\tSUBJECT")
	for _, m := range page.Messages {
		kind := m.Kind
		if m.NeedsReply {
			kind += " (reply)"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", m.ID, m.State, kind, printable(m.From), printable(m.Subject))
	}
	if err := w.Flush(); err != nil || !page.More {
		return err
	}
	_, err := fmt.Fprintf(e.errw, "there is more: --after %s\n", page.Messages[len(page.Messages)-1].ID)
	return err
}

func newRead(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "read ID",
		Short: "Show a message and mark it read",
		Example: `  agentmbx read 01JAZ0Q8B3N4T5V6W7X8Y9Z0AB
  agentmbx read 01JAZ0Q8B3N4T5V6W7X8Y9Z0AB --mailbox reviewer --json`,
		Args: nArgs(1, 1, "the id of a message"),
	}
	at := bindHome(cmd)
	mailbox := mailboxFlag(cmd)
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return at.with(cmd.Context(), func(here *host.Host) error {
			box, err := whoseMail(cmd.Context(), here, args[0], *mailbox)
			if err != nil {
				return err
			}
			m, err := here.Read(cmd.Context(), box, args[0])
			if err != nil {
				return err
			}
			if *asJSON {
				return printJSON(e.out, m)
			}
			return printMessage(e.out, m)
		})
	}
	return cmd
}

// ackFacts is what `ack --json` prints.
type ackFacts struct {
	ID      string `json:"id"`
	Mailbox string `json:"mailbox"`
	State   string `json:"state"`
	Note    string `json:"note,omitempty"`
	Did     string `json:"did,omitempty"`
}

func newAck(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ack ID",
		Short: "Mark a message as done with",
		Long: `Mark a message as done with. Its sender hears of it, with a note and what was
done. A message is acked once: what was said first stands.`,
		Example: `  agentmbx ack 01JAZ0Q8B3N4T5V6W7X8Y9Z0AB
  agentmbx ack 01JAZ0Q8B3N4T5V6W7X8Y9Z0AB --did merged --note "thanks"`,
		Args: nArgs(1, 1, "the id of a message"),
	}
	at := bindHome(cmd)
	mailbox := mailboxFlag(cmd)
	note := cmd.Flags().String("note", "", "a note for the sender, up to 500 characters")
	did := cmd.Flags().String("did", "", "what was done, up to 200 characters")
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return at.with(cmd.Context(), func(here *host.Host) error {
			box, err := whoseMail(cmd.Context(), here, args[0], *mailbox)
			if err != nil {
				return err
			}
			m, err := here.Ack(cmd.Context(), box, args[0], *note, *did)
			if err != nil {
				return err
			}
			if m.Note != *note || m.Did != *did {
				fmt.Fprintln(e.errw, "it was acked before: what was said then stands")
			}
			if *asJSON {
				return printJSON(e.out, ackFacts{m.ID, m.Mailbox, m.State, m.Note, m.Did})
			}
			_, err = fmt.Fprintf(e.out, "%s  %s by %s\n", m.ID, m.State, m.Mailbox)
			return err
		})
	}
	return cmd
}

func mailboxFlag(cmd *cobra.Command) *string {
	return cmd.Flags().String("mailbox", "", "`name` of the mailbox (default owner, else the only one that has the message)")
}

// whoseMail finds the mailbox whose copy of a message is meant.
func whoseMail(ctx context.Context, here *host.Host, id, mailbox string) (string, error) {
	if mailbox != "" {
		return mailbox, nil
	}
	boxes, err := here.MailboxesWith(ctx, id)
	switch {
	case err != nil:
		return "", err
	case len(boxes) == 0:
		return "", notFound(fmt.Errorf("no message %s here: see agentmbx inbox --all", id))
	case slices.Contains(boxes, "owner"):
		return "owner", nil
	case len(boxes) > 1:
		return "", usage(fmt.Errorf("%s is in %s: say whose with --mailbox", id, strings.Join(boxes, " and ")))
	}
	return boxes[0], nil
}

func printMessage(out io.Writer, m host.Message) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	line := func(what, text string) {
		if text != "" {
			fmt.Fprintf(w, "%s\t%s\n", what, printable(text))
		}
	}
	line("id", m.ID)
	line("from", m.From)
	line("to", strings.Join(m.To, ", "))
	line("subject", m.Subject)
	line("kind", m.Kind)
	if m.NeedsReply {
		line("reply", "wanted")
	}
	line("answers", m.ReplyTo)
	line("thread", m.Thread)
	line("refs", strings.Join(m.Refs, ", "))
	line("sent", m.SentAt)
	line("mailbox", m.Mailbox)
	line("state", m.State)
	line("did", m.Did)
	line("note", m.Note)
	if err := w.Flush(); err != nil || m.Body == "" {
		return err
	}
	_, err := fmt.Fprintf(out, "\n%s\n", strings.TrimRight(printableBody(m.Body), "\n"))
	return err
}
