// SPDX-License-Identifier: Apache-2.0

//go:build !race

#include "textflag.h"

// CONSTANTS are ROUND's: 1, 0x7fff, the high halves, 0x7fff0000.
#define CONSTANTS \
	VPCMPEQD Y1, Y1, Y1; \
	VPSRLD $31, Y1, Y12; \
	VPSRLD $17, Y1, Y13; \
	VPSLLD $16, Y1, Y14; \
	VPSLLD $16, Y13, Y15

// ROUND rounds low halves and high ones to words in HI.
#define ROUND(LO, HI) \
	VCMPPS $3, LO, LO, Y8; \ // NaN
	VCMPPS $3, HI, HI, Y9; \
	VPSRLD $16, LO, Y10; \
	VPSRLD $16, HI, Y11; \
	VPAND Y12, Y10, Y10; \
	VPAND Y12, Y11, Y11; \
	VPADDD Y13, Y10, Y10; \
	VPADDD Y13, Y11, Y11; \
	VPADDD Y10, LO, LO; \
	VPADDD Y11, HI, HI; \
	VPSRLD $16, LO, LO; \
	VPAND Y14, HI, HI; \
	VPBLENDVB Y8, Y13, LO, LO; \
	VPBLENDVB Y9, Y15, HI, HI; \
	VPOR LO, HI, HI

// func addAVX2(lo, hi *float32, v *uint32, n int, w float32)
TEXT ·addAVX2(SB), NOSPLIT, $0-36
	MOVQ lo+0(FP), AX
	MOVQ hi+8(FP), BX
	MOVQ v+16(FP), CX
	MOVQ n+24(FP), DX
	VBROADCASTSS w+32(FP), Y0
	VPCMPEQD Y1, Y1, Y1
	VPSLLD $16, Y1, Y1 // the high halves

add:
	VMOVDQU (CX), Y2
	VPSLLD $16, Y2, Y3
	VPAND Y1, Y2, Y2
	VMULPS Y0, Y3, Y3
	VMULPS Y0, Y2, Y2
	VADDPS (AX), Y3, Y3
	VADDPS (BX), Y2, Y2
	VMOVUPS Y3, (AX)
	VMOVUPS Y2, (BX)
	ADDQ $32, AX
	ADDQ $32, BX
	ADDQ $32, CX
	SUBQ $8, DX
	JNZ add
	VZEROUPPER
	RET

// func roundAVX2(out *uint32, lo, hi *float32, n int)
TEXT ·roundAVX2(SB), NOSPLIT, $0-32
	MOVQ out+0(FP), AX
	MOVQ lo+8(FP), BX
	MOVQ hi+16(FP), CX
	MOVQ n+24(FP), DX
	CONSTANTS

round:
	VMOVDQU (BX), Y4
	VMOVDQU (CX), Y5
	ROUND(Y4, Y5)
	VMOVDQU Y5, (AX)
	ADDQ $32, AX
	ADDQ $32, BX
	ADDQ $32, CX
	SUBQ $8, DX
	JNZ round
	VZEROUPPER
	RET

// func sumAVX2(out *uint32, rows *[]uint32, w *float32, count, n int)
TEXT ·sumAVX2(SB), NOSPLIT, $0-40
	MOVQ out+0(FP), AX
	MOVQ rows+8(FP), CX
	MOVQ w+16(FP), DX
	MOVQ count+24(FP), SI
	MOVQ n+32(FP), DI
	XORQ BX, BX // bytes from a row's beginning
	CONSTANTS

words:
	VXORPS Y4, Y4, Y4 // low and high halves of 8 words, and of the next 8
	VXORPS Y5, Y5, Y5
	VXORPS Y6, Y6, Y6
	VXORPS Y7, Y7, Y7
	XORQ R8, R8
	MOVQ CX, R10 // a slice is three words, of which the first says where it begins

row:
	MOVQ (R10), R9
	VBROADCASTSS (DX)(R8*4), Y0
	VMOVDQU (R9)(BX*1), Y2
	VMOVDQU 32(R9)(BX*1), Y8
	ADDQ $24, R10
	VPSLLD $16, Y2, Y3
	VPAND Y14, Y2, Y2
	VPSLLD $16, Y8, Y9
	VPAND Y14, Y8, Y8
	VMULPS Y0, Y3, Y3
	VMULPS Y0, Y2, Y2
	VMULPS Y0, Y9, Y9
	VMULPS Y0, Y8, Y8
	VADDPS Y4, Y3, Y4
	VADDPS Y5, Y2, Y5
	VADDPS Y6, Y9, Y6
	VADDPS Y7, Y8, Y7
	INCQ R8
	CMPQ R8, SI
	JLT row

	ROUND(Y4, Y5)
	ROUND(Y6, Y7)
	VMOVDQU Y5, (AX)
	VMOVDQU Y7, 32(AX)
	ADDQ $64, AX
	ADDQ $64, BX
	SUBQ $16, DI
	JNZ words
	VZEROUPPER
	RET
