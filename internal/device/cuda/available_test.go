// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package cuda_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/doorbell-net/doorbell/internal/device"
	"github.com/doorbell-net/doorbell/internal/device/cuda"
	"github.com/doorbell-net/doorbell/internal/sys/ffi"
)

// refused holds an error that says the device is not available, and in which words.
func refused(t *testing.T, err error, words ...string) {
	t.Helper()
	if !errors.Is(err, device.ErrNotAvailable) {
		t.Errorf("error %v, want one that wraps ErrNotAvailable", err)
		return
	}
	says(t, err, words...)
}

func says(t *testing.T, err error, words ...string) {
	t.Helper()
	for _, w := range words {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not say %q", err, w)
		}
	}
}

// TestNotAvailable: why there is no device is said in a line, with what is asked for and what there is.
func TestNotAvailable(t *testing.T) {
	_, err := cuda.Open(cuda.Options{Library: "libcuda-of-nobody.so.1"})
	refused(t, err, "open library libcuda-of-nobody.so.1", "--device soft")

	empty := filepath.Join(t.TempDir(), "libcuda.so.1")
	if out, err := exec.Command("gcc", "-shared", "-o", empty, "-x", "c", os.DevNull).CombinedOutput(); err == nil {
		_, err = cuda.Open(cuda.Options{Library: empty})
		refused(t, err, empty, "no function cuInit")
	} else if !errors.Is(err, exec.ErrNotFound) {
		t.Fatalf("%v: %s", err, out)
	}

	for _, c := range []struct {
		name  string
		set   map[string]int
		words []string
	}{
		{"old driver", map[string]int{"version": 11040}, []string{"CUDA 11.4", "needs 12.0", "--device soft"}},
		{"no GPU", map[string]int{"devices": 0}, []string{"cuInit: CUDA_ERROR_NO_DEVICE (100): no CUDA-capable device is detected", "--device soft"}},
		{"prohibited", map[string]int{"mode": 2}, []string{"GPU 0 (double 0)", "compute mode Prohibited"}},
		{"lanes", map[string]int{"warp": 64}, []string{"warps of 64 threads"}},
		{"no stream memory operations", map[string]int{"streammem": 0}, []string{"stream memory operations"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDouble(t)
			for what, v := range c.set {
				d.Set(what, v)
			}
			_, err := d.try(cuda.Options{})
			refused(t, err, append(c.words, "open device cuda")...)
			// Afterwards the same process may find one: nothing of the failure is kept.
			d.Ask("double_reset")
			shut(t, d.open(cuda.Options{}).Close)
		})
	}

	d := newDouble(t)
	d.Set("devices", 2)
	_, err = d.try(cuda.Options{GPU: cuda.Index(2)})
	refused(t, err, "GPU 2 asked for, 0 to 1 are there")
	other := newDouble(t)
	other.FailCall("cuInit", 1, 999)
	_, err = other.try(cuda.Options{})
	refused(t, err, "cuInit: CUDA_ERROR (999)")
}

// TestOneProcess: where a GPU takes one process, the second is told so.
func TestOneProcess(t *testing.T) {
	d := newDouble(t)
	d.Set("mode", 3)
	d.FailCall("cuDevicePrimaryCtxRetain", 1, 46)
	_, err := d.try(cuda.Options{})
	says(t, err, "cuDevicePrimaryCtxRetain", "(46)", "GPU 0 (double 0) is in compute mode Exclusive_Process", "nvidia-smi -c 0")
	dev := d.open(cuda.Options{})
	says(t, errors.New(dev.Caps().String()), "processes at a time", "Exclusive_Process")
	shut(t, dev.Close)
}

// TestBadOptions refuses what cannot be, before it touches a driver.
func TestBadOptions(t *testing.T) {
	for words, o := range map[string]cuda.Options{
		"GPU -2":        {GPU: cuda.Index(-2)},
		"local rank -1": {LocalRank: -1},
		"-3 ranks":      {Ranks: -3},
		"timeout -1ns":  {Timeout: -1},
		"patience -1ns": {Patience: -1},
	} {
		o.Library = "libcuda-of-nobody.so.1"
		_, err := cuda.Open(o)
		says(t, err, words, "accepted")
	}
}

// TestChoice: by the local rank modulo the GPUs, or the one that is asked for.
func TestChoice(t *testing.T) {
	d := newDouble(t)
	d.Set("devices", 3)
	for _, c := range []struct {
		o    cuda.Options
		want int
	}{{cuda.Options{}, 0}, {cuda.Options{LocalRank: 2}, 2}, {cuda.Options{LocalRank: 7}, 1}, {cuda.Options{GPU: cuda.Index(2), LocalRank: 1}, 2}, {cuda.Options{GPU: cuda.Index(0), LocalRank: 1}, 0}} {
		dev := d.open(c.o)
		if caps := dev.Caps(); caps.Index != c.want || caps.Count != 3 {
			t.Errorf("%+v: GPU %d of %d, want %d", c.o, caps.Index, caps.Count, c.want)
		}
		shut(t, dev.Close)
	}
	d.Set("devices", 1) // as where each process sees a GPU of its own
	dev := d.open(cuda.Options{LocalRank: 5})
	if caps := dev.Caps(); caps.Index != 0 {
		t.Errorf("local rank 5 took GPU %d of 1", caps.Index)
	}
	shut(t, dev.Close)
}

// TestLook tells of all GPUs, also of those that are not fit, and opens none.
func TestLook(t *testing.T) {
	d := newDouble(t)
	d.Set("devices", 2)
	all, unfit, err := cuda.Look(d.Path)
	if err != nil || len(all) != 2 || len(unfit) != 2 || unfit[0] != nil || unfit[1] != nil || all[1].Index != 1 || all[0].Name == "" {
		t.Errorf("found %+v, %v, %v", all, unfit, err)
	}
	if d.Count("cuDevicePrimaryCtxRetain") != 0 {
		t.Error("a GPU was opened")
	}
	d = newDouble(t)
	d.Set("devices", 0)
	if _, _, err = cuda.Look(d.Path); !errors.Is(err, device.ErrNotAvailable) {
		t.Errorf("without a GPU: %v", err)
	}
	_, _, err = cuda.Look("libcuda-of-nobody.so.1")
	says(t, err, "libcuda-of-nobody.so.1")
	if !errors.Is(err, device.ErrNotAvailable) {
		t.Errorf("without a driver: %v", err)
	}
}

// TestEnvironment: what the driver must know is set before it starts, what somebody set stays, and what would stop ranks that
// wait for each other is refused.
func TestEnvironment(t *testing.T) {
	d := newDouble(t)
	t.Setenv("CUDA_DEVICE_MAX_CONNECTIONS", "") // both are put back at the end
	t.Setenv("CUDA_MODULE_LOADING", "")
	t.Setenv("CUDA_LAUNCH_BLOCKING", "0")
	shut(t, d.open(cuda.Options{}).Close)
	if seen := ffi.String(d.Ask("double_environment")); seen != "32 EAGER" {
		t.Errorf("the driver started with %q, want 32 EAGER", seen)
	}
	d = newDouble(t)
	t.Setenv("CUDA_DEVICE_MAX_CONNECTIONS", "16")
	shut(t, d.open(cuda.Options{}).Close)
	if seen := ffi.String(d.Ask("double_environment")); seen != "16 EAGER" {
		t.Errorf("the driver started with %q, want the 16 that were set", seen)
	}
	for name, values := range map[string][]string{
		"CUDA_DEVICE_MAX_CONNECTIONS": {"1", "7", "33", "many"}, "CUDA_MODULE_LOADING": {"LAZY"}, "CUDA_LAUNCH_BLOCKING": {"1"},
	} {
		for _, v := range values {
			t.Run(name+"="+v, func(t *testing.T) {
				t.Setenv(name, v)
				d := newDouble(t)
				_, err := d.try(cuda.Options{})
				says(t, err, name+"="+v, "accepted")
				if d.Count("cuInit") != 0 {
					t.Error("the driver was started all the same")
				}
			})
		}
	}
}

// TestCaps reads the table right: each attribute where it belongs.
func TestCaps(t *testing.T) {
	d := newDouble(t)
	dev := d.open(cuda.Options{Ranks: 2})
	c := dev.Caps()
	if c.Name != "double 0" || c.SMs != 8 || c.WarpsPerSM != 64 || c.BlocksPerSM != 32 || c.CopyEngines != 3 || c.Major != 9 || c.Minor != 0 ||
		c.Driver != 12090 || c.Bytes != 1<<30 || c.PCI != "0000:17:00" || c.UUID != "00000000000d0b1e0000000000000000" || c.HostAtomics || !c.Unified || !c.StreamMemory || !c.Cooperative {
		t.Errorf("capabilities are %+v", c)
	}
	for _, line := range []string{"double 0, 0 of 1, PCI 0000:17:00", "CUDA 12.9", "1 GiB", "8, of 64 warps and 32 blocks"} {
		if !strings.Contains(c.String(), line) {
			t.Errorf("the table lacks %q:\n%s", line, c)
		}
	}
	if n := dev.MaxCooperativeWarps(); n != 4*64 {
		t.Errorf("one of two ranks gets %d warps, want half of 512", n)
	}
	if dev.Name() != "cuda" || dev.Powers() != (device.Powers{Lanes: 32}) {
		t.Errorf("%s, %+v", dev.Name(), dev.Powers())
	}
	shut(t, dev.Close)
}
