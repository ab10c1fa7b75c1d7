// SPDX-License-Identifier: Apache-2.0

package launchenv

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/doorbell-net/doorbell/internal/env"
)

type vars = map[string]string

// v makes variables of "NAME=value ..." texts, the later winning: what a process inherits first.
func v(texts ...string) vars {
	m := vars{}
	for _, t := range texts {
		for _, kv := range strings.Fields(t) {
			k, val, _ := strings.Cut(kv, "=")
			m[k] = val
		}
	}
	return m
}

// What launchers set, on the third rank of a job of four on two hosts.
const (
	own      = "DOORBELL_RANK=2 DOORBELL_WORLD_SIZE=4 DOORBELL_LOCAL_RANK=0 DOORBELL_LOCAL_SIZE=2 DOORBELL_ADDR=node7:4711 DOORBELL_JOB=j1"
	torchEl  = "TORCHELASTIC_RUN_ID=run9 TORCHELASTIC_RESTART_COUNT=0 RANK=2 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 GROUP_RANK=1 MASTER_ADDR=node7 MASTER_PORT=29500"
	pod      = "RANK=2 WORLD_SIZE=4 MASTER_ADDR=job-master-0 MASTER_PORT=23456"
	sbatch   = "SLURM_JOB_ID=77 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_NTASKS=4 SLURM_NNODES=2 SLURM_TASKS_PER_NODE=2(x2) SLURM_JOB_NODELIST=gnode[7,9]"
	srun     = sbatch + " SLURM_STEP_ID=3 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_TASKS_PER_NODE=2(x2) SLURM_STEP_NODELIST=gnode[7,9] SLURM_PROCID=2 SLURM_NODEID=1"
	ompi     = "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_RANK=2 PMIX_NAMESPACE=prterun-a@1"
	hydra    = "PMI_RANK=2 PMI_SIZE=4 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=2"
	indexed  = "JOB_COMPLETION_INDEX=2 HOSTNAME=train-2 DOORBELL_WORLD_SIZE=4"
	given    = "DOORBELL_ADDR=node7:4711"
	oneTorch = torchEl + " LOCAL_WORLD_SIZE=4 LOCAL_RANK=2"
	oneOMPI  = ompi + " OMPI_COMM_WORLD_LOCAL_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=2"
	oneHydra = hydra + " MPI_LOCALNRANKS=4 MPI_LOCALRANKID=2"
)

func TestDetect(t *testing.T) {
	for name, c := range map[string]struct {
		env  vars
		want string // launcher rank/size local/localsize job addr
	}{
		"ours":                   {v(own), "doorbell 2/4 0/2 j1 node7:4711"},
		"ours wins":              {v(torchEl, srun, ompi, hydra, own), "doorbell 2/4 0/2 j1 node7:4711"},
		"torchrun":               {v(torchEl), "torchrun 2/4 0/2 torchrun/run9/node7/29500 node7:PORT"},
		"torchrun, one host":     {v(oneTorch), "torchrun 2/4 2/4 torchrun/run9/node7/29500 UNIX"},
		"torchrun, IPv6":         {v(torchEl, "MASTER_ADDR=fd00::7"), "torchrun 2/4 0/2 torchrun/run9/fd00::7/29500 [fd00::7]:PORT"},
		"torchrun, given":        {v(torchEl, given, "DOORBELL_JOB=mine"), "torchrun 2/4 0/2 mine node7:4711"},
		"torchrun within srun":   {v(srun, torchEl), "torchrun 2/4 0/2 torchrun/run9/node7/29500 node7:PORT"},
		"torchrun within mpirun": {v(ompi, torchEl), "torchrun 2/4 0/2 torchrun/run9/node7/29500 node7:PORT"},
		"a pod each":             {v(pod), "torch 2/4 -1/0 torch/job-master-0/23456 job-master-0:PORT"},
		"srun":                   {v(srun), "slurm 2/4 0/2 slurm/77.3 gnode7:PORT"},
		"srun, one host":         {v(srun, "SLURM_STEP_TASKS_PER_NODE=4 SLURM_NODEID=0 SLURM_LOCALID=2 SLURM_STEP_NODELIST=gnode7"), "slurm 2/4 2/4 slurm/77.3 UNIX"},
		"srun, given":            {v(srun, given), "slurm 2/4 0/2 slurm/77.3 node7:4711"},
		"srun, a smaller step":   {v(srun, "SLURM_STEP_NUM_TASKS=3 SLURM_STEP_TASKS_PER_NODE=2,1"), "slurm 2/3 0/1 slurm/77.3 gnode7:PORT"},
		"srun, another's list":   {v(srun, "SLURM_STEP_TASKS_PER_NODE= SLURM_TASKS_PER_NODE=8(x2)"), "slurm 2/4 0/0 slurm/77.3 gnode7:PORT"},
		"srun --mpi":             {v(srun, "PMI_RANK=2 PMI_SIZE=4 PMIX_RANK=2"), "slurm 2/4 0/2 slurm/77.3 gnode7:PORT"},
		"mpirun within a step":   {v(srun, "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=1", ompi, given), "openmpi 2/4 0/2 openmpi/prterun-a@1 node7:4711"},
		"mpirun's daemon":        {v(srun, "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2", oneOMPI), "openmpi 2/4 2/4 openmpi/prterun-a@1 UNIX"},
		"mpirun":                 {v(oneOMPI), "openmpi 2/4 2/4 openmpi/prterun-a@1 UNIX"},
		"mpirun, hosts":          {v(ompi, given), "openmpi 2/4 0/2 openmpi/prterun-a@1 node7:4711"},
		"mpirun, by a file":      {v(ompi, "DOORBELL_ADDR=file:/shared/meet"), "openmpi 2/4 0/2 openmpi/prterun-a@1 file:/shared/meet"},
		"mpiexec, by a file":     {v(hydra, "DOORBELL_ADDR=file:/shared/meet"), "pmi 2/4 0/2  file:/shared/meet"},
		"mpiexec":                {v(oneHydra, "DOORBELL_JOB=m1"), "pmi 2/4 2/4 m1 UNIX"},
		"mpiexec in PBS":         {v(oneHydra, "PBS_JOBID=5.srv"), "pmi 2/4 2/4 pmi/PBS_JOBID/5.srv UNIX"},
		"mpiexec in sbatch":      {v(sbatch, hydra, given), "pmi 2/4 0/2 pmi/SLURM_JOB_ID/77 node7:4711"},
		"indexed job":            {v(indexed, "DOORBELL_ADDR=train-0.svc:4711"), "kubernetes 2/4 -1/0 kubernetes/train train-0.svc:4711"},
		"indexed job of one":     {v("JOB_COMPLETION_INDEX=0 DOORBELL_WORLD_SIZE=1"), "kubernetes 0/1 -1/0 kubernetes UNIX"},
		"our local values":       {v(pod, "DOORBELL_LOCAL_RANK=1 DOORBELL_LOCAL_SIZE=2"), "torch 2/4 1/2 torch/job-master-0/23456 job-master-0:PORT"},
	} {
		l, err := Detect(env.From(c.env))
		addr := l.Addr
		var port int
		if i := strings.LastIndex(addr, ":"); i > 0 && l.Derived && !strings.HasPrefix(addr, "unix:") {
			fmt.Sscan(addr[i+1:], &port)
			if port < 18000 || port > 26191 {
				t.Errorf("%s: port %d", name, port)
			}
			addr = addr[:i] + ":PORT"
		} else if l.Derived {
			addr = "UNIX"
		}
		got := fmt.Sprintf("%s %d/%d %d/%d %s %s", l.Launcher, l.Rank, l.Size, l.LocalRank, l.LocalSize, l.Job, addr)
		if err != nil || got != c.want {
			t.Errorf("%s:\n got %s, %v\nwant %s", name, got, err, c.want)
		}
	}
}

func TestDetectRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		env  vars
		none bool
		want []string
	}{
		"nothing":                {v("HOME=/"), true, []string{"DOORBELL_RANK and DOORBELL_WORLD_SIZE", "torchrun, srun, mpirun"}},
		"a rank without size":    {v("DOORBELL_RANK=1"), false, []string{"DOORBELL_RANK=1 without DOORBELL_WORLD_SIZE"}},
		"a size without rank":    {v("DOORBELL_WORLD_SIZE=4"), true, []string{"DOORBELL_WORLD_SIZE=4 without DOORBELL_RANK"}},
		"torch's rank alone":     {v("RANK=1"), true, []string{"RANK=1 without WORLD_SIZE and MASTER_ADDR and MASTER_PORT"}},
		"torchrun, half":         {v("TORCHELASTIC_RUN_ID=x RANK=1"), true, []string{"TORCHELASTIC_RUN_ID=x without WORLD_SIZE"}},
		"PMIx":                   {v("PMIX_RANK=1"), true, []string{"PMIX_RANK=1, which comes without a size"}},
		"indexed, no size":       {v("JOB_COMPLETION_INDEX=3"), true, []string{"JOB_COMPLETION_INDEX=3 without DOORBELL_WORLD_SIZE", "completions"}},
		"sbatch, no srun":        {v(sbatch), true, []string{"SLURM_PROCID=0 without SLURM_STEP_ID", "not srun"}},
		"salloc's shell":         {v(srun, "SLURM_STEP_ID=4294967290"), true, []string{"step 4294967290, which is a shell"}},
		"sbatch, exported ports": {v(sbatch, "MASTER_ADDR=gnode7 MASTER_PORT=29500 WORLD_SIZE=4"), true, []string{"not srun"}},
		"rank too large":         {v(own, "DOORBELL_RANK=4"), false, []string{"DOORBELL_RANK=4, DOORBELL_WORLD_SIZE=4", "accepted: 0 to 3"}},
		"rank no number":         {v(torchEl, "RANK=two"), false, []string{`RANK="two"`, "whole number from 0"}},
		"rank negative":          {v(ompi, "OMPI_COMM_WORLD_RANK=-1"), false, []string{`OMPI_COMM_WORLD_RANK="-1"`}},
		"size zero":              {v(hydra, "PMI_SIZE=0"), false, []string{`PMI_SIZE="0"`, "from 1"}},
		"local rank too large":   {v(torchEl, "LOCAL_RANK=2"), false, []string{"local rank 2", "0 to 1"}},
		"local size too large":   {v(torchEl, "LOCAL_WORLD_SIZE=5"), false, []string{"5 of 4 ranks on this host"}},
		"our size differs":       {v(ompi, given, "DOORBELL_WORLD_SIZE=8"), false, []string{"DOORBELL_WORLD_SIZE=8", "openmpi started 4"}},
		"our local rank is odd":  {v(pod, "DOORBELL_LOCAL_RANK=x"), false, []string{`DOORBELL_LOCAL_RANK="x"`}},
		"no master":              {v(torchEl, "MASTER_ADDR="), false, []string{`MASTER_ADDR=""`, "DOORBELL_ADDR=HOST:PORT"}},
		"odd master":             {v(pod, "MASTER_ADDR=http://x"), false, []string{`MASTER_ADDR="http://x"`}},
		"odd port":               {v(pod, "MASTER_PORT=99999"), false, []string{`MASTER_PORT="99999"`, "1 to 65535"}},
		"RANK for all of a step": {v("RANK=0 WORLD_SIZE=4 MASTER_ADDR=a MASTER_PORT=1", srun, ""), false, []string{"RANK=0, but SLURM_PROCID=2", "unset RANK"}},
		"step no number":         {v(srun, "SLURM_STEP_ID=x"), false, []string{`SLURM_STEP_ID="x"`}},
		"odd host list":          {v(srun, "SLURM_STEP_NODELIST=gnode[7"), false, []string{`SLURM_STEP_NODELIST="gnode[7"`, "not closed", "DOORBELL_ADDR"}},
		"a host list of evil":    {v(srun, "SLURM_STEP_NODELIST=a/b"), false, []string{`"a/b" is no name of a host`}},
		"odd tasks":              {v(srun, "SLURM_STEP_TASKS_PER_NODE=2(x"), false, []string{`SLURM_STEP_TASKS_PER_NODE="2(x"`, "2(x3),1"}},
		"mpirun, hosts":          {v(ompi), false, []string{"OMPI_COMM_WORLD_RANK=2", "across hosts give DOORBELL_ADDR=HOST:PORT", "or DOORBELL_ADDR=file:/path on storage that all hosts share", "mpirun -x"}},
		"mpiexec, hosts":         {v(hydra), false, []string{"PMI_SIZE=4", "across hosts give DOORBELL_ADDR=HOST:PORT", "or DOORBELL_ADDR=file:/path on storage that all hosts share", "-genv"}},
		"mpiexec, one host":      {v(oneHydra), false, []string{"set DOORBELL_JOB"}},
		"mpirun, locals unknown": {v("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2"), false, []string{"across hosts give DOORBELL_ADDR=HOST:PORT", "or DOORBELL_ADDR=file:/path on storage that all hosts share"}},
		"indexed, no address":    {v(indexed), false, []string{"train-0.SERVICE:PORT", "DOORBELL_ADDR"}},
	} {
		l, err := Detect(env.From(c.env))
		if err == nil || errors.Is(err, ErrNone) != c.none {
			t.Errorf("%s: %+v, %v (want an error, none: %v)", name, l, err, c.none)
			continue
		}
		for _, w := range c.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: the error does not say %q: %v", name, w, err)
			}
		}
		if l.Size != 0 {
			t.Errorf("%s: %+v beside an error", name, l)
		}
	}
}

func TestString(t *testing.T) {
	l, err := Detect(env.From(v(torchEl)))
	if err != nil {
		t.Fatal(err)
	}
	want := "launcher: torchrun (RANK=2, WORLD_SIZE=4, MASTER_ADDR=node7, MASTER_PORT=29500, TORCHELASTIC_RUN_ID=run9), meeting at " + l.Addr
	if l.String() != want {
		t.Errorf("got  %s\nwant %s", l, want)
	}
	l, err = Detect(env.From(vars{"DOORBELL_RANK": "0", "DOORBELL_WORLD_SIZE": "2", "DOORBELL_ADDR": "a\nb" + strings.Repeat("x", 200), "DOORBELL_TOKEN": "s3cret"}))
	if s := l.String(); err != nil || strings.ContainsAny(s, "\n") || len(s) > 200 || strings.Contains(s, "s3cret") {
		t.Errorf("%q, %v", s, err)
	}
}

// TestRanksAgree: what must be equal on all ranks is, whichever rank looks, and another job has another address.
func TestRanksAgree(t *testing.T) {
	change := map[string][]string{
		torchEl:                   {"RANK", "LOCAL_RANK", "GROUP_RANK", "TORCHELASTIC_RESTART_COUNT"},
		srun:                      {"SLURM_PROCID", "SLURM_LOCALID"},
		oneOMPI:                   {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "PMIX_RANK"},
		oneHydra + " PBS_JOBID=1": {"PMI_RANK", "MPI_LOCALRANKID"},
	}
	other := map[string]string{torchEl: "MASTER_PORT=29511", srun: "SLURM_STEP_ID=4", oneOMPI: "PMIX_NAMESPACE=prterun-b@1", oneHydra + " PBS_JOBID=1": "PBS_JOBID=2"}
	for base, names := range change {
		a, err := Detect(env.From(v(base)))
		if err != nil {
			t.Fatal(err)
		}
		m := v(base)
		for _, n := range names {
			m[n] = "1"
		}
		b, err := Detect(env.From(m))
		if err != nil || a.Job != b.Job || a.Addr != b.Addr || b.Rank != 1 || a.Job == "" {
			t.Errorf("%+v and %+v, %v", a, b, err)
		}
		c, err := Detect(env.From(v(base, other[base])))
		if err != nil || c.Job == a.Job || c.Addr == a.Addr {
			t.Errorf("another job: %+v and %+v, %v", a, c, err)
		}
	}
}

// TestStaleMasterPort: a port that a parent exported, for a job of its own, moves nobody who is not started by torch's
// convention; and two torchruns within it, which set their own, do not meet.
func TestStaleMasterPort(t *testing.T) {
	const stale = "MASTER_ADDR=oldhost MASTER_PORT=1234 WORLD_SIZE=64"
	with, err1 := Detect(env.From(v(stale, srun)))
	without, err2 := Detect(env.From(v(srun)))
	if err1 != nil || err2 != nil || with.Addr != without.Addr || with.Size != 4 || with.Launcher != Slurm {
		t.Errorf("%+v, %v (without it: %+v, %v)", with, err1, without, err2)
	}
	a, err1 := Detect(env.From(v(stale, strings.Replace(oneTorch, "run9", "none", 1), "MASTER_PORT=29501")))
	b, err2 := Detect(env.From(v(stale, strings.Replace(oneTorch, "run9", "none", 1), "MASTER_PORT=29502")))
	if err1 != nil || err2 != nil || a.Addr == b.Addr || a.Job == b.Job {
		t.Errorf("%+v, %v and %+v, %v", a, err1, b, err2)
	}
	// Where torch's own store listens, Doorbell does not.
	c, err := Detect(env.From(v(torchEl)))
	if err != nil || strings.HasSuffix(c.Addr, ":29500") {
		t.Errorf("%+v, %v", c, err)
	}
}

// TestEnvironmentOfThisProcess: nil is the process's own.
func TestEnvironmentOfThisProcess(t *testing.T) {
	for k, val := range v(own) {
		t.Setenv(k, val)
	}
	if l, err := Detect(nil); err != nil || l.Rank != 2 || l.Launcher != Doorbell {
		t.Errorf("%+v, %v", l, err)
	}
}

// FuzzDetect: whatever a launcher's variables hold, a rank is within its size, and an address is there for more than one.
func FuzzDetect(f *testing.F) {
	sets := []string{own, torchEl, pod, srun, oneOMPI, oneHydra + " DOORBELL_JOB=j", indexed + " " + given}
	for i := range sets {
		f.Add(uint8(i), uint8(0), "1")
		f.Add(uint8(i), uint8(3), "")
	}
	f.Fuzz(func(t *testing.T, set, which uint8, value string) {
		m := v(sets[int(set)%len(sets)])
		names := slices.Sorted(maps.Keys(m))
		m[names[int(which)%len(names)]] = value
		l, err := Detect(env.From(m))
		if err != nil {
			if l.Launcher != "" || !strings.Contains(value, "%") && strings.Contains(err.Error(), "%!") {
				t.Errorf("%v: %+v, %v", m, l, err)
			}
			return
		}
		if l.Rank < 0 || l.Rank >= l.Size || l.LocalSize > l.Size || l.LocalSize > 0 && l.LocalRank >= l.LocalSize || l.Addr == "" && l.Launcher != Doorbell ||
			len(l.Set) < 2 || strings.Contains(l.String(), "\n") {
			t.Errorf("%v: %+v", m, l)
		}
	})
}
