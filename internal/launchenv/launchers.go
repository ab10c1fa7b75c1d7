// SPDX-License-Identifier: Apache-2.0

package launchenv

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/doorbell-net/doorbell/internal/env"
)

// doorbell is our own launcher, or a person who sets the variables by hand: then half a set is a mistake.
func doorbell(r *reader) (Launch, bool, error) {
	l := Launch{Launcher: Doorbell, LocalRank: -1}
	rank, size := env.Rank.Name(), env.WorldSize.Name()
	if r.get(rank) == "" {
		if v := r.get(size); v != "" && r.get("JOB_COMPLETION_INDEX") == "" {
			return r.incomplete("%s=%s without %s", size, printable(v), rank)
		}
		return l, false, nil
	}
	if r.get(size) == "" {
		return l, false, fmt.Errorf("%s=%s without %s: a rank counts only with a size", rank, printable(r.get(rank)), size)
	}
	err := r.ranks(&l, rank, size)
	l.show(r, env.Addr.Name())
	return l, err == nil, err
}

// torchrun starts processes with all that torch.distributed reads.
//
// The job is the run's id and the address of torch's store, whose port is another one after each restart of the workers,
// so that a rank of an earlier round meets nobody; and two runs of one host with the id "none", the default, differ by
// it. TORCHELASTIC_RESTART_COUNT is no part of it: agents count only restarts for failures of their own.
func torchrun(r *reader) (Launch, bool, error) {
	l := Launch{Launcher: Torchrun, LocalRank: -1}
	const rank, size, run = "RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"
	switch {
	case r.get(run) == "":
		return l, false, nil
	case r.get(rank) == "" || r.get(size) == "":
		return r.incomplete("%s=%s without %s", run, printable(r.get(run)), missing(r, rank, size))
	}
	if err := r.ranks(&l, rank, size); err != nil {
		return l, false, err
	}
	l.show(r, "MASTER_ADDR", "MASTER_PORT", run)
	if err := r.local(&l, "LOCAL_RANK", "LOCAL_WORLD_SIZE"); err != nil {
		return l, false, err
	}
	l.Job = strings.Join([]string{"torchrun", r.get(run), r.get("MASTER_ADDR"), r.get("MASTER_PORT")}, "/")
	return l, true, l.atMaster(r)
}

// torch is the same set from someone else: an operator that starts one process a pod, or a script.
func torch(r *reader) (Launch, bool, error) {
	l := Launch{Launcher: Torch, LocalRank: -1}
	const rank, size, host, port = "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"
	switch {
	case r.get(rank) == "": // the others alone are often set for all of a batch job
		return l, false, nil
	case r.get(size) == "" || r.get(host) == "" || r.get(port) == "":
		return r.incomplete("%s=%s without %s", rank, printable(r.get(rank)), missing(r, size, host, port))
	}
	if err := r.ranks(&l, rank, size); err != nil {
		return l, false, err
	}
	l.show(r, host, port)
	// A script that sets RANK once for all tasks of a step would make each of them that rank.
	if s, ok := slurmStep(r); ok && s.Size == l.Size && s.Rank != l.Rank {
		return l, false, fmt.Errorf("%s=%d, but SLURM_PROCID=%d in a step of as many ranks: they must agree; unset %s, or set %s and %s",
			rank, l.Rank, s.Rank, rank, env.Rank.Name(), env.WorldSize.Name())
	}
	if err := r.local(&l, "LOCAL_RANK", "LOCAL_WORLD_SIZE"); err != nil {
		return l, false, err
	}
	l.Job = strings.Join([]string{"torch", r.get(host), r.get(port)}, "/")
	return l, true, l.atMaster(r)
}

// atMaster meets at the host of MASTER_ADDR.
func (l *Launch) atMaster(r *reader) error {
	host := r.get("MASTER_ADDR")
	if !l.oneHost() && r.get(env.Addr.Name()) == "" {
		if !hostname(strings.Trim(host, "[]")) {
			return fmt.Errorf("MASTER_ADDR=%q: accepted is the name or the address of rank 0's host, or %s=HOST:PORT in its place", printable(host), env.Addr.Name())
		}
		if p := r.get("MASTER_PORT"); p != "" {
			if n, err := strconv.ParseUint(p, 10, 16); err != nil || n == 0 {
				return fmt.Errorf("MASTER_PORT=%q: accepted is a port from 1 to 65535", printable(p))
			}
		}
	}
	return l.address(r, strings.Trim(host, "[]"))
}

// openMPI is mpirun of Open MPI, and prterun. Neither says where rank 0 is.
func openMPI(r *reader) (Launch, bool, error) {
	l := Launch{Launcher: OpenMPI, LocalRank: -1}
	const rank, size = "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"
	if r.get(rank) == "" || r.get(size) == "" {
		switch {
		case r.get(rank) != "":
			return r.incomplete("%s=%s without %s", rank, printable(r.get(rank)), size)
		case r.get("PMIX_RANK") != "":
			return r.incomplete("PMIX_RANK=%s, which comes without a size", printable(r.get("PMIX_RANK")))
		}
		return l, false, nil
	}
	if err := r.ranks(&l, rank, size); err != nil {
		return l, false, err
	}
	if err := r.local(&l, "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"); err != nil {
		return l, false, err
	}
	l.show(r, "OMPI_COMM_WORLD_LOCAL_SIZE")
	if name := r.first("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"); name != "" {
		l.Job = "openmpi/" + r.get(name)
	}
	if !l.oneHost() && r.get(env.Addr.Name()) == "" {
		return l, false, mustBeGiven(&l, ` (mpirun -x `+env.Addr.Name()+` passes it on)`)
	}
	return l, true, l.address(r, "")
}

// pmi is mpiexec of MPICH and of Intel MPI, and srun --mpi=pmi2 outside a step that we can read. It says nothing of where
// rank 0 is, and often nothing that tells jobs apart.
func pmi(r *reader) (Launch, bool, error) {
	l := Launch{Launcher: PMI, LocalRank: -1}
	const rank, size = "PMI_RANK", "PMI_SIZE"
	if r.get(rank) == "" || r.get(size) == "" {
		if r.get(rank) != "" {
			return r.incomplete("%s=%s without %s", rank, printable(r.get(rank)), size)
		}
		return l, false, nil
	}
	if err := r.ranks(&l, rank, size); err != nil {
		return l, false, err
	}
	localRank, localSize := r.first("MPI_LOCALRANKID", "PMI_LOCAL_RANK"), r.first("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE")
	if err := r.local(&l, localRank, localSize); err != nil {
		return l, false, err
	}
	if localSize != "" {
		l.show(r, localSize)
	}
	if name := r.first("PMI_JOBID", "PALS_APID", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"); name != "" {
		l.Job = "pmi/" + name + "/" + r.get(name)
	}
	if !l.oneHost() && r.get(env.Addr.Name()) == "" {
		return l, false, mustBeGiven(&l, ` (mpiexec -genv `+env.Addr.Name()+` HOST:PORT passes it on)`)
	}
	return l, true, l.address(r, "")
}

// kubernetes is a pod of an indexed job, which has an index but must be told how many there are.
func kubernetes(r *reader) (Launch, bool, error) {
	l := Launch{Launcher: Kubernetes, LocalRank: -1}
	const index = "JOB_COMPLETION_INDEX"
	size := env.WorldSize.Name()
	if r.get(index) == "" {
		return l, false, nil
	}
	if r.get(size) == "" {
		return r.incomplete("%s=%s without %s: the pod's template must set it to the job's completions", index, printable(r.get(index)), size)
	}
	if err := r.ranks(&l, index, size); err != nil {
		return l, false, err
	}
	// A pod of an indexed job has the host name JOB-INDEX.
	job, ok := strings.CutSuffix(r.get("HOSTNAME"), "-"+strconv.Itoa(l.Rank))
	if ok && job != "" {
		l.Job = "kubernetes/" + job
	} else {
		job = "JOB"
	}
	if l.Size > 1 && r.get(env.Addr.Name()) == "" {
		return l, false, mustBeGiven(&l, fmt.Sprintf(" (with a headless service: %s-0.SERVICE:PORT)", printable(job)))
	}
	if l.Size == 1 && l.Job == "" {
		l.Job = "kubernetes"
	}
	return l, true, l.address(r, "")
}

// missing names those of the variables that are not set.
func missing(r *reader, names ...string) string {
	var m []string
	for _, n := range names {
		if r.get(n) == "" {
			m = append(m, n)
		}
	}
	return strings.Join(m, " and ")
}

// hostname says whether a text can be the name or address of a host. Names are not looked up.
func hostname(s string) bool {
	if s == "" || len(s) > 253 {
		return false
	}
	if net.ParseIP(s) != nil {
		return true
	}
	for _, c := range s {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '-' || c == '_') {
			return false
		}
	}
	return true
}
