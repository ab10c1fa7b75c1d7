// SPDX-License-Identifier: Apache-2.0

package moe

import "github.com/doorbell-net/doorbell"

// Staging is where messages are made before they are put.
func (b *Buffer) Staging() *doorbell.Buffer { return b.send.Buffer() }
