package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/wire"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

var build struct {
	once sync.Once
	path string
	err  error
}

// binary is the real program, built once for all tests of a run. The race detector
// does not see into it, and makes its tests slow: they run without.
func binary(t *testing.T) string {
	t.Helper()
	if raceDetector {
		t.Skip("runs the real program, which the race detector does not see: it runs without")
	}
	build.once.Do(func() {
		dir, err := os.MkdirTemp("", "agentmbx-test-")
		if err != nil {
			build.err = err
			return
		}
		build.path = filepath.Join(dir, "agentmbx")
		cmd := exec.Command("go", "build", "-buildvcs=false", "-o", build.path, ".")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			build.err = fmt.Errorf("go build: %w\n%s", err, out)
		}
	})
	if build.err != nil {
		t.Fatal(build.err)
	}
	return build.path
}

// process is a running `relay serve`.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	url    string
	epoch  string
	says   string // at its start
	stderr *lockedBuffer
	done   chan struct{} // closed when it has ended
	err    error         // of the end
}

// lockedBuffer takes what a process says while a test reads it.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

var lifted = []string{"MBX_RELAY_LIMIT_PUSHES_PER_MINUTE=1000000", "MBX_RELAY_LIMIT_ENROL_PER_MINUTE=1000000"}

// start runs the program on a store. It does not wait for it to serve.
func start(t *testing.T, dir string, env ...string) (*process, io.Reader) {
	t.Helper()
	p := &process{t: t, stderr: &lockedBuffer{}, done: make(chan struct{})}
	p.cmd = exec.Command(binary(t), "relay", "serve", "--store-dir", dir, "--port", "0")
	p.cmd.Env = append(append(os.Environ(), lifted...), env...)
	p.cmd.Stderr = p.stderr
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	return p, stdout
}

// serve runs the program on a store and waits until it says where it listens.
func serve(t *testing.T, dir string, env ...string) *process {
	t.Helper()
	p, stdout := start(t, dir, env...)
	p.awaitServing(stdout)
	return p
}

var said = regexp.MustCompile(`(?s)listening on (http://\S+).*epoch\s+(\S+).*relay key`)

func (p *process) awaitServing(stdout io.Reader) {
	p.t.Helper()
	serving := make(chan string, 1)
	go func() {
		var seen strings.Builder
		sc := bufio.NewScanner(stdout)
		for sc.Scan() {
			seen.WriteString(sc.Text() + "\n")
			if said.MatchString(seen.String()) {
				serving <- seen.String()
				break
			}
		}
		p.drain(stdout)
	}()
	select {
	case s := <-serving:
		m := said.FindStringSubmatch(s)
		p.url, p.epoch, p.says = m[1], m[2], s
	case <-p.done:
		p.t.Fatalf("serve ended: %v\n%s", p.err, p.stderr)
	case <-time.After(90 * time.Second):
		p.t.Fatalf("serve did not start\n%s", p.stderr)
	}
}

// drain reads what is left of stdout and notes the end of the process.
func (p *process) drain(stdout io.Reader) {
	_, _ = io.Copy(io.Discard, stdout)
	p.err = p.cmd.Wait()
	close(p.done)
}

// kill ends the process as a crash does.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	select {
	case <-p.done:
	case <-time.After(10 * time.Second):
	}
}

// wait waits for the process to end by itself and answers its exit code.
func (p *process) wait() int {
	p.t.Helper()
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(20 * time.Second):
		p.t.Fatalf("the process does not end\n%s", p.stderr)
		return 0
	}
}

// client speaks to a relay as a host does.
type client struct {
	*wiretest.Host
	http *http.Client
}

func newClient(name string) *client {
	return &client{wiretest.NewHost(name), &http.Client{Timeout: 40 * time.Second, Transport: &http.Transport{}}}
}

// call sends a signed request. An error means that there was no whole answer.
func (c *client) call(base, method, path string, in, out any) (int, error) {
	var body []byte
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return 0, err
		}
	}
	req, err := http.NewRequest(method, base+path, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	ts, sig := wire.SignHop(c.Key, method, path, body, time.Now())
	for k, v := range map[string]string{wire.HeaderHost: c.Name, wire.HeaderKey: c.Pub().String(), wire.HeaderTS: ts, wire.HeaderSig: sig} {
		req.Header.Set(k, v)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	if out != nil {
		if err := json.Unmarshal(b, out); err != nil {
			return 0, fmt.Errorf("status %d, %q: %w", resp.StatusCode, b, err)
		}
	}
	return resp.StatusCode, nil
}

func (c *client) enrol(t *testing.T, base string) {
	t.Helper()
	if err := c.enrolAt(base); err != nil {
		t.Fatal(err)
	}
}

func (c *client) enrolAt(base string) error {
	var ch struct{ Challenge string }
	if code, err := c.call(base, "POST", "/v1/relay/challenge", map[string]any{"host": c.Name, "pubkey": c.Pub()}, &ch); err != nil || code != 200 {
		return fmt.Errorf("challenge: got %d, %v; want 200", code, err)
	}
	sig := c.Key.Sign(wire.EnrolPayload(ch.Challenge, c.Name, c.Pub(), ""))
	in := map[string]any{"host": c.Name, "pubkey": c.Pub(), "owner_fp": "", "sig": sig}
	if code, err := c.call(base, "POST", "/v1/relay/enrol", in, nil); err != nil || code != 200 {
		return fmt.Errorf("enrol: got %d, %v; want 200", code, err)
	}
	return nil
}

type pushTarget struct {
	Host string `json:"host_pubkey"`
	Wire string `json:"wire_b64"`
}

type pushItem struct {
	Kind    string       `json:"kind"`
	ID      string       `json:"item_id"`
	Targets []pushTarget `json:"targets"`
}

func (c *client) item(to *client) pushItem {
	id, w := c.Envelope(to.Host, "subject", "body")
	return pushItem{"envelope", id, []pushTarget{{to.Pub().String(), wire.EncodeBase64(w)}}}
}

type pushResult struct {
	ItemID  string `json:"item_id"`
	Status  string `json:"status"`
	Targets []struct {
		Host string `json:"host_pubkey"`
		Seq  int64  `json:"seq"`
	} `json:"targets"`
	Accept json.RawMessage `json:"accept"`
	Sig    string          `json:"sig"`
}

// push answers the results, each accept verified against the relay's key.
func (c *client) push(base string, relay wire.PublicKey, items ...pushItem) ([]pushResult, error) {
	var out struct{ Results []pushResult }
	code, err := c.call(base, "POST", "/v2/relay/items", map[string]any{"items": items}, &out)
	if err != nil {
		return nil, err
	}
	if code != 200 || len(out.Results) != len(items) {
		return nil, fmt.Errorf("push: status %d, %d results for %d items", code, len(out.Results), len(items))
	}
	for _, r := range out.Results {
		if strings.HasPrefix(r.Status, "rejected:") {
			continue
		}
		if _, err := wire.VerifyAccept(r.Accept, r.Sig, relay); err != nil {
			return nil, fmt.Errorf("accept of %s: %w", r.ItemID, err)
		}
	}
	return out.Results, nil
}

type pulledItem struct {
	Seq    int64  `json:"seq"`
	ID     string `json:"item_id"`
	Sender string `json:"sender_pubkey"`
	Wire   string `json:"wire_b64"`
}

type page struct {
	Epoch   string       `json:"epoch"`
	Head    int64        `json:"head_seq"`
	Items   []pulledItem `json:"items"`
	LastSeq int64        `json:"last_seq"`
	More    bool         `json:"more"`
}

func (c *client) pull(base string, after int64, query string) (p page, code int, err error) {
	code, err = c.call(base, "GET", fmt.Sprintf("/v2/relay/items?after=%d%s", after, query), nil, &p)
	return p, code, err
}

func (c *client) ack(base, epoch string, through int64) error {
	code, err := c.call(base, "POST", "/v2/relay/ack", map[string]any{"epoch": epoch, "through": through}, nil)
	if err == nil && code != 200 {
		err = fmt.Errorf("ack: status %d", code)
	}
	return err
}

// relayKey asks the relay for its key.
func relayKey(t *testing.T, base string) wire.PublicKey {
	t.Helper()
	resp, err := http.Get(base + "/v2/relay/info")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var in struct {
		Key wire.PublicKey `json:"relay_pubkey"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&in); err != nil {
		t.Fatal(err)
	}
	return in.Key
}
