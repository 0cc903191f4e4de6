package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/agentmbx/agentmbx/relay/host"
	"github.com/agentmbx/agentmbx/relay/host/lan"
)

func newDaemon(e env) *cobra.Command {
	var port, bind string
	var noLAN, once bool
	cmd := &cobra.Command{
		Use:   "daemon",
		Short: "Send and receive mail until told to stop",
		Long: `Serve the LAN, send what waits and receive what comes, until SIGTERM or an
interrupt. One daemon runs on a home; other commands work beside it.

--once does what is due now and exits, for hosts that are not always on. It exits
0 also when the relay or a host could not be reached: what it prints says so.`,
		Example: `  agentmbx daemon
  agentmbx daemon --lan-bind 192.168.1.9
  agentmbx daemon --once --json`,
	}
	at := bindHome(cmd)
	f := cmd.Flags()
	f.StringVar(&port, "lan-port", strconv.Itoa(lan.DefaultPort), "TCP `port` to serve the LAN on, 0 for any free one")
	f.StringVar(&bind, "lan-bind", "0.0.0.0", "`address` to serve the LAN on")
	f.BoolVar(&noLAN, "no-lan", false, "serve and call nobody on the LAN: mail goes over the relay only")
	f.BoolVar(&once, "once", false, "do what is due now, then exit")
	asJSON := f.Bool("json", false, "with --once, print JSON")
	for _, pair := range [][2]string{{"once", "lan-port"}, {"once", "lan-bind"}, {"no-lan", "lan-port"}, {"no-lan", "lan-bind"}} {
		cmd.MarkFlagsMutuallyExclusive(pair[0], pair[1])
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var n int
		var addr string
		if setPort(&n)(port) != nil {
			return usage(fmt.Errorf("--lan-port is %s: want 0 to 65535", quoteValue(port)))
		}
		if setBind(&addr)(bind) != nil {
			return usage(fmt.Errorf("--lan-bind is %s: want an IP address or a host name, without a port", quoteValue(bind)))
		}
		if *asJSON && !once {
			return usage(fmt.Errorf("--json is for --once: see %s -h", cmd.CommandPath()))
		}
		format := "text"
		if v := os.Getenv("MBX_LOG_FORMAT"); v != "" {
			if setOneOf(&format, "text", "json")(v) != nil {
				return usage(fmt.Errorf("MBX_LOG_FORMAT is %s: want text or json", quoteValue(v)))
			}
		}
		listen := ""
		if !noLAN {
			listen = net.JoinHostPort(addr, strconv.Itoa(n))
		}
		log := newLog(format, e.errw, e.errw)
		return at.withLog(cmd.Context(), log, func(here *host.Host, dir string) error {
			if once {
				if noLAN {
					here.SwitchLANOff()
				}
				return runOnce(cmd.Context(), e, here, *asJSON)
			}
			return here.Daemon(cmd.Context(), host.DaemonOptions{Listen: listen, Ready: func(served string) {
				if format == "json" {
					log.Info("ready", "host", here.Name(), "home", dir, "lan", served, "relay", here.RelayURL(), "version", version)
					return
				}
				if served == "" {
					served = "off"
				}
				relay := here.RelayURL()
				if relay == "" {
					relay = "none"
				}
				fmt.Fprintf(e.errw, "ready: %s %s, LAN %s, relay %s\n", here.Name(), dir, served, relay)
			}})
		})
	}
	return cmd
}

// onceFacts is what `daemon --once --json` prints.
type onceFacts struct {
	Host     string  `json:"host"`
	RelayURL *string `json:"relay_url"` // null for none
	host.Report
}

func runOnce(ctx context.Context, e env, here *host.Host, asJSON bool) error {
	report, err := here.Once(ctx)
	if errors.Is(err, host.ErrDaemonRuns) {
		return refused(errors.New("a daemon runs on this home already: it does by itself what --once does"))
	}
	if err != nil {
		return err
	}
	f := onceFacts{Host: here.Name(), RelayURL: orNull(here.RelayURL()), Report: report}
	if asJSON {
		return printJSON(e.out, f)
	}
	return printOnce(e.out, f)
}

// orNull is nil for "": null in JSON.
func orNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func printOnce(out io.Writer, f onceFacts) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	if f.RelayURL == nil {
		fmt.Fprintln(w, "relay\tnone")
	} else {
		state := f.Relay.State
		if f.Relay.Detail != "" {
			state += ": " + f.Relay.Detail
		}
		fmt.Fprintf(w, "relay\t%s (%s)\n", *f.RelayURL, printable(state))
	}
	fmt.Fprintf(w, "mail sent\t%d over the LAN, %d to the relay\n", f.LAN.Sent, f.Relay.Accepted)
	fmt.Fprintf(w, "to try again\t%d over the LAN, %d to the relay\n", f.LAN.Failed, f.Relay.Failed+f.Relay.Rejected)
	fmt.Fprintf(w, "ended\t%d refused, %d given up, %d unconfirmed\n", f.LAN.Rejected, f.GivenUp, f.Unconfirmed)
	fmt.Fprintf(w, "receipts sent\t%d over the LAN, %d to the relay\n", f.Receipts.Sent, f.Relay.ReceiptsSent)
	fmt.Fprintf(w, "received\t%d, %d known already, %d receipts, %d quarantined\n", f.Relay.Received+f.Retried, f.Relay.Duplicates, f.Relay.Receipts, f.Relay.Quarantined)
	return w.Flush()
}
