// SPDX-License-Identifier: Apache-2.0

//go:build linux

// The kernel fills a siginfo_t for waitid. x/sys names only its head, so this file reads two more words of it.
// What breaks it: a 64-bit Linux whose siginfo_t has another layout. Run's tests see any wrong status.
package launch

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// childStatus returns si_status: 8 bytes of pid and uid stand before it in the union at offset 16.
func childStatus(si *unix.Siginfo) int32 {
	return (*[8]int32)(unsafe.Pointer(si))[6]
}
