package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentmbx/agentmbx/relay/host"
	"github.com/agentmbx/agentmbx/relay/host/lan"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// pairFacts is what `pair --json` prints.
type pairFacts struct {
	Token   string    `json:"token"`
	Expires time.Time `json:"expires_at"`
	Addrs   []string  `json:"addrs"` // of this machine, the likeliest first
	Command string    `json:"command"`
	Daemon  bool      `json:"daemon_runs"`
}

func newPair(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pair",
		Short: "Make a token with which another host pairs with this one",
		Long: `Make a single-use token and print it with the command to type on the other
machine, which then asks for the token. The daemon has to run here: it is what
the other machine talks to.`,
		Example: `  agentmbx pair
  agentmbx pair --ttl 1h --json`,
	}
	at := bindHome(cmd)
	ttl := cmd.Flags().Duration("ttl", host.TokenLife, "how long the token lives, up to 1h")
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return at.with(cmd.Context(), func(here *host.Host) error {
			runs, served, err := here.DaemonRuns(cmd.Context())
			if err != nil {
				return err
			}
			token, err := here.NewPairToken(cmd.Context(), *ttl)
			if err != nil {
				return err
			}
			f := pairFacts{Token: token, Expires: time.Now().Add(*ttl).UTC().Truncate(time.Second), Addrs: ownAddrs(served), Daemon: runs}
			f.Command = "agentmbx join ADDRESS-OF-THIS-MACHINE"
			if len(f.Addrs) > 0 {
				f.Command = "agentmbx join " + f.Addrs[0]
			}
			switch {
			case !runs:
				fmt.Fprintln(e.errw, "no daemon runs here: start one with agentmbx daemon, or the other machine can't join")
			case served == "":
				fmt.Fprintln(e.errw, "the daemon here runs with --no-lan: the other machine can't join")
			}
			if *asJSON {
				return printJSON(e.out, f)
			}
			_, err = fmt.Fprintf(e.out, "token  %s (single use, until %s)\nthere  %s\n", f.Token, f.Expires.Local().Format("15:04:05"), f.Command)
			if err == nil && len(f.Addrs) > 1 {
				_, err = fmt.Fprintf(e.out, "or at  %s\n", strings.Join(f.Addrs[1:], ", "))
			}
			return err
		})
	}
	return cmd
}

// ownAddrs are the addresses at which other machines may reach what this one
// serves at served ("" for nothing yet): the one on the way to anywhere first.
func ownAddrs(served string) []string {
	port := strconv.Itoa(lan.DefaultPort)
	if ip, p, err := net.SplitHostPort(served); err == nil {
		if a, err := netip.ParseAddr(ip); err != nil || !a.IsUnspecified() {
			return []string{served}
		}
		port = p
	}
	addrs := []string{}
	add := func(ip net.IP) {
		a, ok := netip.AddrFromSlice(ip)
		if a = a.Unmap(); !ok || !a.Is4() || a.IsLoopback() || a.IsLinkLocalUnicast() {
			return
		}
		if addr := net.JoinHostPort(a.String(), port); !slices.Contains(addrs, addr) {
			addrs = append(addrs, addr)
		}
	}
	if c, err := net.Dial("udp4", "192.0.2.1:9"); err == nil { // sends nothing
		if u, ok := c.LocalAddr().(*net.UDPAddr); ok {
			add(u.IP)
		}
		_ = c.Close()
	}
	all, err := net.InterfaceAddrs()
	for _, a := range all {
		if n, ok := a.(*net.IPNet); err == nil && ok {
			add(n.IP)
		}
	}
	return addrs
}

// joinFacts is what `join --json` prints.
type joinFacts struct {
	Host        string `json:"host"`
	Fingerprint string `json:"fingerprint"`
	Addr        string `json:"addr"`
}

func newJoin(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "join ADDR [TOKEN]",
		Short: "Pair with the host that printed a token",
		Long: `Pair this host with the one at ADDR that printed the token with agentmbx pair.
Without TOKEN, or with -, it is read from standard input, so that no list of
processes shows it. Case and dashes of a token don't matter.

The other host is told where this one listens: the address on the way to it with
the port of the daemon here. --addr says otherwise.`,
		Example: `  agentmbx join 192.168.1.5
  agentmbx join studio.local:7373 ABCD-EFGH-JKMN --addr 192.168.1.9:7373`,
		Args: nArgs(1, 2, "the address of the other host"),
	}
	at := bindHome(cmd)
	own := cmd.Flags().String("addr", "", "`address` of this host, as the other one reaches it")
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if _, err := lan.NormalizeAddr(args[0]); err != nil {
			return usage(fmt.Errorf("ADDR is %s: %w", quoteValue(args[0]), err))
		}
		if _, err := lan.NormalizeAddr(*own); err != nil && cmd.Flags().Changed("addr") {
			return usage(fmt.Errorf("--addr is %s: %w", quoteValue(*own), err))
		}
		token := ""
		if len(args) == 2 {
			token = args[1]
		}
		return at.with(cmd.Context(), func(here *host.Host) error {
			var err error
			if token == "" || token == "-" {
				if token, err = readToken(e); err != nil {
					return err
				}
			}
			name, err := here.JoinPeer(cmd.Context(), args[0], token, *own)
			if err != nil {
				return joinError(args[0], err)
			}
			peers, err := here.Peers(cmd.Context())
			if err != nil {
				return err
			}
			f := joinFacts{Host: name}
			for _, p := range peers {
				if p.Name == name {
					f.Fingerprint, f.Addr = p.Fingerprint, p.Addr
				}
			}
			if *asJSON {
				return printJSON(e.out, f)
			}
			_, err = fmt.Fprintf(e.out, "paired with %s (%s) at %s\n", printable(f.Host), f.Fingerprint, printable(f.Addr))
			return err
		})
	}
	return cmd
}

// joinError says of a host that could not be reached what to look at there.
func joinError(addr string, err error) error {
	var op *net.OpError
	if !errors.Is(err, lan.ErrUnreachable) || !errors.As(err, &op) {
		return err
	}
	if whole, bad := lan.NormalizeAddr(addr); bad == nil {
		addr = whole
	}
	return fmt.Errorf("%s: nobody answers (%w): is the address right, and does agentmbx daemon run there?", addr, op.Err)
}

// readToken reads a token's line from the input.
func readToken(e env) (string, error) {
	if byHand(e.in) {
		fmt.Fprint(e.errw, "token: ")
	}
	line, err := bufio.NewReader(io.LimitReader(e.in, 1024)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	if line = strings.TrimSpace(line); line == "" {
		return "", usage(errors.New("no token: give it on standard input, or after the address"))
	}
	return line, nil
}

// peerList is what `peers --json` prints.
type peerList struct {
	Peers []host.Peer `json:"peers"`
}

func newPeers(e env) *cobra.Command {
	cmd := newGroup(&cobra.Command{
		Use:   "peers",
		Short: "List the paired hosts",
		Example: `  agentmbx peers
  agentmbx peers remove studio`,
	}, newPeersRemove(e))
	at := bindHome(cmd)
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return at.with(cmd.Context(), func(here *host.Host) error {
			peers, err := here.Peers(cmd.Context())
			if err != nil {
				return err
			}
			if *asJSON {
				return printJSON(e.out, peerList{peers})
			}
			if len(peers) == 0 {
				_, err := fmt.Fprintln(e.errw, "no host is paired: see agentmbx pair -h")
				return err
			}
			w := tabwriter.NewWriter(e.out, 0, 8, 2, ' ', 0)
			fmt.Fprintln(w, "NAME\tFINGERPRINT\tADDRESS\tLAN\tSEEN")
			for _, p := range peers {
				up, seen := "up", "never"
				if !p.Reachable {
					up = "down"
				}
				if p.SeenAt != nil {
					seen = wire.FormatTime(*p.SeenAt)
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", printable(p.Name), p.Fingerprint, printable(p.Addr), up, seen)
			}
			return w.Flush()
		})
	}
	return cmd
}

// removedFacts is what `peers remove --json` prints.
type removedFacts struct {
	Removed     string `json:"removed"`
	Undelivered int    `json:"undelivered"` // mail that waited for it and came back
}

func newPeersRemove(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "remove NAME",
		Short: "Drop a paired host",
		Long: `Drop a paired host and tell it, if it can be reached. Mail that waits for it
comes back to its senders as alerts.`,
		Example: `  agentmbx peers remove studio`,
		Args:    nArgs(1, 1, "the name of a host"),
	}
	at := bindHome(cmd)
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		log := newLog("text", e.errw, e.errw) // hears of a host that could not be told
		return at.withLog(cmd.Context(), log, func(here *host.Host, _ string) error {
			n, err := here.RemovePeer(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if *asJSON {
				return printJSON(e.out, removedFacts{args[0], n})
			}
			_, err = fmt.Fprintf(e.out, "removed %s; undelivered mail: %d\n", args[0], n)
			return err
		})
	}
	return cmd
}

// nArgs takes between least and most arguments; what names what is missing.
func nArgs(least, most int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return fmt.Errorf("%s is missing: see %s -h", what, cmd.CommandPath())
		case most >= 0 && len(args) > most:
			return fmt.Errorf("unexpected argument %q: see %s -h", args[most], cmd.CommandPath())
		}
		return nil
	}
}
