-- Times are integer milliseconds. Keys are 32 raw bytes. fold is a host name
-- without case. Every table that holds mail on its way names the message and
-- the host, (msg, fold): several recipients on one host are one row.

-- Small facts of the host itself.
CREATE TABLE facts (
  name  TEXT PRIMARY KEY,
  value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE peers (
  fold           TEXT PRIMARY KEY,
  name           TEXT NOT NULL,
  key            BLOB NOT NULL UNIQUE CHECK (length(key) = 32),
  owner_key      TEXT NOT NULL DEFAULT '',
  addr           TEXT NOT NULL DEFAULT '',
  paired_at      INTEGER NOT NULL,
  seen_at        INTEGER NOT NULL DEFAULT 0,
  lan_failures   INTEGER NOT NULL DEFAULT 0, -- calls in a row that reached nobody
  lan_bad        INTEGER NOT NULL DEFAULT 0 CHECK (lan_bad IN (0, 1)), -- the last call failed
  seen_addr      TEXT NOT NULL DEFAULT '',   -- where it seems to listen, tried once addr fails
  enc_key        BLOB CHECK (length(enc_key) = 32), -- pinned
  ad_key         BLOB CHECK (length(ad_key) = 32),  -- of the newest relay advertisement taken
  ad_iat         INTEGER NOT NULL DEFAULT 0,
  ad_refused     TEXT NOT NULL DEFAULT '',   -- why the last one was not taken
  confirms       INTEGER NOT NULL DEFAULT 0 CHECK (confirms IN (0, 1)) -- it has sent a receipt at least once
) STRICT, WITHOUT ROWID;

-- Host keys that a peer has rotated away from: mail they signed is still on its way.
CREATE TABLE retired_keys (
  key        BLOB PRIMARY KEY CHECK (length(key) = 32),
  fold       TEXT NOT NULL,
  retired_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX retired_keys_fold ON retired_keys (fold);

CREATE TABLE pair_tokens (
  id         INTEGER PRIMARY KEY,
  key        BLOB NOT NULL CHECK (length(key) = 32), -- stretched from the token
  expires_at INTEGER NOT NULL,
  failures   INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE TABLE mailboxes (
  name       TEXT PRIMARY KEY,
  roles      TEXT NOT NULL DEFAULT '', -- separated and enclosed by spaces
  made       INTEGER NOT NULL CHECK (made IN (0, 1)), -- here; else mail for it came, and only that reaches it
  created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE messages (
  n        INTEGER PRIMARY KEY AUTOINCREMENT, -- the order of arrival
  id       TEXT NOT NULL UNIQUE,    -- the envelope's; id@origin where another host's message had it first
  origin   TEXT NOT NULL,           -- fold of the host it came from, '' for this one
  sender   TEXT NOT NULL,
  subject  TEXT NOT NULL,
  kind     TEXT NOT NULL,
  at       INTEGER NOT NULL,        -- when it was stored here
  envelope BLOB NOT NULL            -- with its body open
) STRICT;
CREATE INDEX messages_at ON messages (at, n);
CREATE INDEX messages_sent ON messages (n) WHERE origin = '';

CREATE TABLE deliveries (
  msg     TEXT NOT NULL REFERENCES messages (id) ON DELETE CASCADE,
  mailbox TEXT NOT NULL,
  n       INTEGER NOT NULL,         -- of the message
  state   TEXT NOT NULL CHECK (state IN ('delivered', 'notified', 'read', 'acked')),
  at      INTEGER NOT NULL,
  note    TEXT NOT NULL DEFAULT '',
  did     TEXT NOT NULL DEFAULT '',
  receipt BLOB,                     -- the newest one for this state, as signed
  seq     INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (msg, mailbox)
) STRICT, WITHOUT ROWID;
CREATE INDEX deliveries_mailbox ON deliveries (mailbox, n);
CREATE INDEX deliveries_open ON deliveries (mailbox, n) WHERE state <> 'acked';

-- Ids of mail that was pruned: received mail may arrive once more, and a late
-- receipt may come for mail that was sent (origin '').
CREATE TABLE pruned_ids (
  id     TEXT NOT NULL,
  origin TEXT NOT NULL,
  at     INTEGER NOT NULL,
  PRIMARY KEY (id, origin)
) STRICT, WITHOUT ROWID;
CREATE INDEX pruned_ids_at ON pruned_ids (at);

-- Where this host's own mail went. It stays as long as the message.
CREATE TABLE routes (
  msg        TEXT NOT NULL REFERENCES messages (id) ON DELETE CASCADE,
  fold       TEXT NOT NULL,
  recipients TEXT NOT NULL, -- JSON array of the addresses that led here
  state      TEXT NOT NULL CHECK (state IN ('queued', 'handed-over', 'relay-accepted', 'confirmed', 'undelivered', 'unconfirmed')),
  at         INTEGER NOT NULL,
  PRIMARY KEY (msg, fold)
) STRICT, WITHOUT ROWID;

-- What other hosts said became of it.
CREATE TABLE confirmations (
  msg       TEXT NOT NULL REFERENCES messages (id) ON DELETE CASCADE,
  recipient TEXT NOT NULL,
  fold      TEXT NOT NULL,
  state     TEXT NOT NULL,
  at        INTEGER NOT NULL,
  note      TEXT NOT NULL,
  did       TEXT NOT NULL,
  seq       INTEGER NOT NULL,
  receipt   BLOB NOT NULL,
  PRIMARY KEY (msg, recipient)
) STRICT, WITHOUT ROWID;

CREATE TABLE outbox (
  msg       TEXT NOT NULL REFERENCES messages (id),
  fold      TEXT NOT NULL,
  state     TEXT NOT NULL DEFAULT 'queued' CHECK (state IN ('queued', 'repush')),
  queued_at INTEGER NOT NULL,
  attempts  INTEGER NOT NULL DEFAULT 0,
  next_at   INTEGER NOT NULL,
  error     TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (msg, fold)
) STRICT, WITHOUT ROWID;
CREATE INDEX outbox_due ON outbox (fold, next_at);
CREATE INDEX outbox_age ON outbox (queued_at) WHERE state = 'queued';

-- The bytes given to a relay: made once, before the first push, and used again
-- on every retry.
CREATE TABLE wires (
  msg        TEXT NOT NULL REFERENCES messages (id),
  fold       TEXT NOT NULL,
  target     BLOB NOT NULL CHECK (length(target) = 32), -- the peer's host key they were sealed for
  wire       BLOB NOT NULL,
  hash       TEXT NOT NULL,
  sealed_at  INTEGER NOT NULL,
  former     BLOB, -- the bytes before the peer's key changed, if they may have been pushed
  PRIMARY KEY (msg, fold)
) STRICT;

CREATE TABLE relay_sent (
  msg         TEXT NOT NULL REFERENCES messages (id),
  fold        TEXT NOT NULL,
  relay       TEXT NOT NULL,
  target      BLOB NOT NULL CHECK (length(target) = 32),
  hash        TEXT NOT NULL,
  seq         INTEGER NOT NULL,
  epoch       TEXT NOT NULL,
  accept      BLOB NOT NULL, -- the relay's statement
  sig         TEXT NOT NULL,
  accepted_at INTEGER NOT NULL,
  deadline    INTEGER NOT NULL,
  state       TEXT NOT NULL CHECK (state IN ('relay-accepted', 'repush', 'settled', 'expired', 'rejected', 'unconfirmed')),
  state_at    INTEGER NOT NULL,
  PRIMARY KEY (msg, fold)
) STRICT, WITHOUT ROWID;
CREATE INDEX relay_sent_open ON relay_sent (deadline) WHERE state IN ('relay-accepted', 'repush');

CREATE TABLE receipts_out (
  msg       TEXT NOT NULL,
  recipient TEXT NOT NULL,
  seq       INTEGER NOT NULL,
  fold      TEXT NOT NULL, -- the host that sent the message
  wire      BLOB NOT NULL,
  queued_at INTEGER NOT NULL,
  attempts  INTEGER NOT NULL DEFAULT 0,
  next_at   INTEGER NOT NULL,
  relay     INTEGER NOT NULL DEFAULT 0 CHECK (relay IN (0, 1)), -- the message came over one: this may, too
  error     TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (msg, recipient, seq)
) STRICT, WITHOUT ROWID;
CREATE INDEX receipts_out_due ON receipts_out (fold, next_at);
CREATE INDEX receipts_out_age ON receipts_out (queued_at);

CREATE TABLE relays (
  url         TEXT PRIMARY KEY,
  key         BLOB CHECK (length(key) = 32),  -- pinned
  pin_source  TEXT NOT NULL DEFAULT '' CHECK (pin_source IN ('', 'owner', 'first-use')),
  expected    TEXT NOT NULL DEFAULT '',       -- the only fingerprint that may be pinned
  served      TEXT NOT NULL DEFAULT '',       -- fingerprint of another key it showed
  epoch       TEXT NOT NULL DEFAULT '',
  position    INTEGER NOT NULL DEFAULT 0,     -- received through
  acked       INTEGER NOT NULL DEFAULT 0,
  v1_cursor   INTEGER NOT NULL DEFAULT 0,
  enrolled    TEXT NOT NULL DEFAULT '',       -- the relay key, epoch and own key it holds for
  ad_at       INTEGER NOT NULL DEFAULT 0,     -- our sealing key's last publication
  ad_for      TEXT NOT NULL DEFAULT '',       -- the keys and epoch it was for
  senders_for TEXT NOT NULL DEFAULT '',       -- the peer set and epoch last published
  senders_iat INTEGER NOT NULL DEFAULT 0,
  state       TEXT NOT NULL DEFAULT '',
  detail      TEXT NOT NULL DEFAULT '',
  state_at    INTEGER NOT NULL DEFAULT 0,
  ok_at       INTEGER NOT NULL DEFAULT 0,
  hold_until  INTEGER NOT NULL DEFAULT 0,
  holds       INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

CREATE TABLE quarantine (
  id         INTEGER PRIMARY KEY AUTOINCREMENT,
  relay      TEXT NOT NULL,
  epoch      TEXT NOT NULL,
  seq        INTEGER NOT NULL,
  kind       TEXT NOT NULL,
  item_id    TEXT NOT NULL,
  sender     TEXT NOT NULL, -- the pushing key, as the relay said
  claims     TEXT NOT NULL, -- fold of the host that it names as its own
  reason     TEXT NOT NULL,
  wire       BLOB NOT NULL,
  bytes      INTEGER GENERATED ALWAYS AS (length(wire)) STORED,
  at         INTEGER NOT NULL,
  retried_at INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX quarantine_place ON quarantine (relay, epoch, seq);
CREATE INDEX quarantine_claims ON quarantine (sender, claims);
CREATE INDEX quarantine_bytes ON quarantine (bytes);

CREATE TABLE rotations (
  new_key BLOB PRIMARY KEY CHECK (length(new_key) = 32),
  at      INTEGER NOT NULL,
  record  BLOB NOT NULL,
  relay   TEXT NOT NULL DEFAULT '', -- the relay that has taken it
  refused TEXT NOT NULL DEFAULT ''  -- why the relay has not
) STRICT, WITHOUT ROWID;

-- Peers that have not taken a rotation of ours yet.
CREATE TABLE rotation_peers (
  fold     TEXT NOT NULL,
  new_key  BLOB NOT NULL REFERENCES rotations (new_key),
  attempts INTEGER NOT NULL DEFAULT 0,
  next_at  INTEGER NOT NULL,
  refused  TEXT NOT NULL DEFAULT '', -- why the peer has not
  PRIMARY KEY (fold, new_key)
) STRICT, WITHOUT ROWID;

CREATE TABLE audit (
  id     INTEGER PRIMARY KEY AUTOINCREMENT,
  at     INTEGER NOT NULL,
  event  TEXT NOT NULL,
  detail TEXT NOT NULL
) STRICT;
