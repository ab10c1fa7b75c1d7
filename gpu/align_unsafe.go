// SPDX-License-Identifier: Apache-2.0

//go:build lockstep

// Unsafe: asks for a type's alignment, and touches no memory.

package gpu

import "unsafe"

func alignOf[T any]() uint64 { return uint64(unsafe.Alignof(*new(T))) }
