// SPDX-License-Identifier: Apache-2.0

package gpu

// Fence orders what this thread did before it against what it does after, among the threads of the scope: a Release
// fence before a relaxed store makes it a release, an Acquire fence after a relaxed load makes it an acquire.
//
// On the CPU it is nothing: ordered stores and loads here are already at least release and acquire.
func Fence(_ Order, _ Scope) {}
