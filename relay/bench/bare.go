package main

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/store/sqlite"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// bareLog does what no relay can do without (read the request, verify its hop,
// look at each item, keep it through a power cut, sign for it) and nothing
// else: no index, no dedup, no counters, no queue that could be read again.
// Whoever waits shares one sync.
type bareLog struct {
	f     *os.File
	key   wire.PrivateKey
	hosts map[wire.PublicKey]store.Enrolment
	calls chan *bareCall
	ended chan struct{}

	mu  sync.Mutex
	seq int64
}

type bareCall struct {
	record []byte
	done   chan error
}

const bareName = "bare.log"

func openBare(dir string, key wire.PrivateKey) (*bareLog, error) {
	s := &bareLog{key: key, hosts: map[wire.PublicKey]store.Enrolment{}, calls: make(chan *bareCall), ended: make(chan struct{})}
	db, err := openDB(filepath.Join(dir, sqlite.FileName), "rw")
	if err != nil {
		return nil, err
	}
	defer db.Close()
	rows, err := db.Query("SELECT host_pubkey, host_name FROM enrolments")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var key []byte
		var e store.Enrolment
		if err := rows.Scan(&key, &e.Name); err != nil {
			return nil, err
		}
		copy(e.Key[:], key)
		s.hosts[e.Key] = e
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	if s.f, err = os.OpenFile(filepath.Join(dir, bareName), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600); err != nil {
		return nil, err
	}
	go s.write()
	return s, nil
}

func (s *bareLog) close() error {
	close(s.calls)
	<-s.ended
	return s.f.Close()
}

func (s *bareLog) write() {
	defer close(s.ended)
	var buf []byte
	for first := range s.calls {
		group := []*bareCall{first}
		buf = append(buf[:0], first.record...)
	gather:
		for len(group) < 256 {
			select {
			case c, ok := <-s.calls:
				if !ok {
					break gather
				}
				group, buf = append(group, c), append(buf, c.record...)
			default:
				break gather
			}
		}
		_, err := s.f.Write(buf)
		if err == nil {
			err = datasync(s.f)
		}
		for _, c := range group {
			c.done <- err
		}
	}
}

// Candidates and Verify are the relay's, over a map.
func (s *bareLog) Candidates(_ context.Context, h relay.Hop) ([]relay.Candidate, error) {
	if err := wire.CheckHopTime(h.TS, time.Now()); err != nil {
		return nil, err
	}
	key, err := wire.ParsePublicKey(h.Key)
	if err != nil {
		return nil, err
	}
	e, ok := s.hosts[key]
	if !ok {
		return nil, store.ErrNotFound
	}
	return []relay.Candidate{{Enrolment: e}}, nil
}

func (s *bareLog) Verify(who []relay.Candidate, h relay.Hop, method, path string, body []byte) (relay.Caller, error) {
	if !wire.VerifyHop(who[0].Key, h.Sig, method, path, h.TS, body) {
		return relay.Caller{}, wire.ErrBadSignature
	}
	return relay.Caller{Enrolment: who[0].Enrolment}, nil
}

func (s *bareLog) push(_ context.Context, from relay.Caller, items []wire.PushItem) ([]relay.PushResult, error) {
	now := time.Now().UTC().Truncate(time.Millisecond)
	results := make([]relay.PushResult, len(items))
	size := 0
	for _, it := range items {
		size += 128
		for _, t := range it.Targets {
			size += len(t.Wire)
		}
	}
	c := &bareCall{record: make([]byte, 0, size), done: make(chan error, 1)}
	for i, it := range items {
		results[i] = relay.PushResult{ItemID: it.ID, Status: "rejected:bad item"}
		if len(it.Targets) != 1 || !it.Targets[0].WireOK {
			continue
		}
		t := it.Targets[0]
		if _, refusal := wire.CheckItem(it.Kind, it.ID, t.Wire, from.Key); refusal != "" {
			results[i].Status = "rejected:" + refusal
			continue
		}
		hash := wire.Hash(t.Wire)
		s.mu.Lock()
		s.seq = max(s.seq+1, now.UnixMilli())
		seq := s.seq
		s.mu.Unlock()
		c.record = binary.BigEndian.AppendUint32(c.record, uint32(32+32+8+32+len(t.Wire)))
		c.record = append(c.record, from.Key[:]...)
		c.record = append(c.record, t.Key[:]...)
		c.record = binary.BigEndian.AppendUint64(c.record, uint64(seq))
		c.record = append(c.record, hash[:]...)
		c.record = append(c.record, t.Wire...)
		results[i].Status = relay.StatusAccepted
		results[i].Targets = []wire.AcceptTarget{{HostPubkey: t.Key, Seq: seq, WireHash: hex.EncodeToString(hash[:])}}
	}
	s.calls <- c
	if err := <-c.done; err != nil {
		return nil, err
	}
	for i := range results {
		if p := &results[i]; p.Targets != nil {
			p.Accept, p.Sig = wire.SignAccept(s.key, wire.NewAccept(s.key.Public(), "bare", from.Key, p.ItemID, p.Targets, now))
		}
	}
	return results, nil
}

// ack has nothing to drop: a bare log has no queues.
func (s *bareLog) ack(context.Context, relay.Caller, string, float64) (relay.AckResult, error) {
	return relay.AckResult{}, nil
}

// bareCount counts the records of a log from an offset on.
func bareCount(dir string, from int64) (records, end int64, err error) {
	b, err := os.ReadFile(filepath.Join(dir, bareName))
	if err != nil {
		return 0, 0, err
	}
	end = int64(len(b))
	for b = b[from:]; len(b) >= 4; records++ {
		n := 4 + int(binary.BigEndian.Uint32(b))
		if n > len(b) {
			break
		}
		b = b[n:]
	}
	return records, end, nil
}
