// SPDX-License-Identifier: Apache-2.0

// Package compiler turns Go kernels into PTX.
package compiler
