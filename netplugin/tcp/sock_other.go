// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package tcp

import "time"

// setSilence is left to the system's own times here.
func setSilence(int, time.Duration) {}

func setNoControl(int) {}
