// SPDX-License-Identifier: Apache-2.0

package mlx5

import (
	"bytes"
	"encoding/binary"
	"errors"
	"syscall"
	"testing"

	"github.com/doorbell-net/doorbell/netplugin/devnic/wqe"
)

// FuzzAnswer: any answer is an error that names the command, or none, and what it says a NIC can makes no depth and no message
// that the formats have no room for.
func FuzzAnswer(f *testing.F) {
	all := bytes.Repeat([]byte{0xff}, capsBytes) // of a NIC that can all
	clear(all[:shortBytes])
	f.Add([]byte{}, 0)
	f.Add(make([]byte, shortBytes), 5)
	f.Add(append([]byte{3, 0, 0, 0, 1, 2, 3, 4}, make([]byte, 8)...), 121)
	f.Add(all, 0)
	f.Fuzz(func(t *testing.T, out []byte, errno int) {
		var call error
		if errno != 0 {
			call = syscall.Errno(errno)
		}
		err := checkAnswer("CREATE_QP", out, call)
		var refused *RefusedError
		switch {
		case len(out) < shortBytes:
			if !errors.Is(err, errShort) {
				t.Fatalf("%d bytes: %v", len(out), err)
			}
			return
		case out[0] != 0:
			if !errors.As(err, &refused) || refused.Status != out[0] || refused.Syndrome != binary.BigEndian.Uint32(out[4:]) {
				t.Fatalf("status %#x: %v", out[0], err)
			}
		case (err == nil) != (errno == 0) || !errors.Is(err, call):
			t.Fatalf("%v of %v", err, call)
		}
		if err != nil && !bytes.HasPrefix([]byte(err.Error()), []byte("CREATE_QP: ")) {
			t.Fatalf("the error does not name the command: %v", err)
		}
		if len(out) < capsBytes {
			return
		}
		c := decodeCaps(out)
		c.decodeAtomics(out)
		c.decodeRoCE(out)
		if c.lacks() == nil && (c.maxDepth() < 2 || c.maxDepth() > 1<<15 || c.maxMessage() < 2 || c.maxMessage() > wqe.MaxMessage) {
			t.Fatalf("depth %d, message %d of %+v", c.maxDepth(), c.maxMessage(), c)
		}
	})
}

// FuzzAddress: what a peer says of its queue pair decodes to what encodes to the same, or is refused.
func FuzzAddress(f *testing.F) {
	f.Add([]byte("doorbell"))
	f.Add(address{rank: 1, number: 0x123456, psn: 0xabcdef, lid: 9, gid: [16]byte{1, 2, 3}, mtu: 5, logRespond: 4, ethernet: true}.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := decodeAddress(b)
		if err != nil {
			return
		}
		if !bytes.Equal(a.encode(), b) {
			t.Fatalf("%x decodes to %+v, which encodes to %x", b, a, a.encode())
		}
		c := connection{remote: a.number, mtu: a.mtu, receivePSN: a.psn, logInitiate: a.logRespond, lid: a.lid, gid: a.gid, global: true}
		if r, s := toReceive(1, c), toSend(1, c); r.err != nil || s.err != nil {
			t.Fatalf("%+v was accepted and does not fit: %v, %v", a, r.err, s.err)
		}
	})
}

// FuzzExport: likewise what it says of memory.
func FuzzExport(f *testing.F) {
	f.Add([]byte{})
	f.Add(exported{0x12345678, 1 << 40}.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if e, err := decodeExport(b); err == nil && !bytes.Equal(e.encode(), b) {
			t.Fatalf("%x decodes to %+v, which encodes to %x", b, e, e.encode())
		}
	})
}
