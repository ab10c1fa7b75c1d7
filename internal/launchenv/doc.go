// SPDX-License-Identifier: Apache-2.0

// Package launchenv finds out who this process is, from the variables that launchers set.
//
// Launchers are asked in a fixed order, and the first whose set is complete wins; a rank without a size is never
// believed:
//
//	doorbell    DOORBELL_RANK, DOORBELL_WORLD_SIZE
//	torchrun    TORCHELASTIC_RUN_ID, RANK, WORLD_SIZE
//	torch       RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT (what torch.distributed reads, as an operator sets it per pod)
//	slurm       SLURM_STEP_ID, SLURM_PROCID, SLURM_STEP_NUM_TASKS or SLURM_NTASKS
//	openmpi     OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE (mpirun, prterun)
//	pmi         PMI_RANK, PMI_SIZE (MPICH and Intel MPI: mpiexec.hydra)
//	kubernetes  JOB_COMPLETION_INDEX of an indexed job, DOORBELL_WORLD_SIZE
//
// Inner launchers inherit the variables of outer ones. So torchrun within srun is torchrun; a Slurm step counts only if
// an MPI launcher's set is absent or says the same, since mpirun within a Slurm job starts its daemons as a step whose
// variables all its ranks inherit; and what sbatch itself starts is no step: each process there has SLURM_PROCID=0.
//
// DOORBELL_ADDR, DOORBELL_JOB, DOORBELL_LOCAL_RANK and DOORBELL_LOCAL_SIZE count whoever the launcher is.
package launchenv
