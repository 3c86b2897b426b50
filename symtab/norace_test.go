//go:build !race

package symtab

const raceDetector = false
