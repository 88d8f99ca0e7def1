#!/usr/bin/env bash
# Parses every shell script of the tree (bash -n), asks that it is executable (job scripts are submitted
# instead), stops on errors and gives awk no names of files, and compiles every Python script in memory. shellcheck too where it is installed.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
problems=0
complain() {
  echo "$1"
  problems=$((problems + 1))
}

mapfile -t scripts < <(find jobs slurm perf tests .ci '(' -name '*.sh' -o -name '*.sbatch' ')' -type f | sort; echo .ci/run)
for script in "${scripts[@]}"; do
  bash -n "$script" || complain "$script: does not parse"
  [[ -x $script || $script == *.sbatch ]] || complain "$script: is not executable"
  grep -q '^set -.*u.*o pipefail' "$script" || complain "$script: has no 'set -euo pipefail'"
  if grep -nE "\}' +\"?[$]|awk [^|]*' +\"?[$]" "$script"; then
    complain "$script: awk takes a file name with '=' in it for an assignment; write < \"\$file\""
  fi
done
if command -v shellcheck > /dev/null; then
  shellcheck -S warning "${scripts[@]}" || complain "shellcheck found the above"
fi
find jobs slurm perf tests -name '*.py' -type f -print0 | sort -z | xargs -0 python3 -c '
import sys
status = 0
for script in sys.argv[1:]:
    try:
        compile(open(script, encoding="utf-8").read(), script, "exec")
    except (SyntaxError, ValueError) as error:
        status = 1
        print(f"{script}: does not compile: {error}")
sys.exit(status)' || complain "Python does not compile the above"
echo "${#scripts[@]} shell scripts, $problems problems"
((problems == 0))
