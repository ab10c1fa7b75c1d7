// SPDX-License-Identifier: Apache-2.0

//go:build !amd64 || race

package num

func addVectors(_, _ []float32, _ []uint32, _ float32) int { return 0 }

func roundVectors(_ []uint32, _, _ []float32) int { return 0 }

func sumVectors(_ []uint32, _ [][]uint32, _ []float32) int { return 0 }
