package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// disk is the file system that a folder stands on.
type disk struct {
	device, fs, mount string
	memory            bool // writes to it are not durable and cost nothing
}

func (d disk) String() string { return fmt.Sprintf("%s (%s on %s)", d.fs, d.device, d.mount) }

// diskOf finds the mount that a folder is under.
func diskOf(dir string) (disk, error) {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return disk{}, err
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return disk{device: "unknown device", fs: "unknown file system", mount: dir}, nil // not Linux
	}
	var d disk
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line)
		if len(f) < 3 {
			continue
		}
		mount := strings.ReplaceAll(f[1], `\040`, " ")
		rest, under := strings.CutPrefix(dir, strings.TrimSuffix(mount, "/"))
		if under && (rest == "" || rest[0] == '/') && len(mount) >= len(d.mount) { // the later of two on one place counts
			d = disk{device: f[0], fs: f[2], mount: mount}
		}
	}
	d.memory = d.fs == "tmpfs" || d.fs == "ramfs"
	return d, nil
}

// machine names what the numbers were taken on.
func machine(d disk) string {
	cpu := "unknown processor"
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(info)) {
			if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
				cpu = strings.TrimSpace(v)
				break
			}
		}
	}
	return fmt.Sprintf("%d cores (%s), %s, %s/%s, %s", runtime.NumCPU(), cpu, runtime.Version(), runtime.GOOS, runtime.GOARCH, d)
}

// raiseFiles lets this process and its children hold thousands of connections.
func raiseFiles() error {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return err
	}
	l.Cur = l.Max
	return syscall.Setrlimit(syscall.RLIMIT_NOFILE, &l)
}

// memoryOf is what a process holds in memory now, and held at most, in bytes.
func memoryOf(pid int) (now, most int64, err error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(status)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		n, _ := strconv.ParseInt(f[1], 10, 64)
		switch f[0] {
		case "VmRSS:":
			now = n << 10
		case "VmHWM:":
			most = n << 10
		}
	}
	return now, most, nil
}

// clockTick is the unit of times in /proc: a hundredth of a second on every
// Linux that Go runs on.
const clockTick = 10 * time.Millisecond

// cpuOf is the processor time that a process has used.
func cpuOf(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:])) // from field 3 on
	if len(f) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat is too short", pid)
	}
	user, err := strconv.ParseInt(f[11], 10, 64)
	if err != nil {
		return 0, err
	}
	system, err := strconv.ParseInt(f[12], 10, 64)
	return time.Duration(user+system) * clockTick, err
}
