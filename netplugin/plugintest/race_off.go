// SPDX-License-Identifier: Apache-2.0

//go:build !race

package plugintest

const raceEnabled = false

// usual is the most bytes of an operation where its size is not the point: a larger one takes longer and shows no more.
const usual = 64 << 10
