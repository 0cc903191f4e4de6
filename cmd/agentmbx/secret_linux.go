package main

import (
	"bytes"
	"os"
	"strconv"
	"strings"
)

// scrubEnvironment overwrites a variable in the memory that the kernel shows
// as /proc/PID/environ: unsetting it changes only the runtime's own copy. It
// does what it can; without /proc there is nothing to hide from.
func scrubEnvironment(name string) {
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return
	}
	// After the command's closing bracket the fields are numbered from 3;
	// env_start and env_end are 50 and 51.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 49 {
		return
	}
	start, err1 := strconv.ParseInt(fields[47], 10, 64)
	end, err2 := strconv.ParseInt(fields[48], 10, 64)
	if err1 != nil || err2 != nil || start <= 0 || end <= start || end-start > 16<<20 {
		return
	}
	mem, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	if err != nil {
		return
	}
	defer mem.Close()
	block := make([]byte, end-start)
	if _, err := mem.ReadAt(block, start); err != nil {
		return
	}
	at := int64(0)
	for _, v := range bytes.SplitAfter(block, []byte{0}) {
		if key := name + "="; bytes.HasPrefix(v, []byte(key)) {
			blank := make([]byte, len(bytes.TrimSuffix(v, []byte{0}))-len(key))
			_, _ = mem.WriteAt(blank, start+at+int64(len(key)))
		}
		at += int64(len(v))
	}
}
