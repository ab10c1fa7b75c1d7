// SPDX-License-Identifier: Apache-2.0

package launchenv

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/doorbell-net/doorbell/internal/env"
)

// firstSpecialStep is the least of the numbers that Slurm gives to steps which are no steps of srun: the batch script,
// an interactive shell, external programs.
const firstSpecialStep = 0xfffffff0

const slurmRank = "SLURM_PROCID"

// slurmStep reads rank and size of a task that srun started. ok is false where this process is no such task, or where
// rank or size cannot be read.
func slurmStep(r *reader) (l Launch, ok bool) {
	l = Launch{Launcher: Slurm, LocalRank: -1}
	step, err := strconv.ParseUint(r.get("SLURM_STEP_ID"), 10, 32)
	size := slurmSize(r)
	if err != nil || step >= firstSpecialStep || r.get(slurmRank) == "" || size == "" {
		return l, false
	}
	return l, r.ranks(&l, slurmRank, size) == nil
}

// slurmSize is the variable that has a step's size: of the step if it is there, of the job otherwise.
func slurmSize(r *reader) string { return r.first("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS") }

// slurm is srun. Processes that a batch script or an interactive shell starts by itself have SLURM_PROCID=0 each: they
// are no ranks.
func slurm(r *reader) (Launch, bool, error) {
	l := Launch{Launcher: Slurm, LocalRank: -1}
	if r.get(slurmRank) == "" {
		return l, false, nil
	}
	rank := printable(r.get(slurmRank))
	stepText := r.get("SLURM_STEP_ID")
	if stepText == "" {
		return r.incomplete("%s=%s without SLURM_STEP_ID: sbatch or salloc started this process, not srun", slurmRank, rank)
	}
	step, err := strconv.ParseUint(stepText, 10, 32)
	switch {
	case err != nil:
		return l, false, fmt.Errorf("SLURM_STEP_ID=%q: accepted is a whole number from 0 to %d", printable(stepText), uint32(1<<32-1))
	case step >= firstSpecialStep:
		return r.incomplete("%s=%s in step %d, which is a shell and none of srun", slurmRank, rank, step)
	case slurmSize(r) == "":
		return r.incomplete("%s=%s without SLURM_STEP_NUM_TASKS or SLURM_NTASKS", slurmRank, rank)
	}
	if err := r.ranks(&l, slurmRank, slurmSize(r)); err != nil {
		return l, false, err
	}
	if inner := innerMPI(r, l); inner != "" {
		return r.incomplete("%s=%s of the step that started the daemon of %s", slurmRank, rank, inner)
	}
	l.show(r, "SLURM_JOB_ID", "SLURM_STEP_ID")
	if err := r.local(&l, "SLURM_LOCALID", ""); err != nil {
		return l, false, err
	}
	if err := l.slurmLocalSize(r); err != nil {
		return l, false, err
	}
	if job := r.first("SLURM_JOB_ID", "SLURM_JOBID"); job != "" {
		l.Job = fmt.Sprintf("slurm/%s.%d", r.get(job), step)
	}
	if l.oneHost() || r.get(env.Addr.Name()) != "" {
		return l, true, l.address(r, "")
	}
	host, err := slurmFirstHost(r)
	if err != nil {
		return l, false, err
	}
	if host == "" {
		return l, false, mustBeGiven(&l, ": SLURM_STEP_NODELIST is not set")
	}
	return l, true, l.address(r, host)
}

// innerMPI is the rank variable of an MPI launcher within the step, if that says anything else than the step does.
func innerMPI(r *reader, step Launch) string {
	for _, v := range [][2]string{{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}, {"PMI_RANK", "PMI_SIZE"}} {
		if r.get(v[0]) == "" || r.get(v[1]) == "" {
			continue
		}
		var in Launch
		if r.ranks(&in, v[0], v[1]) != nil || in.Rank != step.Rank || in.Size != step.Size {
			return v[0]
		}
	}
	return ""
}

// slurmLocalSize takes the number of this node's ranks from the list of tasks per node. It stays unknown where the list is
// that of another step: where it does not add up to the size, or has no such node.
func (l *Launch) slurmLocalSize(r *reader) error {
	name := r.first("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
	if name == "" {
		return nil
	}
	counts, err := ParseTasksPerNode(r.get(name))
	if err != nil {
		return fmt.Errorf("%s=%q: %w", name, printable(r.get(name)), err)
	}
	sum := 0
	for _, n := range counts {
		sum += n
	}
	node := 0
	if r.get("SLURM_NODEID") != "" {
		if node, err = r.number("SLURM_NODEID", 0); err != nil {
			return err
		}
	} else if len(counts) > 1 {
		return nil
	}
	if sum == l.Size && node < len(counts) && counts[node] > l.LocalRank {
		l.LocalSize = counts[node]
	}
	return nil
}

// slurmFirstHost is the host of rank 0: the first of the step's nodes.
func slurmFirstHost(r *reader) (string, error) {
	name := r.first("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
	if name == "" {
		return "", nil
	}
	hosts, err := ParseHostlist(r.get(name))
	if err == nil && !hostname(hosts[0]) {
		err = fmt.Errorf("%q is no name of a host", hosts[0])
	}
	if err != nil {
		return "", fmt.Errorf("%s=%q: %w (or set %s=HOST:PORT)", name, printable(strings.TrimSpace(r.get(name))), err, env.Addr.Name())
	}
	return hosts[0], nil
}
