-- The relay's store, as seed 000 section 2 names it. Keys and hashes are raw
-- bytes, times are milliseconds. Two kinds of row are kept beside what they
-- sum up, in the same transaction, so that nothing is ever counted on the way:
-- what a queue holds stands in its seqs row, and shares, accounts and totals
-- are counters only.

CREATE TABLE meta (
	k TEXT PRIMARY KEY,
	v ANY NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE enrolments (
	host_pubkey   BLOB PRIMARY KEY CHECK (length(host_pubkey) = 32),
	host_name     TEXT NOT NULL,
	owner_fp      TEXT NOT NULL,
	account       TEXT CHECK (account <> ''),
	org           TEXT CHECK (org <> ''),
	authorized_by TEXT NOT NULL,
	enrolled_at   INTEGER NOT NULL,
	revoked_at    INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX enrolments_name ON enrolments (lower(host_name)) WHERE revoked_at IS NULL;
CREATE UNIQUE INDEX enrolments_account ON enrolments (account, lower(host_name))
	WHERE revoked_at IS NULL AND account IS NOT NULL;

-- Every refusal that is not for ever. An entry matches a host when all it
-- names match.
CREATE TABLE deny (
	id        INTEGER PRIMARY KEY,
	host_fp   TEXT,
	client_id TEXT,
	reason    TEXT NOT NULL,
	source    TEXT NOT NULL,
	added_at  INTEGER NOT NULL,
	until     INTEGER,
	CHECK (host_fp IS NOT NULL OR client_id IS NOT NULL)
) STRICT;
CREATE INDEX deny_host_fp ON deny (host_fp) WHERE host_fp IS NOT NULL;
CREATE INDEX deny_client_id ON deny (client_id) WHERE host_fp IS NULL;

-- senders: the 32-byte keys that may push, sorted, one after the other.
CREATE TABLE sender_lists (
	target_pubkey BLOB PRIMARY KEY CHECK (length(target_pubkey) = 32),
	senders       BLOB NOT NULL CHECK (length(senders) % 32 = 0),
	iat           INTEGER NOT NULL,
	record        BLOB NOT NULL,
	sig           TEXT NOT NULL
) STRICT;
-- The same the other way round, for the rotation of a sender.
CREATE TABLE listed_senders (
	sender_pubkey BLOB NOT NULL,
	target_pubkey BLOB NOT NULL,
	PRIMARY KEY (sender_pubkey, target_pubkey)
) STRICT, WITHOUT ROWID;

CREATE TABLE enc_ads (
	host_pubkey BLOB PRIMARY KEY CHECK (length(host_pubkey) = 32),
	host_name   TEXT NOT NULL,
	enc_pub     TEXT NOT NULL,
	sig         TEXT NOT NULL,
	at          INTEGER NOT NULL
) STRICT;
CREATE TABLE enc_ad_records (
	host_pubkey BLOB PRIMARY KEY CHECK (length(host_pubkey) = 32),
	record      BLOB NOT NULL,
	sig         TEXT NOT NULL,
	at          INTEGER NOT NULL
) STRICT;

-- wire stands last, so that reading the rest of a row never reads it.
CREATE TABLE items (
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
	wire          BLOB NOT NULL,
	PRIMARY KEY (target_pubkey, seq)
) STRICT;
CREATE INDEX items_expiry ON items (expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE dedup (
	sender_pubkey BLOB NOT NULL CHECK (length(sender_pubkey) = 32),
	item_id       TEXT NOT NULL,
	target_pubkey BLOB NOT NULL CHECK (length(target_pubkey) = 32),
	wire_hash     BLOB NOT NULL CHECK (length(wire_hash) = 32),
	seq           INTEGER NOT NULL,
	accepted_at   INTEGER NOT NULL,
	PRIMARY KEY (sender_pubkey, item_id, target_pubkey)
) STRICT, WITHOUT ROWID;
CREATE INDEX dedup_age ON dedup (accepted_at);

CREATE TABLE seqs (
	target_pubkey BLOB PRIMARY KEY CHECK (length(target_pubkey) = 32),
	next_seq      INTEGER NOT NULL CHECK (next_seq > 0),
	items         INTEGER NOT NULL CHECK (items >= 0),
	bytes         INTEGER NOT NULL CHECK (bytes >= 0)
) STRICT, WITHOUT ROWID;
CREATE TABLE acked (
	target_pubkey BLOB PRIMARY KEY CHECK (length(target_pubkey) = 32),
	acked_through INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE shares (
	target_pubkey BLOB NOT NULL CHECK (length(target_pubkey) = 32),
	sender_pubkey BLOB NOT NULL CHECK (length(sender_pubkey) = 32),
	items         INTEGER NOT NULL CHECK (items > 0),
	bytes         INTEGER NOT NULL CHECK (bytes > 0),
	PRIMARY KEY (target_pubkey, sender_pubkey)
) STRICT, WITHOUT ROWID;
CREATE TABLE accounts (
	account TEXT PRIMARY KEY,
	items   INTEGER NOT NULL CHECK (items > 0),
	bytes   INTEGER NOT NULL CHECK (bytes > 0)
) STRICT, WITHOUT ROWID;
CREATE TABLE totals (
	name  TEXT PRIMARY KEY,
	value INTEGER NOT NULL CHECK (value >= 0)
) STRICT, WITHOUT ROWID;
INSERT INTO totals VALUES ('enrolments', 0), ('items', 0), ('bytes', 0);

CREATE TABLE rotations (
	old_pubkey BLOB PRIMARY KEY CHECK (length(old_pubkey) = 32),
	new_pubkey BLOB NOT NULL CHECK (length(new_pubkey) = 32),
	host_name  TEXT NOT NULL,
	record     BLOB NOT NULL,
	at         INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX rotations_new ON rotations (new_pubkey, at);

-- The relay log.
CREATE TABLE ops (
	id      INTEGER PRIMARY KEY AUTOINCREMENT,
	at      INTEGER NOT NULL,
	op      TEXT NOT NULL,
	receipt TEXT NOT NULL CHECK (json_valid(receipt))
) STRICT;
CREATE INDEX ops_kind ON ops (op, id);
