package jobs

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/agentmbx/agentmbx/relay/store"
)

// wanted is a wish for a run, as the store keeps it. Its id tells it from a
// later one, which the success of a run that had begun before does not fulfil.
type wanted struct {
	ID    string `json:"id"`
	Why   string `json:"why"`
	Tried bool   `json:"tried,omitempty"` // a run was begun for it
}

// Want makes a job due at the scheduler's next look, in the transaction tx,
// whatever its schedule says. The next success of a run that begins after it
// clears it.
func Want(tx store.Tx, job, why string) error {
	return setWanted(tx, job, wanted{ID: uuid.NewString(), Why: why})
}

func wantedState(job string) string { return "job-wanted:" + job }

func setWanted(tx store.Tx, job string, w wanted) error {
	value, err := json.Marshal(w)
	if err != nil {
		return err
	}
	return tx.SetState(wantedState(job), value)
}

// readWanted answers the wish for a run of a job; its id is "" when there is none.
func readWanted(r store.Reader, job string) (w wanted, err error) {
	value, err := r.State(wantedState(job))
	if errors.Is(err, store.ErrNotFound) {
		return w, nil
	}
	if err != nil {
		return w, fmt.Errorf("read whether %s is wanted: %w", job, err)
	}
	if json.Unmarshal(value, &w) == nil && w.ID != "" {
		return w, nil
	}
	// Who writes it without this package (a restore) says only why.
	w = wanted{ID: string(value)}
	if json.Unmarshal(value, &w.Why) != nil || w.Why == "" {
		w.Why = "a reason that can't be read"
	}
	return w, nil
}

// tryWanted notes that a run has begun, and answers the wish it is for.
func tryWanted(tx store.Tx, job string) (id string, err error) {
	w, err := readWanted(tx, job)
	if err != nil || w.ID == "" || w.Tried {
		return w.ID, err
	}
	w.Tried = true
	return w.ID, setWanted(tx, job, w)
}

// endWanted clears the wish that a run was for, or notes that it was not granted.
func endWanted(tx store.Tx, job, id string, ok bool) error {
	if id == "" {
		return nil
	}
	w, err := readWanted(tx, job)
	switch {
	case err != nil || w.ID != id:
		return err
	case ok:
		return tx.SetState(wantedState(job), nil)
	case !w.Tried:
		w.Tried = true
		return setWanted(tx, job, w)
	}
	return nil
}
