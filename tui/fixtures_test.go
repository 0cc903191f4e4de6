package tui

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/admin/jobs"
	"github.com/agentmbx/agentmbx/backup"
	"github.com/agentmbx/agentmbx/backup/drill"
	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// hostNamed makes a host whose key follows from n.
func hostNamed(n int, name string) admin.Host {
	key := wire.PublicKey{byte(n >> 8), byte(n), 7}
	return admin.Host{Key: key, Fingerprint: key.Fingerprint(), Name: name}
}

// hostile are names that try something with the terminal or the layout.
var hostile = []string{
	"\x1b[31mred\x1b[0m", "\x1b]52;c;cm0gLXJm\x07", "\x1b[2J\x1b[H", "tab\tand\nnewline\r", "\xff\xfe\x80", "\u202egnp.exe", "שלום עולם", "مرحبا",
	"全角文字の名前です全角文字の名前です全角文字の名前です", "e\u0301e\u0301e\u0301" + strings.Repeat("\u0301", 60), "👩\u200d👩\u200d👧 family 👍🏽 🇩🇪", "\u200b\u200b", strings.Repeat("w", 300),
	"\u009b31m", "half\xf0\x9f", "", " ", "नमस्ते", "각각", strings.Repeat("ทำน้ำคำ", 9), strings.Repeat("ຄຳ", 30), strings.Repeat("हिन्दी की किताब ", 5), "\x7f\x00",
}

// firstSeq is where the first queue begins, itemIDs how ids of items begin: as long
// as a relay has them.
const (
	firstSeq = 1772636000001
	itemIDs  = "01J8ZQ6Y4KX3M9T2B7WD5R"
)

// full makes a desk with something in every list; names are those of hosts.
func full(names ...string) *fakeDesk {
	if len(names) == 0 {
		names = []string{"studio", "reviewer", "build-box", "laptop-of-ann", "archive", "ci-7"}
	}
	f := &fakeDesk{shares: map[wire.PublicKey][]admin.Share{}}
	host := func(i int) admin.Host { return hostNamed(i+1, names[i%len(names)]) }
	for i := range 40 {
		h := host(i)
		f.queues = append(f.queues, admin.Queue{Target: h, Live: i != 3, Account: "acct-" + strconv.Itoa(i%4), Items: int64(4000 / (i + 1)), Bytes: int64(9_000_000 / (i + 1)),
			HeldItems: int64(i % 3), HeldBytes: int64(i%3) * 700, Oldest: clock.Add(-time.Duration(i+1) * 37 * time.Minute), Head: firstSeq + int64(5000+i), Acked: firstSeq - 1 + int64(i)})
		f.shares[h.Key] = []admin.Share{{Sender: host(i + 1), Items: 7, Bytes: 4096}, {Sender: host(i + 2), Items: 3, Bytes: 900}}
		senders := 2
		e := admin.Enrolment{Host: h, OwnerFP: "1f3a-09bc-77d0-e214", Account: "acct-" + strconv.Itoa(i%4), Org: "org", AuthorizedBy: "host-key",
			EnrolledAt: clock.Add(-time.Duration(i+1) * 24 * time.Hour), LastSeen: clock.Add(-time.Duration(i) * 11 * time.Minute), Senders: &senders, Items: int64(4000 / (i + 1)), Bytes: int64(9_000_000 / (i + 1))}
		if i == 3 {
			e.RevokedAt = clock.Add(-time.Hour)
		}
		if i == 4 {
			e.Denial = &admin.Denial{ID: 5, HostFP: h.Fingerprint, Reason: "floods " + names[i%len(names)], Source: "operator", AddedAt: clock.Add(-2 * time.Hour), Until: clock.Add(22 * time.Hour), InForce: true}
			f.denials = append(f.denials, *e.Denial)
		}
		if i%5 == 4 {
			e.Senders = nil
		}
		f.enrolments = append(f.enrolments, e)
		f.lists = append(f.lists, admin.SenderList{Target: h, Count: 2, IAT: clock.Add(-time.Hour), Senders: []admin.Host{host(i + 1), host(i + 2)}})
	}
	for i := range 30 {
		v := admin.Item{ItemRef: relay.ItemRef{Target: host(0).Key, Seq: firstSeq + int64(i), ID: fmt.Sprintf(itemIDs+"%04d", i)}, TargetHost: host(0), Kind: []string{store.KindEnvelope, store.KindReceipt, store.KindExpired}[i%3],
			Sender: host(1 + i%3), SenderHost: host(1 + i%3).Name, Hash: strings.Repeat("ab12", 16), Bytes: int64(300 + 111*i), AcceptedAt: clock.Add(-time.Duration(90-i) * time.Minute), ExpiresAt: clock.Add(14 * 24 * time.Hour)}
		if i%10 == 9 {
			v.Held = &admin.Hold{At: clock.Add(-10 * time.Minute), Actor: "cli:ann", Reason: "looks odd " + names[i%len(names)]}
			f.quarantine = append(f.quarantine, admin.Quarantined{Kind: admin.QuarantineHeld, Item: &v})
			continue
		}
		f.items = append(f.items, v)
	}
	for i, why := range []string{"conflict", "bad wire", "bad item id"} {
		f.quarantine = append(f.quarantine, admin.Quarantined{Kind: admin.QuarantineRefused, Refusal: &relay.Refusal{ID: int64(i + 1), At: clock.Add(-time.Duration(i+1) * time.Hour), Sender: host(i).Key, Name: host(i).Name, ItemID: itemIDs + "BAD" + names[i%len(names)], Reason: why, Count: int64(i + 1)}})
	}
	f.jobs = fullJobs()
	for i := range 60 {
		j := f.jobs[i%len(f.jobs)]
		r := jobs.Run{ID: int64(600 - i), Job: j.Name, AskedBy: jobs.BySchedule, StartedAt: clock.Add(-time.Duration(i+1) * 13 * time.Minute), Outcome: store.OutcomeOK, Detail: "well " + names[i%len(names)]}
		r.FinishedAt = r.StartedAt.Add(3 * time.Second)
		if i%7 == 6 {
			r.Outcome, r.Detail = store.OutcomeFailed, "no room on the device: 3.2 MiB are missing"
		}
		f.runs = append(f.runs, r)
	}
	f.backups = fullBackups()
	for i := range 80 {
		at := clock.Add(-time.Duration(i) * 17 * time.Minute)
		op, receipt := aLine(f, i, at, names[i%len(names)])
		f.entries = append(f.entries, admin.LogEntry{ID: int64(400 - i), At: at, Op: op, Receipt: mustJSON(receipt)})
	}
	f.overview = fullOverview(f)
	return f
}

// aLine is a line of the log as a relay writes it.
func aLine(f *fakeDesk, i int, at time.Time, why string) (op string, receipt any) {
	when := wire.FormatTime(at)
	deed := func(op string, more map[string]any) (string, any) {
		more["v"], more["type"], more["at"], more["actor"], more["reason"] = 1, "relay-"+op, when, "cli:ann", why
		return op, more
	}
	h := f.queues[i%len(f.queues)].Target
	switch i % 7 {
	case 0:
		return "sweep", relay.SweepReceipt{At: when, Expired: relay.ExpiredCounts{Envelopes: 3, Receipts: 1}, Notices: 3, Pruned: 12}
	case 1:
		return "backup", f.backups[i%len(f.backups)].Receipt
	case 2:
		it := f.items[i%len(f.items)]
		return deed("hold", map[string]any{"items": []any{map[string]any{"target": it.Target, "seq": it.Seq, "id": it.ID, "kind": it.Kind, "sender": it.Sender.Key, "bytes": it.Bytes}}})
	case 3:
		return "drill", aDrill(i != 3)
	case 4:
		return "rotate-epoch", map[string]string{"from": "3f0c7f2e-0000-4000-8000-000000000001", "to": "77aa7f2e-0000-4000-8000-000000000002", "actor": "cli:ann", "reason": why}
	case 5:
		return deed("block", map[string]any{"host": map[string]any{"key": h.Key, "fingerprint": h.Fingerprint, "name": h.Name},
			"denial": map[string]any{"id": 700 + i, "host_fp": h.Fingerprint, "reason": why, "source": "operator"}})
	}
	return "run-job", map[string]any{"v": 1, "type": "relay-run-job", "at": when, "actor": "tui:ann", "job": "verify", "args": map[string]any{"file": f.backups[0].Path}, "run": 600 - i}
}

func fullJobs() []jobs.State {
	run := func(id int64, job string, age time.Duration, outcome, detail string) *jobs.Run {
		return &jobs.Run{ID: id, Job: job, AskedBy: jobs.BySchedule, StartedAt: clock.Add(-age), FinishedAt: clock.Add(-age + 2*time.Second), Outcome: outcome, Detail: detail}
	}
	list := []jobs.State{
		{Name: "heartbeat", Schedule: "every 30s", Next: clock.Add(12 * time.Second), Last: run(1, "heartbeat", 18*time.Second, store.OutcomeOK, "")},
		{Name: "sweep", Schedule: "every 10m", Next: clock.Add(4 * time.Minute), Last: run(598, "sweep", 6*time.Minute, store.OutcomeOK, "expired 3 items")},
		{Name: "backup", Schedule: "17 3 * * *", Next: clock.Add(12 * time.Hour), Last: run(590, "backup", 12*time.Hour, store.OutcomeOK, "41.2 MiB, verified")},
		{Name: "drill", Schedule: "43 4 * * 0", Next: clock.Add(4 * 24 * time.Hour), Last: run(580, "drill", 3*24*time.Hour, store.OutcomeFailed, "failed: 1 of 14 checks: counts")},
		{Name: "checkpoint", Schedule: "every 5m", Next: clock.Add(time.Minute), Running: &jobs.Run{ID: 601, Job: "checkpoint", StartedAt: clock.Add(-2 * time.Second), Progress: &jobs.Progress{Stage: "vacuum", Done: 3, Total: 10}}},
		{Name: "disk", Schedule: "every 1m", Next: clock.Add(30 * time.Second), Last: run(2, "disk", 30*time.Second, store.OutcomeOK, "")},
		{Name: "verify", Wanted: ""},
	}
	for i := range list {
		if l := list[i].Last; l != nil && l.Outcome == store.OutcomeOK {
			list[i].LastOK = l
		}
	}
	return list
}

// backupNamed is the name of the n-th backup: the 70th is that of last night.
func backupNamed(n int) string {
	at := clock.Add(-12*time.Hour - time.Duration(70-n)*24*time.Hour)
	return fmt.Sprintf("relay-%s-%06d.db", at.Format("20060102T150405Z"), n)
}

func fullBackups() (list []backup.Entry) {
	for i := range 7 {
		at := clock.Add(-12*time.Hour - time.Duration(i)*24*time.Hour)
		path := "/data/backups/" + backupNamed(70-i)
		e := backup.Entry{Path: path, Age: clock.Sub(at), Verified: i != 5, Ours: true,
			Receipt: backup.Receipt{V: 1, Type: "relay-backup", At: at, File: path, N: int64(70 - i), Bytes: 43_000_000, SHA256: strings.Repeat("cd34", 16),
				Fingerprint: hostNamed(999, "").Fingerprint, Epoch: "3f0c7f2e-0000-4000-8000-000000000001", Schema: 3, Version: "0.6.0", Items: 12345, ItemBytes: 41_000_000, Enrolments: 39, Took: 800 * time.Millisecond, Verified: i != 5,
				Restore: "agentmbx relay restore " + path + " --store-dir /data"}}
		if i == 5 {
			e.Problem = "its file has 12 bytes; its receipt says 43000000"
		}
		list = append(list, e)
	}
	return list
}

func fullOverview(f *fakeDesk) admin.Overview {
	var v admin.Overview
	v.Status.Status = relay.Status{Version: "0.6.0", StartedAt: clock.Add(-53*time.Hour - 12*time.Minute), Epoch: "3f0c7f2e-0000-4000-8000-000000000001", Fingerprint: hostNamed(999, "").Fingerprint,
		Heartbeat: clock.Add(-18 * time.Second), Totals: store.Totals{Enrolments: 39, Items: 12345, Bytes: 41_000_000, Held: 13}, Store: store.Size{Data: 52_000_000, Log: 3_100_000, Free: 18_000_000_000}, Schema: 3, LongPolls: 21,
		Problems: []string{"the last drill failed: the drill of " + backupNamed(67) + " failed: counts: got 12000; want 12001", "the last good drill was 240h0m0s ago; run: agentmbx relay drill"}}
	v.Jobs = f.jobs
	v.Backup = &f.backups[0]
	for i := range relay.ActivitySlots {
		v.Activity.Accepted = append(v.Activity.Accepted, int64(i*i%37))
		v.Activity.Pulled = append(v.Activity.Pulled, int64(i*7%23))
	}
	v.Activity.TotalAccepted, v.Activity.TotalPulled, v.Activity.TotalAcked = 1_234_567, 1_200_000, 1_199_000
	v.Deepest = slices.Clone(f.queues[:5])
	v.Longest = slices.Clone(f.queues[35:])
	slices.Reverse(v.Longest)
	v.Refused = 3
	v.Drill = &drill.Receipt{V: 1, Type: "relay-drill", At: clock.Add(-3 * 24 * time.Hour), File: "/data/backups/" + backupNamed(67), Passed: false, RPO: 3600, RTO: 1.4, Took: 8, Items: 12000,
		Checks: []backup.Check{{Name: "integrity", OK: true, Text: "ok"}, {Name: "counts", OK: false, Text: "got 12000; want 12001"}}}
	return v
}

// hosted is full of a relay that accounts let hosts in: the first host's session goes
// on, the second's is over, the third never had one, the fourth is revoked, the fifth
// blocked, the sixth denied by its credential.
func hosted() *fakeDesk {
	f := full()
	for i := range f.enrolments {
		e := &f.enrolments[i]
		e.AuthorizedBy, e.ClientID, e.SessionEnds = "account-token", fmt.Sprintf("client-%d", i+1), clock.Add(9*time.Minute+30*time.Second)
	}
	f.enrolments[1].SessionEnds, f.enrolments[1].SessionOver = clock.Add(-2*time.Hour), true
	f.enrolments[2].SessionEnds, f.enrolments[2].ClientID, f.enrolments[2].SessionOver = time.Time{}, "", true
	d := admin.Denial{ID: 9, ClientID: "client-6", Reason: "the account was closed", Source: relay.SourceIssuerList, AddedAt: clock.Add(-time.Minute), InForce: true}
	f.enrolments[5].Denial = &d
	f.denials = append([]admin.Denial{d}, f.denials...)
	f.denials = append(f.denials, admin.Denial{ID: 2, HostFP: hostNamed(77, "").Fingerprint, ClientID: "client-77", Reason: "both", Source: relay.SourceIssuer, AddedAt: clock.Add(-time.Hour), Until: clock.Add(time.Hour), InForce: true})
	f.overview.Issuer = &relay.IssuerState{Issuer: "https://accounts.example", URL: "https://accounts.example/.well-known/jwks.json", Keys: []string{"2026-02", "2026-03"}, FetchedAt: clock.Add(-4 * time.Minute), Usable: true}
	f.jobs = append(f.jobs, jobs.State{Name: "deny", Schedule: "every 1m", Next: clock.Add(40 * time.Second), Last: &jobs.Run{ID: 602, Job: "deny", StartedAt: clock.Add(-20 * time.Second), FinishedAt: clock.Add(-19 * time.Second), Outcome: store.OutcomeOK, Detail: "a deny list: 1 added"}},
		jobs.State{Name: "jwks", Schedule: "every 10m", Next: clock.Add(6 * time.Minute), Last: &jobs.Run{ID: 603, Job: "jwks", StartedAt: clock.Add(-4 * time.Minute), FinishedAt: clock.Add(-4 * time.Minute), Outcome: store.OutcomeOK, Detail: "2 keys"}})
	return f
}

// bare makes a desk of a new store: every list is empty.
func bare() *fakeDesk {
	f := &fakeDesk{}
	f.overview.Status.Status = relay.Status{Version: "0.6.0", StartedAt: clock.Add(-time.Minute), Epoch: "3f0c7f2e-0000-4000-8000-000000000001", Fingerprint: hostNamed(999, "").Fingerprint,
		Heartbeat: clock.Add(-18 * time.Second), Store: store.Size{Data: 300_000, Free: 18_000_000_000}, Schema: 3, Problems: []string{}}
	f.overview.Activity.Accepted, f.overview.Activity.Pulled = make([]int64, relay.ActivitySlots), make([]int64, relay.ActivitySlots)
	return f
}

// heldClock is a clock that has jumped.
func heldClock() *relay.ClockStatus {
	return &relay.ClockStatus{Why: "it moved by 960h", Since: clock.Add(-time.Hour), HeldUntil: clock.Add(23 * time.Hour), Expire: 1200, Of: 1250}
}
