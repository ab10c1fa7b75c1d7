// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// tryMembarrier asks the kernel which of the fences it has (MEMBARRIER_CMD_QUERY).
func tryMembarrier() error {
	const query, privateExpedited = 0, 1 << 3
	has, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, query, 0, 0)
	switch {
	case errno != 0:
		return fmt.Errorf("membarrier: %w", errno)
	case has&privateExpedited == 0:
		return errors.New("membarrier: the kernel has no private expedited fence, which came with linux 4.14")
	}
	return nil
}

// storage says what file system a folder is of.
func storage(dir string) (kind string, local bool) {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return "", false
	}
	switch uint32(st.Type) {
	case unix.TMPFS_MAGIC:
		return "tmpfs", true
	case unix.EXT4_SUPER_MAGIC:
		return "ext4", true
	case unix.XFS_SUPER_MAGIC:
		return "xfs", true
	case unix.BTRFS_SUPER_MAGIC:
		return "btrfs", true
	case unix.OVERLAYFS_SUPER_MAGIC:
		return "overlay", true
	case unix.NFS_SUPER_MAGIC:
		return "nfs", false
	}
	return "", false
}
