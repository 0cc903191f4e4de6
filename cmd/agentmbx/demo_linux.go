package main

import (
	"os/exec"
	"syscall"
)

// tie makes a child end when this process does, even by SIGKILL. In a group of
// its own it does not see the terminal's ctrl-c: the demo ends it, in order.
func tie(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}
