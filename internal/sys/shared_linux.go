// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// NewShared makes bytes of zeroed memory that other processes can map by its descriptor. It has no name in the file
// system and is not bounded by the size of /dev/shm. The caller owns descriptor and mapping: CloseFD and Unmap.
func NewShared(name string, bytes int) (fd int, mem []byte, err error) {
	if bytes <= 0 {
		return -1, nil, fmt.Errorf("make shared memory %q: %d bytes asked for, at least 1 is accepted", name, bytes)
	}
	fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, nil, fmt.Errorf("make shared memory %q: memfd_create: %w", name, err)
	}
	if err = unix.Ftruncate(fd, int64(bytes)); err == nil {
		// Nobody may shrink it afterwards: a peer that did would make this process fault.
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err == nil {
		mem, err = MapShared(fd, bytes)
	}
	if err != nil {
		unix.Close(fd)
		return -1, nil, fmt.Errorf("make shared memory %q of %d bytes: %w", name, bytes, err)
	}
	return fd, mem, nil
}

// MapShared maps the first bytes of a descriptor that NewShared made, in this or another process. It refuses one that
// is shorter or that may still shrink, since touching what is not there kills the process.
func MapShared(fd, bytes int) ([]byte, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("map shared memory: fstat descriptor %d: %w", fd, err)
	}
	if bytes <= 0 || int64(bytes) > st.Size {
		return nil, fmt.Errorf("map shared memory: %d bytes asked for, descriptor %d has %d", bytes, fd, st.Size)
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return nil, fmt.Errorf("map shared memory: descriptor %d is not sealed against shrinking (seals %#x)", fd, seals)
	}
	m, err := unix.Mmap(fd, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map shared memory: mmap %d bytes of descriptor %d: %w", bytes, fd, err)
	}
	return m, nil
}

// IsShared says whether a descriptor is of memory that NewShared made.
func IsShared(fd int) bool {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	return err == nil && seals&unix.F_SEAL_SHRINK != 0
}

// Unmap ends a mapping of MapShared or NewShared. Touching it afterwards faults.
func Unmap(b []byte) error { return unix.Munmap(b) }

// CloseFD closes a descriptor.
func CloseFD(fd int) error { return unix.Close(fd) }
