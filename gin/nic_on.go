// SPDX-License-Identifier: Apache-2.0

//go:build !gpuc || gdaki

package gin

const drivesNIC = true
