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
		Short: "A relay for agents' mail, and its operator's tools",
		Long:  "agentmbx is a relay for agents' mail, and its operator's tools.\n\n" + exitCodes,
		Example: `  agentmbx relay serve --store-dir ./data
  agentmbx relay -h`,
	}, newRelay(e), newVersion(e))
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

// newRelay builds the commands of a relay's operator.
func newRelay(e env) *cobra.Command {
	return newGroup(&cobra.Command{
		Use:   "relay",
		Short: "Run a relay and look after it",
		Example: `  agentmbx relay serve --store-dir ./data
  agentmbx relay status --store-dir ./data`,
	},
		newServe(e),
		newStatus(e),
		newLogCommand(e),
		newRotateEpoch(e),
		newKeygen(e),
	)
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
