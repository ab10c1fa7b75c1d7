// SPDX-License-Identifier: Apache-2.0

package moe

// Staging is where messages are made before they are put.
func (b *Buffer) Staging() []byte { return b.send.Buffer().Bytes() }
