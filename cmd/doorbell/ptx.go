// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"

	"github.com/doorbell-net/doorbell/bench/kernels"
	"github.com/doorbell-net/doorbell/gpu"
)

// takeKernels puts the code in a file in the place of the bench kernels of the same names, before a device is opened.
// They take the same arguments, so that two compilers are compared by all the rest that is the same.
func takeKernels(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	taken := 0
	for _, code := range benchCodes() {
		if hasEntry(text, code.Name) {
			code.PTX, code.Cubins = string(text), nil
			for _, v := range code.Variants { // the file's serves all arguments
				v.Name, v.PTX, v.Cubins = code.Name, code.PTX, nil
			}
			taken++
		}
	}
	if taken == 0 {
		return fmt.Errorf("%s has no entry of the name of a bench kernel, such as %s", file, kernels.PingPongKernel.Name())
	}
	return nil
}

// twinOf is a kernel again, with the code in a file, to run beside it in one process.
func twinOf[A any](k gpu.Kernel[A], fn func(gpu.Thread, A), file string) (gpu.Kernel[A], error) {
	text, err := os.ReadFile(file)
	if err == nil && !hasEntry(text, k.Name()) {
		err = fmt.Errorf("%s has no entry %s", file, k.Name())
	}
	if err != nil {
		return gpu.Kernel[A]{}, err
	}
	return gpu.NewKernel(k.Name(), fn, string(text)), nil
}

// benchCodes is the kernels of bench/kernels: those of one module.
func benchCodes() (all []*gpu.Code) {
	module := kernels.PingPongKernel.PTX()
	for _, code := range gpu.Codes() {
		if code.PTX == module {
			all = append(all, code)
		}
	}
	return all
}

// hasEntry says whether PTX, or a cubin, has a kernel of that name.
func hasEntry(text []byte, name string) bool {
	if bytes.HasPrefix(text, []byte("\x7fELF")) {
		return bytes.Contains(text, []byte("\x00.text."+name+"\x00"))
	}
	return bytes.Contains(text, []byte(".entry "+name+"("))
}
