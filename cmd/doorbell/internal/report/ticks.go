// SPDX-License-Identifier: Apache-2.0

package report

import (
	"math"
	"strconv"

	"gonum.org/v1/plot"
)

// powerTicks marks powers of two; it labels every one of a narrow range, every second or fourth of a wide one, always
// counted from 4 so that 64 B, 1 KiB, 16 KiB ... are among them.
type powerTicks struct{ label func(int64) string }

func (p powerTicks) Ticks(low, high float64) []plot.Tick {
	first, last := int(math.Ceil(math.Log2(low)-1e-9)), int(math.Floor(math.Log2(high)+1e-9))
	step := 1
	for last-first >= 12*step {
		step *= 2
	}
	var ticks []plot.Tick
	for e := max(first, 0); e <= last && e < 63; e++ {
		t := plot.Tick{Value: math.Exp2(float64(e))}
		if (e-2)%step == 0 {
			t.Label = p.label(1 << e)
		}
		ticks = append(ticks, t)
	}
	return ticks
}

// decadeTicks marks 1..9 of each decade and labels the 1; where the range is under three decades also 2 and 5.
type decadeTicks struct{}

func (decadeTicks) Ticks(low, high float64) []plot.Tick {
	narrow := high/low < 1000
	var ticks []plot.Tick
	for e := math.Floor(math.Log10(low)); e <= math.Ceil(math.Log10(high)); e++ {
		for m := 1.0; m < 10; m++ {
			v := m * math.Pow(10, e)
			if v < low || v > high {
				continue
			}
			t := plot.Tick{Value: v}
			if m == 1 || narrow && (m == 2 || m == 5) {
				t.Label = strconv.FormatFloat(figure(v), 'f', -1, 64)
			}
			ticks = append(ticks, t)
		}
	}
	return ticks
}
