// SPDX-License-Identifier: Apache-2.0

// Package sys holds what is of the operating system: shared memory, futex, yielding the processor, the clock and the
// memory that is left. Nothing in it knows what Doorbell is.
package sys
