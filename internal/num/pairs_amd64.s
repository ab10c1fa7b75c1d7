// SPDX-License-Identifier: Apache-2.0

//go:build !race

#include "textflag.h"

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
	VPCMPEQD Y1, Y1, Y1
	VPSRLD $31, Y1, Y2 // 1
	VPSRLD $17, Y1, Y3 // 0x7fff
	VPSLLD $16, Y3, Y4 // 0x7fff0000
	VPSLLD $16, Y1, Y1 // the high halves

round:
	VMOVDQU (BX), Y5
	VMOVDQU (CX), Y6
	VCMPPS $3, Y5, Y5, Y7 // NaN
	VCMPPS $3, Y6, Y6, Y8
	VPSRLD $16, Y5, Y9
	VPSRLD $16, Y6, Y10
	VPAND Y2, Y9, Y9
	VPAND Y2, Y10, Y10
	VPADDD Y3, Y9, Y9
	VPADDD Y3, Y10, Y10
	VPADDD Y9, Y5, Y5
	VPADDD Y10, Y6, Y6
	VPSRLD $16, Y5, Y5
	VPAND Y1, Y6, Y6
	VPBLENDVB Y7, Y3, Y5, Y5
	VPBLENDVB Y8, Y4, Y6, Y6
	VPOR Y5, Y6, Y6
	VMOVDQU Y6, (AX)
	ADDQ $32, AX
	ADDQ $32, BX
	ADDQ $32, CX
	SUBQ $8, DX
	JNZ round
	VZEROUPPER
	RET
