package jwks

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	fetchTime     = 10 * time.Second // for all of an answer
	mostRedirects = 3
)

const (
	slow       = trouble("no answer within 10 s")
	elsewhere  = trouble("the answer is a redirect to another host or scheme")
	redirected = trouble("the answer is one redirect after another")
	untrusted  = trouble("its certificate is not trusted here")
	nameless   = trouble("its name cannot be looked up")
	brokeOff   = trouble("the answer broke off")
	noAnswer   = trouble("it cannot be reached")
)

func badStatus(status int) trouble {
	return trouble("the answer has the status " + strconv.Itoa(status))
}

func tooLarge(most int64) trouble {
	return trouble(fmt.Sprintf("the answer is over %d KiB", most>>10))
}

// checkURL refuses addresses that anybody on the way could answer for. Its error
// does not repeat the address, which may hold a password.
func checkURL(what, address string) error {
	u, err := url.Parse(address)
	if err != nil || u.Hostname() == "" || u.Opaque != "" {
		return fmt.Errorf("the URL of the %s is not one", what)
	}
	if u.User != nil || u.Fragment != "" {
		return fmt.Errorf("the URL of the %s must have no user and no fragment", what)
	}
	if u.Scheme != "https" && (u.Scheme != "http" || !loopback(u.Hostname())) {
		return fmt.Errorf("the URL of the %s must begin with https:// (http:// only on loopback)", what)
	}
	return nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}

// web fetches what the issuer publishes: bounded in size and time, and from the
// address that was set and no other.
type web struct{ client *http.Client }

func newWeb(transport http.RoundTripper) *web {
	if transport == nil {
		transport = &http.Transport{
			Proxy:                  nil, // what the environment says is for others
			DialContext:            (&net.Dialer{Timeout: fetchTime}).DialContext,
			TLSHandshakeTimeout:    fetchTime,
			TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12},
			ForceAttemptHTTP2:      true,
			DisableCompression:     true, // bounds are of what crosses the network
			MaxIdleConnsPerHost:    2,
			IdleConnTimeout:        90 * time.Second,
			MaxResponseHeaderBytes: 64 << 10,
		}
	}
	return &web{&http.Client{Transport: transport, CheckRedirect: sameOrigin}}
}

func sameOrigin(to *http.Request, via []*http.Request) error {
	first := via[0].URL
	if to.URL.Scheme != first.Scheme || !strings.EqualFold(to.URL.Host, first.Host) || to.URL.User != nil {
		return elsewhere
	}
	if len(via) > mostRedirects {
		return redirected
	}
	return nil
}

// answer is what an address answered.
type answer struct {
	status int
	etag   string
	body   []byte // of a 200
}

// get fetches an address. Its errors are troubles, or that of a ctx that was
// cancelled.
func (w *web) get(ctx context.Context, address, etag string, most int64) (answer, error) {
	within, cancel := context.WithTimeout(ctx, fetchTime)
	defer cancel()
	got, err := w.try(within, address, etag, most)
	if err != nil && errors.Is(ctx.Err(), context.Canceled) {
		return answer{}, ctx.Err()
	}
	if err != nil {
		return answer{}, troubleOf(err)
	}
	return got, nil
}

func (w *web) try(ctx context.Context, address, etag string, most int64) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("User-Agent", "agentmbx-relay")
	if etag != "" {
		req.Header.Set("If-None-Match", etag)
	}
	res, err := w.client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	got := answer{status: res.StatusCode, etag: res.Header.Get("ETag")}
	if got.status != http.StatusOK {
		return got, nil
	}
	if got.body, err = io.ReadAll(io.LimitReader(res.Body, most+1)); err != nil {
		return answer{}, err
	}
	if int64(len(got.body)) > most {
		return answer{}, tooLarge(most)
	}
	return got, nil
}

// troubleOf puts an error of the network into words that are the same each time:
// its own text has ports in it, and the address.
func troubleOf(err error) trouble {
	var known trouble
	var dns *net.DNSError
	var certificate *tls.CertificateVerificationError
	var errno syscall.Errno
	var network net.Error
	switch {
	case errors.As(err, &known):
		return known
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return slow
	case errors.As(err, &dns):
		return nameless
	case errors.As(err, &certificate):
		return untrusted
	case errors.As(err, &errno):
		return noAnswer + trouble(": "+errno.Error())
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return brokeOff
	}
	return noAnswer
}
