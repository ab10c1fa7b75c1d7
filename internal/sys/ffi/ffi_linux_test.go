// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package ffi

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// libc is always there: this process is linked to it.
func libc(t testing.TB) *Library {
	t.Helper()
	l, err := Open("libc.so.6")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func symbol(t testing.TB, name string) uintptr {
	t.Helper()
	p, err := libc(t).Symbol(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func call(fn uintptr, args ...uintptr) uintptr {
	c := Call{Fn: fn}
	copy(c.Args[:], args)
	c.Do()
	return c.Result
}

// TestShapes passes each number of arguments there is to snprintf, which prints each: all arrive, each in its place.
func TestShapes(t *testing.T) {
	snprintf := symbol(t, "snprintf")
	for n := 3; n <= MaxArgs; n++ {
		buf := make([]byte, 512)
		format := []byte(strings.TrimSuffix(strings.Repeat("%ld,", n-3), ",") + "\x00")
		args := []uintptr{Addr(&buf[0]), uintptr(len(buf)), Addr(&format[0])}
		var want []string
		for i := 3; i < n; i++ {
			v := int64(i)<<40 - int64(i%2)<<62 // more than 32 bits, and both signs
			args = append(args, uintptr(v))
			want = append(want, fmt.Sprint(v))
		}
		got := call(snprintf, args...)
		if text := String(Addr(&buf[0])); text != strings.Join(want, ",") || int(got) != len(text) {
			t.Errorf("%d arguments: C saw %s, %d bytes; want %s", n, text, got, strings.Join(want, ","))
		}
		runtime.KeepAlive(format)
	}
	if got := call(symbol(t, "getpid")); int(got) != os.Getpid() {
		t.Errorf("no argument: getpid is %d, want %d", got, os.Getpid())
	}
	word := []byte("doorbell\x00")
	if got := call(symbol(t, "strlen"), Addr(&word[0])); got != 8 {
		t.Errorf("one argument: strlen is %d, want 8", got)
	}
	if got := call(symbol(t, "strnlen"), Addr(&word[0]), 4); got != 4 {
		t.Errorf("two arguments: strnlen is %d, want 4", got)
	}
	if minus := int64(-1) << 40; int64(call(symbol(t, "labs"), uintptr(minus))) != 1<<40 {
		t.Error("a negative argument or a result of 64 bits was cut")
	}
}

// TestBefore: the function that goes first gets its argument, and a failure of it is the result. That both run on one thread
// is held by the tests of package cuda, whose driver keeps a context for each.
func TestBefore(t *testing.T) {
	word, empty := []byte("x\x00"), []byte("\x00")
	strlen, labs := symbol(t, "strlen"), symbol(t, "labs")
	for _, c := range []struct {
		first []byte
		want  uintptr
	}{{empty, 7}, {word, 1}} {
		minus := -7
		k := Call{Fn: labs, Before: strlen, BeforeArg: Addr(&c.first[0])}
		k.Args[0] = uintptr(minus)
		if k.Do(); k.Result != c.want {
			t.Errorf("result %d after a first call with %q, want %d", k.Result, c.first, c.want)
		}
		runtime.KeepAlive(c.first)
	}
}

// TestDeepStack calls from stacks that just grew, with the Call on them.
func TestDeepStack(t *testing.T) {
	labs := symbol(t, "labs")
	var deep func(n int) int
	deep = func(n int) int {
		var pad [100]byte
		if n == 0 {
			return 0
		}
		minus := -n
		c := Call{Fn: labs}
		c.Args[0] = uintptr(minus)
		if c.Do(); int(c.Result) != n {
			t.Fatalf("labs of %d is %d", -n, c.Result)
		}
		return deep(n-1) + int(pad[n%100])
	}
	for range 4 {
		done := make(chan struct{})
		go func() { defer close(done); deep(2000) }()
		<-done
	}
}

// TestString reads no further than the end, and nothing at null.
func TestString(t *testing.T) {
	b := []byte("ab\x00cd\x00")
	if s := String(Addr(&b[0])); s != "ab" {
		t.Errorf("read %q, want ab", s)
	}
	if s := String(0); s != "" {
		t.Errorf("read %q at null", s)
	}
	long := []byte(strings.Repeat("y", maxString+10) + "\x00")
	if s := String(Addr(&long[0])); len(s) != maxString {
		t.Errorf("read %d bytes, want %d at most", len(s), maxString)
	}
}

// TestSetenv: what os.Setenv sets is what C libraries see, which CUDA's are told by it.
func TestSetenv(t *testing.T) {
	t.Setenv("FFI_TEST_VARIABLE", "seen")
	name := []byte("FFI_TEST_VARIABLE\x00")
	if v := String(call(symbol(t, "getenv"), Addr(&name[0]))); v != "seen" {
		t.Errorf("C sees %q, want what Go set", v)
	}
	runtime.KeepAlive(name)
}

// TestMissing: a library and a symbol that are not there are errors that name them.
func TestMissing(t *testing.T) {
	if _, err := Open("libdoorbell-none.so.7"); err == nil || !strings.Contains(err.Error(), "libdoorbell-none.so.7") || errors.Is(err, ErrUnavailable) {
		t.Errorf("a library that is not there: %v", err)
	}
	if _, err := libc(t).Symbol("doorbell_none"); err == nil || !strings.Contains(err.Error(), "doorbell_none") {
		t.Errorf("a symbol that is not there: %v", err)
	}
}

// TestMissingReasons: the linker keeps the reason for each thread, and everybody gets their own.
func TestMissingReasons(t *testing.T) {
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				if _, err := Open("libdoorbell-none.so.7"); !strings.Contains(err.Error(), "No such file") {
					t.Errorf("a library that is not there: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// TestAllocs holds that a call allocates nothing.
func TestAllocs(t *testing.T) {
	labs := symbol(t, "labs")
	if n := testing.AllocsPerRun(100, func() {
		c := Call{Fn: labs, Before: labs}
		c.Do()
	}); n != 0 {
		t.Errorf("%v allocations a call", n)
	}
}

func BenchmarkCall(b *testing.B) {
	labs := symbol(b, "labs")
	for _, before := range []uintptr{0, labs} {
		b.Run(fmt.Sprintf("before=%v", before != 0), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c := Call{Fn: labs, Before: before}
				c.Do()
			}
		})
	}
}
