// SPDX-License-Identifier: Apache-2.0

// Package ce is the network between the ranks of one process whose windows may lie in device memory: the device's copy
// engines move the bytes, and stores that the device does behind them raise the signals.
//
// # Order
//
// Each rank has one queue of copies and stores (netplugin.Copier) that all who send to it share: so its signals, which are
// stored as absolute values, grow, and each comes after the payload of all that was queued before it. While the queue is
// empty, puts between windows in memory of the host are copied by the CPU, which raises their signals itself: 1 us instead of
// 3 (one H200).
//
// What one call of Post brings is handed to the device together (dma.Gather), many small rows by two calls of the driver.
//
// No kernel is launched and no driver call made that could wait for one: a copy within a device would be a kernel of the
// driver, so it goes through pinned memory of the host, by two copies. One between two devices is one copy.
package ce
