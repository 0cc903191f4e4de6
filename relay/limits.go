package relay

const (
	kib = 1 << 10
	mib = 1 << 20
	gib = 1 << 30

	// maxBody is the largest request body an endpoint takes (protocol.md §3).
	maxBody = 8 * mib
)

// Limits bounds what the relay takes, holds and serves. [DefaultLimits] has
// the values of protocol.md §3; [LimitFields] describes each.
type Limits struct {
	MaxItemBytes      int64 // wire bytes of one item
	MaxBatch          int64 // items in one push
	MaxPull           int64 // items in one page of a pull
	MaxPullBytes      int64 // wire bytes in one page of a pull
	MaxTargets        int64 // targets of one item
	RetentionDays     int64 // days until an undelivered v2 item expires
	MaxQueueItems     int64 // items waiting for one target
	MaxQueueBytes     int64 // bytes waiting for one target
	MaxSenderItems    int64 // of those, items from one sender
	MaxSenderBytes    int64 // of those, bytes from one sender
	MaxOwnerItems     int64 // items waiting for all hosts of one owner
	MaxOwnerBytes     int64 // bytes waiting for all hosts of one owner
	PushesPerMinute   int64 // push requests of one sender key
	EnrolPerMinute    int64 // challenge, enrol and rotate calls of one client address
	OpenChallenges    int64 // challenges waiting for their enrolment
	Enrolments        int64 // live enrolments
	PerName           int64 // live enrolments of one name before v1 hops under it are refused
	RateKeys          int64 // keys in one rate table
	BodyBytesInFlight int64 // bytes of request bodies being read at once
	PollsPerKey       int64 // long polls waiting for one key
	Polls             int64 // long polls waiting in all
	MaxWaitS          int64 // longest wait of one long poll, in seconds; 0 answers at once
}

// A LimitField describes one limit. Settings, the relay's info answer and the
// documentation are made from the same list, so that they cannot differ.
type LimitField struct {
	Name     string // as in protocol.md: "max_item_bytes"
	Value    *int64 // the field of the Limits it was asked of
	Min, Max int64  // bounds of a setting, both allowed
	Default  int64
	Served   bool   // part of the limits in GET /v2/relay/info
	Doc      string // what it bounds, in a few words
}

// LimitFields lists every limit, in the order of protocol.md, with Value
// pointing into l.
func LimitFields(l *Limits) []LimitField {
	const served, unserved = true, false
	const many = 10_000_000
	return []LimitField{
		{"max_item_bytes", &l.MaxItemBytes, 1, 4 * mib, 512 * kib, served, "wire bytes of one item"},
		{"max_batch", &l.MaxBatch, 1, 10_000, 200, served, "items in one push"},
		{"max_pull", &l.MaxPull, 1, 10_000, 500, served, "items in one page of a pull"},
		{"max_pull_bytes", &l.MaxPullBytes, 1, 64 * mib, 8 * mib, served, "wire bytes in one page of a pull"},
		{"max_targets", &l.MaxTargets, 1, 1024, 64, served, "targets of one item"},
		{"retention_days", &l.RetentionDays, 1, 3650, 14, served, "days until an undelivered item expires"},
		{"max_queue_items", &l.MaxQueueItems, 1, many, 10_000, served, "items waiting for one target"},
		{"max_queue_bytes", &l.MaxQueueBytes, 1, 1024 * gib, 50 * mib, served, "bytes waiting for one target"},
		{"max_sender_items", &l.MaxSenderItems, 1, many, 2_000, served, "items from one sender waiting for one target"},
		{"max_sender_bytes", &l.MaxSenderBytes, 1, 1024 * gib, 20 * mib, served, "bytes from one sender waiting for one target"},
		{"max_owner_items", &l.MaxOwnerItems, 1, many, 10_000, served, "items waiting for all hosts of one owner"},
		{"max_owner_bytes", &l.MaxOwnerBytes, 1, 1024 * gib, 50 * mib, served, "bytes waiting for all hosts of one owner"},
		{"pushes_per_minute", &l.PushesPerMinute, 1, 1_000_000, 120, unserved, "push requests a minute of one sender key"},
		{"enrol_per_minute", &l.EnrolPerMinute, 1, 1_000_000, 30, unserved, "challenge, enrol and rotate calls a minute of one client address"},
		{"open_challenges", &l.OpenChallenges, 1, 1_000_000, 10_000, unserved, "open enrolment challenges"},
		{"enrolments", &l.Enrolments, 1, many, 100_000, unserved, "live enrolments"},
		{"per_name", &l.PerName, 1, 1_000, 16, unserved, "live enrolments of one name"},
		{"rate_keys", &l.RateKeys, 1, many, 50_000, unserved, "keys in one rate table"},
		{"body_bytes_in_flight", &l.BodyBytesInFlight, maxBody, 64 * gib, 256 * mib, unserved, "bytes of request bodies being read at once"},
		{"polls_per_key", &l.PollsPerKey, 1, 1_000, 4, unserved, "long polls of one key"},
		{"polls", &l.Polls, 1, 1_000_000, 20_000, unserved, "long polls in all"},
		{"max_wait_s", &l.MaxWaitS, 0, 120, 25, served, "seconds a long poll may wait (0: none)"},
	}
}

// DefaultLimits returns the limits of protocol.md.
func DefaultLimits() Limits {
	var l Limits
	for _, f := range LimitFields(&l) {
		*f.Value = f.Default
	}
	return l
}
