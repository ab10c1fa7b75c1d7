// SPDX-License-Identifier: Apache-2.0

package benches

import (
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/num"
	"github.com/doorbell-net/doorbell/moe"
	"github.com/doorbell-net/doorbell/moe/ref"
)

// packer makes rows as they are sent, and says what they are worth, as ref.Encode and ref.Decode do, by tables: elements
// are integers of 8 bits, so that the largest magnitude of a group says all.
type packer struct {
	format moe.Format
	sent   []byte
	worth  []uint16
	tables [129]*packTable
}

type packTable struct {
	code  [256]byte // by the integer, as a byte
	worth [256]uint16
	scale []byte
}

const group = 128

func newPacker(f moe.Format, hidden int) *packer {
	return &packer{format: f, sent: make([]byte, f.RowBytes(hidden)), worth: make([]uint16, hidden)}
}

// row is valid until the next call.
func (p *packer) row(x []uint16) (sent []byte, worth []uint16) {
	if p.format == moe.BF16 {
		return gpu.Slice(gpu.Cast[byte](gpu.PtrTo(&x[0])), 2*len(x)), x
	}
	scales := p.sent[p.format.ValueBytes(len(x)):]
	for g := 0; g*group < len(x); g++ {
		from, top := g*group, 0
		part := x[from:min(from+group, len(x))]
		for _, v := range part {
			i := int(num.BF16ToF32(v))
			top = max(top, i, -i)
		}
		t := p.table(top)
		for j, v := range part {
			i := byte(int8(num.BF16ToF32(v)))
			p.sent[from+j], p.worth[from+j] = t.code[i], t.worth[i]
		}
		copy(scales[g*len(t.scale):], t.scale)
	}
	return p.sent, p.worth
}

// table is of groups whose largest magnitude is top: made by the reference, of groups that have each integer in turn.
func (p *packer) table(top int) *packTable {
	if p.tables[top] == nil {
		t := &packTable{}
		for i := -top; i <= min(top, 127); i++ {
			x := make([]uint16, group)
			x[0], x[1] = num.F32ToBF16(float32(-top)), num.F32ToBF16(float32(i))
			row := ref.Encode(p.format, x)
			t.code[byte(int8(i))], t.worth[byte(int8(i))] = row[1], ref.Decode(p.format, row, group)[1]
			t.scale = row[p.format.ValueBytes(group):][:map[bool]int{true: 1, false: 4}[p.format == moe.FP8UE8M0]]
		}
		p.tables[top] = t
	}
	return p.tables[top]
}
