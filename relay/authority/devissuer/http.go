package devissuer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"

	"github.com/agentmbx/agentmbx/relay/wire"
)

const maxBody = 16 << 10

// problem is a refusal in the shape of RFC 6749 §5.2.
type problem struct {
	status int
	Code   string `json:"error"`
	Text   string `json:"error_description,omitempty"`
}

func (p *problem) Error() string { return p.Code + ": " + p.Text }

// The codes of refusals: those of RFC 6749, 6750, 8628 and 8707.
const (
	codeRequest     = "invalid_request"
	codeClient      = "invalid_client"
	codeGrant       = "invalid_grant"
	codeGrantType   = "unsupported_grant_type"
	codeTarget      = "invalid_target"
	codeToken       = "invalid_token"
	codePending     = "authorization_pending"
	codeSlowDown    = "slow_down"
	codeDenied      = "access_denied"
	codeExpired     = "expired_token"
	codeUnavailable = "temporarily_unavailable"
	codeServer      = "server_error"
)

func refuse(status int, code, format string, a ...any) error {
	return &problem{status, code, fmt.Sprintf(format, a...)}
}

func badRequest(format string, a ...any) error {
	return refuse(http.StatusBadRequest, codeRequest, format, a...)
}

// call answers a request with something that becomes JSON.
type call func(r *request) (any, error)

// request is a request whose body was read.
type request struct {
	*http.Request
	body []byte
}

func (i *Issuer) routes() *http.ServeMux {
	mux := http.NewServeMux()
	for pattern, f := range map[string]call{
		"POST /device/code":                  i.deviceCode,
		"POST /device/token":                 i.deviceToken,
		"POST /v1/host/enrolments/challenge": i.challenge,
		"POST /v1/host/enrolments":           i.enrol,
		"POST /revoke-session":               i.revokeSession,
		"POST /token":                        i.token,
		"GET /healthz":                       func(*request) (any, error) { return map[string]bool{"ok": true}, nil },
	} {
		mux.HandleFunc(pattern, i.answer(f))
	}
	mux.HandleFunc("GET /.well-known/jwks.json", i.serveKeySet)
	mux.HandleFunc("GET /deny.jwt", i.serveDenials)
	mux.HandleFunc("GET /device", i.servePage)
	return mux
}

// ServeHTTP answers the issuer's endpoints.
func (i *Issuer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	within := i.calls.Allow(address(r), i.o.Now())
	i.mu.Unlock()
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if !within {
		w.Header().Set("Retry-After", "60")
		reply(w, nil, refuse(http.StatusTooManyRequests, codeUnavailable, "more than %d calls a minute: try again in a minute", callsPerMinute))
		return
	}
	i.mux.ServeHTTP(w, r)
}

// address is what rates are counted by.
func address(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}

func (i *Issuer) answer(f call) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		var large *http.MaxBytesError
		switch {
		case errors.As(err, &large):
			reply(w, nil, refuse(http.StatusRequestEntityTooLarge, codeRequest, "a body of more than %d bytes", maxBody))
			return
		case err != nil:
			reply(w, nil, badRequest("the body did not come whole"))
			return
		}
		v, err := f(&request{r, body})
		var p *problem
		if err != nil && !errors.As(err, &p) {
			i.o.Log.Error("a call failed", "path", r.URL.Path, "err", err)
			err = refuse(http.StatusInternalServerError, codeServer, "the issuer failed inside: see its log")
		}
		reply(w, v, err)
	}
}

// reply writes an answer, or a *problem.
func reply(w http.ResponseWriter, v any, err error) {
	status := http.StatusOK
	var p *problem
	if errors.As(err, &p) {
		v, status = p, p.status
		if p.Code == codeToken {
			w.Header().Set("WWW-Authenticate", `Bearer error="invalid_token"`)
		}
	}
	doc, err := json.Marshal(v)
	if err != nil {
		doc, status = []byte(`{"error":"server_error"}`), http.StatusInternalServerError
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(append(doc, '\n')) // the caller has gone: nobody is left to tell
}

// json reads a body of JSON.
func (r *request) json(to any) error {
	if err := wire.Decode(r.body, to); err != nil {
		return badRequest("want one JSON object with texts where texts belong")
	}
	return nil
}

// form reads a body of form values. One that stands there twice is refused, as RFC
// 6749 §3.2 has it.
func (r *request) form() (map[string]string, error) {
	v, err := url.ParseQuery(string(r.body))
	if err != nil {
		return nil, badRequest("the body is no form")
	}
	form := map[string]string{}
	for name, values := range v {
		if len(values) != 1 {
			return nil, badRequest("%.40q stands there twice", name)
		}
		form[name] = values[0]
	}
	return form, nil
}

// values reads a body that is a form, or JSON with texts.
func (r *request) values() (map[string]string, error) {
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if kind == "application/json" {
		v := map[string]string{}
		return v, r.json(&v)
	}
	return r.form()
}

func (i *Issuer) serveKeySet(w http.ResponseWriter, _ *http.Request) {
	doc, err := i.keySet()
	if err != nil {
		i.o.Log.Error("the key set can't be written", "err", err)
		reply(w, nil, refuse(http.StatusInternalServerError, codeServer, "the issuer failed inside: see its log"))
		return
	}
	w.Header().Set("Content-Type", "application/jwk-set+json")
	w.Header().Set("Cache-Control", "no-cache")
	_, _ = w.Write(doc)
}
