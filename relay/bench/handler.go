package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// handler is as much of the relay's HTTP surface as the load needs, for the
// relays that the bench runs itself as.
type handler struct {
	key   wire.PublicKey
	epoch string
	hosts interface {
		Candidates(ctx context.Context, h relay.Hop) ([]relay.Candidate, error)
		Verify(candidates []relay.Candidate, h relay.Hop, method, path string, body []byte) (relay.Caller, error)
	}
	take func(context.Context, relay.Caller, []wire.PushItem) ([]relay.PushResult, error)
	ack  func(ctx context.Context, who relay.Caller, epoch string, through float64) (relay.AckResult, error)
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/v2/relay/info" {
		send(w, http.StatusOK, []byte(`{"relay_pubkey":"`+h.key.String()+`","epoch":"`+h.epoch+`"}`))
		return
	}
	hop := relay.Hop{
		Host: r.Header.Get(wire.HeaderHost), Key: r.Header.Get(wire.HeaderKey), TS: r.Header.Get(wire.HeaderTS), Sig: r.Header.Get(wire.HeaderSig),
	}
	candidates, err := h.hosts.Candidates(r.Context(), hop)
	if err != nil {
		refuse(w, err)
		return
	}
	const most = 8 << 20
	if r.ContentLength < 0 || r.ContentLength > most {
		send(w, http.StatusRequestEntityTooLarge, []byte(`{"error":"too large"}`))
		return
	}
	body := make([]byte, r.ContentLength)
	if _, err := io.ReadFull(r.Body, body); err != nil {
		refuse(w, err)
		return
	}
	who, err := h.hosts.Verify(candidates, hop, r.Method, r.URL.RequestURI(), body)
	if err != nil {
		refuse(w, err)
		return
	}
	switch r.URL.Path {
	case "/v2/relay/items":
		items, err := wire.ParsePush(body, 200, 64)
		if err != nil {
			refuse(w, err)
			return
		}
		results, err := h.take(r.Context(), who, items)
		if err != nil {
			refuse(w, err)
			return
		}
		send(w, http.StatusOK, appendResults(nil, results))
	case "/v2/relay/ack":
		var q struct {
			Epoch   string  `json:"epoch"`
			Through float64 `json:"through"`
		}
		if err := json.Unmarshal(body, &q); err != nil {
			refuse(w, err)
			return
		}
		a, err := h.ack(r.Context(), who, q.Epoch, q.Through)
		if err != nil {
			refuse(w, err)
			return
		}
		answer, _ := json.Marshal(map[string]int64{"acked_through": a.AckedThrough, "deleted": a.Deleted, "head_seq": a.HeadSeq})
		send(w, http.StatusOK, answer)
	default:
		send(w, http.StatusNotFound, []byte(`{"error":"not found"}`))
	}
}

func send(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that went away
}

func refuse(w http.ResponseWriter, err error) {
	status := http.StatusInternalServerError
	var e *relay.Error
	if errors.As(err, &e) {
		status = http.StatusBadRequest
	}
	body, _ := json.Marshal(map[string]string{"error": err.Error()})
	send(w, status, body)
}

func appendResults(b []byte, results []relay.PushResult) []byte {
	b = append(b, `{"results":[`...)
	for i, p := range results {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"item_id":`...)
		b = wire.AppendString(b, p.ItemID)
		b = append(b, `,"status":`...)
		b = wire.AppendString(b, p.Status)
		b = append(b, `,"targets":[`...)
		for j, t := range p.Targets {
			if j > 0 {
				b = append(b, ',')
			}
			b = append(b, `{"host_pubkey":"`...)
			b = append(b, t.HostPubkey.String()...)
			b = append(b, `","seq":`...)
			b = strconv.AppendInt(b, t.Seq, 10)
			b = append(b, '}')
		}
		b = append(b, ']')
		if p.Accept != nil {
			b = append(b, `,"accept":`...)
			b = append(b, p.Accept...)
			b = append(b, `,"sig":"`...)
			b = append(b, p.Sig...)
			b = append(b, '"')
		}
		b = append(b, '}')
	}
	return append(b, `]}`...)
}
