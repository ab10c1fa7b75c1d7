// SPDX-License-Identifier: Apache-2.0

package env

import (
	"errors"
	"strings"
)

// NCCL's names for Backend. Its code reads the first, which has more values (4 is GPI), and the paper names the second.
var (
	ncclType    = ncclVar("NCCL_GIN_TYPE", "-1 (auto), 2 (proxy), 3 (gdaki)", "DOORBELL_GIN_BACKEND as NCCL 2.28 and newer take it, where that is not set", map[string]string{"-1": "auto", "2": "proxy", "3": "gdaki"})
	ncclBackend = ncclVar("NCCL_GIN_BACKEND", "proxy, gdaki, in either case", "DOORBELL_GIN_BACKEND as arXiv 2511.15076 names it, where neither that nor NCCL_GIN_TYPE is set", map[string]string{"proxy": "proxy", "gdaki": "gdaki"})
)

func ncclVar(name, accepts, help string, meaning map[string]string) String {
	return declare(Info{name, "string", "", accepts, help}, func(s string) (string, error) {
		if b, ok := meaning[strings.ToLower(s)]; ok {
			return b, nil
		}
		return "", errors.New("no such choice here; " + Backend.Name() + " goes before it")
	})
}

// Chosen is a value, and which of several variables gave it.
type Chosen struct {
	Value string
	By    string   // NAME=VALUE, empty for the default
	Over  []string // NAME=VALUE of those that are set too
}

// GINBackend is who drives the network: auto, proxy or gdaki. It is the first that is set of Backend, NCCL_GIN_TYPE and
// NCCL_GIN_BACKEND, as Get gives it. Those after it are not parsed, so that a value that only NCCL knows does no harm where
// Backend is set.
func GINBackend(lookup Lookup) (c Chosen, err error) {
	for _, v := range []String{Backend, ncclType, ncclBackend} {
		text, ok := find(lookup, v.Name())
		switch said := v.Name() + "=" + text; {
		case !ok:
		case c.By != "":
			c.Over = append(c.Over, said)
		default:
			c.By = said
			if c.Value, err = v.Get(lookup); err != nil {
				return Chosen{}, err
			}
		}
	}
	if c.By == "" {
		c.Value, err = Backend.Get(lookup)
	}
	return c, err
}
