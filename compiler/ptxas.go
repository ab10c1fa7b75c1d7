// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// ptxasVersion is the one ptxas that is used. The last of CUDA 12, since drivers from 525 on load its cubins, and those of
// CUDA 13 need driver 580; it also knows sm_70 still.
const ptxasVersion = "12.9.86"

// ErrNoPtxas is what errors.Is finds in an error about a missing or another ptxas.
var ErrNoPtxas = errors.New("cubins need ptxas " + ptxasVersion + ", on the path or in doorbell/ptxas-" + ptxasVersion +
	" of the user's cache folder: it is in the Python package nvidia-cuda-nvcc-cu12==" + ptxasVersion)

// CubinArchs are the GPUs that a source may ask cubins for. Each serves its generation, from itself on.
var CubinArchs = []int{80, 90, 100}

// Usage is what ptxas made of a kernel for one architecture.
type Usage struct {
	Kernel      string
	Arch        int
	Registers   int // a thread
	Stack       int // bytes a thread, in local memory: spills, and variables that did not become registers
	SpillStores int // bytes
	SpillLoads  int
}

// Assembler is the driver's compiler, as a program.
type Assembler struct{ path string }

var ptxasLine = regexp.MustCompile(`(?m)^Cuda compilation tools, .*, V([0-9.]+)$`)

// FindAssembler looks for ptxas.
func FindAssembler(ctx context.Context) (*Assembler, error) {
	var places []string
	if p, err := exec.LookPath("ptxas"); err == nil {
		places = append(places, p)
	}
	if dir, err := os.UserCacheDir(); err == nil {
		places = append(places, filepath.Join(dir, "doorbell", "ptxas-"+ptxasVersion, "ptxas"))
	}
	found := ""
	for _, p := range places {
		out, err := exec.CommandContext(ctx, p, "--version").Output()
		if err != nil {
			continue
		}
		v := ptxasLine.FindSubmatch(out)
		if v != nil && string(v[1]) == ptxasVersion {
			return &Assembler{p}, nil
		}
		found += "; found " + p + " of another version"
	}
	return nil, fmt.Errorf("%w%s", ErrNoPtxas, found)
}

// Assemble makes a cubin of the package for one architecture, and says what each kernel takes there. It is of the package's PTX, or,
// where its source asks for that cubin and the GPU has instructions that others lack, of PTX with them.
func (a *Assembler) Assemble(ctx context.Context, p *Package, arch int) (cubin []byte, all []Usage, err error) {
	text := cmp.Or(p.newer[arch], p.PTX)
	kept, err := once(func() ([]byte, error) { return a.run(ctx, text, arch) }, keptFormat, ptxasVersion, text, strconv.Itoa(arch))
	if err != nil {
		return nil, nil, fmt.Errorf("gpuc: %s: ptxas for sm_%d: %w", p.Path, arch, err)
	}
	var m assembled
	if err := json.Unmarshal(kept, &m); err != nil {
		return nil, nil, fmt.Errorf("gpuc: %s: what is kept of ptxas for sm_%d: %w", p.Path, arch, err)
	}
	all = usages(m.Said, arch)
	if len(all) != len(p.Kernels) {
		return nil, nil, fmt.Errorf("gpuc: %s: ptxas tells of %d kernels, and there are %d", p.Path, len(all), len(p.Kernels))
	}
	return m.Cubin, all, nil
}

// keptFormat says what is kept of ptxas: another one where assembled, or what run asks of ptxas, is another.
const keptFormat = "assembled 1"

// assembled is what ptxas made of a text, as it is kept.
type assembled struct {
	Said  string
	Cubin []byte
}

// run runs ptxas over a text, and is an assembled.
func (a *Assembler) run(ctx context.Context, text string, arch int) ([]byte, error) {
	dir, err := os.MkdirTemp("", "cubin")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	in, out := filepath.Join(dir, "kernels.ptx"), filepath.Join(dir, "kernels.cubin")
	if err := os.WriteFile(in, []byte(text), 0o600); err != nil {
		return nil, err
	}
	said, err := exec.CommandContext(ctx, a.path, "-v", "-arch", fmt.Sprintf("sm_%d", arch), "-o", out, in).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%w:\n%s", err, strings.TrimSpace(string(said)))
	}
	cubin, err := os.ReadFile(out)
	if err != nil {
		return nil, err
	}
	return json.Marshal(assembled{string(said), cubin})
}

var (
	entryLine = regexp.MustCompile(`Compiling entry function '([^']+)'`)
	stackLine = regexp.MustCompile(`(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads`)
	usedLine  = regexp.MustCompile(`Used (\d+) registers`)
)

// usages reads what ptxas -v says: of each kernel its name, its stack, its registers, in that order.
func usages(said string, arch int) []Usage {
	var all []Usage
	number := func(s string) int {
		n, _ := strconv.Atoi(s) // digits, by the pattern
		return n
	}
	for line := range strings.Lines(said) {
		if m := entryLine.FindStringSubmatch(line); m != nil {
			all = append(all, Usage{Kernel: m[1], Arch: arch})
		}
		if len(all) == 0 {
			continue
		}
		u := &all[len(all)-1]
		if m := stackLine.FindStringSubmatch(line); m != nil {
			u.Stack, u.SpillStores, u.SpillLoads = number(m[1]), number(m[2]), number(m[3])
		}
		if m := usedLine.FindStringSubmatch(line); m != nil {
			u.Registers = number(m[1])
		}
	}
	return all
}

// AssembleAll makes the cubins that the package's source asks for, which Files has from then on.
func (a *Assembler) AssembleAll(ctx context.Context, p *Package) error {
	p.Cubins = map[int][]byte{}
	for _, arch := range p.Archs {
		cubin, _, err := a.Assemble(ctx, p, arch)
		if err != nil {
			return err
		}
		p.Cubins[arch] = cubin
	}
	return nil
}
