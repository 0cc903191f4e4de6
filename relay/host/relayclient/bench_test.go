package relayclient

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"testing"
)

func BenchmarkParsePage(b *testing.B) {
	for _, size := range []int{2 << 10, 16 << 10} {
		b.Run(fmt.Sprintf("500x%dKiB", size>>10), func(b *testing.B) {
			var doc bytes.Buffer
			doc.WriteString(`{"epoch":"e","head_seq":500,"items":[`)
			w := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("x"), size))
			for i := range 500 {
				if i > 0 {
					doc.WriteByte(',')
				}
				fmt.Fprintf(&doc, `{"seq":%d,"kind":"envelope","item_id":"01HZZZZZZZZZZZZZZZZZZZZZZZ","sender_pubkey":"k","wire_b64":"%s"}`, i+1, w)
			}
			doc.WriteString(`],"last_seq":500,"more":false}`)
			b.SetBytes(int64(doc.Len()))
			b.ReportAllocs()
			for b.Loop() {
				if p, err := parsePage(doc.Bytes(), 500); err != nil || len(p.Items) != 500 {
					b.Fatal(len(p.Items), err)
				}
			}
		})
	}
}

func BenchmarkPushBody(b *testing.B) {
	items := make([]Item, 200)
	for i := range items {
		items[i] = Item{Kind: "envelope", ID: "01HZZZZZZZZZZZZZZZZZZZZZZZ", Wire: bytes.Repeat([]byte("x"), 350<<10)}
	}
	b.ReportAllocs()
	for b.Loop() {
		b.SetBytes(int64(len(pushBody(items))))
	}
}
