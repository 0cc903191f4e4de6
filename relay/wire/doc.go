// Package wire is everything that AgentMBX hosts and relays sign, seal, hash or
// parse off the network: keys and their fingerprints, canonical JSON, the
// signed hop, every signed record, the envelope, the delivery receipt and the
// push body.
//
// It promises three things. A record is verified over the bytes as they were
// received: an unknown member is part of what was signed and is never dropped.
// Every parser is strict (member names match by case; a duplicated member, a
// lone surrogate, invalid UTF-8, nesting beyond MaxDepth or trailing data is
// refused) and none panics, whatever it is fed. No error and no formatted value
// holds key material or text that came off the network.
//
// The package keeps no state and reads no clock; everything in it is safe for
// concurrent use.
package wire
