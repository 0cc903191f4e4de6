// Package host is the other end of a relay: one machine's mailboxes, its paired
// peers, and the mail on its way to and from them.
//
// Everything a host knows is in one folder, its home: keys.json (its secret
// keys), config.json (its name and its relay) and host.db (a SQLite database
// with the rest). Commands write beside a running daemon; one daemon runs on a
// home.
//
// What it promises: mail that Send took is stored before Send returns, and its
// row leaves the outbox only when the other host took it, or when a relay's
// signed word about exactly these bytes is stored. What is received is stored
// before the sender or the relay is told. A message is delivered once, however
// often it arrives. Mail that can't be delivered comes back to its sender as an
// alert; what a relay delivers and this host can't accept is kept in quarantine.
// Bodies leave this host sealed or not at all.
package host
