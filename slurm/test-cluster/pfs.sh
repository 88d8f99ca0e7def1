#!/usr/bin/env bash
# A distributed file system on the nodes of start.sh --nodes-of-their-own: a GlusterFS volume with a brick on each of
# the first N nodes, which all nodes and `head` mount at DIRECTORY/pfs. Needs glusterfs-server and glusterfs-client.
#   slurm/test-cluster/pfs.sh DIRECTORY N [OPTION...]       for example: pfs.sh "$directory" 3 replica 3
#   PFS_SIZE=100M slurm/test-cluster/pfs.sh ...             so much space on each brick, in memory
#   slurm/test-cluster/pfs.sh DIRECTORY mount NODE          of a node that nodes.sh has started again
#   slurm/test-cluster/pfs.sh DIRECTORY whole               waits until all nodes see all bricks, with the same in each:
#                                                           until then another node's end may leave too few of them
# A brick that does not answer is given up after 5 s (GlusterFS waits 42 s unless told).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
directory=${1:?see the head of pfs.sh}
bricks=${2:?see the head of pfs.sh}

on() { # on NODE COMMAND...
  timeout 60 "$here/nodes.sh" on "$directory" "$@"
}

gluster() {
  on node1 gluster --mode=script "$@"
}

serve() { # serve NODE: its own glusterd, with its files in the node's directory
  local mine=$directory/nodes/$1
  mkdir -p "$mine"/{gluster,gluster-log,brick}
  # shellcheck disable=SC2016
  on "$1" sh -ec 'mount --bind "$1/gluster" /var/lib/glusterd
    mount --bind "$1/gluster-log" /var/log/glusterfs
    mkdir -p /run/gluster
    if [ -n "$2" ]; then mount -t tmpfs -o "size=$2" brick "$1/brick"; fi
    glusterd' serve "$mine" "${PFS_SIZE:-}"
}

mount_on() { # mount_on NODE
  local server=$1
  if [[ ! -d $directory/nodes/$1/gluster ]]; then server=node1; fi
  # shellcheck disable=SC2016
  on "$1" sh -ec 'mkdir -p /run/gluster "$2/nodes/$3/gluster-log"
    mountpoint -q /var/log/glusterfs || mount --bind "$2/nodes/$3/gluster-log" /var/log/glusterfs
    mount -t glusterfs -o direct-io-mode=enable "$1:/pfs" "$2/pfs"' mount "$server" "$directory" "$1"
}

wait_for() { # wait_for COMMAND...
  for ((i = 0; i < 900; ++i)); do
    if "$@" > /dev/null 2>&1; then return; fi
    sleep 0.2
  done
  echo "pfs: $* did not succeed within three minutes" >&2
  exit 1
}
all_bricks_seen() {
  local clients connections
  for node in "$directory"/nodes/*/; do
    clients=/proc/$(< "$node/process")/root$directory/pfs/.meta/graphs/active
    connections=$(cat "$clients"/pfs-client-*/private) || return 1
    if [[ $connections == *"connected = 0"* ]]; then return 1; fi
  done
}
all_bricks_alike() {
  local entries
  gluster volume info pfs | grep -q Replicate || return 0
  gluster volume heal pfs  # it looks by itself every ten minutes alone
  entries=$(gluster volume heal pfs info | grep "^Number of entries:") || return 1
  ! grep -qv ": 0$" <<< "$entries"
}
connected() {
  (($(gluster pool list | grep -c Connected) == bricks))
}

command -v glusterd > /dev/null || PATH=$PATH:/usr/sbin:/sbin
command -v glusterd > /dev/null ||
  { echo "pfs: glusterd is missing; jobs/install-packages.sh campaign installs it" >&2; exit 1; }
mkdir -p "$directory/pfs"
if [[ $bricks == mount ]]; then
  if [[ -d $directory/nodes/$3/gluster ]]; then serve "$3"; fi
  wait_for mount_on "$3"
  exit
fi
if [[ $bricks == whole ]]; then
  wait_for all_bricks_seen
  wait_for all_bricks_alike
  exit
fi
places=()
for ((n = 1; n <= bricks; ++n)); do
  serve "node$n"
  places+=("node$n:$directory/nodes/node$n/brick/b")
done
wait_for gluster pool list
for ((n = 2; n <= bricks; ++n)); do wait_for gluster peer probe "node$n"; done
wait_for connected
gluster volume create pfs "${@:3}" "${places[@]}" force > /dev/null
gluster volume set pfs network.ping-timeout 5 > /dev/null
gluster volume start pfs > /dev/null
for node in "$directory"/nodes/*/; do mount_on "$(basename "$node")"; done
