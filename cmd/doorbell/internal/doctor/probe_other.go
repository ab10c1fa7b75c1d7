// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package doctor

import "errors"

func tryMembarrier() error { return errors.New("membarrier is there on linux only") }

func storage(string) (kind string, local bool) { return "", false }
