package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// newRoot builds the whole tree of commands.
func newRoot(e env) *cobra.Command {
	root := newGroup(&cobra.Command{
		Use:   "agentmbx",
		Short: "Mail between agents on different machines, and a relay for it",
		Long: "agentmbx carries mail between agents on different machines: over the LAN, or over\na relay that sees sealed bodies only. It is a host, and the relay.\n\n" +
			exitCodes,
		Example: `  agentmbx init
  agentmbx send reviewer@studio --subject "Ready" --body "The branch is pushed."
  agentmbx relay serve --store-dir ./data`,
	})
	addGroup(root, "mail", "Mail:", newSend(e), newInbox(e), newRead(e), newAck(e), newSent(e), newMailbox(e))
	addGroup(root, "host", "This host:", newInit(e), newDaemon(e), newPair(e), newJoin(e), newPeers(e), newLogin(e), newLogout(e), newDoctor(e), newRotateKey(e), newHostLog(e), newPrune(e))
	addGroup(root, "relay", "Relay:", newRelay(e))
	addGroup(root, "accounts", "Accounts of a hosted relay:", newAccounts(e))
	root.AddCommand(newDemo(e), newVersion(e))
	root.SetHelpCommand(newHelp())
	root.CompletionOptions.DisableDefaultCmd = true
	root.SilenceErrors = true // Main prints them
	root.SilenceUsage = true
	root.SetIn(e.in)
	root.SetOut(e.out)
	root.SetErr(e.errw)
	finish(root)
	return root
}

// newRelay builds the commands of a host that uses a relay, and those of a
// relay's operator.
func newRelay(e env) *cobra.Command {
	cmd := newGroup(&cobra.Command{
		Use:   "relay",
		Short: "Use a relay, or run one",
		Long: `Use a relay, or run one. Using one is a matter of the host in --home; running one
of the store in --store-dir. A machine may do both, one or neither.`,
		Example: `  agentmbx relay set https://relay.example --key 1f3a-09bc-77d0-e214
  agentmbx relay serve --store-dir ./data
  agentmbx relay status --store-dir ./data`,
	})
	addGroup(cmd, "use", "Use a relay, as a host:", newRelaySet(e), newRelayUnset(e), newQuarantine(e))
	addGroup(cmd, "run", "Run a relay, as its operator:", newServe(e), newStatus(e), newLogCommand(e), newRotateEpoch(e), newKeygen(e), newBackup(e), newBackups(e), newVerify(e), newRestore(e), newRekey(e), newImport(e), newDrill(e), newRelayAdmin(e))
	return cmd
}

// addGroup gives cmd children under a title of their own in its help.
func addGroup(cmd *cobra.Command, id, title string, children ...*cobra.Command) {
	cmd.AddGroup(&cobra.Group{ID: id, Title: title})
	for _, c := range children {
		c.GroupID = id
	}
	cmd.AddCommand(children...)
}

// newGroup makes cmd a command that only holds others: alone it shows its
// help, and a word that is none of its commands is an error.
func newGroup(cmd *cobra.Command, children ...*cobra.Command) *cobra.Command {
	cmd.AddCommand(children...)
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		hint := fmt.Sprintf("see %s -h", cmd.CommandPath())
		if s := cmd.SuggestionsFor(args[0]); len(s) > 0 {
			hint = "did you mean " + strings.Join(s, " or ") + "?"
		}
		return fmt.Errorf("unknown command %q for %q: %s", args[0], cmd.CommandPath(), hint)
	}
	cmd.SuggestionsMinimumDistance = 2 // cobra sets it only for the root, and late
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	return cmd
}

// newHelp replaces cobra's help command, which answers 0 to a topic that is none.
func newHelp() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Show what a command does",
		Example: `  agentmbx help relay keygen
  agentmbx relay keygen -h`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			topic, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return usage(fmt.Errorf("no command %q: see agentmbx -h", strings.Join(args, " ")))
			}
			topic.InitDefaultHelpFlag()
			return topic.Help()
		},
	}
}

// finish makes every error that cobra itself finds, in arguments, flags and
// required flags alike, a usage error. A command that sets no Args takes none.
func finish(cmd *cobra.Command) {
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usage(fmt.Errorf("%w: see %s -h", err, cmd.CommandPath()))
	})
	args := cmd.Args
	if args == nil {
		args = noArgs
	}
	cmd.Args = func(cmd *cobra.Command, a []string) error { return usage(args(cmd, a)) }
	pre := cmd.PreRunE // cobra checks required flags after it, with an error like any other
	cmd.PreRunE = func(cmd *cobra.Command, a []string) error {
		err := errors.Join(cmd.ValidateRequiredFlags(), cmd.ValidateFlagGroups())
		if err == nil && pre != nil {
			return pre(cmd, a)
		}
		if err != nil {
			err = fmt.Errorf("%w: see %s -h", err, cmd.CommandPath())
		}
		return usage(err)
	}
	for _, c := range cmd.Commands() {
		finish(c)
	}
}

// noArgs is cobra.NoArgs in better words: cobra calls an argument too many an
// unknown command.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("unexpected argument %q: see %s -h", args[0], cmd.CommandPath())
	}
	return nil
}
