// SPDX-License-Identifier: Apache-2.0

//go:build race

package moe_test

// raceOn says whether the race detector is in this test binary.
const raceOn = true
