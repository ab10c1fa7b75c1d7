// SPDX-License-Identifier: Apache-2.0

package plugintest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/doorbell-net/doorbell/netplugin"
)

// meet connects the endpoints of a world that have to be.
func (w *world) meet() error {
	addrs := make([][]byte, len(w.ranks))
	for r, m := range w.ranks {
		c, ok := m.ep.(netplugin.Connector)
		if !ok {
			return nil
		}
		addrs[r] = c.Address()
	}
	ctx, cancel := context.WithTimeout(context.Background(), w.h.Deadline)
	defer cancel()
	var wg sync.WaitGroup
	errs := make([]error, len(w.ranks))
	for r, m := range w.ranks {
		wg.Go(func() {
			if err := m.ep.(netplugin.Connector).Connect(ctx, addrs); err != nil {
				errs[r] = fmt.Errorf("connect rank %d: %w", r, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// auth says who it is and believes what it is told: the kit is about bytes. Ranks of a job prove themselves.
type auth int

func (a auth) Dial(conn net.Conn, to int) error {
	_, err := conn.Write(binary.LittleEndian.AppendUint32(nil, uint32(a)))
	return err
}

func (a auth) Answer(conn net.Conn) (from int, err error) {
	var b [4]byte
	_, err = io.ReadFull(conn, b[:])
	return int(binary.LittleEndian.Uint32(b[:])), err
}
