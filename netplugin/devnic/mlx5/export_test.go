// SPDX-License-Identifier: Apache-2.0

package mlx5

import (
	"sync"
	"testing"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/netplugin"
	"github.com/doorbell-net/doorbell/netplugin/devnic"
)

// Doubled is the provider over doubles on one fabric, which do WQEs when a rank polls.
type Doubled struct {
	mu     sync.Mutex
	t      testing.TB
	fabric *fabric
	far    int // send queues in memory of the device
}

// Begin makes a new fabric for a test. At the test's end it holds that ranks have left nothing there.
func (d *Doubled) Begin(t testing.TB) {
	d.t, d.fabric, d.far = t, new(fabric), 0
	t.Cleanup(func() {
		for i, n := range d.fabric.nics {
			if left := n.left(); len(left) > 0 {
				t.Errorf("NIC %d: %q are left", i, left)
			}
		}
	})
}

// Far is how many send queues in memory of the device were made.
func (d *Doubled) Far() int { return d.far }

// Name is "mlx5-double".
func (*Doubled) Name() string { return "mlx5-double" }

// Open makes a rank's NIC over a double of its own.
func (d *Doubled) Open(c devnic.Config) (devnic.NIC, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	one := d.fabric.join(d.t)
	n, err := provider{func() (verbs, error) { return one, nil }}.open(c)
	if err != nil {
		return nil, err
	}
	return &doubledNIC{n, d}, nil
}

// doubledNIC keeps ranks from its fabric while one of them uses it.
type doubledNIC struct {
	*nic
	all *Doubled
}

func (n *doubledNIC) locked(f func()) {
	n.all.mu.Lock()
	defer n.all.mu.Unlock()
	f()
}

func (n *doubledNIC) Export(mem []byte, signals bool) (b []byte, err error) {
	n.locked(func() { b, err = n.nic.Export(mem, signals) })
	return b, err
}
func (n *doubledNIC) ExportDevice(at gpu.Ptr[byte], bytes int) (b []byte, err error) {
	n.locked(func() { b, err = n.nic.ExportDevice(at, bytes) })
	return b, err
}
func (n *doubledNIC) Withdraw(export []byte) { n.locked(func() { n.nic.Withdraw(export) }) }
func (n *doubledNIC) Import(peer int, k netplugin.Key) (r netplugin.Region, err error) {
	n.locked(func() { r, err = n.nic.Import(peer, k) })
	return r, err
}
func (n *doubledNIC) Create(c devnic.QPConfig) (q devnic.QP, err error) {
	n.locked(func() {
		if q, err = n.nic.Create(c); c.Far && err == nil {
			n.all.far++
		}
	})
	return q, err
}
func (n *doubledNIC) Connect(number uint32, to []byte) (err error) {
	n.locked(func() { err = n.nic.Connect(number, to) })
	return err
}
func (n *doubledNIC) Destroy(number uint32) { n.locked(func() { n.nic.Destroy(number) }) }
func (n *doubledNIC) Lose(peer int)         { n.locked(func() { n.nic.Lose(peer) }) }
func (n *doubledNIC) Close() (err error) {
	n.locked(func() { err = n.nic.Close() })
	return err
}

// Quiet is never so: nobody else does WQEs.
func (n *doubledNIC) Quiet() bool { return false }

// Poll does what doorbells told of, unless another rank does just now.
func (n *doubledNIC) Poll() (worked bool) {
	if !n.all.mu.TryLock() {
		return false
	}
	defer n.all.mu.Unlock()
	worked = n.all.fabric.drive()
	return n.nic.Poll() || worked
}
