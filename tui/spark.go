package tui

import "strings"

const sparks = "▁▂▃▄▅▆▇█"

// spark draws the last w of values as columns, the highest as high as it goes. A
// value above zero always shows.
func spark(values []int64, w int) string {
	if w <= 0 {
		return ""
	}
	if len(values) > w {
		values = values[len(values)-w:]
	}
	top := int64(0)
	for _, v := range values {
		top = max(top, v)
	}
	steps := []rune(sparks)
	var b strings.Builder
	b.WriteString(strings.Repeat(" ", w-len(values)))
	for _, v := range values {
		if v <= 0 {
			b.WriteRune(steps[0])
			continue
		}
		at := 1 + int(float64(v)/float64(top)*float64(len(steps)-2)+0.5)
		b.WriteRune(steps[min(at, len(steps)-1)])
	}
	return b.String()
}
