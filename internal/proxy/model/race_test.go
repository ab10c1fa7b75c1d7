// SPDX-License-Identifier: Apache-2.0

//go:build race

package model

func init() { raceEnabled = true }
