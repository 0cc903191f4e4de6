package main

import (
	"os"
)

// takeSecret reads a secret from the environment and removes it there, so that
// neither a child process nor who looks at this one finds it.
func takeSecret(name string) string {
	v := os.Getenv(name)
	if v != "" {
		_ = os.Unsetenv(name) // fails only for a malformed name
		scrubEnvironment(name)
	}
	return v
}
