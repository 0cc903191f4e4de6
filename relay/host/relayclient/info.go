package relayclient

import (
	"context"
	"math"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// Info asks the relay who it is, and who caller is to it unless that is nil. A
// relay that does not know the caller answers all the same, with no You; one
// whose You is another key is ErrBadAnswer.
func (c *Client) Info(ctx context.Context, caller *Caller) (Info, error) {
	q := call{what: "relay info", method: "GET", target: "/v2/relay/info", caller: caller, bound: smallAnswer}
	body, err := c.do(ctx, q)
	if err != nil {
		return Info{}, err
	}
	in, err := parseInfo(body, caller)
	return in, q.named(err)
}

type youAnswer struct {
	Host         *string        `json:"host"`
	Pubkey       *string        `json:"pubkey"`
	HeadSeq      *int64         `json:"head_seq"`
	AckedThrough *int64         `json:"acked_through"`
	EncAd        jsontext.Value `json:"enc_ad"`
}

func parseInfo(body []byte, caller *Caller) (Info, error) {
	var a struct {
		V       *int64                    `json:"v"`
		Pubkey  *string                   `json:"relay_pubkey"`
		Epoch   *string                   `json:"epoch"`
		Version *string                   `json:"version"`
		Limits  map[string]jsontext.Value `json:"limits"`
		You     *youAnswer                `json:"you"`
	}
	if err := decode(body, &a); err != nil {
		return Info{}, err
	}
	if a.V == nil || *a.V != 2 || a.Pubkey == nil || !label(a.Epoch) || a.Version == nil || a.Limits == nil {
		return Info{}, errMembers
	}
	key, err := wire.ParsePublicKey(*a.Pubkey)
	if err != nil {
		return Info{}, bad("relay_pubkey is not a key")
	}
	in := Info{RelayKey: key, Epoch: *a.Epoch, Version: printable(*a.Version), Limits: parseLimits(a.Limits)}
	if a.You == nil {
		return in, nil
	}
	if caller == nil {
		return Info{}, bad("it knows a caller who did not sign")
	}
	if in.You, err = a.You.parse(); err != nil {
		return Info{}, err
	}
	if in.You.Key != caller.Key.Public() {
		return Info{}, bad("it takes the caller for another")
	}
	return in, nil
}

func (y *youAnswer) parse() (*You, error) {
	if y.Host == nil || !wire.ValidHostName(*y.Host) || y.Pubkey == nil || !counts(y.HeadSeq, y.AckedThrough) || y.EncAd == nil {
		return nil, errMembers
	}
	key, err := wire.ParsePublicKey(*y.Pubkey)
	if err != nil {
		return nil, bad("pubkey is not a key")
	}
	ad, err := parseYouAd(y.EncAd)
	return &You{Host: *y.Host, Key: key, HeadSeq: *y.HeadSeq, AckedThrough: *y.AckedThrough, Ad: ad}, err
}

func parseYouAd(v jsontext.Value) (*YouAd, error) {
	var a *struct {
		EncPub *string `json:"enc_pub"`
		Exp    *string `json:"exp"`
		V1     *string `json:"v1"`
	}
	if err := decode(v, &a); err != nil || a == nil {
		return nil, err
	}
	for _, key := range []*string{a.EncPub, a.V1} {
		if key == nil {
			continue
		}
		if _, err := wire.ParseEncPublicKey(*key); err != nil {
			return nil, bad("enc_ad holds what is not a key")
		}
	}
	var exp time.Time
	if a.EncPub != nil {
		if a.Exp == nil {
			return nil, errMembers
		}
		var err error
		if exp, err = wire.ParseTime(*a.Exp); err != nil {
			return nil, bad("enc_ad expires at no time")
		}
	}
	return &YouAd{EncPub: orNone(a.EncPub), Exp: exp, V1: orNone(a.V1)}, nil
}

// parseLimits reads what a host acts on. A relay's settings are its own, but
// none may make a host wait for ever, divide by nothing or hold a huge batch.
func parseLimits(m map[string]jsontext.Value) Limits {
	at := func(name string, least, most, def int64) int64 {
		n, ok := integer(m[name])
		if !ok || n < least {
			return def
		}
		return min(n, most)
	}
	l := Limits{
		MaxItemBytes:  at("max_item_bytes", 1, maxItem, 512<<10),
		MaxBatch:      int(at("max_batch", 1, maxBatch, 200)),
		MaxPull:       int(at("max_pull", 1, maxPull, 500)),
		MaxPullBytes:  at("max_pull_bytes", 1, 64<<20, 8<<20),
		MaxTargets:    int(at("max_targets", 1, 1024, 64)),
		RetentionDays: int(max(0, at("retention_days", -maxInteger, math.MaxInt32, 14))),
		MaxWaitS:      int(at("max_wait_s", 0, int64(maxWait/time.Second), 0)),
	}
	// Where a relay serves larger pages than are read here, ask for fewer items
	// at once: then no page can be over the bound.
	const most = pageAnswer / 4 * 3
	if l.MaxPullBytes+l.MaxItemBytes > most {
		l.MaxPull = int(min(int64(l.MaxPull), most/l.MaxItemBytes))
	}
	return l
}
