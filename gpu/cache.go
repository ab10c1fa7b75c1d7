// SPDX-License-Identifier: Apache-2.0

package gpu

// LoadOnce is LoadNC of what this kernel reads once: it takes no room in the caches from what is read again.
func LoadOnce(p Ptr[U32x4]) U32x4 { return p.Load() }

// StoreOnce stores 16 bytes, unordered, that this kernel does not read again: they leave the caches first.
func StoreOnce(p Ptr[U32x4], v U32x4) { p.Store(v) }

// Prefetch has the memory at p on its way into the GPU's L2 cache, 32 bytes at least, and does not wait for it.
func Prefetch(Ptr[byte]) {}
