//go:build race

package symtab

const raceDetector = true
