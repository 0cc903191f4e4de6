package backup

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// BenchmarkBackupRestore restores a big backup over a big store, in a process of
// its own, and tells the most memory that took.
func BenchmarkBackupRestore(b *testing.B) {
	dir := b.TempDir()
	s, _ := bigStore(b, dir, benchMiB())
	path := filepath.Join(b.TempDir(), "big.db")
	if err := s.Copy(b.Context(), path, nil); err != nil {
		b.Fatal(err)
	}
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	st, err := os.Stat(path)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(st.Size())
	peak := 0
	for b.Loop() {
		child := exec.CommandContext(b.Context(), os.Args[0])
		child.Env = append(os.Environ(), childVar+"=restore and measure\n"+dir+"\n"+path)
		out, err := child.CombinedOutput()
		if err != nil {
			b.Fatalf("%v: %s", err, out)
		}
		if kib, err := strconv.Atoi(strings.TrimSpace(string(out))); err == nil { // elsewhere than on Linux nobody tells
			peak = max(peak, kib)
		}
	}
	b.ReportMetric(float64(peak)/1024, "peak-RSS-MiB")
}

func measuredRestore(args []string) error {
	if err := childRestores(args[0], args[1], true, false, nil); err != nil {
		return err
	}
	status, _ := os.ReadFile("/proc/self/status") // elsewhere there is none
	if m := highWater.FindSubmatch(status); m != nil {
		fmt.Printf("%s\n", m[1])
	}
	return nil
}
