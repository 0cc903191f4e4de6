package wire

import "errors"

// Kinds of items. A relay takes the first two from hosts and makes the third itself.
const (
	KindEnvelope = "envelope"
	KindReceipt  = "receipt"
	KindExpired  = "expired"
)

// CheckItem does the wire checks of a push on one item of kind envelope or
// receipt, in the protocol's order. refusal is the text after "rejected:", ""
// for none. A receipt that passes is returned, and it is the caller who checks
// that the pushing host, or an older key of it, signed it: sender is not looked at.
func CheckItem(kind, itemID string, wire []byte, sender PublicKey) (r *Receipt, refusal string) {
	if kind == KindReceipt {
		receipt, err := CheckReceipt(wire)
		switch {
		case errors.Is(err, ErrNotJSON):
			return nil, "bad wire"
		case err != nil:
			return nil, "bad receipt"
		case receipt.ID() != itemID:
			return nil, "item id is not the receipt id"
		}
		return &receipt, ""
	}
	if kind != KindEnvelope {
		return nil, "bad kind"
	}
	head, err := CheckEnvelope(wire)
	switch {
	case errors.Is(err, ErrNotJSON):
		return nil, "bad wire"
	case err != nil:
		return nil, err.Error()
	case head.ID != itemID:
		return nil, "item id is not the envelope id"
	case !head.Sealed:
		return nil, "envelope body is not sealed"
	}
	return nil, ""
}
