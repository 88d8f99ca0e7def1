#!/usr/bin/env bash
# Runs a program on pretended nodes of this machine: tests/nodes.sh HOSTS LOCAL STORAGE PROGRAM [ARGUMENTS...]
#   HOSTS: n1:2,n2:2, names with their ranks. Each node has a host name of its own, and sees the directory STORAGE/NAME,
#   made if it is missing, as LOCAL, which is there. Its ranks share memory with each other alone, as MPI knows it.
# Takes the right to mount and to change the host name, in namespaces of each node.
set -euo pipefail
if [[ ${OFFSTAGE_NODE_STORAGE:-} ]]; then  # as mpirun's remote shell: [OPTION...] HOST COMMAND...
  while [[ $1 == -* ]]; do shift; done
  host=$1
  shift
  mkdir -p "$OFFSTAGE_NODE_STORAGE/$host"
  map=()
  ((EUID == 0)) || map=(--map-root-user)
  exec unshare "${map[@]}" --mount --uts --propagation private bash -c \
    'hostname "$0" && mount --bind "$OFFSTAGE_NODE_STORAGE/$0" "$OFFSTAGE_NODE_LOCAL" && eval "$1"' "$host" "$*"
fi
hosts=$1
export OFFSTAGE_NODE_LOCAL=$2 OFFSTAGE_NODE_STORAGE=$3
shift 3
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_pml="${OMPI_MCA_pml:-ob1}" OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"
agent=$(realpath "$0")
# Of Open MPI 4, then of 5. No banner of 4 for exit codes but 0: the option --quiet would end the mpirun of 5.
export OMPI_MCA_plm=rsh OMPI_MCA_plm_rsh_agent=$agent OMPI_MCA_oob_tcp_if_include=lo OMPI_MCA_btl_vader_single_copy_mechanism=none
export PRTE_MCA_plm=ssh PRTE_MCA_plm_ssh_agent=$agent
export OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_btl_tcp_if_include=lo OMPI_MCA_orte_execute_quiet=1
exec mpirun --oversubscribe --bind-to none --host "$hosts" "$@"
