package admin

// Access says what a call of the Service may do.
type Access string

// What a call may do. One that can be made as a dry run may write, too: it goes
// all the way before it is undone.
const (
	Reads  Access = "read"
	Writes Access = "write"
)

// AccessOf tells what a method of Service may do, by its name; "" for one that is
// none.
func AccessOf(call string) Access { return calls[call] }

// calls has every method of Service.
var calls = map[string]Access{
	"Status":       Reads,
	"Overview":     Reads,
	"Log":          Reads,
	"RotateEpoch":  Writes,
	"Queues":       Reads,
	"Shares":       Reads,
	"Items":        Reads,
	"Item":         Reads,
	"Enrolments":   Reads,
	"Enrolment":    Reads,
	"Resolve":      Reads,
	"SenderLists":  Reads,
	"SenderList":   Reads,
	"Denials":      Reads,
	"Quarantine":   Reads,
	"Hold":         Writes,
	"Release":      Writes,
	"Discard":      Writes,
	"Dismiss":      Writes,
	"Revoke":       Writes,
	"Block":        Writes,
	"Deny":         Writes,
	"Unblock":      Writes,
	"Jobs":         Reads,
	"Runs":         Reads,
	"StartJob":     Writes,
	"Run":          Reads,
	"Backups":      Reads,
	"PruneBackups": Writes,
}
