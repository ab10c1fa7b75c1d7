// SPDX-License-Identifier: Apache-2.0

package mlx5

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// address is how a queue pair names itself to its peer.
type address struct {
	rank, number uint32
	psn          uint32 // of its first packet
	lid          uint16
	gid          [16]byte
	mtu          uint8
	logRespond   uint8 // reads and fetch-adds that it answers at once
	ethernet     bool
}

const (
	addressVersion = 1
	addressBytes   = 34
)

func (a address) encode() []byte {
	b := []byte{addressVersion, 0, a.mtu, a.logRespond}
	if a.ethernet {
		b[1] = 1
	}
	b = be32(be32(be32(b, a.rank), a.number), a.psn)
	return append(binary.BigEndian.AppendUint16(b, a.lid), a.gid[:]...)
}

func decodeAddress(b []byte) (a address, err error) {
	if len(b) != addressBytes || b[0] != addressVersion || b[1] > 1 {
		return a, fmt.Errorf("%x is none of version %d", b, addressVersion)
	}
	a = address{
		rank: get32(b[4:]), number: get32(b[8:]), psn: get32(b[12:]), lid: binary.BigEndian.Uint16(b[16:]), gid: [16]byte(b[18:]),
		mtu: b[2], logRespond: b[3], ethernet: b[1] == 1,
	}
	if a.number == 0 || a.number>>24 != 0 || a.psn>>24 != 0 || a.mtu < 1 || a.mtu > 5 || a.logRespond > maxLogRespond {
		return a, fmt.Errorf("%x has a number, MTU or limit that no queue pair has", b)
	}
	return a, nil
}

// exported is what an Export says.
type exported struct {
	key  uint32
	size uint64
}

const (
	exportVersion = 1
	exportBytes   = 13
)

func (e exported) encode() []byte {
	return binary.BigEndian.AppendUint64(be32([]byte{exportVersion}, e.key), e.size)
}

func decodeExport(b []byte) (e exported, err error) {
	if len(b) != exportBytes || b[0] != exportVersion {
		return e, fmt.Errorf("export of %d bytes is none of version %d", len(b), exportVersion)
	}
	if e = (exported{get32(b[1:]), binary.BigEndian.Uint64(b[5:])}); e.key == 0 {
		return e, fmt.Errorf("export has key 0, which is none")
	}
	return e, nil
}

func be32(b []byte, v uint32) []byte { return binary.BigEndian.AppendUint32(b, v) }
func get32(b []byte) uint32          { return binary.BigEndian.Uint32(b) }

func gidText(gid [16]byte) string { return netip.AddrFrom16(gid).Unmap().String() }
