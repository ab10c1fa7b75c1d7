// SPDX-License-Identifier: Apache-2.0

#include "textflag.h"

// Offsets in Call: Fn 0, Args 8 to 103, Result 104, Before 112, BeforeArg 120.

// runtime.cgocall calls this as a C function on the system stack, with the Call in R0. It keeps R19, R29 and R30, which are
// the caller's, and the stack at a multiple of 16.
TEXT stub<>(SB), NOSPLIT|NOFRAME, $0
	SUB  $64, RSP
	STP  (R29, R30), 32(RSP)
	MOVD R19, 48(RSP)
	ADD  $32, RSP, R29
	MOVD R0, R19

	MOVD 112(R19), R9
	CBZ  R9, call
	MOVD 120(R19), R0
	CALL (R9)
	CBNZW R0, done

call:
	LDP  8(R19), (R0, R1)
	LDP  24(R19), (R2, R3)
	LDP  40(R19), (R4, R5)
	LDP  56(R19), (R6, R7)
	LDP  72(R19), (R9, R10)
	STP  (R9, R10), 0(RSP)
	LDP  88(R19), (R9, R10)
	STP  (R9, R10), 16(RSP)
	MOVD 0(R19), R9
	CALL (R9)

done:
	MOVD R0, 104(R19)
	MOVD 48(RSP), R19
	LDP  32(RSP), (R29, R30)
	ADD  $64, RSP
	RET

DATA ·stub(SB)/8, $stub<>(SB)
GLOBL ·stub(SB), NOPTR|RODATA, $8
