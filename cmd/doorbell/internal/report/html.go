// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"fmt"
	"html/template"
)

// page is self-contained: it loads nothing and runs nothing.
var page = template.Must(template.New("page").Parse(`<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{.Title}}</title>
<style>
body { font: 15px/1.45 "Liberation Sans", Arial, Helvetica, sans-serif; color: #222; max-width: 62em; margin: 2em auto; padding: 0 1em }
svg { max-width: 100%; height: auto }
table { border-collapse: collapse; margin: 1em 0; font-variant-numeric: tabular-nums }
th, td { text-align: right; padding: .25em .8em; border-bottom: 1px solid #e6e6e6 }
th { color: #666; font-weight: normal }
.no { color: #b02020; font-weight: bold }
.soft { color: #666 }
</style>
</head>
<body>
{{.SVG}}
<table>
<tr>{{range .Head}}<th>{{.}}</th>{{end}}</tr>
{{range .Rows}}<tr>{{range .}}<td>{{.}}</td>{{end}}</tr>
{{end}}</table>
<p{{if not .Verified}} class="no"{{end}}>{{.Verdict}}</p>
<p class="soft">{{.Common}}<br>{{.Host}}</p>
</body>
</html>
`))

func (c Chart) writeHTML(b *bytes.Buffer, r Result) error {
	var svg bytes.Buffer
	if err := c.writeSVG(&svg); err != nil {
		return err
	}
	// An XML declaration has no place inside HTML.
	drawing := svg.Bytes()
	at := bytes.Index(drawing, []byte("<svg"))
	if at < 0 {
		return fmt.Errorf("no <svg in %d bytes of drawing", len(drawing))
	}
	common, columns := r.layout()
	var head []string
	for _, col := range columns {
		head = append(head, col.head)
	}
	var rows [][]string
	for _, x := range r.Rows {
		var cells []string
		for _, col := range columns {
			cells = append(cells, col.cell(x))
		}
		rows = append(rows, cells)
	}
	return page.Execute(b, map[string]any{
		"Title": c.Title, "SVG": template.HTML(drawing[at:]), "Head": head, "Rows": rows, // our own drawing, escaped by it
		"Verified": r.Verified && r.Error == "", "Verdict": r.verdict(), "Common": common, "Host": r.Host.String(),
	})
}
