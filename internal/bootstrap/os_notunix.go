// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package bootstrap

import (
	"errors"
	"os"
)

const (
	controlBytes     = 1
	controlTruncated = 0
)

var errNoFDs = errors.New("descriptors cannot be passed on this system")

func getpid() int                        { return os.Getpid() }
func ownerOf(os.FileInfo) (int, bool)    { return 0, false }
func dupFD(int) (int, error)             { return -1, errNoFDs }
func closeFD(int)                        {}
func encodeRights([]int) []byte          { return nil }
func decodeRights([]byte) ([]int, error) { return nil, nil }
func tryLock(*os.File) (bool, error)     { return true, nil }
