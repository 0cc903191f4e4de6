package wire

// The members of an envelope that are objects themselves.

const noLimit = 1 << 30

func (c *envelopeCheck) meta() error {
	if c.peek() != '{' {
		c.require(false, "meta")
		return c.skip()
	}
	lists := 0
	err := c.object(func(name []byte) error {
		switch string(name) {
		case "mentions":
			lists++
			return c.strings(noLimit, noLimit, "meta.mentions")
		case "directives":
			lists++
			return c.strings(noLimit, noLimit, "meta.directives")
		case "tags":
			lists++
			return c.strings(noLimit, noLimit, "meta.tags")
		case "task_refs":
			lists++
			return c.strings(noLimit, noLimit, "meta.task_refs")
		case "hop":
			n, err := c.whole("meta.hop")
			c.require(n >= 0 && n <= 1000, "meta.hop")
			return err
		case "origin":
			s, err := c.str("meta.origin")
			c.require(string(s) == "agent" || string(s) == "external", "meta.origin")
			return err
		case "project":
			_, err := c.short(300, "meta.project")
			return err
		case "project_key":
			_, err := c.short(300, "meta.project_key")
			return err
		case "sender_verification":
			s, err := c.str("meta.sender_verification")
			c.require(string(s) == "unverified" || string(s) == "leased", "meta.sender_verification")
			return err
		case "local_names":
			return c.localNames()
		}
		return c.skip()
	})
	c.require(lists == 4, "meta") // a name comes once: the cursor refuses a second
	return err
}

func (c *envelopeCheck) localNames() error {
	if c.peek() != '[' {
		c.require(false, "meta.local_names")
		return c.skip()
	}
	n := 0
	return c.array(func() error {
		n++
		s, err := c.str("meta.local_names")
		c.require(n <= 100 && ValidAgentName(s), "meta.local_names")
		return err
	})
}

func (c *envelopeCheck) authority() error {
	switch c.peek() {
	case 'n':
		return c.skip()
	case '{':
	default:
		c.require(false, "authority")
		return c.skip()
	}
	var ownerSig, ownerFP, grant, sessionSig bool
	err := c.object(func(name []byte) (err error) {
		switch string(name) {
		case "owner_sig":
			ownerSig = true
			_, err = c.str("authority.owner_sig")
		case "owner_fp":
			ownerFP = true
			_, err = c.str("authority.owner_fp")
		case "session_sig":
			sessionSig = true
			_, err = c.str("authority.session_sig")
		case "grant":
			grant = true
			err = c.grant()
		default:
			err = c.skip()
		}
		return err
	})
	byOwner := ownerSig && ownerFP && !grant && !sessionSig
	byGrant := grant && sessionSig && !ownerFP
	c.require(byOwner || byGrant, "authority")
	return err
}

func (c *envelopeCheck) grant() error {
	const fault = "authority.grant"
	if c.peek() != '{' {
		c.require(false, fault)
		return c.skip()
	}
	members := 0
	err := c.object(func(name []byte) error {
		switch string(name) {
		case "v":
			members++
			return c.one(2, fault)
		case "caps":
			members++
			return c.strings(noLimit, noLimit, fault)
		case "id", "iss", "sub", "agent", "host", "iat", "exp", "nonce", "sig":
			members++
			_, err := c.str(fault)
			return err
		}
		return c.skip()
	})
	c.require(members == 11, fault)
	return err
}

func (c *envelopeCheck) enc() error {
	switch c.peek() {
	case 'n':
		return c.skip()
	case '{':
	default:
		c.require(false, "enc")
		return c.skip()
	}
	c.head.Sealed = true
	members := 0
	err := c.object(func(name []byte) error {
		switch string(name) {
		case "v":
			members++
			return c.one(1, "enc.v")
		case "alg":
			members++
			s, err := c.str("enc.alg")
			c.require(string(s) == SealAlg, "enc.alg")
			return err
		case "epk":
			members++
			s, err := c.str("enc.epk")
			var key [32]byte
			c.require(decode32(&key, s), "enc.epk")
			return err
		case "nonce":
			members++
			s, err := c.str("enc.nonce")
			_, ok := decodeNonce(s)
			c.require(ok, "enc.nonce")
			return err
		case "body":
			members++
			s, err := c.str("enc.body")
			c.require(len(s) > 0, "enc.body")
			c.encBody = s
			return err
		}
		return c.skip()
	})
	c.require(members == 5, "enc")
	return err
}

func (c *envelopeCheck) sig() error {
	if c.peek() != '{' {
		c.require(false, "sig")
		return c.skip()
	}
	members := 0
	err := c.object(func(name []byte) error {
		switch string(name) {
		case "alg", "host", "key", "value":
			members++
			_, err := c.str("sig")
			return err
		}
		return c.skip()
	})
	c.require(members == 4, "sig")
	return err
}
