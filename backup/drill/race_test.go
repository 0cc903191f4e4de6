//go:build race

package drill

const raceDetector = true
