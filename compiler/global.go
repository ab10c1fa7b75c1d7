// SPDX-License-Identifier: Apache-2.0

package compiler

func toGlobal(s string) string { return s }
