package server_test

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

// BenchmarkPush has 16 hosts push batches of 100 items of 3 KiB to hosts of
// their own, each over one connection.
func BenchmarkPush(b *testing.B) {
	r := newRig(b, noRates, limits(func(l *relay.Limits) {
		l.MaxQueueItems, l.MaxSenderItems, l.MaxQueueBytes, l.MaxSenderBytes = 1e9, 1e9, 1e12, 1e12
	}))
	const hosts, batch = 16, 100
	work := make(chan [2]*wiretest.Host, hosts)
	for range hosts {
		work <- [2]*wiretest.Host{r.enrol("from"), r.enrol("to")}
	}
	requests := make(chan *http.Request, b.N)
	for range b.N {
		pair := <-work
		work <- pair
		items := make([]any, batch)
		for i := range items {
			id, w := pair[0].Envelope(pair[1], "hello", strings.Repeat("x", 900)) // 3 KiB on the wire
			items[i] = item("envelope", id, w, pair[1])
		}
		requests <- r.request(pair[0], "POST", "/v2/relay/items", m{"items": items})
	}
	close(requests)
	b.ReportAllocs()
	done := make(chan int64)
	b.ResetTimer()
	for range hosts {
		go func() {
			var n int64
			for q := range requests {
				res, err := r.client.Do(q)
				if err != nil {
					b.Error(err)
					break
				}
				n += q.ContentLength
				var out bytes.Buffer
				io.Copy(&out, res.Body)
				res.Body.Close()
				if bytes.Count(out.Bytes(), []byte(`"status":"accepted"`)) != batch {
					b.Errorf("got %.300s", out.Bytes())
				}
			}
			done <- n
		}()
	}
	var sent int64
	for range hosts {
		sent += <-done
	}
	b.StopTimer()
	b.SetBytes(sent / int64(b.N))
	b.ReportMetric(float64(b.N*batch)/b.Elapsed().Seconds(), "items/s")
}
