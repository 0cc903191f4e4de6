package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// What scripts may say to fill a relay, over its wire, with hosts of their own. A
// host is enrolled when it is first named; its fingerprint is $NAME_fp.
//
//	mail URL FROM TO N      pushes N messages
//	spoil URL FROM TO       pushes a message that is refused as malformed
//	accept URL HOST FROM... publishes whom HOST takes mail from
//	fetch URL HOST          pulls all that waits for HOST and acks it; stdout has a
//	                        line an item (its seq, kind, id and the sender's
//	                        fingerprint), and how many there were

// scriptHosts are the hosts by script and name.
var scriptHosts sync.Map

func scriptHost(ts *testscript.TestScript, base, name string) *client {
	if h, ok := scriptHosts.Load(runningKey{ts, name}); ok {
		return h.(*client)
	}
	c := newClient(name)
	ts.Check(c.enrolAt(base))
	scriptHosts.Store(runningKey{ts, name}, c)
	ts.Setenv(name+"_fp", c.Pub().Fingerprint())
	ts.Setenv(name+"_key", c.Pub().String())
	return c
}

func mailScript(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 4 {
		ts.Fatalf("usage: mail URL FROM TO N")
	}
	n, err := strconv.Atoi(args[3])
	ts.Check(err)
	from, to := scriptHost(ts, args[0], args[1]), scriptHost(ts, args[0], args[2])
	items := make([]pushItem, n)
	for i := range items {
		items[i] = from.item(to)
	}
	for _, status := range pushed(ts, args[0], from, items) {
		if status != "accepted" {
			ts.Fatalf("got %s; want accepted", status)
		}
	}
}

func spoilScript(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: spoil URL FROM TO")
	}
	from, to := scriptHost(ts, args[0], args[1]), scriptHost(ts, args[0], args[2])
	it := from.item(to)
	it.Targets[0].Wire = wire.EncodeBase64([]byte("no envelope"))
	if status := pushed(ts, args[0], from, []pushItem{it}); len(status) != 1 || status[0] == "accepted" {
		ts.Fatalf("got %v; want it refused", status)
	}
}

// pushed pushes items and answers what became of each.
func pushed(ts *testscript.TestScript, base string, from *client, items []pushItem) (status []string) {
	var out struct{ Results []pushResult }
	code, err := from.call(base, "POST", "/v2/relay/items", map[string]any{"items": items}, &out)
	ts.Check(err)
	if code != 200 {
		ts.Fatalf("push: got status %d; want 200", code)
	}
	for _, r := range out.Results {
		status = append(status, r.Status)
	}
	return status
}

func acceptScript(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: accept URL HOST FROM...")
	}
	host := scriptHost(ts, args[0], args[1])
	var senders []wire.PublicKey
	for _, name := range args[2:] {
		senders = append(senders, scriptHost(ts, args[0], name).Pub())
	}
	list, sig := wire.MakeSenderList(host.Key, senders, time.Now())
	code, err := host.call(args[0], "POST", "/v2/relay/senders", map[string]any{"list": json.RawMessage(list), "sig": sig}, nil)
	ts.Check(err)
	if code != 200 {
		ts.Fatalf("senders: got status %d; want 200", code)
	}
}

func fetchScript(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: fetch URL HOST")
	}
	host := scriptHost(ts, args[0], args[1])
	n := 0
	defer func() { fmt.Fprintf(ts.Stdout(), "%d items\n", n) }()
	for after, more := int64(0), true; more; {
		var p struct {
			page
			Items []struct {
				pulledItem
				Kind   string         `json:"kind"`
				Sender wire.PublicKey `json:"sender_pubkey"`
			} `json:"items"`
		}
		code, err := host.call(args[0], "GET", fmt.Sprintf("/v2/relay/items?after=%d", after), nil, &p)
		ts.Check(err)
		if code != 200 {
			ts.Fatalf("pull: got status %d; want 200", code)
		}
		for _, it := range p.Items {
			_, err := fmt.Fprintf(ts.Stdout(), "%d %s %s %s\n", it.Seq, it.Kind, it.ID, it.Sender.Fingerprint())
			ts.Check(err)
			after = it.Seq
			n++
		}
		if more = p.More; len(p.Items) > 0 {
			ts.Check(host.ack(args[0], p.Epoch, after))
		}
	}
}
