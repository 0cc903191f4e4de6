package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/relay/wire"
)

func newAdminEnrolments(e env) *cobra.Command {
	cmd := newGroup(&cobra.Command{
		Use:   "enrolments",
		Short: "List the hosts that may use the relay, block and revoke them",
		Long: `List the hosts that use the relay, or did: by name, with their account, when they
were last there, and how much waits for them. HOST is a name, a fingerprint or a key.`,
		Example: `  agentmbx relay admin enrolments --text lap
  agentmbx relay admin enrolments --state blocked --json
  agentmbx relay admin enrolments block laptop --for 24h --reason "floods others"`,
	}, newAdminEnrolmentsList(e), newAdminEnrolmentsShow(e), newAdminRevoke(e), newAdminBlock(e), newAdminUnblock(e))
	listEnrolments(e, cmd)
	return cmd
}

func newAdminEnrolmentsList(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the hosts that use the relay, or did",
		Example: `  agentmbx relay admin enrolments list --state revoked --all --json-lines`,
	}
	listEnrolments(e, cmd)
	return cmd
}

// listEnrolments makes cmd list them.
func listEnrolments(e env, cmd *cobra.Command) {
	var f admin.EnrolmentFilter
	states := []string{admin.StateAll, admin.StateLive, admin.StateRevoked, admin.StateBlocked}
	cmd.Flags().StringVar(&f.Text, "text", "", "only those whose name, fingerprint, account, organization or client id has this `text`")
	cmd.Flags().StringVar(&f.Account, "account", "", "only those of this `account`")
	cmd.Flags().StringVar(&f.State, "state", admin.StateAll, "only those in this `state`: all, live, revoked or blocked")
	check := func() error {
		if !slices.Contains(states, f.State) {
			return usage(fmt.Errorf("--state is %s: want all, live, revoked or blocked", quoteValue(f.State)))
		}
		return nil
	}
	listCommand(e, cmd, "after", check, func(ctx context.Context, svc admin.Service) (list[admin.Enrolment], error) {
		return list[admin.Enrolment]{
			one: "host", many: "hosts",
			heading: "HOST\tFINGERPRINT\tSTATE\tACCOUNT\tENROLLED\tLAST SEEN\tSENDERS\tITEMS\tBYTES",
			cells: func(h admin.Enrolment) []string {
				return []string{cmp.Or(h.Name, "-"), h.Fingerprint, enrolmentState(h), cmp.Or(h.Account, "-"), timeOr(h.EnrolledAt),
					timeOr(h.LastSeen), sendersText(h.Senders), fmt.Sprint(h.Items), fmt.Sprint(h.Bytes)}
			},
			page: func(p admin.Paging) (admin.Page[admin.Enrolment], error) {
				f.Paging = p
				return svc.Enrolments(ctx, f)
			},
		}, nil
	})
}

// sendersText is how many hosts a list takes mail from.
func sendersText(n *int) string {
	if n == nil {
		return "no list"
	}
	return fmt.Sprint(*n)
}

func newAdminEnrolmentsShow(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show HOST",
		Short: "Show what is known of one host",
		Example: `  agentmbx relay admin enrolments show laptop
  agentmbx relay admin enrolments show 1f3a-09bc-77d0-e214 --json`,
		Args: nArgs(1, 1, "the name, fingerprint or key of a host"),
	}
	at := bindDesk(cmd)
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return at.with(cmd.Context(), e, func(svc admin.Service, _ bool) error {
			h, err := findHost(cmd.Context(), svc, args[0])
			if err != nil {
				return err
			}
			if *asJSON {
				return printJSON(e.out, h)
			}
			return printEnrolment(e, h)
		})
	}
	return cmd
}

func printEnrolment(e env, h admin.Enrolment) error {
	lines := [][2]string{
		{"host", named(h.Host)}, {"key", h.Key.String()}, {"state", enrolmentState(h)}, {"owner says", cmp.Or(h.OwnerFP, "-")},
		{"account", cmp.Or(h.Account, "-")}, {"organization", cmp.Or(h.Org, "-")}, {"client id", cmp.Or(h.ClientID, "-")},
		{"let in by", h.AuthorizedBy}, {"enrolled", timeOr(h.EnrolledAt)}, {"session", sessionText(h, time.Now())}, {"revoked", timeOr(h.RevokedAt)}, {"last seen", timeOr(h.LastSeen)},
		{"takes mail from", sendersText(h.Senders)}, {"queue", fmt.Sprintf("%s, %d bytes", counted(h.Items, "item", "items"), h.Bytes)},
	}
	if d := h.Denial; d != nil {
		lines = append(lines, [2]string{"blocked", denialText(*d)})
	}
	return facts(e.out, lines...)
}

// sessionText says how long a host may go on before it must enrol again.
func sessionText(h admin.Enrolment, now time.Time) string {
	switch {
	case !h.RevokedAt.IsZero():
		return "-"
	case h.SessionOver && h.SessionEnds.IsZero():
		return "none: it must enrol with an account's token"
	case h.SessionOver:
		return fmt.Sprintf("over since %s: it must enrol again", timeOr(h.SessionEnds))
	case h.SessionEnds.IsZero():
		return "does not end"
	}
	return fmt.Sprintf("until %s, for %s", timeOr(h.SessionEnds), h.SessionEnds.Sub(now).Round(time.Second))
}

// denialText is a denial in a line.
func denialText(d admin.Denial) string {
	until := "until it is removed"
	if !d.Until.IsZero() {
		until = "until " + timeOr(d.Until)
	}
	whom := ""
	if d.ClientID != "" {
		whom = " of client " + d.ClientID
	}
	return fmt.Sprintf("%s, by %s: %s (denial %d%s)", until, d.Source, cmp.Or(d.Reason, "-"), d.ID, whom)
}

func newAdminRevoke(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "revoke HOST",
		Short: "End a host's use of the relay for ever",
		Long: `End a host's use of the relay for ever: its key can never enrol again. What waits
in its queue stays until it expires. To keep a host out for a time, block it.

At a terminal you type the host's name to go on; a script says --yes.`,
		Example: `  agentmbx relay admin enrolments revoke laptop --reason "stolen" --dry-run
  agentmbx relay admin enrolments revoke 1f3a-09bc-77d0-e214 --reason "stolen" --yes`,
		Args: nArgs(1, 1, "the name, fingerprint or key of a host"),
	}
	at := bindDesk(cmd)
	f := bindDeed(cmd, true)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx := cmd.Context()
		return at.with(ctx, e, func(svc admin.Service, _ bool) error {
			h, err := findHost(ctx, svc, args[0])
			if err != nil {
				return err
			}
			fmt.Fprintf(e.errw, "revoke %s for ever, with %s in its queue%s\n", printable(named(h.Host)), counted(h.Items, "item", "items"), f.because())
			if err := f.agreed(e, cmp.Or(h.Name, h.Fingerprint), h.Fingerprint); err != nil {
				return err
			}
			r, err := svc.Revoke(ctx, admin.HostAction{Action: f.action(), Key: h.Key, DryRun: f.dryRun})
			if err != nil {
				return deskError(err)
			}
			return printHostResult(e, f, r, "revoked", "revoke")
		})
	}
	return cmd
}

// printHostResult says what became of a host.
func printHostResult(e env, f *deedFlags, r admin.HostResult, past, verb string) error {
	if f.json {
		return printJSON(e.out, r)
	}
	text := fmt.Sprintf("%s %s", f.would(past, verb), named(r.Enrolment.Host))
	switch d := r.Enrolment.Denial; {
	case !r.Changed:
		text = fmt.Sprintf("%s was %s already", named(r.Enrolment.Host), past)
	case verb == "block" && d != nil:
		text += ", " + denialText(*d)
	}
	_, err := fmt.Fprintln(e.out, printable(text))
	return err
}

func newAdminBlock(e env) *cobra.Command {
	var forSpan, until string
	cmd := &cobra.Command{
		Use:   "block HOST",
		Short: "Refuse a host for a time",
		Long: `Refuse a host for a time, or until it is unblocked: it can neither push nor fetch,
and its open requests end at once. Its mail waits. Nothing is lost. A key can be
blocked before its host comes. The host is told the reason, and shows it to its
people.`,
		Example: `  agentmbx relay admin enrolments block laptop --for 24h --reason "floods others" --yes
  agentmbx relay admin enrolments block laptop --until 2027-01-01T00:00:00Z --reason "on leave" --yes`,
		Args: nArgs(1, 1, "the name, fingerprint or key of a host"),
	}
	at := bindDesk(cmd)
	f := bindDeed(cmd, true)
	cmd.Flags().Lookup("reason").Usage = "why, for the relay log and for the host, which is told"
	cmd.Flags().StringVar(&forSpan, "for", "", "how long: a `span` such as 90m, 24h or 7d")
	cmd.Flags().StringVar(&until, "until", "", "until this `time`, such as 2027-01-01T00:00:00Z")
	cmd.MarkFlagsMutuallyExclusive("for", "until")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx := cmd.Context()
		end, err := blockEnd(forSpan, until, time.Now())
		if err != nil {
			return err
		}
		return at.with(ctx, e, func(svc admin.Service, _ bool) error {
			h, err := hostToBlock(ctx, svc, args[0])
			if err != nil {
				return err
			}
			when := "until it is unblocked"
			if !end.IsZero() {
				when = "until " + timeOr(end)
			}
			fmt.Fprintf(e.errw, "block %s %s%s\n", printable(named(h.Host)), when, f.because())
			if err := f.agreed(e); err != nil {
				return err
			}
			a := admin.BlockAction{HostAction: admin.HostAction{Action: f.action(), Key: h.Key, DryRun: f.dryRun}, Until: end}
			r, err := svc.Block(ctx, a)
			if err != nil {
				return deskError(err)
			}
			return printHostResult(e, f, r, "blocked", "block")
		})
	}
	return cmd
}

// hostToBlock finds a host, or takes a key as it is: one may be blocked before it
// comes.
func hostToBlock(ctx context.Context, svc admin.Service, text string) (admin.Enrolment, error) {
	h, err := findHost(ctx, svc, text)
	if key, bad := wire.ParsePublicKey(text); bad == nil && exitCode(err) == codeNotFound {
		return admin.Enrolment{Host: admin.Host{Key: key, Fingerprint: key.Fingerprint()}}, nil
	}
	return h, err
}

// blockEnd reads when a block ends; zero is until it is unblocked.
func blockEnd(forSpan, until string, now time.Time) (end time.Time, err error) {
	switch {
	case forSpan != "":
		d, err := span(forSpan, "--for")
		return now.Add(d).UTC(), err
	case until != "":
		if end, err = time.Parse(time.RFC3339, until); err != nil {
			return end, usage(fmt.Errorf("--until is %s: want a time such as 2027-01-01T00:00:00Z", quoteValue(until)))
		}
		if !end.After(now) {
			return end, usage(fmt.Errorf("--until is %s, which is over: want a time to come", quoteValue(until)))
		}
		return end.UTC(), nil
	}
	return end, nil
}

// unblocked is what `relay admin enrolments unblock --json` and `deny remove
// --json` print.
type unblocked struct {
	Removed []admin.Denial `json:"removed"`
	DryRun  bool           `json:"dry_run,omitempty"`
}

func newAdminUnblock(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "unblock HOST",
		Short: "Let a blocked host in again",
		Long: `Let a blocked host in again: removes every denial in force that names it, also of
a key whose host has not come yet. One that names its account's credential alone may
be for other hosts, too, and stays: it is said, and agentmbx relay admin deny remove
takes it. The exit code is 4 when there is none to remove.`,
		Example: `  agentmbx relay admin enrolments unblock laptop --yes`,
		Args:    nArgs(1, 1, "the name, fingerprint or key of a host"),
	}
	at := bindDesk(cmd)
	f := bindDeed(cmd, false)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx := cmd.Context()
		return at.with(ctx, e, func(svc admin.Service, _ bool) error {
			h, err := findRefused(ctx, svc, args[0])
			if err != nil {
				return err
			}
			page, err := svc.Denials(ctx, admin.DenialFilter{Paging: admin.Paging{Limit: admin.MaxPage}, HostFP: h.Fingerprint})
			if err != nil {
				return deskError(err)
			}
			if len(page.Items) == 0 {
				if d, err := clientDenial(ctx, svc, h); err != nil {
					return err
				} else if d != nil {
					return notFound(fmt.Errorf("%s is denied as client %s: to let in whoever comes with that, agentmbx relay admin deny remove %d", named(h), quoteValue(d.ClientID), d.ID))
				}
				return notFound(fmt.Errorf("%s is not blocked", named(h)))
			}
			fmt.Fprintf(e.errw, "unblock %s%s\n", printable(named(h)), f.because())
			if err := removeDenials(ctx, e, svc, f, page.Items); err != nil || f.dryRun {
				return err
			}
			d, err := clientDenial(ctx, svc, h)
			if err == nil && d != nil {
				_, err = fmt.Fprintf(e.errw, "%s is still denied as client %s: see agentmbx relay admin deny remove %d\n", printable(named(h)), printable(d.ClientID), d.ID)
			}
			return err
		})
	}
	return cmd
}

// clientDenial is the denial of a host's credential alone that refuses it, nil when
// there is none.
func clientDenial(ctx context.Context, svc admin.Service, h admin.Host) (*admin.Denial, error) {
	if h.Key.IsZero() {
		return nil, nil // it has not come yet
	}
	e, err := svc.Enrolment(ctx, h.Key)
	switch {
	case errors.Is(err, admin.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, deskError(err)
	case e.Denial == nil || e.Denial.HostFP != "":
		return nil, nil
	}
	return e.Denial, nil
}
