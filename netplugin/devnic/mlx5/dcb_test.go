// SPDX-License-Identifier: Apache-2.0

package mlx5

import (
	"errors"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/doorbell-net/doorbell/internal/sys"
)

// attr is an attribute of netlink, padded.
func attr(kind uint16, value ...byte) []byte {
	b := native.AppendUint16(nil, uint16(4+len(value)))
	b = append(native.AppendUint16(b, kind), value...)
	return append(b, make([]byte, -len(b)&3)...)
}

// message is one of netlink.
func message(kind uint16, body ...byte) []byte {
	b := native.AppendUint32(nil, uint32(16+len(body)))
	b = append(native.AppendUint16(b, kind), make([]byte, 10)...)
	return append(b, body...)
}

// dcbAnswer is the kernel's word on an interface: lossless priorities, and the priority of one DSCP.
func dcbAnswer(lossless, dscp, priority byte) []byte {
	app := func(selector, priority byte, protocol uint16) []byte {
		return attr(attrApp, append([]byte{selector, priority}, native.AppendUint16(nil, protocol)...)...)
	}
	apps := slices.Concat(app(1, 6, uint16(dscp)), app(selectDSCP, priority, uint16(dscp)), app(selectDSCP, 7, 64), attr(9, 1))
	ieee := slices.Concat(attr(1, make([]byte, 59)...), attr(attrPFC, append([]byte{8, lossless}, make([]byte, 134)...)...), attr(attrAppTable, apps...))
	return message(getDCB, slices.Concat([]byte{0, ieeeGet, 0, 0}, attr(attrInterface, 'e', 0), attr(attrIEEE|1<<15, ieee...))...)
}

// TestDCB: the request is what the headers have, and of the answer each part is where they have it.
func TestDCB(t *testing.T) {
	want := message(getDCB, slices.Concat([]byte{0, ieeeGet, 0, 0}, attr(attrInterface, 'e', 't', 'h', '0', 0))...)
	native.PutUint16(want[6:], netlinkRequest)
	native.PutUint32(want, 20+4+5) // without the padding
	if got := askDCB("eth0"); !slices.Equal(got, want) {
		t.Errorf("asked %x, want %x", got, want)
	}
	d, err := decodeDCB(dcbAnswer(0x28, 26, 5))
	if want := (dcb{lossless: 0x28, priority: [64]uint8{26: 5}}); err != nil || d != want {
		t.Errorf("read %+v, %v, want %+v", d, err, want)
	}
	for _, c := range []struct {
		answer []byte
		want   string
	}{
		{nil, "0 bytes is cut"}, {message(getDCB, make([]byte, 40)...)[:30], "30 bytes is cut"}, {message(99, make([]byte, 4)...), "type 99, 78 is accepted"},
		{message(getDCB, 0, ieeeGet, 0, 0), "0 bytes on flow control"}, {message(getDCB, append([]byte{0, ieeeGet, 0, 0}, attr(attrIEEE)...)...), "0 bytes on flow control"},
		{message(getDCB, append([]byte{0, ieeeGet, 0, 0}, attr(attrIEEE, attr(attrPFC, 1)...)...)...), "1 bytes on flow control"},
		{message(getDCB, 0, ieeeGet, 0, 0, 3, 0, 1, 0), "an attribute of 3 bytes in 4"},
	} {
		_, err := decodeDCB(c.answer)
		says(t, err, "answer", "DCB: ", c.want)
	}
	if runtime.GOOS == "linux" {
		answer, err := sys.Netlink(askDCB("lo"))
		if err != nil {
			t.Fatal(err)
		}
		var refused syscall.Errno // there is nothing of it there
		if _, err := decodeDCB(answer); !errors.As(err, &refused) {
			t.Errorf("the kernel says of the loopback interface: %v", err)
		}
	}
}

// TestAbout: the line says what was read, and what could not be.
func TestAbout(t *testing.T) {
	for _, c := range []struct {
		spoil func(r *rank)
		want  string
	}{
		{func(*rank) {}, "mlx5_0 port 1, MTU 4096, RoCE v2 GID 10.0.0.0, traffic class 104: priority 3, lossless"},
		{func(r *rank) { r.dcb = dcbAnswer(0xf7, 26, 3) }, "priority 3, which may lose packets"},
		{func(r *rank) { r.dcb = dcbAnswer(1, 27, 3) }, "priority 0, lossless"},
		{func(r *rank) { r.dcb = nil }, "its priority is not known (DCB: "},
		{func(r *rank) {
			r.ports[0], r.gids[0].kind = portFacts{state: portActive, mtu: 3, gids: 1, lid: 77}, gidIB
		}, "mlx5_0 port 1, MTU 1024, InfiniBand LID 77"},
	} {
		r := newRank(t, new(fabric))
		c.spoil(r)
		n, err := r.provider().Open(r.config(0, 1))
		if err != nil {
			t.Fatal(err)
		}
		if got := n.Facts().About; !strings.Contains(got, c.want) {
			t.Errorf("about %q, want %q", got, c.want)
		}
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}
}

// FuzzDCB: any answer is read or refused, and priorities are below 8.
func FuzzDCB(f *testing.F) {
	f.Add([]byte{})
	f.Add(dcbAnswer(1, 2, 3))
	f.Add(message(netlinkError, 1, 2, 3, 4))
	f.Fuzz(func(t *testing.T, b []byte) {
		if d, err := decodeDCB(b); err == nil && slices.Max(d.priority[:]) > 7 {
			t.Fatalf("%+v", d)
		}
	})
}
