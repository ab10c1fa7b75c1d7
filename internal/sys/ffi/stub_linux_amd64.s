// SPDX-License-Identifier: Apache-2.0

#include "textflag.h"

// Offsets in Call: Fn 0, Args 8 to 103, Result 104, Before 112, BeforeArg 120.

// runtime.cgocall calls this as a C function on the system stack, with the Call in DI. It keeps BX and BP, which are the
// caller's, and the stack at a multiple of 16.
TEXT stub<>(SB), NOSPLIT|NOFRAME, $0
	PUSHQ BP
	MOVQ  SP, BP
	PUSHQ BX
	SUBQ  $56, SP
	MOVQ  DI, BX

	MOVQ  112(BX), R11
	TESTQ R11, R11
	JZ    call
	MOVQ  120(BX), DI
	XORL  AX, AX
	CALL  R11
	TESTL AX, AX
	JNZ   done

call:
	MOVQ 56(BX), R10
	MOVQ R10, 0(SP)
	MOVQ 64(BX), R10
	MOVQ R10, 8(SP)
	MOVQ 72(BX), R10
	MOVQ R10, 16(SP)
	MOVQ 80(BX), R10
	MOVQ R10, 24(SP)
	MOVQ 88(BX), R10
	MOVQ R10, 32(SP)
	MOVQ 96(BX), R10
	MOVQ R10, 40(SP)
	MOVQ 8(BX), DI
	MOVQ 16(BX), SI
	MOVQ 24(BX), DX
	MOVQ 32(BX), CX
	MOVQ 40(BX), R8
	MOVQ 48(BX), R9
	XORL AX, AX          // no vector registers are used, which functions with "..." ask
	MOVQ 0(BX), R11
	CALL R11

done:
	MOVQ AX, 104(BX)
	ADDQ $56, SP
	POPQ BX
	POPQ BP
	RET

DATA ·stub(SB)/8, $stub<>(SB)
GLOBL ·stub(SB), NOPTR|RODATA, $8
