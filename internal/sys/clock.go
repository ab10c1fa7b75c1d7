// SPDX-License-Identifier: Apache-2.0

package sys

import "time"

var start = time.Now()

// Nanotime is nanoseconds since this process started, from a clock that never steps back. It costs about 30 ns, so
// loops read it every few dozen rounds.
func Nanotime() uint64 { return uint64(time.Since(start)) }
