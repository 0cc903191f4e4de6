package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/agentmbx/agentmbx/relay/host"
	"github.com/agentmbx/agentmbx/relay/wire"
)

func newSend(e env) *cobra.Command {
	var d host.Draft
	var body, bodyFile string
	cmd := &cobra.Command{
		Use:   "send TO... --subject TEXT",
		Short: "Send mail to mailboxes here and at paired hosts",
		Long: `Send mail. TO is name@host, a bare name (the mailbox of that name here, else
whichever paired hosts have one), role:NAME or * for everyone. The body is --body,
or --body-file, or else standard input.

When the command exits 0 the mail is stored, and the daemon brings it to its
hosts: over the LAN, or over the relay when that fails. See agentmbx sent.`,
		Example: `  agentmbx send reviewer@studio --subject "Ready" --body "The branch is pushed."
  git diff | agentmbx send role:reviewer --subject "Have a look" --kind request --needs-reply`,
		Args: nArgs(1, -1, "a recipient"),
	}
	at := bindHome(cmd)
	f := cmd.Flags()
	f.StringVar(&d.Subject, "subject", "", "subject, up to 200 characters")
	f.StringVar(&d.From, "from", "owner", "`mailbox` here that sends")
	f.StringVar(&body, "body", "", "the body")
	f.StringVar(&bodyFile, "body-file", "", "`file` with the body, - for standard input")
	f.StringVar(&d.Kind, "kind", "message", "one of "+strings.Join(mailKinds, ", "))
	f.StringVar(&d.Thread, "thread", "", "`id` of the thread (default that of --reply-to, else a new one)")
	f.StringVar(&d.ReplyTo, "reply-to", "", "`id` of the message that this one answers")
	f.BoolVar(&d.NeedsReply, "needs-reply", false, "ask for an answer")
	f.StringArrayVar(&d.Refs, "ref", nil, "something that it is about, such as a URL; may be repeated")
	f.StringArrayVar(&d.Tags, "tag", nil, "a tag; may be repeated")
	asJSON := jsonFlag(cmd)
	_ = cmd.MarkFlagRequired("subject") // fails only for a flag that is not there
	cmd.MarkFlagsMutuallyExclusive("body", "body-file")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		d.To = args
		return at.with(cmd.Context(), func(here *host.Host) (err error) {
			if d.Body = body; !f.Changed("body") {
				if d.Body, err = readBody(e, bodyFile); err != nil {
					return err
				}
			}
			if !utf8.ValidString(d.Subject) || !utf8.ValidString(d.Body) {
				return usage(errors.New("subject and body have to be UTF-8 text: send anything else another way, and mention it with --ref"))
			}
			s, err := here.Send(cmd.Context(), d)
			if err != nil {
				return sendError(d, err)
			}
			if *asJSON {
				return printJSON(e.out, s)
			}
			_, err = fmt.Fprintf(e.out, "%s  %s\n", s.ID, whereTo(s))
			return err
		})
	}
	return cmd
}

var mailKinds = []string{"message", "request", "reply", "status", "decision", "alert", "task"}

// sendError says of mail that the host did not take which flag is to blame, for
// the two that people get wrong.
func sendError(d host.Draft, err error) error {
	switch {
	case !errors.Is(err, host.ErrBadMail):
		return err
	case d.Kind != "" && !slices.Contains(mailKinds, d.Kind):
		return usage(fmt.Errorf("--kind is %s: want one of %s", quoteValue(d.Kind), strings.Join(mailKinds, ", ")))
	case wire.UTF16Len(d.Subject) > maxSubject || strings.ContainsFunc(d.Subject, unicode.IsControl):
		return usage(fmt.Errorf("--subject is over %d characters or has a control character: put the rest in the body", maxSubject))
	}
	return err
}

const maxSubject = 200

// whereTo says where mail goes.
func whereTo(s host.Sent) string {
	var parts []string
	if len(s.Hosts) > 0 {
		parts = append(parts, "queued for "+strings.Join(s.Hosts, ", "))
	}
	if len(s.Local) > 0 {
		parts = append(parts, "delivered here to "+strings.Join(s.Local, ", "))
	}
	return printable(strings.Join(parts, "; "))
}

// readBody reads a body from a file, or from standard input for "" and "-".
func readBody(e env, path string) (string, error) {
	in := e.in
	if path != "" && path != "-" {
		f, err := os.Open(path)
		if errors.Is(err, os.ErrNotExist) {
			return "", notFound(fmt.Errorf("--body-file: %w", err))
		}
		if err != nil {
			return "", fmt.Errorf("--body-file: %w", err)
		}
		defer func() { _ = f.Close() }()
		in = f
	} else if byHand(in) {
		fmt.Fprintln(e.errw, "the body, then Ctrl-D:")
	}
	b, err := io.ReadAll(io.LimitReader(in, wire.MaxPlainBody+1))
	if err == nil && len(b) > wire.MaxPlainBody {
		err = usage(fmt.Errorf("the body is over %d bytes: send it another way, and mention it with --ref", wire.MaxPlainBody))
	}
	return string(b), err
}
