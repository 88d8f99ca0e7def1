#!/usr/bin/env bash
# What the job scripts share: they source it, call `offstage_run` and then `offstage_finish` or
# `offstage_finish_link`. OFFSTAGE_HOME is the tree; slurm/site.example says what else can be set.
set -uo pipefail
export OFFSTAGE_HOME
early=  # the signal that came before there was anybody to tell
trap early=USR1 USR1
trap early=USR2 USR2
trap early=INT INT
trap early=HUP HUP
# shellcheck source=slurm/read_site.sh
source "$OFFSTAGE_HOME/slurm/read_site.sh"
set +e -uo pipefail  # whatever the site has set
# shellcheck source=slurm/run_directory.sh
source "$OFFSTAGE_HOME/slurm/run_directory.sh"
# shellcheck source=slurm/leftovers.sh
source "$OFFSTAGE_HOME/slurm/leftovers.sh"
# shellcheck source=slurm/time_limit.sh
source "$OFFSTAGE_HOME/slurm/time_limit.sh"
: "${OFFSTAGE:=$(default_program)}" "${OFFSTAGE_LAUNCHER:=srun}"
: "${OFFSTAGE_RESUBMIT:=0}" "${OFFSTAGE_CRASHES:=3}" "${OFFSTAGE_IDLE_ENDS:=5}"
: "${OFFSTAGE_REQUEUE_PAUSE:=15}" "${OFFSTAGE_REQUEUE_PATIENCE:=240}"  # seconds

say() { # say TEXT: one line, whatever names are in it
  local text=$*
  printf '%(%F %T)T offstage-job: %s\n' -1 "${text//[[:cntrl:]]/?}"
}

unset "${!SQUEUE_@}" SLURM_TIME_FORMAT  # a user's filters for squeue would hide this job, and other times puzzle on_term

work_dir=  # of the job; Slurm goes to /tmp where a node does not have it
# What the shell that submitted this job had from a job of its own is still here, wherever this job puts nothing in its
# place: the task of an array that the other was, how often it was started again, where its step was bound, its memory.
forget_other_jobs() {
  local shown before behind granted=("${!SLURM_MEM_PER_@}")
  shown=$(timeout 30 scontrol show job "$SLURM_JOB_ID" 2> /dev/null)
  before=${shown%%" JobName="*} behind=${shown#*" JobName=${SLURM_JOB_NAME:-}"}  # a name may hold any of these words
  if [[ $behind =~ [[:space:]]WorkDir=([^$'\n']+) ]]; then work_dir=${BASH_REMATCH[1]}; fi
  if [[ $before == *JobId=* && $before != *ArrayTaskId=* ]]; then
    unset "${!SLURM_ARRAY_@}"
    if [[ $behind =~ [[:space:]]Restarts=([0-9]+) ]]; then SLURM_RESTART_COUNT=${BASH_REMATCH[1]}; fi
  fi
  forget_binding
  if ((${#granted[@]} > 1)); then unset "${granted[@]}"; fi  # a step without them has all of its job's
}
if [[ -n ${SLURM_JOB_ID:-} ]]; then forget_other_jobs; fi

for number in OFFSTAGE_CRASHES OFFSTAGE_IDLE_ENDS OFFSTAGE_REQUEUE_PAUSE OFFSTAGE_REQUEUE_PATIENCE; do
  if [[ ! ${!number} =~ ^[0-9]{1,9}$ ]]; then
    say "$number=${!number} is no whole number"
    exit 64
  fi
  printf -v "$number" %d "$((10#${!number}))"
done
if [[ $OFFSTAGE_RESUBMIT != [01] ]]; then
  say "OFFSTAGE_RESUBMIT=$OFFSTAGE_RESUBMIT is neither 0 nor 1"
  exit 64
fi
unset number

began=                # uptime_of_node at the start of this attempt; no variable of the environment
noted=                # its line in `attempts`
stop=0                # the ranks shall stop
told=0                # the ranks were told so
no_requeue=           # why the job must not go on by itself
ending=0              # Slurm ends the job

# Of a heterogeneous job squeue has a line per part.
job_state() { squeue --noheader --jobs="$job" --format=%T 2> /dev/null | head -n 1; }
job_reason() { squeue --noheader --jobs="$job" --format=%r 2> /dev/null | head -n 1; }
# True if another job takes this one's nodes and Slurm has not put it back into the queue (PreemptMode=CANCEL).
is_cancelled_by_preemption() {
  local since restarts
  read -r since restarts < <(squeue --noheader --jobs="$job" --Format=PreemptTime,RestartCnt 2> /dev/null)
  [[ ${since:-} == [0-9]* && ${restarts:-} == "${SLURM_RESTART_COUNT:-0}" ]]
}

# The ranks save after their step and end with 75. Both launchers pass on SIGUSR1; of a SIGTERM mpirun
# makes the death of its ranks after one second, and srun at once.
stop_ranks() {
  say "$1; the ranks save and end"
  stop=1
  tell_ranks
}

# Once: the same signal again would end the ranks without a save. A signal that comes before the launcher
# is known is passed on as soon as it is.
tell_ranks() {
  if ((stop)) && [[ -n $launcher ]] && ((told++ == 0)); then kill -USR1 "$launcher" 2> /dev/null; fi
}

# Slurm ends a job by a SIGTERM to all its processes, so the ranks know. If the job goes on, this shell
# alone has got it. After the time limit, and where preemption cancels jobs, there is
# only KillWait left, perhaps too little for the save: the requeue comes first.
on_term() {
  if [[ $(job_state) == RUNNING ]]; then
    stop_ranks "SIGTERM to the job script"
    return
  fi
  ending=1
  local why=
  if [[ $(job_reason) == TimeLimit ]]; then
    why="the time limit is over"
  elif is_cancelled_by_preemption; then
    why="another job takes the nodes"
  fi
  if [[ -z $why ]]; then
    say "Slurm ends the job and has told the ranks"
    return
  fi
  [[ -z $launcher ]] || note_attempt 143
  too_many_crashes || go_on "$why"
}

# A node that died keeps the socket of Slurm's PMIx in its spool directory, and never again starts a step of that job and
# number. All attempts would begin with step 0: those after bad ends, which nobody may have noted, leave numbers out.
leave_out_steps() {
  local good=0 left
  if [[ -f $attempts_file && -r $attempts_file ]]; then
    good=$(awk -v job="$job" '$4 == "job" && $5 == job && $11 == 75 { ++n } END { print n + 0 }' < "$attempts_file")
  fi
  for ((left = attempt - 1 - good; left > 0; --left)); do
    timeout 60 srun --mpi=none --nodes=1 --ntasks=1 true &> /dev/null
  done
}

launch() { # launch PROGRAM ARGUMENT...: replaces the shell by the launcher
  # A job that was submitted with --export has its list here: srun, mpirun's too, would leave out what slurm/site sets.
  export SLURM_EXPORT_ENV=ALL
  case $OFFSTAGE_LAUNCHER in
    srun)
      # No --gpu-bind: then every rank sees all GPUs that the job has on its node, and none of another's
      # (`none` would show it those too, unless the site fences them off).
      # A step ends some time after its first rank: time for the others to end with their own exit code.
      export SLURM_PMIX_FENCE=${SLURM_PMIX_FENCE:-ring}  # README.md
      take_cpus_per_task
      leave_out_steps
      # shellcheck disable=SC2086
      exec srun --mpi=pmix --kill-on-bad-exit=0 --wait="${SLURM_WAIT:-60}" ${cpus:+--cpus-per-task="$cpus"} \
        ${OFFSTAGE_LAUNCHER_OPTIONS:-} "$OFFSTAGE_HOME/slurm/rank.sh" "$@"
      ;;
    mpirun)
      # With SIGTERM blocked mpirun and its daemons (of Open MPI 4, of 5) outlive Slurm's, and the ranks have time to save.
      local blocked='env --block-signal=TERM'
      if $blocked true 2> /dev/null; then
        export OMPI_MCA_orte_launch_agent="$blocked orted" PRTE_MCA_prte_launch_agent="$blocked prted"
      else
        say "env cannot block signals here (coreutils before 8.31): a SIGTERM ends the ranks without a save; use OFFSTAGE_LAUNCHER=srun"
        blocked=
      fi
      # srun starts one daemon per node, as one task: its ranks would share the cores and the memory of one rank.
      take_cpus_per_task
      # No banner of Open MPI 4 for exit codes but 0. The option --quiet would end the mpirun of Open MPI 5.
      export OMPI_MCA_orte_execute_quiet=1
      # shellcheck disable=SC2086
      exec $blocked mpirun --bind-to none ${OFFSTAGE_LAUNCHER_OPTIONS:-} \
        "$OFFSTAGE_HOME/slurm/rank.sh" "$@"
      ;;
  esac
  say "OFFSTAGE_LAUNCHER=$OFFSTAGE_LAUNCHER is neither srun nor mpirun"
  exit 64
}

# start_launcher PROGRAM ARGUMENT...: starts `launch`, and writes two lines into the descriptor `report`: the launcher's
# process ID, and in the end its exit code. `wait` cannot tell the code: bash 5.2 forgets it (and says -1) if a
# signal with a trap comes in the same moment as the launcher's end.
start_launcher() {
  local output
  exec {output}>&1
  exec {report}< <(
    trap : USR1 USR2 INT HUP TERM  # Slurm's SIGTERM goes to this process too, which must outlive the launcher
    (
      echo "$BASHPID"
      trap - USR1 USR2 INT HUP TERM
      exec >&"$output" {output}>&- < /dev/null
      launch "$@"
    )
    echo $?
  )
  exec {output}>&-
}

# report_line VARIABLE: the next line of the report; empty after its end.
report_line() {
  while read -r "$1" <&"$report"; (($? > 128)); do :; done
}

require_arguments() {
  if [[ -z ${SLURM_JOB_ID:-} ]]; then
    say "this is a job script: give it to sbatch or jobs/submit.sh; without Slurm: mpirun -n RANKS offstage train --config CONFIG"
    exit 64
  fi
  if [[ -n $work_dir && ! -x $work_dir ]]; then
    say "the job's working directory $work_dir is not to be seen on this node: make it again, or name another by sbatch --chdir"
    exit 74
  fi
  if (($# == 0)); then
    say "usage: sbatch SCRIPT CONFIG [--KEY=VALUE...]"
    exit 64
  fi
  if [[ $1 == --* ]]; then
    say "'$1' in place of the configuration: sbatch SCRIPT CONFIG [--KEY=VALUE...], one file without --config before it"
    exit 64
  fi
  local option
  for option in "${@:2}"; do  # what the scripts read themselves must stand in one word and one file
    if [[ $option != --*=* || $option == --config=* ]]; then
      say "'$option' after the configuration: write --KEY=VALUE"
      exit 64
    fi
  done
}

# A signal that comes at once, as the time limit is no longer than its lead, would come so after each requeue.
signal_came() { # signal_came NAME
  local limit worked=$(($(uptime_of_node) - began))
  stop_ranks "SIG$1, the end of the time limit is near"
  ((worked < least_work)) || return
  limit=$(timeout 10 squeue --noheader --jobs="$job" --format=%l 2> /dev/null)
  if too_short "$limit" "${SBATCH_SIGNAL:-$(sbatch_line signal "$0")}"; then
    no_requeue="the time limit of $limit leaves no time before the signal, which comes $lead s before its end: give a longer \
--time, or a signal that comes later, such as --signal=B:USR1@60"
  fi
}

# Tasks of an array would all train in the one run.dir that their command names.
offstage_refuse_array() {
  if ((${SLURM_ARRAY_TASK_COUNT:-1} > 1)); then
    say "the $SLURM_ARRAY_TASK_COUNT tasks of this array have one run.dir: submit a job for each run, with a --run.dir of its own; \
jobs/array.sbatch makes one run of several jobs"
    exit 64
  fi
}

# offstage_run CONFIG [OPTION...]: one attempt. Its exit code is in `code` afterwards.
offstage_run() {
  require_arguments "$@"
  arguments=("$@")
  read_run "$@"
  local options=("${@:2}")
  newest_before=$(newest)
  resume_is_over
  case $? in
    0) options+=(--checkpoint.resume=auto) ;;  # the last one counts
    2)
      cannot_decide
      return
      ;;
  esac
  say "job $job, attempt $attempt, by $OFFSTAGE_LAUNCHER on $SLURM_JOB_NODELIST"
  launcher=
  began=$(uptime_of_node)
  trap 'signal_came USR1' USR1
  trap 'signal_came USR2' USR2
  trap 'signal_came INT' INT
  trap 'signal_came HUP' HUP
  trap on_term TERM
  if [[ -n $early ]]; then
    signal_came "$early"
    code=75
  else
    start_launcher "$OFFSTAGE" train --config "$1" "${options[@]}"
    # A trap runs while `read` waits, and `read` goes on after it.
    report_line launcher
    tell_ranks
    report_line code
    code=${code:-137}  # without a last line the one who writes it was killed
    exec {report}<&-
  fi
  launcher=
  trap : USR1 USR2 INT HUP  # nobody is left to tell
  note_attempt "$code"
}

# Without the list of checkpoints or the note of the first ones an attempt might begin again, or go on from
# what another run left: it ends with 74, like one whose program cannot read them.
cannot_decide() {
  say "cannot read the checkpoints in $checkpoints, or keep the list of the first ones in $run_dir"
  code=74
  note_attempt "$code"
}

# offstage_require_checkpoint CONFIG [OPTION...]: lists them, and ends the job if none is complete, with 65,
# or if that cannot be told, with the program's code.
offstage_require_checkpoint() {
  local from path listing
  require_arguments "$@"
  arguments=("$@")
  read_run "$@"
  from=$checkpoints
  resume_is_over
  case $?:$resume in
    2:*)
      cannot_decide
      offstage_finish
      ;;
    1:none)
      say "checkpoint.resume=none is no checkpoint to go on from; jobs/train.sbatch starts a run"
      exit 65
      ;;
    1:auto | 0:*) ;;
    1:*)
      path_of "$resume"
      from=$path
      ;;
  esac
  listing=$("$OFFSTAGE" checkpoint ls "$from")
  code=$?
  if [[ -n $listing ]]; then printf '%s\n' "$listing"; fi
  if ((code == 0)) && grep -Eq '^[0-9]+ +complete ' <<< "$listing"; then return; fi
  if ((code == 0 || code == 65)) || is_no_directory "$from"; then
    say "no checkpoint to go on from; jobs/train.sbatch starts a run"
    exit 65
  fi
  note_attempt "$code"
  offstage_finish
}

cannot_go_on() { # true for what the same command would meet again
  ((code == 64 || code == 65)) || { ((code == 74)) && [[ -e $run_dir/STOP ]]; } # one that cannot be removed
}

too_many_crashes() { # true and said if another attempt would be one too many
  local number
  number=$(crashes)
  ((number >= OFFSTAGE_CRASHES)) || return 1
  say "the $number. bad end in a row without a new checkpoint: no requeue;$([[ -r $attempts_file ]] && echo " see $attempts_file, and") \
submit the same command again when the cause is gone"
}

stands_still() { # true and said if attempts have to save before they get anywhere
  local number
  number=$(idle_ends "$least_work")
  ((number >= OFFSTAGE_IDLE_ENDS)) || return 1
  say "the $number. end in a row within $least_work s or at the checkpoint of the one before, now $(newest): no requeue; give a longer \
--time, a later signal or a shorter train.time-margin, or see above what takes the time"
}

# Ends the script: with 0 after the last step, else with the run's code, and then the job is in the
# queue again wherever that helps.
offstage_finish() {
  local state
  if ((code == 0)); then
    say "done"
  elif cannot_go_on; then
    say "ended with $code; the same command would end so again"
  elif [[ -n $no_requeue ]]; then
    say "ended with $code, and no requeue: $no_requeue"
  elif ((code != 75)) && too_many_crashes; then
    :
  elif state=$(job_state); ((ending)) || [[ -n $state && $state != RUNNING ]]; then
    say "ended with $code; the job is ${state:-ending}, so it is left to Slurm"
  elif ((code == 75)) && stands_still; then
    :
  elif ((code == 75)); then
    go_on "saved, more to do"
  else
    go_on "ended with $code"
  fi
  exit "$code"
}

go_on() { # go_on WHY: into the queue again
  local answer deadline=$(($(uptime_of_node) + OFFSTAGE_REQUEUE_PATIENCE)) before=$ending
  # The requeue ends this script: what there is to say comes first.
  say "$1; asking for a requeue"
  until answer=$(scontrol requeue "$job" 2>&1); do
    ((ending == before)) || return 0  # Slurm ends the job for it, scontrol too
    if refused_for_good "$answer" || (($(uptime_of_node) >= deadline)); then
      say "no requeue: $answer"
      go_on_in_a_new_job
      return
    fi
    say "no requeue yet: $answer; asking again in $OFFSTAGE_REQUEUE_PAUSE s"
    sleep "$OFFSTAGE_REQUEUE_PAUSE"
  done
}

refused_for_good() { # refused_for_good ANSWER: all else, as from a controller that restarts, may pass
  case $1 in
    *disabled* | *denied* | *"not supported"* | *"Only batch jobs"* | *"Invalid job id"*) return 0 ;;
    *"command not found"*) return 0 ;;
  esac
  return 1
}

go_on_in_a_new_job() {
  local answer
  if [[ -n ${SLURM_ARRAY_JOB_ID:-} ]]; then
    say "submit the same command again if no task of the array is left to go on"
  elif [[ $OFFSTAGE_RESUBMIT != 1 ]]; then
    say "submit the same command again, or set OFFSTAGE_RESUBMIT=1"
  elif answer=$(resubmit 2>&1); then
    say "$answer goes on"
  else
    say "no new job: $answer"
  fi
}

# A new job with this one's arguments and size; jobs/train.sbatch if there is nothing to go on from yet.
resubmit() {
  local script=restart.sbatch memory=${SLURM_MEM_PER_NODE:+--mem=$SLURM_MEM_PER_NODE}
  local gpus=${SLURM_GPUS_PER_NODE:-${SLURM_GPUS_ON_NODE:-}}  # a job with --gres has the second one alone
  : "${memory:=${SLURM_MEM_PER_CPU:+--mem-per-cpu=$SLURM_MEM_PER_CPU}}"
  # --mem=0, all of each node, leaves no variable.
  if [[ -z $memory && $(scontrol show job "$job" 2> /dev/null) == *MinMemoryNode=0[[:space:]]* ]]; then memory=--mem=0; fi
  if [[ $(newest) == none ]] || { [[ $resume == none ]] && ! resume_is_over; }; then script=train.sbatch; fi
  export OFFSTAGE_FIRST_JOB=$first_job OFFSTAGE_RESUBMIT
  export OFFSTAGE_ATTEMPTS=$((${OFFSTAGE_ATTEMPTS:-0} + attempt))
  env --unset=SLURM_RESTART_COUNT sbatch --export=ALL --dependency="afterany:$SLURM_JOB_ID" --job-name="$SLURM_JOB_NAME" \
    --nodes="$SLURM_JOB_NUM_NODES" --time="$(squeue --noheader --jobs="$job" --format=%l)" \
    --partition="$SLURM_JOB_PARTITION" ${SLURM_JOB_ACCOUNT:+--account="$SLURM_JOB_ACCOUNT"} \
    ${SLURM_NTASKS:+--ntasks="$SLURM_NTASKS"} ${SLURM_NTASKS_PER_NODE:+--ntasks-per-node="$SLURM_NTASKS_PER_NODE"} \
    ${SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"} \
    ${gpus:+--gpus-per-node="$gpus"} ${memory:+"$memory"} ${SLURM_JOB_QOS:+--qos="$SLURM_JOB_QOS"} \
    "$OFFSTAGE_HOME/jobs/$script" "${arguments[@]}"
}

# Links at the same time would find the run's directory taken and end: the chain would be used up at once.
offstage_require_chain() {
  require_arguments "$@"
  if [[ -z ${SLURM_ARRAY_TASK_ID:-} ]]; then
    say "this is no task of an array: give the script to sbatch, with --array=1-8%1"
    exit 64
  fi
  local shown
  shown=$(scontrol show job "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" 2> /dev/null)
  if ((SLURM_ARRAY_TASK_MAX > SLURM_ARRAY_TASK_MIN)) && [[ $shown == *ArrayTaskId=* && $shown != *"ArrayTaskThrottle=1 "* ]]; then
    say "links of this chain run at the same time: submit it with %1, such as --array=$SLURM_ARRAY_TASK_MIN-$SLURM_ARRAY_TASK_MAX%1"
    exit 64
  fi
}

# The same as offstage_finish for a link of a chain: the next goes on by itself, and where none could do more the rest is
# cancelled.
offstage_finish_link() {
  local last=$((SLURM_ARRAY_TASK_ID == SLURM_ARRAY_TASK_MAX))
  if ((code == 0)) || cannot_go_on; then
    say "ended with $code; the rest of the chain is cancelled"
    scancel --state=PENDING "$SLURM_ARRAY_JOB_ID"
  elif ((ending)); then
    say "ended with $code; the job is left to Slurm"
  elif { ((code == 75)) && stands_still; } || { ((code != 75)) && too_many_crashes; }; then
    say "the rest of the chain is cancelled"
    scancel --state=PENDING "$SLURM_ARRAY_JOB_ID"
  elif ((last)); then
    say "ended with $code, and the chain is at its end; submit it again"
  else
    say "ended with $code; the next link goes on"
  fi
  exit "$code"
}
