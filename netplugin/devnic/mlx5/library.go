// SPDX-License-Identifier: Apache-2.0

package mlx5

import (
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"sync"
	"syscall"

	"github.com/doorbell-net/doorbell/internal/sys"
	"github.com/doorbell-net/doorbell/internal/sys/ffi"
	"github.com/doorbell-net/doorbell/netplugin/devnic"
)

func init() { devnic.Register(provider{load}) }

// function is a function of the libraries.
type function int

const (
	ibvGetDeviceList function = iota
	ibvFreeDeviceList
	ibvGetDeviceName
	dvIsSupported
	dvOpenDevice
	ibvCloseDevice
	ibvQueryPort
	ibvQueryGIDEx
	dvQueryEQN
	ibvAllocPD
	ibvDeallocPD
	dvInitObj
	dvAllocUAR
	dvFreeUAR
	dvUmemRegEx
	dvUmemDereg
	ibvRegMRIova2
	ibvRegDMABufMR
	ibvDeregMR
	ibvCreateAH
	ibvDestroyAH
	dvGeneralCmd
	dvObjCreate
	dvObjModify
	dvObjDestroy
	errnoLocation
	functions
)

// libraries are rdma-core's two, and C's, which has errno.
var libraries = [...]string{"libibverbs.so.1", "libmlx5.so.1", "libc.so.6"}

// symbols are the functions' names, by library.
var symbols = [len(libraries)]map[function]string{
	{
		ibvGetDeviceList: "ibv_get_device_list", ibvFreeDeviceList: "ibv_free_device_list", ibvGetDeviceName: "ibv_get_device_name", ibvCloseDevice: "ibv_close_device",
		ibvQueryPort: "ibv_query_port", ibvQueryGIDEx: "_ibv_query_gid_ex", ibvAllocPD: "ibv_alloc_pd", ibvDeallocPD: "ibv_dealloc_pd", ibvRegMRIova2: "ibv_reg_mr_iova2",
		ibvRegDMABufMR: "ibv_reg_dmabuf_mr", ibvDeregMR: "ibv_dereg_mr", ibvCreateAH: "ibv_create_ah", ibvDestroyAH: "ibv_destroy_ah",
	},
	{
		dvIsSupported: "mlx5dv_is_supported", dvOpenDevice: "mlx5dv_open_device", dvQueryEQN: "mlx5dv_devx_query_eqn", dvInitObj: "mlx5dv_init_obj",
		dvAllocUAR: "mlx5dv_devx_alloc_uar", dvFreeUAR: "mlx5dv_devx_free_uar", dvUmemRegEx: "mlx5dv_devx_umem_reg_ex", dvUmemDereg: "mlx5dv_devx_umem_dereg",
		dvGeneralCmd: "mlx5dv_devx_general_cmd", dvObjCreate: "mlx5dv_devx_obj_create", dvObjModify: "mlx5dv_devx_obj_modify", dvObjDestroy: "mlx5dv_devx_obj_destroy",
	},
	{errnoLocation: "__errno_location"},
}

// library is verbs by the libraries themselves. It has not run on hardware.
type library struct {
	addr  [functions]uintptr
	names [functions]string
}

// load opens the libraries, once in a process. A failure is not kept: what is missing may come later.
var load = onceWell(func() (verbs, error) { return loadFrom(libraries) })

// loadFrom opens libraries of any name.
func loadFrom(names [len(libraries)]string) (verbs, error) {
	l := new(library)
	for i, name := range names {
		lib, err := ffi.Open(name)
		if err != nil {
			return nil, fmt.Errorf("%w; it is of rdma-core (packages libibverbs1 and ibverbs-providers, or libibverbs)", err)
		}
		for f, symbol := range symbols[i] {
			if l.addr[f], err = lib.Symbol(symbol); err != nil {
				return nil, fmt.Errorf("%w; rdma-core 44 or later is accepted", err)
			}
			l.names[f] = symbol
		}
	}
	return l, nil
}

// onceWell keeps the first result of f that is no error.
func onceWell[T any](f func() (T, error)) func() (T, error) {
	var (
		mu   sync.Mutex
		kept T
		done bool
	)
	return func() (T, error) {
		mu.Lock()
		defer mu.Unlock()
		if done {
			return kept, nil
		}
		v, err := f()
		if err == nil {
			kept, done = v, true
		}
		return v, err
	}
}

// call calls a function, and gives what it returned and errno. C keeps errno for each thread.
func (l *library) call(f function, args ...uintptr) (uintptr, syscall.Errno) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c, where := ffi.Call{Fn: l.addr[f]}, ffi.Call{Fn: l.addr[errnoLocation]}
	copy(c.Args[:], args)
	c.Do()
	where.Do()
	return c.Result, syscall.Errno(native.Uint32(ffi.Bytes(where.Result, 4)))
}

// object calls a function that returns an object, or null and errno.
func (l *library) object(f function, args ...uintptr) (handle, error) {
	p, errno := l.call(f, args...)
	if p == 0 {
		return 0, fmt.Errorf("%s: %w", l.names[f], errno)
	}
	return handle(p), nil
}

// status calls a function that returns 0, or an error number, or -1 and errno.
func (l *library) status(f function, args ...uintptr) error {
	r, errno := l.call(f, args...)
	switch code := int32(uint32(r)); {
	case code == 0:
		return nil
	case code != -1:
		errno = syscall.Errno(max(code, -code))
	}
	return fmt.Errorf("%s: %w", l.names[f], errno)
}

// each calls f with all devices, which are there until it returns.
func (l *library) each(f func(name string, device uintptr) error) error {
	count := new([1]uint32)
	list, errno := l.call(ibvGetDeviceList, ffi.Addr(&count[0]))
	if list == 0 {
		return fmt.Errorf("%s: %w (the kernel has no RDMA devices, or no module ib_uverbs)", l.names[ibvGetDeviceList], errno)
	}
	defer l.call(ibvFreeDeviceList, list)
	for _, d := range ffi.Words(list, int(count[0])) {
		if yes, _ := l.call(dvIsSupported, uintptr(d)); yes&0xff == 0 {
			continue
		}
		name, _ := l.call(ibvGetDeviceName, uintptr(d))
		if err := f(ffi.String(name), uintptr(d)); err != nil {
			return err
		}
	}
	return nil
}

func (l *library) devices() (names []string, err error) {
	err = l.each(func(name string, _ uintptr) error {
		names = append(names, name)
		return nil
	})
	slices.Sort(names)
	return names, err
}

// errFound ends the search for a device.
var errFound = errors.New("found")

func (l *library) open(device string) (context handle, err error) {
	attr := &[3]uint64{1} // struct mlx5dv_context_attr: MLX5DV_CONTEXT_FLAGS_DEVX
	found := l.each(func(name string, d uintptr) error {
		if name != device {
			return nil
		}
		context, err = l.object(dvOpenDevice, d, ffi.Addr(&attr[0]))
		return errFound
	})
	runtime.KeepAlive(attr)
	switch {
	case errors.Is(found, errFound):
		return context, err
	case found != nil:
		return 0, found
	}
	return 0, fmt.Errorf("open %s: it is not there any more", device)
}

func (l *library) close(context handle) error { return l.status(ibvCloseDevice, uintptr(context)) }

func (l *library) queryPort(context handle, port uint8) (portFacts, error) {
	out := new([portBytes]byte)
	err := l.status(ibvQueryPort, uintptr(context), uintptr(port), ffi.Addr(&out[0]))
	return decodePort(out), err
}

// noData is Linux's ENODATA, which not all systems that this builds on have.
const noData = syscall.Errno(61)

func (l *library) queryGID(context handle, port uint8, index int) (gidEntry, bool, error) {
	out := new([gidBytes]byte)
	err := l.status(ibvQueryGIDEx, uintptr(context), uintptr(port), uintptr(index), ffi.Addr(&out[0]), 0, gidBytes)
	if errors.Is(err, noData) {
		return gidEntry{}, false, nil
	}
	return decodeGID(out), err == nil, err
}

func (l *library) queryDCB(iface uint32) ([]byte, error) {
	i, err := net.InterfaceByIndex(int(iface))
	if err != nil {
		return nil, fmt.Errorf("interface %d: %w", iface, err)
	}
	return sys.Netlink(askDCB(i.Name))
}

func (l *library) queryEQ(context handle) (uint32, error) {
	out := new([1]uint32)
	err := l.status(dvQueryEQN, uintptr(context), 0, ffi.Addr(&out[0]))
	return out[0], err
}

// Places in struct mlx5dv_obj, and their bits.
const (
	objectAH = 5
	objectPD = 6
)

// inside asks libmlx5 for its own view of an object: two words, the second a mask.
func (l *library) inside(kind int, object handle) (*[2]uint64, error) {
	out, obj := new([2]uint64), new([16]uint64)
	obj[2*kind], obj[2*kind+1] = uint64(object), uint64(ffi.Addr(&out[0]))
	err := l.status(dvInitObj, ffi.Addr(&obj[0]), 1<<kind)
	runtime.KeepAlive(obj)
	return out, err
}

func (l *library) allocPD(context handle) (pd handle, number uint32, err error) {
	if pd, err = l.object(ibvAllocPD, uintptr(context)); err != nil {
		return 0, 0, err
	}
	in, err := l.inside(objectPD, pd)
	if err != nil {
		return 0, 0, errors.Join(err, l.freePD(pd))
	}
	return pd, uint32(in[0]), nil
}

func (l *library) freePD(pd handle) error { return l.status(ibvDeallocPD, uintptr(pd)) }

// uncached is a page of registers that a store reaches at once (MLX5DV_UAR_ALLOC_TYPE_NC; Linux 5.8).
const uncached = 1

func (l *library) allocUAR(context handle) (registers, error) {
	uar, err := l.object(dvAllocUAR, uintptr(context), uncached)
	if err != nil {
		return registers{}, err
	}
	w := ffi.Words(uintptr(uar), 3) // struct mlx5dv_devx_uar
	return registers{uar: uar, page: uint32(w[2]), bell: uintptr(w[0])}, nil
}

func (l *library) freeUAR(uar handle) { l.call(dvFreeUAR, uintptr(uar)) }

// inBuffer says that a DMA buffer backs queues (MLX5DV_UMEM_MASK_DMABUF).
const inBuffer = 1

func (l *library) regUmem(context handle, addr uintptr, bytes, fd int) (umem handle, id uint32, err error) {
	in := &[6]uint64{uint64(addr), uint64(bytes), accessWrite, pageBytes} // struct mlx5dv_devx_umem_in
	if fd != noBuffer {
		in[4], in[5] = inBuffer, uint64(uint32(fd))
	}
	umem, err = l.object(dvUmemRegEx, uintptr(context), ffi.Addr(&in[0]))
	runtime.KeepAlive(in)
	if err != nil {
		return 0, 0, err
	}
	return umem, native.Uint32(ffi.Bytes(uintptr(umem), 4)), nil
}

func (l *library) deregUmem(umem handle) error { return l.status(dvUmemDereg, uintptr(umem)) }

func (l *library) regMR(pd handle, addr uintptr, bytes int, access uint32) (handle, mrKeys, error) {
	return keysOf(l.object(ibvRegMRIova2, uintptr(pd), addr, uintptr(bytes), 0, uintptr(access)))
}

func (l *library) regDMABuf(pd handle, offset uint64, bytes, fd int, access uint32) (handle, mrKeys, error) {
	return keysOf(l.object(ibvRegDMABufMR, uintptr(pd), uintptr(offset), uintptr(bytes), 0, uintptr(fd), uintptr(access)))
}

// keysOf reads the keys in a struct ibv_mr.
func keysOf(mr handle, err error) (handle, mrKeys, error) {
	if err != nil {
		return 0, mrKeys{}, err
	}
	b := ffi.Bytes(uintptr(mr), 44)
	return mr, mrKeys{local: native.Uint32(b[36:]), remote: native.Uint32(b[40:])}, nil
}

func (l *library) deregMR(mr handle) error { return l.status(ibvDeregMR, uintptr(mr)) }

func (l *library) resolve(pd handle, to peerGID) (mac [6]byte, err error) {
	attr := encodeAH(to)
	ah, err := l.object(ibvCreateAH, uintptr(pd), ffi.Addr(&attr[0]))
	runtime.KeepAlive(attr)
	if err != nil {
		return mac, err
	}
	in, err := l.inside(objectAH, ah)
	if err == nil {
		copy(mac[:], ffi.Bytes(uintptr(in[0]), 26)[20:]) // rmac of struct mlx5_wqe_av
	}
	return mac, errors.Join(err, l.status(ibvDestroyAH, uintptr(ah)))
}

func (l *library) query(context handle, in, out []byte) error {
	return l.status(dvGeneralCmd, uintptr(context), ffi.Addr(&in[0]), uintptr(len(in)), ffi.Addr(&out[0]), uintptr(len(out)))
}

func (l *library) create(context handle, in, out []byte) (handle, error) {
	return l.object(dvObjCreate, uintptr(context), ffi.Addr(&in[0]), uintptr(len(in)), ffi.Addr(&out[0]), uintptr(len(out)))
}

func (l *library) modify(object handle, in, out []byte) error {
	return l.status(dvObjModify, uintptr(object), ffi.Addr(&in[0]), uintptr(len(in)), ffi.Addr(&out[0]), uintptr(len(out)))
}

func (l *library) destroy(object handle) error { return l.status(dvObjDestroy, uintptr(object)) }
