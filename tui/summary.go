package tui

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path"
	"strconv"
	"strings"
)

// summaryMost is how much of a receipt is read for one line of a list.
const summaryMost = 4 << 10

// told says what of a receipt's top is not told in its one line: the line has it
// elsewhere, or nobody looks for it there.
var told = map[string]bool{"v": true, "type": true, "at": true, "actor": true, "asked_by": true, "reason": true}

// summary is a receipt in one line: who did it, and why and to what.
func summary(raw json.RawMessage) (by, text string) {
	if len(raw) > summaryMost {
		return "", string(raw[:summaryMost])
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return "", string(raw)
	}
	reason := ""
	var parts []string
	for d.More() {
		name, err := d.Token()
		var v json.RawMessage
		if err == nil {
			err = d.Decode(&v)
		}
		if err != nil {
			return by, string(raw)
		}
		var s string
		switch isText := json.Unmarshal(v, &s) == nil; {
		case isText && (name == "actor" || name == "asked_by"):
			by = s
		case isText && name == "reason":
			reason = s
		case !told[fmt.Sprint(name)]:
			if p := summaryPart(fmt.Sprint(name), v, s, isText); !strings.Contains(strings.Join(parts, " "), p) { // a host stands in more than one object
				parts = append(parts, p)
			}
		}
	}
	return by, strings.Join(nonEmpty(append([]string{reason}, parts...)...), " · ")
}

// summaryPart is what one line says of a part of a receipt, "" when that is nothing.
func summaryPart(name string, v json.RawMessage, s string, isText bool) string {
	switch {
	case isText && s == "", string(v) == "null":
		return ""
	case isText && name == "file":
		return path.Base(s)
	case isText:
		return name + "=" + s
	case len(v) > 0 && v[0] == '[':
		var list []json.RawMessage
		_ = json.Unmarshal(v, &list) // it was decoded just now
		return fmt.Sprintf("%s: %d", name, len(list))
	case len(v) > 0 && v[0] == '{':
		if who := whoIn(v); who != "" {
			return who
		}
		return sumOf(name, v)
	}
	return fmt.Sprintf("%s=%s", name, v)
}

// sumOf is what the numbers of an object add up to, "" for nothing.
func sumOf(name string, v json.RawMessage) string {
	var fields map[string]json.RawMessage
	_ = json.Unmarshal(v, &fields) // it was decoded just now
	if _, is := fields["id"]; is { // a thing, no counts
		return ""
	}
	sum := int64(0)
	for _, f := range fields {
		if n, err := strconv.ParseInt(string(f), 10, 64); err == nil {
			sum += n
		}
	}
	if sum == 0 {
		return ""
	}
	return name + ": " + count(sum)
}

// whoIn is the host, the client or the file that an object of a receipt names.
func whoIn(v json.RawMessage) string {
	var who struct {
		Name        string `json:"name"`
		Fingerprint string `json:"fingerprint"`
		HostFP      string `json:"host_fp"`
		ClientID    string `json:"client_id"`
		File        string `json:"file"`
	}
	_ = json.Unmarshal(v, &who) // an object without any of them names nobody
	return strings.Join(nonEmpty(who.Name, who.Fingerprint, who.HostFP, who.ClientID, strings.TrimPrefix(path.Base(who.File), ".")), " ")
}
