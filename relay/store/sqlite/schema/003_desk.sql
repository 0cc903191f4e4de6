-- What the operator's desk lists: queues by depth, by size and by age, senders,
-- hosts by name and by fingerprint, held items by time. Each list is read along
-- an index, so that none costs more as the store grows.

-- Of what a queue is charged for, held is what stands in quarantine; oldest is
-- when the first of the queued items was accepted. Queues are ordered by whole
-- MiB: an index of their bytes would be written by every push, at two places.
ALTER TABLE seqs RENAME TO seqs_2;
CREATE TABLE seqs (
	target_pubkey BLOB PRIMARY KEY CHECK (length(target_pubkey) = 32),
	next_seq      INTEGER NOT NULL CHECK (next_seq > 0),
	items         INTEGER NOT NULL CHECK (items >= 0),
	bytes         INTEGER NOT NULL CHECK (bytes >= 0),
	mib           INTEGER NOT NULL DEFAULT 0 CHECK (mib = bytes / 1048576),
	held_items    INTEGER NOT NULL DEFAULT 0 CHECK (held_items BETWEEN 0 AND items),
	held_bytes    INTEGER NOT NULL DEFAULT 0 CHECK (held_bytes BETWEEN 0 AND bytes),
	oldest        INTEGER,
	CHECK ((oldest IS NULL) = (items = held_items))
) STRICT, WITHOUT ROWID;
INSERT INTO seqs
	SELECT s.target_pubkey, next_seq, items, bytes, bytes / 1048576, coalesce(n, 0), coalesce(b, 0),
		(SELECT accepted_at FROM items i WHERE i.target_pubkey = s.target_pubkey ORDER BY seq LIMIT 1)
	FROM seqs_2 s LEFT JOIN (SELECT target_pubkey, count(*) n, sum(bytes) b FROM quarantine GROUP BY 1) USING (target_pubkey);
DROP TABLE seqs_2;
CREATE INDEX seqs_depth ON seqs (items DESC, target_pubkey) WHERE items > 0;
CREATE INDEX seqs_mib ON seqs (mib DESC, target_pubkey) WHERE mib > 0;
CREATE INDEX seqs_oldest ON seqs (oldest, target_pubkey) WHERE oldest IS NOT NULL;
INSERT INTO totals SELECT 'held', count(*) FROM quarantine;

CREATE INDEX shares_sender ON shares (sender_pubkey, target_pubkey);
CREATE INDEX quarantine_held ON quarantine (held_at DESC, target_pubkey, seq);

-- host_fp is the fingerprint of the key, filled by the program.
ALTER TABLE enrolments ADD COLUMN host_fp TEXT NOT NULL DEFAULT '';
CREATE INDEX enrolments_fp ON enrolments (host_fp, host_pubkey);
CREATE INDEX enrolments_list ON enrolments (lower(host_name), host_pubkey);

-- When a host was last known to be there.
CREATE TABLE last_seen (
	host_pubkey BLOB PRIMARY KEY CHECK (length(host_pubkey) = 32),
	at          INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- A denial is removed by its id, which another one never gets.
ALTER TABLE deny RENAME TO deny_2;
CREATE TABLE deny (
	id        INTEGER PRIMARY KEY AUTOINCREMENT,
	host_fp   TEXT,
	client_id TEXT,
	reason    TEXT NOT NULL,
	source    TEXT NOT NULL,
	added_at  INTEGER NOT NULL,
	until     INTEGER,
	CHECK (host_fp IS NOT NULL OR client_id IS NOT NULL)
) STRICT;
INSERT INTO deny SELECT * FROM deny_2;
DROP TABLE deny_2;
CREATE INDEX deny_host_fp ON deny (host_fp) WHERE host_fp IS NOT NULL;
CREATE INDEX deny_client_id ON deny (client_id) WHERE host_fp IS NULL;
