#!/usr/bin/env bash
# Brings along what Offstage needs on machines where nothing can be installed, such as clusters without a way out:
# jobs/carry-packages.sh DIR [BUILD]
# Copies the programs of BUILD (build/release unless told), stripped, and from the packages installed here the libraries
# and the Open MPI that they run with, into DIR, which must be new or empty. There, in bash: source DIR/env.sh
# Needs a glibc as new as here on that machine. Open MPI comes with shared memory and TCP; the plugins of InfiniBand and
# the like stay behind, as they need the drivers of the cluster.
# Ends with 64 for a wrong call, and 74 naming what is missing.
set -euo pipefail

fail() {
  echo "carry-packages: $2" >&2
  exit "$1"
}
(($# == 1 || $# == 2)) || fail 64 "usage: jobs/carry-packages.sh DIR [BUILD]"
build=$(realpath -m -- "${2:-$(dirname "$0")/../build/release}")
target=$(realpath -m -- "$1")
[[ ! -e $target || (-d $target && -z $(ls -A "$target")) ]] || fail 64 "$target is not empty; name a new directory"
for tool in ldd strip objdump ompi_info mpirun; do
  command -v "$tool" > /dev/null || fail 74 "$tool is missing; jobs/install-packages.sh installs it (openmpi-bin, g++)"
done

shopt -s nullglob
programs=()
for file in "$build"/offstage "$build"/perf/perf_* "$build"/tests/*/*_gpu_test; do
  if [[ -f $file && -x $file ]]; then programs+=("$file"); fi
done
((${#programs[@]} > 0)) || fail 74 "no programs in $build; build them first: cmake --preset release && cmake --build --preset release"

# libraries_of FILE...: the paths of what they load at their start.
libraries_of() {
  local missing
  for file in "$@"; do
    ldd "$file" > "$scratch/ldd" || fail 74 "ldd cannot read $file"
    missing=$(awk '/not found/ { print $1 }' < "$scratch/ldd" | paste -sd ' ')
    [[ -z $missing ]] || fail 74 "$file needs $missing, which is not installed here"
    awk '$2 == "=>" { print $3 }' < "$scratch/ldd"
  done | sort -u
}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
path_of() { ompi_info --path "$1" --parsable | cut -d: -f3-; }
prefix=$(path_of prefix)
plugins=()
for plugin in "$(path_of pkglibdir)"/mca_*.so; do
  if ! ldd "$plugin" | grep -qE 'lib(ucp|fabric|psm_infinipath|psm2|ibverbs|rdmacm)\.so|not found'; then plugins+=("$plugin"); fi
done
((${#plugins[@]} > 0)) || fail 74 "Open MPI has no plugins in $(path_of pkglibdir); is mpirun another MPI's?"
tools=()
for tool in mpirun orterun orted ompi_info; do
  if path=$(command -v "$tool"); then tools+=("$path"); fi
done

mkdir -p "$target"
# carry FILE...: to the same path below DIR, with links followed under the name that they are asked for by.
carry() {
  local file place
  for file in "$@"; do
    place=$target/${file#/}
    if [[ $file == /lib/* ]]; then place=$target/usr$file; fi
    mkdir -p "$(dirname "$place")"
    cp -L "$file" "$place"
  done
}
directories=()
mapfile -t libraries < <(libraries_of "${programs[@]}" "${plugins[@]}" "${tools[@]}")
((${#libraries[@]} > 0)) || exit 74  # libraries_of has said why
carried=()
# Half a gigabyte, and a machine with a GPU has one: the toolkit's or PyTorch's. env.sh looks for what programs will load.
cublas=$(grep -aoh 'libcublasLt\.so\.[0-9]*' "${programs[@]}" | sort -u | tail -n 1 || true)
for library in "${libraries[@]}"; do
  case $(basename "$library") in
    # glibc belongs to the machine, as the kernel and the loader do.
    libc.so.* | libm.so.* | libmvec.so.* | libdl.so.* | librt.so.* | libpthread.so.* | libresolv.so.* | libutil.so.*) ;;
    # Those of the compiler are taken where the machine has older ones.
    libstdc++.so.* | libgcc_s.so.*)
      mkdir -p "$target/compiler"
      # Under its full name too: env.sh compares that.
      cp -L "$library" "$target/compiler/$(basename "$(realpath "$library")")"
      if [[ ! -e $target/compiler/$(basename "$library") ]]; then
        ln -s "$(basename "$(realpath "$library")")" "$target/compiler/$(basename "$library")"
      fi
      carried+=("$library")
      ;;
    *)
      carry "$library"
      carried+=("$library")
      place=$(dirname "$library")
      if [[ $place == /lib/* ]]; then place=/usr$place; fi
      directories+=("$place")
      ;;
  esac
done
carry "${plugins[@]}" "${tools[@]}"
pmix=$(printf '%s\n' "${libraries[@]}" | grep '/libpmix\.so' || true)
pmix_prefix=$prefix
if [[ -n $pmix ]]; then
  pmix_prefix=$(dirname "$(dirname "$(realpath "$pmix")")")
  carry "$pmix_prefix"/lib/pmix/*.so "$pmix_prefix"/share/pmix/*.txt
fi
carry "$(path_of sysconfdir)"/*.conf "$(path_of pkgdatadir)"/*.txt
for program in "${programs[@]}"; do
  place=$target/build/${program#"$build"/}
  mkdir -p "$(dirname "$place")"
  strip -o "$place" "$program"
done

glibc=$(find "$target" -type f ! -name '*.txt' ! -name '*.conf' -exec objdump -T {} + 2> /dev/null |
  grep -o 'GLIBC_[0-9][0-9.]*' | sort -Vu | tail -n 1)
paths=$(printf '$here%s\n' "${directories[@]}" | sort -u | paste -sd :)
cat > "$target/env.sh" << END
# For bash: source env.sh. Programs below build/, and mpirun, then run with what lies here.
here=\$(cd "\$(dirname "\${BASH_SOURCE[0]}")" && pwd)
glibc=\$(getconf GNU_LIBC_VERSION 2> /dev/null || true)
if [[ \$(printf '%s\n' "${glibc#GLIBC_}" "\${glibc#glibc }" | sort -V | head -n 1) != "${glibc#GLIBC_}" ]]; then
  echo "env.sh: this machine has \${glibc:-no glibc}; what lies in \$here needs ${glibc#GLIBC_} or newer" >&2
  unset here glibc
  return 1
fi
libraries=$paths
# The newer of both compilers' libraries, as the machine's own programs need theirs.
theirs=\$(PATH=\$PATH:/sbin:/usr/sbin ldconfig -p 2> /dev/null | awk '/libstdc\+\+\.so\.6 .*x86-64/ && !found++ { print \$NF }')
ours=\$(cd "\$here/compiler" && ls -d libstdc++.so.6.*)
if [[ -n \$theirs ]]; then theirs=\$(basename "\$(realpath "\$theirs")"); fi
if [[ \$(printf '%s\n' "\$theirs" "\$ours" | sort -V | tail -n 1) == "\$ours" ]]; then
  libraries=\$libraries:\$here/compiler
fi
cublas=$cublas
if [[ -n \$cublas ]]; then
  place=
  if ! PATH=\$PATH:/sbin:/usr/sbin ldconfig -p 2> /dev/null | grep -F "\$cublas" > /dev/null; then
    while read -r place; do
      if [[ -e \$place/\$cublas ]]; then break; fi
      place=
    done < <(echo "\${CUDA_HOME:-/usr/local/cuda}/lib64"
      python3 -c 'import glob, sys
print(*(place for path in sys.path for place in glob.glob(path + "/nvidia/*/lib")), sep="\n")' 2> /dev/null)
    if [[ -z \$place ]]; then
      echo "env.sh: this machine has no \$cublas, without which GPUs are of no use; the CUDA toolkit and PyTorch's packages bring it: set CUDA_HOME" >&2
    fi
  fi
  libraries=\$libraries\${place:+:\$place}
fi
export LD_LIBRARY_PATH=\$libraries\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}
export PATH=\$here$prefix/bin:\$PATH
export OPAL_PREFIX=\$here$prefix OPAL_SYSCONFDIR=\$here$(path_of sysconfdir) PMIX_PREFIX=\$here$pmix_prefix
export PMIX_LIBDIR=\$PMIX_PREFIX/lib PMIX_PKGLIBDIR=\$PMIX_PREFIX/lib/pmix PMIX_PKGDATADIR=\$PMIX_PREFIX/share/pmix
# Without ssh there is one node, unless Slurm starts the others; mpirun would stop at its absence.
if ! command -v ssh > /dev/null && ! command -v rsh > /dev/null; then export OMPI_MCA_plm=^rsh; fi
unset here glibc libraries theirs ours cublas place
END

if command -v dpkg-query > /dev/null; then
  # Where /lib is a link to /usr/lib, packages know a file by either name.
  for file in "${carried[@]}" "${tools[@]}"; do
    dpkg -S "$(realpath "$file")" 2> /dev/null || dpkg -S "/lib${file#/usr/lib}" 2> /dev/null || dpkg -S "$file" 2> /dev/null ||
      echo "unknown: $file"
  done | cut -d: -f1 | grep -v '^diversion' | sort -u | while read -r package; do
    dpkg-query -W -f '${Package} ${Version}\n' "$package" 2> /dev/null || echo "$package"
  done > "$target/packages.txt"
fi
echo "$target: $(du -sm "$target" | cut -f1) MiB, ${#programs[@]} programs, $(wc -l < "$target/packages.txt") packages, glibc ${glibc#GLIBC_} or newer"
echo "there, in bash: source $(basename "$target")/env.sh"
