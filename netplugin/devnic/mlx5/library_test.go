// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package mlx5

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/doorbell-net/doorbell/internal/sys/ffi"
	"github.com/doorbell-net/doorbell/netplugin/devnic"
)

// cDouble is the libraries' double, by which the calls themselves are tested.
type cDouble struct {
	testing.TB
	verbs
	lib *ffi.Library
}

func newCDouble(t testing.TB) *cDouble {
	cc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("there is no gcc, which the test double of the libraries is made with")
	}
	so := filepath.Join(t.TempDir(), "verbs.so")
	if out, err := exec.Command(cc, "-shared", "-fPIC", "-o", so, "testdata/verbs.c").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	d := &cDouble{TB: t}
	if d.verbs, err = loadFrom([...]string{so, so, libraries[2]}); err == nil {
		d.lib, err = ffi.Open(so)
	}
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *cDouble) ask(name string, arg ...byte) uintptr {
	fn, err := d.lib.Symbol(name)
	if err != nil {
		d.Fatal(err)
	}
	c, arg := ffi.Call{Fn: fn}, append(arg, 0)
	c.Args[0] = ffi.Addr(&arg[0])
	c.Do()
	runtime.KeepAlive(arg)
	return c.Result
}

// use calls each function of verbs, and gives what they returned as text.
func (d *cDouble) use() (got string, err error) {
	var errs []error
	add := func(err error, values ...any) {
		got += fmt.Sprint(values...) + "\n"
		errs = append(errs, err)
	}
	in, out := bytes.Repeat([]byte{0xa1}, 16), make([]byte, 20)
	in[15] = 0xa2
	names, err := d.devices()
	add(err, names)
	c, err := d.open("mlx5_0")
	add(err)
	if err != nil {
		return got, errors.Join(errs...)
	}
	p, err := d.queryPort(c, 2)
	add(err, p)
	g, ok, err := d.queryGID(c, 2, 0x15)
	add(err, g, ok)
	_, ok, err = d.queryGID(c, 2, 1)
	add(err, ok)
	eq, err := d.queryEQ(c)
	add(err, eq)
	pd, number, err := d.allocPD(c)
	add(err, number)
	r, err := d.allocUAR(c)
	add(err, r.page, r.uar != 0)
	if err == nil {
		d.freeUAR(r.uar)
	}
	u, id, err := d.regUmem(c, 0x7000, 8192, noBuffer)
	add(err, id)
	if u != 0 {
		add(d.deregUmem(u))
	}
	_, id, err = d.regUmem(c, 0x1000, 4096, 33)
	add(err, id)
	if pd != 0 {
		m, keys, err := d.regMR(pd, 0x8000, 4097, 0x100007)
		add(err, keys)
		if m != 0 {
			add(d.deregMR(m))
		}
		_, keys, err = d.regDMABuf(pd, 64, 4098, 33, 0x7)
		add(err, keys)
		mac, err := d.resolve(pd, peerGID{[16]byte{0xee, 15: 0xef}, 3, 0x68, 1})
		add(err, mac)
		add(d.freePD(pd))
	}
	add(d.query(c, in, out), out)
	o, err := d.create(c, in, out[:17])
	add(err, out)
	if o != 0 {
		add(d.modify(o, in[1:], out[:16]), out)
		add(d.destroy(o))
	}
	add(d.close(c))
	return got, errors.Join(errs...)
}

// TestLibrary: each call has its arguments in the places where the headers have them, and its results are read where they are.
func TestLibrary(t *testing.T) {
	d := newCDouble(t)
	d.ask("double_fail")
	got, err := d.use()
	answers := fmt.Sprint(iota8(0xa1, 20))
	want := strings.Join([]string{
		"[mlx5_0 mlx5_1]", "", "{4 3 255 20818 true true}", "{[96 97 98 99 100 101 102 103 104 105 106 107 108 109 110 111] 21 2 8} true", "false", "113", "6382179", "4276803 true",
		"825373492", "", "825373492", "{305419896 2596069104}", "", "{305419896 2596069104}", "[1 2 3 4 5 6]", "", answers, answers, answers, "", "", "",
	}, "\n")
	if err != nil || got != want {
		t.Errorf("%v\ngot\n%s\nwant\n%s", err, got, want)
	}
	const calls = `ibv_get_device_list 
ibv_free_device_list 1
ibv_get_device_list 
mlx5dv_open_device mlx5_0 1 0 1
ibv_free_device_list 1
ibv_query_port 4 2
_ibv_query_gid_ex 4 2 21 0 0
mlx5dv_devx_query_eqn 4 0
ibv_alloc_pd 4
mlx5dv_init_obj 64
mlx5dv_devx_alloc_uar 4 1
mlx5dv_devx_free_uar 1
mlx5dv_devx_umem_reg_ex 4 0x7000 8192 0x1 4096 0 0
mlx5dv_devx_umem_dereg 1
mlx5dv_devx_umem_reg_ex 4 0x1000 4096 0x1 4096 1 33
ibv_reg_mr_iova2 5 0x8000 4097 0 0x100007
ibv_dereg_mr 1
ibv_reg_dmabuf_mr 5 64 4098 0 33 0x7
ibv_create_ah 5 eeef 0 3 64 104 0 0 1 1
mlx5dv_init_obj 32
ibv_destroy_ah 6
ibv_dealloc_pd 5
mlx5dv_devx_general_cmd 4 16 a1a2 20
mlx5dv_devx_obj_create 4 16 a1a2 17
mlx5dv_devx_obj_modify 7 15 a1a2 16
mlx5dv_devx_obj_destroy 7
ibv_close_device 4
`
	if said := ffi.String(d.ask("double_said")); said != calls {
		t.Errorf("called\n%s\nwant\n%s", said, calls)
	}
}

// iota8 are n numbers from one on.
func iota8(from byte, n int) (all []byte) {
	for i := range n {
		all = append(all, from+byte(i))
	}
	return all
}

// TestLibraryFails: an error has the function's name and the library's reason, which it gives in errno, or as its result.
func TestLibraryFails(t *testing.T) {
	d := newCDouble(t)
	for _, f := range slices.Concat(slices.Collect(maps.Values(symbols[0])), slices.Collect(maps.Values(symbols[1]))) {
		if slices.Contains([]string{"ibv_free_device_list", "ibv_get_device_name", "mlx5dv_is_supported", "mlx5dv_devx_free_uar"}, f) {
			continue // these cannot fail
		}
		d.ask("double_fail", []byte(f)...)
		_, err := d.use()
		if err == nil || !strings.Contains(err.Error(), f+": ") || !errors.Is(err, syscall.EDOM) {
			t.Errorf("%s fails: %v", f, err)
		}
		said := ffi.String(d.ask("double_said"))
		for _, pair := range [][2]string{{"ibv_get_device_list", "ibv_free_device_list"}, {"ibv_alloc_pd", "ibv_dealloc_pd"}, {"ibv_create_ah", "ibv_destroy_ah"}} {
			if f != pair[0] && strings.Count(said, pair[0]+" ") != strings.Count(said, pair[1]+" ") {
				t.Errorf("%s fails: %s and %s are not called alike:\n%s", f, pair[0], pair[1], said)
			}
		}
	}
	d.ask("double_fail")
	_, err := d.open("mlx5_7")
	says(t, err, "open", "open mlx5_7: it is not there")
}

// TestNoLibrary: what is missing is named, with what has it, and looked for again the next time.
func TestNoLibrary(t *testing.T) {
	_, err := loadFrom([...]string{"libdoorbell-none.so.1", libraries[1], libraries[2]})
	says(t, err, "library", "libdoorbell-none.so.1", "rdma-core", "ibverbs-providers")
	_, err = loadFrom([...]string{libraries[2], libraries[2], libraries[2]})
	says(t, err, "function", "library libc.so.6", "rdma-core 44")
	tries := 0
	once := onceWell(func() (int, error) {
		if tries++; tries == 1 {
			return 0, errShort
		}
		return tries, nil
	})
	for i, want := range []int{0, 2, 2} {
		if got, err := once(); got != want || (err != nil) != (i == 0) {
			t.Errorf("try %d gives %d, %v", i, got, err)
		}
	}
	p, err := devnic.Lookup("mlx5")
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := p.(interface{ Probe() error }); !ok || p.Name() != "mlx5" {
		t.Errorf("provider %q is registered, or has no Probe", p.Name())
	}
}
