// SPDX-License-Identifier: Apache-2.0

//go:build !race

#include "textflag.h"

// func copyPastCaches(dst, src *byte, n int)
//
// The first 64 bytes and the last 128 by plain stores, all between from a multiple of 64 on past the caches; n is 256 or more.
TEXT ·copyPastCaches(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	VMOVDQU (SI), Y0
	VMOVDQU 32(SI), Y1
	VMOVDQU -128(SI)(CX*1), Y4
	VMOVDQU -96(SI)(CX*1), Y5
	VMOVDQU -64(SI)(CX*1), Y6
	VMOVDQU -32(SI)(CX*1), Y7
	VMOVDQU Y0, (DI)
	VMOVDQU Y1, 32(DI)
	VMOVDQU Y4, -128(DI)(CX*1)
	VMOVDQU Y5, -96(DI)(CX*1)
	VMOVDQU Y6, -64(DI)(CX*1)
	VMOVDQU Y7, -32(DI)(CX*1)
	MOVQ DI, AX
	ANDQ $63, AX
	SUBQ $64, AX // to the next multiple of 64, negative
	SUBQ AX, DI
	SUBQ AX, SI
	ADDQ AX, CX
	SUBQ $128, CX

loop:
	PREFETCHT0 1024(SI)
	PREFETCHT0 1088(SI)
	VMOVDQU (SI), Y0
	VMOVDQU 32(SI), Y1
	VMOVDQU 64(SI), Y2
	VMOVDQU 96(SI), Y3
	VMOVNTDQ Y0, (DI)
	VMOVNTDQ Y1, 32(DI)
	VMOVNTDQ Y2, 64(DI)
	VMOVNTDQ Y3, 96(DI)
	ADDQ $128, SI
	ADDQ $128, DI
	SUBQ $128, CX
	JGE loop
	SFENCE // later stores would overtake these
	VZEROUPPER
	RET
