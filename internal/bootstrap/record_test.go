// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"bytes"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func sampleRecord() *record {
	r := &record{ranks: 4, pid: 4711, host: "node-7.rack_2", written: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		at: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.7:40001"), netip.MustParseAddrPort("[fd00::7]:40001"), netip.MustParseAddrPort("127.0.0.1:40001")}}
	for i := range r.nonce {
		r.nonce[i], r.job[i] = byte(i), byte(255-i)
	}
	return r
}

func TestRecordGolden(t *testing.T) {
	r := sampleRecord()
	golden(t, "testdata/record.golden", strings.Split(strings.TrimSuffix(string(r.encode()), "\n"), "\n"))
	got, err := decodeRecord(r.encode())
	if err != nil || !reflect.DeepEqual(got, r) {
		t.Errorf("%+v, %v", got, err)
	}
}

// Whatever is cut off, changed, doubled or put behind is refused.
func TestRecordRefused(t *testing.T) {
	whole := sampleRecord().encode()
	for n := range len(whole) {
		if _, err := decodeRecord(whole[:n]); err == nil {
			t.Errorf("accepted the first %d of %d bytes", n, len(whole))
		}
	}
	text := string(whole)
	for name, bad := range map[string]string{
		"more behind":    text + "end\n",
		"another":        strings.Replace(text, "rendezvous 1", "rendezvous 2", 1),
		"no address":     text[:strings.Index(text, "at ")] + "end\n",
		"port 0":         strings.Replace(text, "10.0.0.7:40001", "10.0.0.7:0", 1),
		"a name":         strings.Replace(text, "10.0.0.7:40001", "node7:40001", 1),
		"too many":       strings.Replace(text, "end\n", strings.Repeat("at 10.0.0.7:1\n", maxRecordAddrs)+"end\n", 1),
		"too long":       strings.Replace(text, "end\n", strings.Repeat("at [2001:db8:1111:2222:3333:4444:5555:6666]:65535\n", 1000)+"end\n", 1),
		"odd host":       strings.Replace(text, "node-7", "node 7\x1b[", 1),
		"odd rank count": strings.Replace(text, "ranks 4", "ranks 04", 1),
		"no ranks":       strings.Replace(text, "ranks 4", "ranks 0", 1),
		"short nonce":    strings.Replace(text, "nonce 00", "nonce ", 1),
		"upper case":     strings.Replace(text, "0a0b", "0A0B", 1),
		"another order":  strings.Replace(strings.Replace(text, "ranks", "pid", 1), "pid 4711", "ranks 4711", 1),
		"local time":     strings.Replace(text, "05Z", "05+01:00", 1),
	} {
		if r, err := decodeRecord([]byte(bad)); !errors.Is(err, errDamaged) {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
	if _, err := decodeRecord([]byte("ssh-rsa AAAA")); !errors.Is(err, errNotRecord) {
		t.Error(err)
	}
}

// A record is of the job that wrote it alone, and an attempt has no secret but its own.
func TestRecordIsOfItsJob(t *testing.T) {
	c := testConfig(0, 2, "x")
	r := sampleRecord()
	r.job = newHello(attemptOf(&c, r.nonce), 0).job
	other := c
	other.Job = "another"
	if !r.of(&c) || r.of(&other) {
		t.Errorf("of its job: %v, of another: %v", r.of(&c), r.of(&other))
	}
	if a := attemptOf(&c, r.nonce); !bytes.Equal(a.Token, c.Token) {
		t.Error("the job's token is not kept")
	}
	c.Token = nil
	a, b := attemptOf(&c, r.nonce), attemptOf(&c, newNonce())
	if len(a.Token) != 32 || bytes.Equal(a.Token, b.Token) || bytes.Contains(r.encode(), a.Token) {
		t.Errorf("secrets %x and %x", a.Token, b.Token)
	}
}

func TestWriteRecord(t *testing.T) {
	path := filepath.Join(t.TempDir(), "meet")
	for range 2 { // the second replaces the first
		if err := writeRecord(t.Context(), path, sampleRecord()); err != nil {
			t.Fatal(err)
		}
	}
	st, err := os.Stat(path)
	if err != nil || st.Mode() != 0o600 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
	gone := filepath.Dir(path)
	if left, err := os.ReadDir(gone); err != nil || len(left) != 1 {
		t.Errorf("%v, %v", left, err)
	}
}

func FuzzRecord(f *testing.F) {
	f.Add(sampleRecord().encode())
	f.Add([]byte(recordHead + "end\n"))
	f.Add([]byte(recordHead + "job \nnonce \nranks 1\npid 1\nhost x\nwritten 2026-01-02T03:04:05Z\nat 1.2.3.4:5\nend\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decodeRecord(b)
		if err != nil {
			if !errors.Is(err, errDamaged) && !errors.Is(err, errNotRecord) {
				t.Fatalf("%v is neither", err)
			}
			return
		}
		if !bytes.Equal(r.encode(), b) || len(r.at) == 0 || strings.ContainsFunc(r.String(), func(c rune) bool { return c < ' ' || c > '~' }) {
			t.Fatalf("%q gave %+v", b, r)
		}
	})
}
