//go:build !linux

package main

// scrubEnvironment has nothing to do where the environment of a process cannot
// be read in the file system.
func scrubEnvironment(string) {}
