-- What an account's token says of its host, and the deny lists of its issuer.

-- The credential that the token was issued to, and when the session ends that
-- it began.
ALTER TABLE enrolments ADD COLUMN client_id TEXT CHECK (client_id <> '');
ALTER TABLE enrolments ADD COLUMN session_ends INTEGER;
CREATE INDEX enrolments_client ON enrolments (client_id, host_pubkey) WHERE client_id IS NOT NULL;

-- The lists that were taken, so that none is taken twice, or after a newer one.
CREATE TABLE deny_lists (
	jti     TEXT PRIMARY KEY CHECK (jti <> ''),
	source  TEXT NOT NULL,
	iat     INTEGER NOT NULL,
	expires INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX deny_lists_newest ON deny_lists (source, iat);
CREATE INDEX deny_lists_expires ON deny_lists (expires);

-- Who is denied is asked on every call: the denial of a host, of a credential or of
-- both that lasts longest is found at once, however many others name them, and so
-- is the last one added. One without an end sorts behind all others.
CREATE INDEX deny_host_ends ON deny (host_fp, client_id, ifnull(until, 9223372036854775807)) WHERE host_fp IS NOT NULL;
CREATE INDEX deny_client_ends ON deny (client_id, ifnull(until, 9223372036854775807)) WHERE host_fp IS NULL;
CREATE INDEX deny_names ON deny (host_fp, client_id) WHERE host_fp IS NOT NULL;
-- Denials that are over go in the order in which they ended.
CREATE INDEX deny_until ON deny (until, id, added_at) WHERE until IS NOT NULL;
