#!/usr/bin/env bash
# Runs a program on N ranks of this machine: tests/mpi.sh N PROGRAM [ARGUMENTS...]
# More ranks than cores are fine; only the loopback network is used; one thread per rank.
# $SLEEPING_YIELD, a library that tests/run.sh names, is preloaded: ranks that wait sleep.
set -euo pipefail
ranks=$1
shift
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# What Open MPI takes on one machine in any case, after a fifth of a second of looking for other networks.
export OMPI_MCA_pml="${OMPI_MCA_pml:-ob1}"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
# Idle threads sleep: on shared cores a spinning one takes the core that another rank needs.
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"
if [[ -n ${SLEEPING_YIELD:-} ]]; then export LD_PRELOAD=${LD_PRELOAD:+$LD_PRELOAD:}$SLEEPING_YIELD; fi
# As variables: Open MPI 5's mpirun refuses --mca for what it has no more.
export OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_btl_tcp_if_include=lo OMPI_MCA_oob_tcp_if_include=lo
export OMPI_MCA_btl_vader_single_copy_mechanism=none
# No banner of Open MPI 4 for exit codes but 0. The option --quiet would end the mpirun of Open MPI 5.
export OMPI_MCA_orte_execute_quiet=1
exec mpirun --oversubscribe --bind-to none -n "$ranks" "$@"
