#!/usr/bin/env bash
# Nodes of their own on this machine: a host name, a network, processes, /run and /dev/shm that no other node has, so
# that MPI, Slurm and a file system see several hosts, which talk over TCP. They share the disk and the processors.
# A node's storage is DIRECTORY/scratch.NODE, which it also has as DIRECTORY/local. Needs root. Nothing of a node
# outlives its first process, and nothing leaves the machine. start.sh --nodes-of-their-own makes them; then
#
#   nodes.sh on DIRECTORY NODE COMMAND...    runs it there; `head` is the node of Slurm's controller
#   nodes.sh kill DIRECTORY NODE             all its processes end at once, as if its power were cut
#   nodes.sh start DIRECTORY NODE            it comes back, with its disk
#   nodes.sh cut DIRECTORY NODE NODE         no packet passes between the two any more
#   nodes.sh mend DIRECTORY NODE NODE
#   nodes.sh check                           says why there can be none here, and ends with 1, if so
#   nodes.sh make DIRECTORY NODE ADDRESS     for start.sh: `head` first
set -euo pipefail

fail() {
  echo "nodes: $*" >&2
  exit 1
}

check() {
  local program
  ((EUID == 0)) || fail "they need root"
  for program in ip nsenter unshare; do
    command -v "$program" > /dev/null || fail "$program is missing; packages iproute2 and util-linux have it"
  done
  unshare --uts --ipc --mount --net --pid --fork true 2> /dev/null || fail "no namespaces may be made here"
  unshare --net sh -c 'ip link add br0 type bridge && ip link add v0 type veth peer name v1' 2> /dev/null ||
    fail "no bridge and no pair of interfaces may be made here"
}

process_of() { # process_of NODE: its first one
  cat "$directory/nodes/$1/process" 2> /dev/null || fail "$directory has no node $1"
}

on() { # on NODE COMMAND...
  local process
  process=$(process_of "$1")
  shift
  nsenter --target "$process" --uts --ipc --mount --net --pid --wdns="$PWD" -- env "OFFSTAGE_CLUSTER=$directory" \
    "SLURM_CONF=$directory/slurm.conf" OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "$@"
}

# The first process reaps what others leave. Its number as this machine sees it is in /proc until the node has its own.
# shellcheck disable=SC2016
first_process='
  set -e
  hostname "$1"
  read -r process _ < /proc/self/stat
  mount -t proc proc /proc
  mount -t tmpfs -o mode=755 run /run
  mount -t tmpfs shm /dev/shm
  mount --bind "$2/hosts" /etc/hosts
  mkdir -p "$2/scratch.$1" "$2/local"
  mount --bind "$2/scratch.$1" "$2/local"
  echo "$process" > "$2/nodes/$1/process.new"
  mv "$2/nodes/$1/process.new" "$2/nodes/$1/process"
  sleep infinity &
  while :; do wait || :; done'

make() { # make NODE ADDRESS
  local node=$1 address=$2 port=v${1#node} process
  mkdir -p "$directory/nodes/$node"
  echo "$address" > "$directory/nodes/$node/address"
  OFFSTAGE_CLUSTER=$directory setsid unshare --uts --ipc --mount --net --pid --fork --kill-child --propagation slave \
    bash -c "$first_process" "$node" "$node" "$directory" < /dev/null > /dev/null 2> "$directory/nodes/$node/errors" &
  for ((i = 0; i < 600; ++i)); do
    if [[ -s $directory/nodes/$node/process ]]; then break; fi
    kill -0 $! 2> /dev/null || fail "$node did not start: $(< "$directory/nodes/$node/errors")"
    sleep 0.05
  done
  process=$(process_of "$node")
  if [[ $node == head ]]; then
    on head ip link add eth0 type bridge
  else
    ip link add eth0 netns "$process" type veth peer name "$port" netns "$(process_of head)"
    on head ip link set "$port" master eth0 up
  fi
  on "$node" ip address add "$address/24" dev eth0
  on "$node" ip link set eth0 up
  on "$node" ip link set lo up
}

kill_node() { # kill_node NODE
  local process
  process=$(process_of "$1")
  kill -KILL "$process" 2> /dev/null || :
  # Until its last process and with that its network are gone.
  for ((i = 0; i < 1000; ++i)); do
    kill -0 "$process" 2> /dev/null || break
    sleep 0.02
  done
  rm "$directory/nodes/$1/process"
}

start_node() { # start_node NODE
  [[ ! -e $directory/nodes/$1/process ]] || fail "$1 is there"
  on head ip link delete "v${1#node}" 2> /dev/null || :
  make "$1" "$(< "$directory/nodes/$1/address")"
  on "$1" slurmd -N "$1"
  on head scontrol update "nodename=$1" state=resume 2> /dev/null || :  # where Slurm has not missed it
}

# Packets of a pair of nodes go to an interface that nobody has: neither side is told, as on a broken link.
cut_off() { # cut_off NODE NODE
  on "$1" ip neighbour replace "$(< "$directory/nodes/$2/address")" lladdr 02:00:00:00:00:01 nud permanent dev eth0
}
mend() {
  on "$1" ip neighbour delete "$(< "$directory/nodes/$2/address")" dev eth0
}

command=${1:?see the head of nodes.sh}
directory=${2:-}
[[ $command == check || -d $directory ]] || fail "no directory $directory"
case $command in
  check) check ;;
  on) on "${@:3}" ;;
  make) make "$3" "$4" ;;
  kill) kill_node "$3" ;;
  start) start_node "$3" ;;
  cut) cut_off "$3" "$4" && cut_off "$4" "$3" ;;
  mend) mend "$3" "$4" && mend "$4" "$3" ;;
  *) fail "no command $command" ;;
esac
