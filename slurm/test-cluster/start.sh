#!/usr/bin/env bash
# Boots a Slurm cluster of several pretended nodes on this machine; needs no root and nothing of /etc.
#
#   directory=$(slurm/test-cluster/start.sh [NODES [OWNER]])      3 nodes unless told
#   . "$directory/environment.sh" && sinfo
#   slurm/test-cluster/stop.sh "$directory"
#
# With --nodes-of-their-own before NODES they have networks and processes of their own (nodes.sh), and so has `head`, the
# node of the controller. Needs root:
#
#   slurm/test-cluster/nodes.sh on "$directory" head sinfo
#
# Prints the directory that holds all of it. If OWNER, a process id, is given, the cluster ends with that
# process, however it ends. Clusters whose owner is gone without that are ended first.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
own=
if [[ ${1:-} == --nodes-of-their-own ]]; then
  own=1
  shift
fi
nodes=${1:-3}
owner=${2:-}

die() {
  echo "test-cluster: $*" >&2
  exit 1
}
[[ $nodes =~ ^[1-9][0-9]*$ ]] || die "usage: start.sh [--nodes-of-their-own] [NODES [OWNER]]"
for program in munged slurmctld slurmd srun; do
  command -v "$program" > /dev/null || PATH=$PATH:/usr/sbin:/sbin
  command -v "$program" > /dev/null || die "$program is missing; jobs/install-packages.sh build installs it"
done

if [[ -n $own ]]; then "$here/nodes.sh" check || exit; fi

# Spill files want a real file system, and the path of a socket has at most 107 bytes.
base=
for candidate in "${TMPDIR:-}" /tmp /var/tmp; do
  if [[ -n $candidate && -w $candidate && ${#candidate} -le 40 &&
        $(stat --file-system --format=%T -- "$candidate") != tmpfs ]]; then
    base=$candidate
    break
  fi
done
[[ -n $base ]] || die "neither TMPDIR, /tmp nor /var/tmp is on a disk, writable and has a short path"

for old in "$base"/offstage-slurm-??????; do
  if [[ -O $old && -s $old/owner ]] && ! kill -0 "$(< "$old/owner")" 2> /dev/null; then
    "$here/stop.sh" "$old"
  fi
done

directory=$(mktemp -d "$base/offstage-slurm-XXXXXX")
give_up() {
  tail -n 5 "$directory"/log/* >&2 || true
  "$here/stop.sh" "$directory"
}
trap give_up EXIT
chmod 711 "$directory"
mkdir "$directory"/{munge,state,log,devices}
if [[ -n $owner ]]; then echo "$owner" > "$directory/owner"; fi

can_listen() { # can_listen ADDRESS
  python3 -c 'import socket, sys; socket.create_server((sys.argv[1], 0))' "$1" 2> /dev/null
}
# Daemons and srun listen at the address of the host's name alone. Where that is 127.0.1.1, as Debian has it, another machine's or
# none, answers would be lost: then they listen at all addresses. Munge's key keeps others out.
host=$(hostname -s) network=lo communication=CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
if [[ -n $own ]]; then
  host=head address=10.77.0.254 network=eth0
else
  address=$(getent ahostsv4 "$host" | awk 'NR == 1 { print $1 }') || true
  if [[ -z $address || ($address == 127.* && $address != 127.0.0.1) ]] || ! can_listen "$address"; then
    address=127.0.0.1 communication=
  fi
fi
# Free ports below those that the kernel gives to clients; all are held until all are found.
mapfile -t ports < <(python3 - "$((nodes + 1))" <<'PYTHON'
import random, socket, sys
held = []
while len(held) < int(sys.argv[1]):
    try:
        held.append(socket.create_server(("", random.randint(15000, 32000))))
    except OSError:
        pass
print(*(s.getsockname()[1] for s in held), sep="\n")
PYTHON
)
lines=
for ((i = 1; i <= nodes; ++i)); do
  mkdir "$directory"/{spool,tmp,scratch}.node$i
  if [[ -n $own ]]; then place="node$i NodeAddr=10.77.0.$i"; else place="$host NodeAddr=$address"; fi
  lines+="NodeName=node$i NodeHostname=$place Port=${ports[i]}"$'\n'
done
for template in "$here"/*.in; do
  text=$(< "$template")
  text=${text//@DIR@/"$directory"}
  text=${text//@HOME@/"$(dirname "$(dirname "$here")")"}
  text=${text//@HOST@/"$host"}
  text=${text//@ADDRESS@/"$address"}
  text=${text//@NETWORK@/"$network"}
  text=${text//@COMMUNICATION@/"$communication"}
  text=${text//@PORT@/${ports[0]}}
  text=${text//@USER@/"$(id -un)"}
  printf '%s\n' "${text//@NODES@/"$lines"}" > "$directory/$(basename "$template" .in)"
done
chmod 755 "$directory"/*.sh
# slurmd asks for devices; a link to one will do. The digits at the end are the index.
for i in 0 1; do ln -s /dev/null "$directory/devices/gpu$i"; done

# SLURM_PMIX_FENCE: with the default a busy machine lets ranks leave MPI_Init while others are still inside, and these die of
# the first message (slurm/README.md).
cat > "$directory/environment.sh" << END
export SLURM_CONF=$directory/slurm.conf
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export SLURM_PMIX_FENCE=ring
END
# shellcheck disable=SC1091
source "$directory/environment.sh"
# Every daemon has the directory in its environment, and so has what it starts: stop.sh looks there.
export OFFSTAGE_CLUSTER=$directory

on() { # on NODE COMMAND...: pretended nodes are all this machine
  if [[ -n $own ]]; then "$here/nodes.sh" on "$directory" "$@"; else "${@:2}"; fi
}
if [[ -n $own ]]; then
  (printf '127.0.0.1 localhost\n%s head\n' "$address"
    for ((i = 1; i <= nodes; ++i)); do echo "10.77.0.$i node$i"; done) > "$directory/hosts"
  "$here/nodes.sh" make "$directory" head "$address"
  for ((i = 1; i <= nodes; ++i)); do "$here/nodes.sh" make "$directory" "node$i" "10.77.0.$i"; done
fi

(umask 077 && head -c 1024 /dev/urandom > "$directory/munge/key")
chmod 711 "$directory/munge"
on head munged --key-file="$directory/munge/key" --socket="$directory/munge/socket" --seed-file="$directory/munge/seed" \
  --pid-file="$directory/munge/pid" --log-file="$directory/munge/log" --num-threads=2
on head slurmctld -c
# A slurmd that finds nobody waits seconds before it asks again.
for ((i = 0; i < 600; ++i)); do
  if on head scontrol ping 2> /dev/null | grep -q 'is UP'; then break; fi
  sleep 0.05
done
for ((i = 1; i <= nodes; ++i)); do on "node$i" slurmd -N "node$i"; done
for ((i = 0; i < 600; ++i)); do
  if [[ $(on head sinfo --noheader --partition=low --states=idle --format=%D) == "$nodes" ]]; then
    trap - EXIT
    if [[ -n $owner ]]; then
      # Without the mark: the keeper shall outlive what it ends.
      env --unset=OFFSTAGE_CLUSTER setsid bash -c \
        'while kill -0 "$1" && [[ -d $3 ]]; do sleep 0.5; done; exec "$2" "$3"' keeper \
        "$owner" "$here/stop.sh" "$directory" < /dev/null > /dev/null 2>&1 &
    fi
    echo "$directory"
    exit 0
  fi
  sleep 0.05
done
die "the nodes did not come up within 30 s"
