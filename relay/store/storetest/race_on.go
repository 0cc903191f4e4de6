//go:build race

package storetest

// RaceDetector reports whether the tests run under the race detector, where a
// database in Go is ten times slower: what repeats much repeats less then.
const RaceDetector = true
