// Package backup makes, checks, keeps and restores copies of a relay's store.
//
// A backup is one file that needs nothing beside it, mode 0600 in a folder of
// mode 0700, with its receipt beside it as JSON. It counts only once it was
// verified. Nothing here touches a live database but through the store itself.
package backup

import (
	"errors"
)

// Errors a caller may test for.
var (
	// ErrBad: a file is not a backup that could be restored; the report says why.
	ErrBad = errors.New("not a good backup")
	// ErrExists: a file stands where one would be written.
	ErrExists = errors.New("the file exists")
	// ErrNoRoom: there is not enough room, and nothing was begun.
	ErrNoRoom = errors.New("not enough room")
	// ErrEncrypted: the file is encrypted and no identity opens it.
	ErrEncrypted = errors.New("the backup is encrypted: give the age identity that opens it")
	// ErrRefused: the request was refused to protect something.
	ErrRefused = errors.New("refused")
)
