// Package noquery keeps lipgloss from asking the terminal for the colour of its
// background. bubbletea has it asked as soon as a program starts that is linked
// with it, whatever that program was started for; an answer that comes late is
// taken for keys, or stands in the operator's shell.
//
// It must be initialised before bubbletea. Go initialises packages in the order of
// their import paths as far as their imports allow, so its place is before
// github.com/charmbracelet; the tests of cmd/agentmbx see that nothing is asked.
package noquery

import "github.com/charmbracelet/lipgloss"

func init() { lipgloss.SetHasDarkBackground(true) }
