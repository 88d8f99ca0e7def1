#!/usr/bin/env bash
# Variables of srun that another job or step has left in the environment; job.sh and jobs/interactive.sh source it.
set -uo pipefail

# Each of these is an option for srun. From 23.11 on, different values, as one may be left from another job, are an error;
# before, it does not look at SLURM_CPUS_PER_TASK. So the number, in `cpus`, goes to the command line, which comes before all.
take_cpus_per_task() {
  # shellcheck disable=SC2034
  cpus=${SLURM_CPUS_PER_TASK:-${SRUN_CPUS_PER_TASK:-}}
  unset SRUN_CPUS_PER_TASK SLURM_CPUS_PER_TASK SLURM_TRES_PER_TASK
}

# Where another step was bound. A site's own choice has no type.
forget_binding() {
  if [[ -n ${SLURM_CPU_BIND_TYPE:-} ]]; then unset "${!SLURM_CPU_BIND@}"; fi
  if [[ -n ${SLURM_MEM_BIND_TYPE:-} ]]; then unset "${!SLURM_MEM_BIND@}"; fi
}
