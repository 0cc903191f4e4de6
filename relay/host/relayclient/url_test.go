package relayclient_test

import (
	"strings"
	"testing"

	"github.com/agentmbx/agentmbx/relay/host/relayclient"
)

func TestParseURL(t *testing.T) {
	for _, tc := range []struct{ in, want, err string }{
		{"https://relay.example.com", "https://relay.example.com", ""},
		{"https://relay.example.com/", "https://relay.example.com", ""},
		{"HTTP://127.0.0.1:7374/", "http://127.0.0.1:7374", ""},
		{"http://[::1]:7374", "http://[::1]:7374", ""},
		{"http://[fe80::1%25en0]:80/", "http://[fe80::1%25en0]:80", ""},
		{"http://my_relay:1", "http://my_relay:1", ""},
		{"", "", "want https"},
		{"relay.example.com", "", "want https"},
		{"relay.example.com:7374", "", "want https"},
		{"//relay.example.com", "", "want https"},
		{"ftp://relay.example.com", "", "want https"},
		{"http:relay.example.com", "", "want https"},
		{"http:///v2", "", "want https"},
		{"http://:7374", "", "want https"},
		{"http://relay:", "", "want https"},
		{"http://relay:0", "", "want https"},
		{"http://relay:65536", "", "want https"},
		{"http://relay:x", "", "want https"},
		{"http://re lay", "", "want https"},
		{"http://re\"lay", "", "want https"},
		{"http://r\u00e9lay", "", "want https"},
		{"http://[::1", "", "want https"},
		{" http://relay", "", "want https"},
		{"http://relay\n", "", "want https"},
		{"http://" + strings.Repeat("a", 254), "", "want https"},
		{"https://me:hunter2@relay", "", "user name"},
		{"https://me@relay/x?y#z", "", "user name"},
		{"https://@relay", "", "user name"},
		{"https://relay?hunter2=1", "", "query"},
		{"https://relay/?", "", "query"},
		{"https://relay/#hunter2", "", "query"},
		{"https://relay#", "", "query"},
		{"https://relay/hunter2", "", "path"},
		{"https://relay//", "", "path"},
		{"https://relay/%2f", "", "path"},
	} {
		got, err := relayclient.ParseURL(tc.in)
		_, errNew := relayclient.New(tc.in, relayclient.Options{})
		switch {
		case tc.err == "":
			if err != nil || errNew != nil || got != tc.want {
				t.Errorf("%q: got %q, %v, %v; want %q", tc.in, got, err, errNew, tc.want)
			}
		case err == nil || errNew == nil || got != "" || !strings.Contains(err.Error(), tc.err):
			t.Errorf("%q: got %q, %v, %v; want an error with %q", tc.in, got, err, errNew, tc.err)
		case strings.Contains(err.Error(), "hunter2"):
			t.Errorf("%q: the error repeats it: %v", tc.in, err)
		}
	}
}
