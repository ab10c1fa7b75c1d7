// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// CheckPlotName says whether WritePlot can write a file of this name: it must end in .svg, .png or .html, and its folder
// must exist. Call it before measuring, so that a long run is not lost to a wrong name.
func CheckPlotName(name string) error {
	switch filepath.Ext(name) {
	case ".svg", ".png", ".html":
	default:
		return fmt.Errorf("write plot %q: the name must end in .svg, .png or .html", name)
	}
	dir := filepath.Dir(name)
	if st, err := os.Stat(dir); err != nil {
		return fmt.Errorf("write plot %q: %w", name, err)
	} else if !st.IsDir() {
		return fmt.Errorf("write plot %q: %s is not a folder", name, dir)
	}
	return nil
}

// WritePlot draws the result into a file of the kind that its ending names.
func WritePlot(name string, r Result, o ChartOptions) error {
	if err := CheckPlotName(name); err != nil {
		return err
	}
	c, err := NewChart(r, o)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	switch filepath.Ext(name) {
	case ".svg":
		err = c.writeSVG(&b)
	case ".png":
		err = c.writePNG(&b)
	case ".html":
		err = c.writeHTML(&b, r)
	}
	if err != nil {
		return fmt.Errorf("write plot %q: %w", name, err)
	}
	return os.WriteFile(name, b.Bytes(), 0o644)
}

func (c Chart) writeSVG(b *bytes.Buffer) error {
	w, h := c.size()
	canvas := vgsvg.New(w, h)
	c.draw(draw.New(canvas))
	var raw bytes.Buffer
	if _, err := canvas.WriteTo(&raw); err != nil {
		return err
	}
	// Fonts are not embedded (some 400 KB); readers without Liberation Sans get one of the same widths.
	b.Write(bytes.ReplaceAll(raw.Bytes(), []byte("font-family:Liberation Sans;"),
		[]byte("font-family:'Liberation Sans',Arial,Helvetica,sans-serif;")))
	return nil
}

func (c Chart) writePNG(b *bytes.Buffer) error {
	w, h := c.size()
	canvas := vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(w, h), vgimg.UseDPI(144))}
	c.draw(draw.New(canvas))
	_, err := canvas.WriteTo(b)
	return err
}

// Lengths of the drawing.
const (
	chartWidth  = 640
	panelHeight = 300
	headHeight  = 46
	lineHeight  = 14
	margin      = 14
	noteRunes   = 120
)

var (
	ink  = color.NRGBA{0x22, 0x22, 0x22, 0xff}
	soft = color.NRGBA{0x66, 0x66, 0x66, 0xff}
	grid = color.NRGBA{0xe6, 0xe6, 0xe6, 0xff}
	warn = color.NRGBA{0xb0, 0x20, 0x20, 0xff}

	// Colours that readers with colour-blindness can tell apart (Okabe and Ito); ours and published ones differ.
	ourColors   = []color.NRGBA{{0x00, 0x72, 0xb2, 0xff}, {0xd5, 0x5e, 0x00, 0xff}, {0x00, 0x9e, 0x73, 0xff}, {0x99, 0x33, 0x88, 0xff}, {0x33, 0x33, 0x33, 0xff}}
	paperColors = []color.NRGBA{{0xe6, 0x9f, 0x00, 0xff}, {0xcc, 0x79, 0xa7, 0xff}, {0x56, 0xb4, 0xe9, 0xff}, {0x7a, 0x6a, 0x4f, 0xff}}
	ourGlyphs   = []draw.GlyphDrawer{draw.CircleGlyph{}, draw.SquareGlyph{}, draw.PyramidGlyph{}, draw.BoxGlyph{}, draw.RingGlyph{}}
	paperGlyphs = []draw.GlyphDrawer{draw.PlusGlyph{}, draw.CrossGlyph{}, draw.RingGlyph{}, draw.TriangleGlyph{}}
)

func style(size vg.Length, bold bool, c color.Color) text.Style {
	f := font.Font{Typeface: "Liberation", Variant: "Sans", Size: size}
	if bold {
		f.Weight = 3 // bold, as x/image/font counts weights
	}
	return text.Style{Color: c, Font: f, YAlign: draw.YTop, Handler: plot.DefaultTextHandler}
}

func (p Panel) legendHeight() vg.Length { return vg.Length(len(p.Series))*lineHeight + 8 }

func (c Chart) size() (w, h vg.Length) {
	h = headHeight + vg.Length(len(c.Notes))*lineHeight + 2*margin
	for _, p := range c.Panels {
		h += panelHeight + p.legendHeight() + margin
	}
	return chartWidth, h
}

// draw lays out title, panels with a legend below each, and notes, from top to bottom.
func (c Chart) draw(dc draw.Canvas) {
	dc.SetColor(color.White)
	dc.Fill(dc.Rectangle.Path())
	dc = draw.Crop(dc, margin, -margin, margin, -margin)
	dc.FillText(style(15, true, ink), vg.Point{X: dc.Min.X, Y: dc.Max.Y}, c.Title)
	dc.FillText(style(9, false, soft), vg.Point{X: dc.Min.X, Y: dc.Max.Y - 21}, c.Subtitle)
	y := dc.Max.Y - headHeight
	below := func(h vg.Length) draw.Canvas {
		area := draw.Canvas{Canvas: dc.Canvas, Rectangle: vg.Rectangle{
			Min: vg.Point{X: dc.Min.X, Y: y - h}, Max: vg.Point{X: dc.Max.X, Y: y}}}
		y -= h
		return area
	}
	for _, p := range c.Panels {
		pl, legend := p.plot()
		pl.Draw(below(panelHeight))
		legend.Draw(draw.Crop(below(p.legendHeight()), 44, 0, 0, -6))
		y -= margin
	}
	for _, n := range c.Notes {
		st := style(9, false, soft)
		if strings.HasPrefix(n, "NOT VERIFIED") {
			st = style(9, true, warn)
		}
		if r := []rune(n); len(r) > noteRunes { // an error can be long; the JSON has all of it
			n = string(r[:noteRunes]) + "..."
		}
		dc.FillText(st, vg.Point{X: dc.Min.X, Y: y}, n)
		y -= lineHeight
	}
}

// plot makes one panel, and its legend apart so that it is drawn where it covers no line.
func (p Panel) plot() (*plot.Plot, *plot.Legend) {
	pl := plot.New()
	for _, a := range []*plot.Axis{&pl.X, &pl.Y} {
		a.Scale = plot.LogScale{}
		a.Color, a.Tick.Color = soft, soft
		a.Tick.Length = 4
		a.Label.TextStyle = style(10, false, ink)
		a.Label.TextStyle.XAlign, a.Label.TextStyle.YAlign = draw.XCenter, draw.YBottom
		a.Label.Padding = 4
		a.Tick.Label.Font = style(9, false, ink).Font
		a.Tick.Label.Color = ink
	}
	pl.X.Label.Text, pl.Y.Label.Text = "message size", p.YLabel
	pl.X.Tick.Marker, pl.Y.Tick.Marker = powerTicks{Size}, decadeTicks{}
	if p.X == Tokens {
		pl.X.Label.Text = "tokens of a rank"
		pl.X.Tick.Marker = powerTicks{func(n int64) string { return strconv.FormatInt(n, 10) }}
	}
	g := plotter.NewGrid()
	g.Horizontal = draw.LineStyle{Color: grid, Width: 0.7}
	g.Vertical = g.Horizontal
	pl.Add(g)
	legend := plot.NewLegend()
	legend.TextStyle = style(9, false, ink)
	legend.TextStyle.YAlign = draw.YBottom
	legend.Left, legend.Top = true, true
	legend.ThumbnailWidth = 30
	legend.Padding = lineHeight - legend.TextStyle.Rectangle("Mg").Max.Y

	ours, paper := -1, -1
	for _, s := range p.Series {
		xy := make(plotter.XYs, len(s.Points))
		for i, pt := range s.Points {
			xy[i] = plotter.XY{X: pt.X, Y: pt.Y}
		}
		line := &plotter.Line{XYs: xy}
		dots := &plotter.Scatter{XYs: xy}
		switch s.Kind {
		case Main:
			ours++
			k := ours % len(ourColors)
			line.LineStyle = draw.LineStyle{Color: ourColors[k], Width: 1.8}
			dots.GlyphStyle = draw.GlyphStyle{Color: ourColors[k], Radius: 2.6, Shape: ourGlyphs[k]}
		case Tail:
			k := max(ours, 0) % len(ourColors)
			faint := ourColors[k]
			faint.A = 0x99
			line.LineStyle = draw.LineStyle{Color: faint, Width: 1.1, Dashes: []vg.Length{3, 2}}
			dots.GlyphStyle = draw.GlyphStyle{Color: faint, Radius: 1.6, Shape: ourGlyphs[k]}
		case Paper:
			paper++
			k := paper % len(paperColors)
			line.LineStyle = draw.LineStyle{Color: paperColors[k], Width: 1.4, Dashes: []vg.Length{6, 3}}
			dots.GlyphStyle = draw.GlyphStyle{Color: paperColors[k], Radius: 2.6, Shape: paperGlyphs[k]}
		}
		pl.Add(line, dots)
		legend.Add(s.Name, line, dots)
	}
	pl.X.Min, pl.X.Max = widen(pl.X.Min, pl.X.Max, 1.3)
	pl.Y.Min, pl.Y.Max = widen(pl.Y.Min, pl.Y.Max, 1.25)
	return pl, &legend
}

// widen gives a logarithmic range air on both sides, and at least a factor of ten in all, so that it has ticks.
func widen(low, high, air float64) (float64, float64) {
	low, high = low/air, high*air
	if f := math.Sqrt(10 * low / high); f > 1 {
		low, high = low/f, high*f
	}
	return low, high
}
