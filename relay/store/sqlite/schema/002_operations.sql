-- What the operator's desk keeps: items taken out of their queues, and the runs
-- of jobs.

-- An item that was taken out of its queue. It keeps its dedup row, its number
-- and what it is charged for; an ack never reaches it.
CREATE TABLE quarantine (
	target_pubkey BLOB NOT NULL CHECK (length(target_pubkey) = 32),
	seq           INTEGER NOT NULL CHECK (seq > 0),
	kind          TEXT NOT NULL CHECK (kind IN ('envelope', 'receipt', 'expired')),
	item_id       TEXT NOT NULL,
	sender_pubkey BLOB NOT NULL CHECK (length(sender_pubkey) = 32),
	sender_host   TEXT NOT NULL,
	wire_hash     BLOB NOT NULL CHECK (length(wire_hash) = 32),
	bytes         INTEGER NOT NULL CHECK (bytes > 0),
	accepted_at   INTEGER NOT NULL,
	expires_at    INTEGER,
	held_at       INTEGER NOT NULL,
	actor         TEXT NOT NULL,
	reason        TEXT NOT NULL,
	wire          BLOB NOT NULL,
	PRIMARY KEY (target_pubkey, seq)
) STRICT;
CREATE INDEX quarantine_expiry ON quarantine (expires_at) WHERE expires_at IS NOT NULL;

-- All that queues, shares and accounts are charged for.
CREATE VIEW charged AS
	SELECT target_pubkey, seq, sender_pubkey, bytes FROM items
	UNION ALL SELECT target_pubkey, seq, sender_pubkey, bytes FROM quarantine;

-- A run that is not finished is the job's lease: the index allows one. holder is
-- the process that runs it.
CREATE TABLE job_runs (
	id          INTEGER PRIMARY KEY AUTOINCREMENT,
	job         TEXT NOT NULL,
	asked_by    TEXT NOT NULL,
	holder      TEXT NOT NULL,
	started_at  INTEGER NOT NULL,
	finished_at INTEGER,
	outcome     TEXT CHECK (outcome IN ('ok', 'failed', 'crashed')),
	detail      TEXT NOT NULL,
	CHECK ((finished_at IS NULL) = (outcome IS NULL))
) STRICT;
CREATE UNIQUE INDEX job_lease ON job_runs (job) WHERE finished_at IS NULL;
CREATE INDEX job_runs_outcome ON job_runs (job, outcome, id);
CREATE INDEX job_runs_job ON job_runs (job, id);

-- What a part of the program remembers between its runs, by name.
CREATE TABLE state (
	name  TEXT PRIMARY KEY,
	value TEXT NOT NULL CHECK (json_valid(value))
) STRICT, WITHOUT ROWID;
