// SPDX-License-Identifier: Apache-2.0

package mlx5

import (
	"fmt"
	"syscall"
)

// Ethernet loses packets when a queue is full, except in priorities for which both ends have flow control (PFC). Which those are,
// and which priority a traffic class has, is set on the interface and asked of the kernel by netlink (linux/netlink.h,
// linux/dcbnl.h).

// Numbers of messages and attributes.
const (
	netlinkError   = 2
	netlinkRequest = 1
	getDCB         = 78 // RTM_GETDCB
	ieeeGet        = 21 // DCB_CMD_IEEE_GET
	attrInterface  = 1
	attrIEEE       = 13
	attrPFC        = 2 // in attrIEEE
	attrAppTable   = 3
	attrApp        = 1 // in attrAppTable
	selectDSCP     = 5
	attrKind       = 1<<14 - 1 // of an attribute's type; the rest are flags
)

// dcb is how an interface treats priorities.
type dcb struct {
	lossless uint8     // a bit for each priority that loses nothing
	priority [64]uint8 // by DSCP
}

// askDCB is the request for an interface.
func askDCB(iface string) []byte {
	attr := append([]byte(iface), 0)
	n := 20 + 4 + len(attr)
	b := native.AppendUint32(nil, uint32(n))
	b = native.AppendUint16(b, getDCB)
	b = native.AppendUint16(b, netlinkRequest)
	b = append(b, make([]byte, 8)...) // sequence and port
	b = append(b, 0, ieeeGet, 0, 0)
	b = native.AppendUint16(b, uint16(4+len(attr)))
	b = native.AppendUint16(b, attrInterface)
	b = append(b, attr...)
	return append(b, make([]byte, -len(b)&3)...)
}

// decodeDCB reads the answer.
func decodeDCB(b []byte) (d dcb, err error) {
	if len(b) < 20 || int(native.Uint32(b)) < 20 || int(native.Uint32(b)) > len(b) {
		return d, fmt.Errorf("DCB: an answer of %d bytes is cut", len(b))
	}
	b = b[:native.Uint32(b)]
	switch kind := native.Uint16(b[4:]); kind {
	case getDCB:
	case netlinkError:
		return d, fmt.Errorf("DCB: %w", syscall.Errno(-int32(native.Uint32(b[16:]))))
	default:
		return d, fmt.Errorf("DCB: an answer of type %d, %d is accepted", kind, getDCB)
	}
	ieee, err := attribute(b[20:], attrIEEE)
	if err != nil {
		return d, err
	}
	pfc, err := attribute(ieee, attrPFC)
	if err == nil && len(pfc) < 2 {
		err = fmt.Errorf("DCB: the answer has %d bytes on flow control", len(pfc))
	}
	if err != nil {
		return d, err
	}
	d.lossless = pfc[1] // pfc_en of struct ieee_pfc
	apps, err := attribute(ieee, attrAppTable)
	if err != nil {
		return d, err
	}
	err = attributes(apps, func(kind uint16, app []byte) { // without a table all have priority 0
		if kind != attrApp || len(app) < 4 {
			return
		}
		if dscp := native.Uint16(app[2:]); app[0] == selectDSCP && dscp < 64 { // struct dcb_app
			d.priority[dscp] = app[1] & 7
		}
	})
	return d, err
}

// attributes calls f with each attribute of a list.
func attributes(b []byte, f func(kind uint16, value []byte)) error {
	for len(b) >= 4 {
		n := int(native.Uint16(b))
		if n < 4 || n > len(b) {
			return fmt.Errorf("DCB: an attribute of %d bytes in %d", n, len(b))
		}
		f(native.Uint16(b[2:])&attrKind, b[4:n])
		b = b[min(len(b), (n+3)&^3):]
	}
	return nil
}

// attribute is the last one of a kind, nil where there is none.
func attribute(b []byte, kind uint16) (value []byte, err error) {
	err = attributes(b, func(k uint16, v []byte) {
		if k == kind {
			value = v
		}
	})
	return value, err
}
