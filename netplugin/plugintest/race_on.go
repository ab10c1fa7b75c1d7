// SPDX-License-Identifier: Apache-2.0

//go:build race

package plugintest

const raceEnabled = true

// usual is less than without the race detector, which looks at each byte.
const usual = 8 << 10
