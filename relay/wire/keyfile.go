package wire

import (
	"bytes"
	"errors"
)

// Errors of ParseKeyFile. None repeats any of the input.
var (
	ErrKeyFile     = errors.New(`not a key file: want {"publicKey":…,"privateKey":…} or the bare base64 seed`)
	ErrKeyMismatch = errors.New("key file: the public key does not belong to the private key")
)

// ParseKeyFile reads relay.key, host.key or MBX_RELAY_KEY: the JSON form or the
// bare base64 seed, white space around either. A stored public key that does
// not match is ErrKeyMismatch; anything else is ErrKeyFile.
func ParseKeyFile(data []byte) (PrivateKey, error) {
	if len(data) > 4096 {
		return PrivateKey{}, ErrKeyFile
	}
	data = bytes.TrimSpace(data)
	if len(data) == 0 || data[0] != '{' {
		k, err := ParsePrivateKey(string(data))
		if err != nil {
			return PrivateKey{}, ErrKeyFile
		}
		return k, nil
	}
	var pub, priv []byte
	c := newCursor(data)
	err := c.document(func() error {
		return c.object(func(name []byte) (err error) {
			switch string(name) {
			case "publicKey":
				pub, err = c.text()
			case "privateKey":
				priv, err = c.text()
			default:
				err = ErrKeyFile
			}
			return err
		})
	})
	if err != nil {
		return PrivateKey{}, ErrKeyFile
	}
	key, err := ParsePrivateKey(string(priv))
	if err != nil {
		return PrivateKey{}, ErrKeyFile
	}
	stored, err := ParsePublicKey(string(pub))
	if err != nil {
		return PrivateKey{}, ErrKeyFile
	}
	if stored != key.Public() {
		return PrivateKey{}, ErrKeyMismatch
	}
	return key, nil
}

// FormatKeyFile is the JSON form of a key file, with a final line break.
func FormatKeyFile(k PrivateKey) []byte {
	return []byte(`{"publicKey":"` + k.Public().String() + `","privateKey":"` + k.Seed() + "\"}\n")
}
