-- How this host stands with a hosted relay, which takes it only with an account's
-- token, and only until that ends.
CREATE TABLE sessions (
  url      TEXT PRIMARY KEY,
  source   TEXT NOT NULL DEFAULT '',    -- where the token came from: command, file, login
  ends     INTEGER NOT NULL DEFAULT 0,  -- with the token; 0: not known
  renew_at INTEGER NOT NULL DEFAULT 0,  -- when the next token is asked for
  trouble  TEXT NOT NULL DEFAULT '',    -- why there is no next one
  reason   TEXT NOT NULL DEFAULT ''     -- the relay's code of why it did not take one
) STRICT, WITHOUT ROWID;
