// SPDX-License-Identifier: Apache-2.0

// Package kernels has the kernels that "doorbell bench" runs: what is measured, and what fills and checks the memory
// around it. Each is a user's kernel: it imports gpu and gin only.
//
//gpu:cubin sm_90
package kernels
