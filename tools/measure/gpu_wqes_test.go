// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strings"
	"testing"
)

// told and said are of two launches of ours and two of the twin: 8 puts in the first of each and 10 more in the second.
const (
	told = `launch: {"case":"one thread, write","ours":true,"puts":8,"bells":8}
launch: {"case":"one thread, write","ours":true,"puts":18,"bells":18}
launch: {"case":"one thread, write","ours":false,"puts":8,"bells":8}
launch: {"case":"one thread, write","ours":false,"puts":18,"bells":18}
`
	said = `==PROF== Connected to process 1
"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","WQEs_X_DC_NIC1","smsp__inst_executed.sum","inst","1,000"
"0","WQEs_X_DC_NIC1","smsp__inst_executed_op_global_st.sum","inst","100"
"1","WQEs_X_DC_NIC1","smsp__inst_executed.sum","inst","3,200"
"1","WQEs_X_DC_NIC1","smsp__inst_executed_op_global_st.sum","inst","220"
"2","WQEs","smsp__inst_executed.sum","inst","500"
"2","WQEs","smsp__inst_executed_op_global_st.sum","inst","90"
"3","WQEs","smsp__inst_executed.sum","inst","2,500"
"3","WQEs","smsp__inst_executed_op_global_st.sum","inst","210"
`
)

// TestWQERows: what a put costs is the difference of two launches; a machine that does not count costs the rows alone.
func TestWQERows(t *testing.T) {
	dir := t.TempDir()
	fakeProgram(t, dir, "nvidia-smi", "echo 'Fake GPU, 1.2.3'")
	t.Setenv("PATH", dir)
	rows := func() (string, error) {
		var out strings.Builder
		err := runGPU(t.Context(), dir, &out, 1, "WQEs, one thread, write, ", func(int) []gpuCase { return wqeCases() })
		return out.String(), err
	}
	if out, err := rows(); err != nil || out != "" {
		t.Errorf("without a profiler: %v, %s", err, out)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH")+":/bin:/usr/bin")
	fakeProgram(t, dir, "ncu", "echo ERR_NVGPUCTRPERM; exit 1")
	if out, err := rows(); err != nil || out != "" {
		t.Errorf("where one may not count: %v, %s", err, out)
	}
	fakeProgram(t, dir, "ncu", "cat >\"$3\" <<'.'\n"+said+".\ncat <<'.'\n"+told+".\n")
	out, err := rows()
	for _, want := range []string{`write, instructions"`, `"ours":{"min":220,`, `"theirs":{"min":200,`, `"ratio":{"min":1.1,`, `write, stores"`, `"ours":{"min":12,`, `write, doorbells"`, `"target":"at most 1.1x"`} {
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("%v: no %s in\n%s", err, want, out)
		}
	}
	fakeProgram(t, dir, "ncu", "exit 1")
	if _, err := rows(); err == nil {
		t.Error("a test that failed is not told of")
	}
	for _, bad := range [][2]string{{told, ""}, {told, said[:strings.Index(said, `"2"`)]}, {"", said}, {"launch: 3", said}, {strings.ReplaceAll(told, "18", "8"), said},
		{told, strings.ReplaceAll(said, "3,200", "many")}, {strings.ReplaceAll(told, `"ours":false`, `"ours":true`), strings.ReplaceAll(said, `"Metric Name"`, `"Name"`)}} {
		if all, err := readCounts([]byte(bad[0]), []byte(bad[1])); err == nil {
			t.Errorf("%q and %q were read as %v", bad[0], bad[1], all)
		}
	}
}

// FuzzCounts: whatever a test and a profiler print is read or refused.
func FuzzCounts(f *testing.F) {
	f.Add([]byte(told), []byte(said))
	f.Add([]byte(told), []byte("\"ID\"\n\"0\"\n"))
	f.Fuzz(func(t *testing.T, told, said []byte) {
		all, err := readCounts(told, said)
		if (err == nil) == (len(all) == 0) {
			t.Errorf("%v and %v", all, err)
		}
	})
}
