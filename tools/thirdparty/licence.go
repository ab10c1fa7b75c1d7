// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// licenceFile matches the names of files that hold a licence's text; what follows the dash is often the licence's name.
// Lists of others' licences and links to texts are not meant.
var licenceFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|unlicense)([-.][a-z0-9.]+)*$`)

var notALicence = regexp.MustCompile(`(?i)third|link`)

// licenceOf returns the SPDX expression for the licence files in a module's root folder. One that has none, or a text
// that is not known here, is an error: a person must look at it.
func licenceOf(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() || !licenceFile.MatchString(e.Name()) || notALicence.MatchString(e.Name()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return "", err
		}
		name := recognise(string(text))
		if name == "" {
			return "", fmt.Errorf("recognise %s: its text is none of those in tools/thirdparty: read it and add it there", e.Name())
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return "", fmt.Errorf("no licence file in %s", dir)
	}
	return strings.Join(names, " AND "), nil
}

// recognise names a licence by phrases that only its text has; "" if it knows none. The order matters where one text
// quotes another.
func recognise(text string) string {
	text = strings.ToLower(strings.Join(strings.Fields(text), " "))
	for _, l := range []struct {
		name    string
		phrases []string
	}{
		{"FTL OR GPL-2.0-or-later", []string{"your choice of exactly one of", "freetype license", "gnu general public license"}},
		{"MPL-2.0", []string{"mozilla public license version 2.0"}},
		{"Apache-2.0", []string{"apache license", "version 2.0"}},
		{"CC-BY-4.0", []string{"creative commons attribution 4.0 international"}},
		{"OFL-1.1", []string{"sil open font license", "1.1"}},
		{"BSD-3-Clause", []string{"redistribution and use in source and binary forms", "endorse or promote"}},
		{"BSD-2-Clause", []string{"redistribution and use in source and binary forms"}},
		{"MIT", []string{"permission is hereby granted, free of charge", "without restriction"}},
		{"ISC", []string{"permission to use, copy, modify, and/or distribute this software"}},
	} {
		if !slices.ContainsFunc(l.phrases, func(p string) bool { return !strings.Contains(text, p) }) {
			return l.name
		}
	}
	return ""
}
