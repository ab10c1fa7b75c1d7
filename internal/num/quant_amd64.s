// SPDX-License-Identifier: Apache-2.0

//go:build !race

#include "textflag.h"

#define EACH(x, X, Y) \
	MOVL x, R8; \
	VMOVD R8, X; \
	VPBROADCASTD X, Y

// func topAVX2(v *uint32, n int) uint32
TEXT ·topAVX2(SB), NOSPLIT, $0-20
	MOVQ v+0(FP), CX
	MOVQ n+8(FP), DX
	EACH($0x7fff7fff, X1, Y1)
	EACH($0x7f807f80, X2, Y2) // infinities
	VPXOR Y0, Y0, Y0

top:
	VPAND (CX), Y1, Y3
	VPCMPGTW Y3, Y2, Y4 // finite
	VPAND Y4, Y3, Y3
	VPMAXSW Y3, Y0, Y0
	ADDQ $32, CX
	SUBQ $8, DX
	JNZ top
	VEXTRACTI128 $1, Y0, X3
	VPMAXSW X3, X0, X0
	VPXOR X1, X0, X0 // the largest is the smallest now
	VPHMINPOSUW X0, X0
	VMOVD X0, AX
	ANDL $0x7fff, AX
	XORL $0x7fff, AX
	MOVL AX, ret+16(FP)
	VZEROUPPER
	RET

// E4M3 makes f, eight float32, into codes; abs, t and u are scratch. Constants are where e4m3AVX2 puts them.
#define E4M3(f, abs, t, u) \
	VPAND Y14, f, abs; \
	VPSRLD $31, f, f; \
	VPSLLD $7, f, f; \
	VPCMPGTD Y9, abs, t; \ // NaN: it has no sign, and 1 more than the largest code
	VPANDN f, t, f; \
	VPSRLD $31, t, t; \
	VPOR t, f, f; \
	VPSLLD $11, abs, t; \ // by integers: half of the last place, and its lowest bit
	VPSRLD $31, t, t; \
	VPADDD abs, t, t; \
	VPSUBD Y12, t, t; \
	VPSRLD $20, t, t; \
	VPMINUD Y11, t, t; \
	VADDPS Y13, abs, u; \ // by an addition
	VPSUBD Y13, u, u; \
	VPCMPGTD abs, Y10, abs; \
	VPBLENDVB abs, u, t, t; \
	VPOR t, f, f

// func e4m3AVX2(q, v *uint32, n int, by float32)
TEXT ·e4m3AVX2(SB), NOSPLIT, $0-28
	MOVQ q+0(FP), AX
	MOVQ v+8(FP), CX
	MOVQ n+16(FP), DX
	VBROADCASTSS by+24(FP), Y15
	EACH($0x7fffffff, X14, Y14)
	EACH($0x46800000, X13, Y13) // e4m3UnitsBits
	EACH($0x3bf80001, X12, Y12) // e4m3Half
	EACH($0x7e, X11, Y11)
	EACH($0x3c800000, X10, Y10) // e4m3Normal
	EACH($0x7f800000, X9, Y9)
	MOVQ $0x0604020006040200, R8 // even words first
	VMOVQ R8, X8
	VPMOVZXBD X8, Y8

quant:
	VMOVDQU (CX), Y0
	VPSLLD $16, Y0, Y1
	VPSRLD $16, Y0, Y0
	VPSLLD $16, Y0, Y0
	VMULPS Y15, Y1, Y1
	VMULPS Y15, Y0, Y0
	E4M3(Y1, Y2, Y3, Y4)
	E4M3(Y0, Y2, Y3, Y4)
	VPSLLD $8, Y0, Y0
	VPOR Y0, Y1, Y1
	VPSRLQ $16, Y1, Y0 // the second of two words beside the first
	VPOR Y0, Y1, Y1
	VPERMD Y1, Y8, Y1
	VMOVDQU X1, (AX)
	ADDQ $32, CX
	ADDQ $16, AX
	SUBQ $4, DX
	JNZ quant
	VZEROUPPER
	RET
