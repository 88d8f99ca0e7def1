#!/usr/bin/env bash
# Brings along what Offstage needs on machines where nothing can be installed, such as clusters without a way out:
# jobs/carry-packages.sh DIR [BUILD]
# Copies the programs of BUILD (build/release unless told), stripped, and from the packages installed here the libraries
# and the Open MPI that they run with, into DIR, which must be new or empty. There, in bash: source DIR/env.sh
# What lies in DIR finds its libraries there by itself (RPATH, relative to each file), and what else runs on that machine
# does not see them. Needs a glibc as new as here on that machine. Open MPI comes with shared memory and TCP; the plugins of InfiniBand and
# the like stay behind, as they need the drivers of the cluster.
# Ends with 64 for a wrong call, and 74 naming what is missing.
set -euo pipefail

fail() {
  echo "carry-packages: $2" >&2
  exit "$1"
}
{ (($# == 1 || $# == 2)) && [[ $1 != -* ]]; } || fail 64 "usage: jobs/carry-packages.sh DIR [BUILD]"
build=$(realpath -m -- "${2:-$(dirname "$0")/../build/release}")
target=$(realpath -m -- "$1")
[[ ! -e $target || (-d $target && -z $(ls -A "$target")) ]] || fail 64 "$target is not empty; name a new directory"
for tool in ldd strip objdump patchelf ompi_info mpirun; do
  command -v "$tool" > /dev/null || fail 74 "$tool is missing; jobs/install-packages.sh installs it (openmpi-bin, g++, patchelf)"
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
((${#plugins[@]} > 0)) || fail 74 "Open MPI has no plugins in $(path_of pkglibdir); is mpirun another MPI's, or Open MPI 5's? This script carries Open MPI 4"
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
# Half a gigabyte each, and a machine with a GPU has them: the toolkit's or PyTorch's. env.sh looks for what programs will load.
cublas=$(grep -aoh 'libcublasLt\.so\.[0-9]*' "${programs[@]}" | sort -u | tail -n 1 || true)
cudnn=$(grep -aoh 'libcudnn\.so\.[0-9][0-9]*' "${programs[@]}" | sort -u | tail -n 1 || true)
# Where env.sh puts a link to that machine's.
found=$target/found
mkdir -p "$found"
for library in "${libraries[@]}"; do
  case $(basename "$library") in
    # glibc belongs to the machine, as the kernel and the loader do.
    libc.so.* | libm.so.* | libmvec.so.* | libdl.so.* | librt.so.* | libpthread.so.* | libresolv.so.* | libutil.so.*) ;;
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

# Of all that lies there, programs, libraries and plugins: where it finds the libraries beside it.
mapfile -t directories < <(printf "$target%s\n" "${directories[@]}" | sort -u)
find "$target" -type f ! -name '*.txt' ! -name '*.conf' -printf '%h\n' | sort -u | while read -r place; do
  searched=()
  for directory in "${directories[@]}" "$found"; do
    searched+=("\$ORIGIN/$(realpath -m --relative-to="$place" "$directory")")
  done
  find "$place" -maxdepth 1 -type f ! -name '*.txt' ! -name '*.conf' -exec chmod u+w {} + \
    -exec patchelf --force-rpath --set-rpath "$(IFS=:; echo "${searched[*]}")" {} +
done

glibc=$(find "$target" -type f ! -name '*.txt' ! -name '*.conf' -exec objdump -T {} + 2> /dev/null |
  grep -o 'GLIBC_[0-9][0-9.]*' | sort -Vu | tail -n 1)
cat > "$target/env.sh" << END
# For bash: source env.sh. Programs below build/, and mpirun, then run with what lies here, and no other program sees it.
here=\$(cd "\$(dirname "\${BASH_SOURCE[0]}")" && pwd)
glibc=\$(getconf GNU_LIBC_VERSION 2> /dev/null || true)
if [[ \$(printf '%s\n' "${glibc#GLIBC_}" "\${glibc#glibc }" | sort -V | head -n 1) != "${glibc#GLIBC_}" ]]; then
  echo "env.sh: this machine has \${glibc:-no glibc}; what lies in \$here needs ${glibc#GLIBC_} or newer" >&2
  unset here glibc
  return 1
fi
# cuDNN compiles some of its kernels by NVRTC, which it finds beside itself. Python is asked in /, as it takes modules from the
# current directory, where anybody may have put them.
cublas=$cublas cudnn=$cudnn nvrtc=${cudnn:+libnvrtc.so.${cublas##*.so.}} library= place=
known=\$(PATH=\$PATH:/sbin:/usr/sbin ldconfig -p 2> /dev/null || true)
for library in \$cublas \$cudnn \$nvrtc; do
  if [[ \$known == *"\$library "* || -e \$here/found/\$library ]]; then continue; fi
  while read -r place; do
    if [[ -e \$place/\$library ]]; then break; fi
    place=
  done <<< "\${CUDA_HOME:-/usr/local/cuda}/lib64
\$(cd / && python3 -c 'import glob, sys
print(*(place for path in sys.path for place in glob.glob(path + "/nvidia/*/lib")), sep="\n")' 2> /dev/null || true)"
  # cuDNN and NVRTC load others of their names.
  if [[ -n \$place ]]; then
    ln -sf "\$place/\${library%%.so.*}"*".so.\${library##*.so.}"* "\$here/found/" ||
      echo "env.sh: programs in \$here will not find \$place/\$library, as \$here/found cannot be written" >&2
  elif [[ \$library == "\$cublas" ]]; then
    echo "env.sh: this machine has no \$cublas, without which GPUs are of no use; the CUDA toolkit and PyTorch's packages bring it: set CUDA_HOME" >&2
  fi  # without cuDNN the own kernels compute attention, which offstage says
done
export PATH=\$here$prefix/bin:\$PATH
export OPAL_PREFIX=\$here$prefix OPAL_SYSCONFDIR=\$here$(path_of sysconfdir) PMIX_PREFIX=\$here$pmix_prefix
export PMIX_LIBDIR=\$PMIX_PREFIX/lib PMIX_PKGLIBDIR=\$PMIX_PREFIX/lib/pmix PMIX_PKGDATADIR=\$PMIX_PREFIX/share/pmix
# Without ssh there is one node, unless Slurm starts the others; mpirun would stop at its absence.
if ! command -v ssh > /dev/null && ! command -v rsh > /dev/null; then export OMPI_MCA_plm=^rsh; fi
unset here glibc cublas cudnn nvrtc library place known
END

if command -v dpkg-query > /dev/null; then
  # Where /lib is a link to /usr/lib, packages know a file by either name.
  declare -A package_of
  while IFS=: read -r package file; do
    if [[ $package != diversion* ]]; then package_of[${file# }]=$package; fi
  done < <(for file in "${carried[@]}" "${tools[@]}"; do realpath "$file"; echo "/lib${file#/usr/lib}"; echo "$file"; done |
    sort -u | xargs dpkg -S 2> /dev/null | sed 's/:[a-z0-9-]*: /: /')
  for file in "${carried[@]}" "${tools[@]}"; do
    name=$(realpath "$file")
    echo "${package_of[$name]:-${package_of[/lib${file#/usr/lib}]:-${package_of[$file]:-unknown: $file}}}"
  done | sort -u | while read -r package; do
    dpkg-query -W -f '${Package} ${Version}\n' "$package" 2> /dev/null || echo "$package"
  done > "$target/packages.txt"
fi
echo "$target: $(du -sm "$target" | cut -f1) MiB, ${#programs[@]} programs, $(wc -l < "$target/packages.txt") packages, glibc ${glibc#GLIBC_} or newer"
echo "there, in bash: source $(basename "$target")/env.sh"
