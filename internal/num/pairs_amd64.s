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

// func topAVX2(each *[16]uint16, v *uint32, n int)
TEXT ·topAVX2(SB), NOSPLIT, $0-24
	MOVQ each+0(FP), AX
	MOVQ v+8(FP), BX
	MOVQ n+16(FP), DX
	VPCMPEQD Y1, Y1, Y1
	VPSRLW $1, Y1, Y1 // 0x7fff
	VPSLLW $8, Y1, Y2
	VPSRLW $1, Y2, Y2 // 0x7f80
	VPXOR Y0, Y0, Y0

top:
	VPAND (BX), Y1, Y3
	VPCMPGTW Y3, Y2, Y4 // finite
	VPAND Y4, Y3, Y3
	VPMAXSW Y3, Y0, Y0
	ADDQ $32, BX
	SUBQ $8, DX
	JNZ top
	VMOVDQU Y0, (AX)
	VZEROUPPER
	RET

// E4M3 turns 8 float32 into their codes. As narrow does: a normal one is rebiased and rounded at bit 20, of a subnormal
// one units of 2^-9 are counted.
#define E4M3(F) \
	VPSLLD $1, F, Y12 \
	VPSRLD $1, Y12, Y12 \
	VPSRLD $24, F, Y13 \
	VPAND Y9, Y13, Y13 \
	VCMPPS $3, F, F, Y14 \
	VMULPS Y7, Y12, F \
	VCVTPS2DQ F, F \
	VPCMPGTD Y12, Y6, Y15 \
	VPSUBD Y3, Y12, Y12 \
	VPSLLD $11, Y12, Y5 \
	VPSRLD $31, Y5, Y5 \
	VPADDD Y4, Y12, Y12 \
	VPADDD Y5, Y12, Y12 \
	VPSRLD $20, Y12, Y12 \
	VPBLENDVB Y15, F, Y12, F \
	VPMINUD Y8, F, F \
	VPOR Y13, F, F \
	VPSRLD $25, Y14, Y5 \
	VPBLENDVB Y14, Y5, F, F

// E4M3X16 turns 16 bf16 at an address into 8 words of two codes.
#define E4M3X16(FROM, TO) \
	VMOVDQU FROM, Y2 \
	VPSLLD $16, Y2, TO \
	VMULPS Y0, TO, TO \
	E4M3(TO) \
	VPAND Y1, Y2, Y2 \
	VMULPS Y0, Y2, Y2 \
	E4M3(Y2) \
	VPSLLD $8, Y2, Y2 \
	VPOR Y2, TO, TO

#define SPLAT(C, Y) \
	MOVL $C, CX \
	VMOVD CX, X2 \
	VPBROADCASTD X2, Y

// func e4m3AVX2(q, v *uint32, n int, by float32)
TEXT ·e4m3AVX2(SB), NOSPLIT, $0-28
	MOVQ q+0(FP), AX
	MOVQ v+8(FP), BX
	MOVQ n+16(FP), DX
	VBROADCASTSS by+24(FP), Y0
	SPLAT(0xffff0000, Y1)
	SPLAT(0x3c000000, Y3) // 120<<23
	SPLAT(0x7ffff, Y4)
	SPLAT(0x3c800000, Y6) // 2^-6, the least normal
	SPLAT(0x44000000, Y7) // 512
	SPLAT(0x7e, Y8)
	SPLAT(0x80, Y9)

quantise:
	E4M3X16((BX), Y10)
	E4M3X16(32(BX), Y11)
	VPACKUSDW Y11, Y10, Y10
	VPERMQ $0xd8, Y10, Y10
	VMOVDQU Y10, (AX)
	ADDQ $64, BX
	ADDQ $32, AX
	SUBQ $16, DX
	JNZ quantise
	VZEROUPPER
	RET
