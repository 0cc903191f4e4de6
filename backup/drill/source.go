package drill

// What a drill was of.
const (
	FromFile   = "a file that was named"
	FromBackup = "the newest verified backup"
	FromNone   = "a fresh copy: there is no backup yet"
	FromFresh  = "a fresh copy: the backups are encrypted and no identity opens them here"
)

// FirstFault is the first check that failed, in words; "" when none did.
func (r Receipt) FirstFault() string {
	for _, c := range r.Checks {
		if !c.OK {
			return c.Name + ": " + c.Text
		}
	}
	return ""
}
