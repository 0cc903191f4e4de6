package main

// Exit codes, the same for every command. An error that says nothing else
// about itself is codeFailed.
const (
	codeFailed    = 1
	codeUsage     = 2 // the command line, or a setting out of bounds
	codeRefused   = 3 // to protect something: a held lock, another key, a file that exists
	codeNotFound  = 4
	codeUnhealthy = 5 // the work was done, and what it looked at is not well
)

// exitCodes is how the help describes them.
const exitCodes = `Exit codes: 0 done, 1 failed, 2 usage or a setting out of bounds,
3 refused to protect something, 4 not found, 5 found unhealthy.`

// exitError is an error that knows the exit code of the process.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

func usage(err error) error     { return withCode(codeUsage, err) }
func refused(err error) error   { return withCode(codeRefused, err) }
func notFound(err error) error  { return withCode(codeNotFound, err) }
func unhealthy(err error) error { return withCode(codeUnhealthy, err) }

// withCode returns nil for nil, so that a call's error can be handed through.
func withCode(code int, err error) error {
	if err == nil {
		return nil
	}
	return &exitError{code, err}
}
