// SPDX-License-Identifier: Apache-2.0

package mlx5

import "encoding/binary"

// Sizes of structures of the calls, as rdma-core's libibverbs/verbs.h has them on 64-bit machines.
const (
	portBytes = 48 // what ibv_query_port, the exported function, fills
	gidBytes  = 32
	ahBytes   = 32
)

var native = binary.NativeEndian

func decodePort(b *[portBytes]byte) portFacts {
	return portFacts{
		state: uint8(native.Uint32(b[0:])), mtu: uint8(native.Uint32(b[8:])), gids: int(native.Uint32(b[12:]) & 0xffff), lid: native.Uint16(b[34:]),
		ethernet: b[46] == 2, global: b[47]&1 != 0,
	}
}

func decodeGID(b *[gidBytes]byte) gidEntry {
	return gidEntry{gid: [16]byte(b[:16]), index: int(native.Uint32(b[16:])), kind: native.Uint32(b[24:]), iface: native.Uint32(b[28:])}
}

// encodeAH is an address handle's attributes (struct ibv_ah_attr).
func encodeAH(to peerGID) *[ahBytes]byte {
	b := new([ahBytes]byte)
	copy(b[:], to.gid[:])
	b[20], b[21], b[22] = to.source, hopLimit, to.class
	b[29], b[30] = 1, to.port // is_global
	return b
}
