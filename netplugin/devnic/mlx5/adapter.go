// SPDX-License-Identifier: Apache-2.0

package mlx5

import (
	"errors"
	"fmt"
	"slices"
)

// undo is what ends things that were made, in the order in which they were made.
type undo []func() error

func (u *undo) add(f func() error) { *u = append(*u, f) }

// run ends them, the last first. Each is ended once, whatever the others say.
func (u *undo) run() error {
	var errs []error
	for _, f := range slices.Backward(*u) {
		errs = append(errs, f())
	}
	*u = nil
	return errors.Join(errs...)
}

// adapter is a NIC that is open, and the port of it that is used.
type adapter struct {
	verbs
	name    string
	context handle
	caps    caps
	port    uint8
	facts   portFacts
	gid     gidEntry // of the port
	ends    undo
}

// errNone is that libmlx5 drives none of the NICs that are there.
var errNone = errors.New("no NIC that libmlx5 drives (a ConnectX by the kernel's module mlx5_ib)")

// usable lists the NICs that kernels can drive. Where there is none the error says of each what it lacks.
func usable(v verbs) (names []string, err error) {
	all, err := v.devices()
	if err != nil {
		return nil, err
	}
	var why []error
	for _, name := range all {
		a, err := openAdapter(v, name)
		if err == nil {
			err = a.ends.run()
		}
		if err != nil {
			why = append(why, err)
		} else {
			names = append(names, name)
		}
	}
	switch {
	case len(names) > 0:
		return names, nil
	case len(all) == 0:
		return nil, errNone
	}
	return nil, errors.Join(why...)
}

// openAdapter opens a NIC. The error says what it lacks.
func openAdapter(v verbs, name string) (_ *adapter, err error) {
	a := &adapter{verbs: v, name: name}
	defer func() {
		if err != nil {
			err = fmt.Errorf("NIC %s: %w", name, errors.Join(err, a.ends.run()))
		}
	}()
	if a.context, err = v.open(name); err != nil {
		return nil, err
	}
	a.ends.add(func() error { return v.close(a.context) })
	if err := a.readCaps(); err != nil {
		return nil, err
	}
	return a, a.choosePort()
}

func (a *adapter) readCaps() error {
	out, err := a.askCaps(capGeneral)
	if err != nil {
		return err
	}
	a.caps = decodeCaps(out)
	if a.caps.atomics {
		if out, err = a.askCaps(capAtomic); err != nil {
			return err
		}
		a.caps.decodeAtomics(out)
	}
	if a.caps.roce {
		if out, err = a.askCaps(capRoCE); err != nil {
			return err
		}
		a.caps.decodeRoCE(out)
	}
	return a.caps.lacks()
}

func (a *adapter) askCaps(group uint16) ([]byte, error) {
	return a.give(queryCaps(group), capsBytes, func(in, out []byte) error { return a.query(a.context, in, out) })
}

// give gives a command to the NIC by a call, and checks its answer.
func (a *adapter) give(c *command, answer int, call func(in, out []byte) error) ([]byte, error) {
	if c.err != nil {
		return nil, c.err
	}
	out := make([]byte, answer)
	err := call(c.in, out)
	return out, checkAnswer(c.name, out, err)
}

// make gives a command that makes an object, which ends with what is in u. number is the object's.
func (a *adapter) make(c *command, u *undo) (object handle, number uint32, err error) {
	out, err := a.give(c, shortBytes, func(in, out []byte) (err error) {
		object, err = a.create(a.context, in, out)
		return err
	})
	if object != 0 {
		u.add(func() error { return a.destroy(object) })
	}
	if err != nil {
		return 0, 0, err
	}
	return object, uint32(qpnField.get(out)), nil
}

// change gives a command that changes an object.
func (a *adapter) change(object handle, c *command) error {
	_, err := a.give(c, shortBytes, func(in, out []byte) error { return a.modify(object, in, out) })
	return err
}

// choosePort takes the first port by which others can be reached.
func (a *adapter) choosePort() error {
	var why []error
	for port := 1; port <= int(a.caps.ports); port++ {
		err := a.tryPort(uint8(port))
		if err == nil {
			return nil
		}
		why = append(why, fmt.Errorf("port %d: %w", port, err))
	}
	return errors.Join(append(why, errors.New("no port can be used"))...)
}

func (a *adapter) tryPort(port uint8) error {
	f, err := a.queryPort(a.context, port)
	switch {
	case err != nil:
		return err
	case f.state != portActive:
		return fmt.Errorf("it is not active (state %d; %d is)", f.state, portActive)
	case f.mtu < 1 || f.mtu > 5:
		return fmt.Errorf("its MTU is number %d; 1 to 5 are accepted", f.mtu)
	case f.ethernet && !a.caps.roce:
		return errors.New("it is of Ethernet, and the NIC has no RoCE")
	}
	want := uint32(gidIB)
	if f.ethernet {
		want = gidRoCEv2
	}
	best := gidEntry{index: -1}
	for i := range f.gids {
		g, ok, err := a.queryGID(a.context, port, i)
		if err != nil {
			return err
		}
		if ok && g.kind == want && (best.index < 0 || linkLocal(best.gid) && !linkLocal(g.gid)) {
			best = g
		}
		if best.index >= 0 && (!f.ethernet || !linkLocal(best.gid)) {
			break
		}
	}
	if best.index < 0 || best.index > 255 {
		return fmt.Errorf("none of its %d GIDs is of InfiniBand, or of RoCE v2 on Ethernet", f.gids)
	}
	a.port, a.facts, a.gid = port, f, best
	return nil
}

// linkLocal says whether a GID is of its link alone (fe80::/10).
func linkLocal(gid [16]byte) bool { return gid[0] == 0xfe && gid[1]&0xc0 == 0x80 }

// route fills in how packets get to a peer, by the address of its queue pair.
func (a *adapter) route(pd handle, number uint32, to address, class uint8, c *connection) (err error) {
	if to.ethernet != a.facts.ethernet {
		return errors.New("one end is of Ethernet and the other of InfiniBand")
	}
	c.port, c.mtu, c.ethernet, c.lid = a.port, min(a.facts.mtu, to.mtu), to.ethernet, to.lid
	c.global = to.ethernet || a.facts.global || [8]byte(to.gid[:8]) != [8]byte(a.gid.gid[:8])
	c.gid, c.source, c.class = to.gid, uint8(a.gid.index), class
	if c.ethernet {
		c.udp = 0xc000 | uint16(number^to.number)&0x3fff // a port of its own, so that switches spread queue pairs over their paths
		if c.mac, err = a.resolve(pd, peerGID{to.gid, c.source, class, a.port}); err != nil {
			return fmt.Errorf("find the Ethernet address of %s: %w", gidText(to.gid), err)
		}
	}
	return nil
}

// about says in a line which port it is, and what becomes of packets of a traffic class.
func (a *adapter) about(class uint8) string {
	s := fmt.Sprintf("%s port %d, MTU %d, ", a.name, a.port, 128<<a.facts.mtu)
	if !a.facts.ethernet {
		return s + fmt.Sprintf("InfiniBand LID %d", a.facts.lid)
	}
	s += fmt.Sprintf("RoCE v2 GID %s, traffic class %d: ", gidText(a.gid.gid), class)
	answer, err := a.queryDCB(a.gid.iface)
	var d dcb
	if err == nil {
		d, err = decodeDCB(answer)
	}
	if err != nil {
		return s + fmt.Sprintf("its priority is not known (%v)", err)
	}
	p := d.priority[class>>2]
	if d.lossless>>p&1 == 0 {
		return s + fmt.Sprintf("priority %d, which may lose packets (no flow control, PFC)", p)
	}
	return s + fmt.Sprintf("priority %d, lossless", p)
}
