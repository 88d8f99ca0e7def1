"""generate.py OFFSTAGE DIRECTORY: processor seconds of `offstage generate` for 1, 32, 128, 256 and 512 tokens of a random model of 26 M
parameters, less those for one token: start, parameters and the prompt. Ends with RESULT generate_cost_256_vs_128, 2 where every token costs
the same, and 4 where it costs as much as all before it."""
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROUNDS = int(os.environ.get("ROUNDS", "3"))
MODEL = ["model.family=llama", "model.layers=8", "model.hidden=512", "model.heads=8", "model.ffn-hidden=1408", "model.vocab=256",
         "model.max-sequence=1024", "train.steps=1", "train.sequence=64", "train.micro-batch=1", "train.global-batch=1"]


def run(command):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False,
                          env=dict(os.environ, OMP_WAIT_POLICY="passive"))
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main():
    offstage, directory = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="offstage-perf-", dir=directory) as folder:
        text = Path(folder) / "text"
        text.write_bytes(bytes(range(1, 256)) * 40)
        run([offstage, "train", *(f"--{key}" for key in MODEL), f"--data.train={text}", f"--run.dir={folder}/run"])
        seconds = {}
        for tokens in [1, 32, 128, 256, 512] * ROUNDS:
            taken = run([offstage, "generate", "--from", f"{folder}/run/checkpoints", "--tokenizer=none", "--prompt-tokens=1,2,3",
                         f"--tokens={tokens}"])
            seconds.setdefault(tokens, []).append(taken)
        median = {tokens: statistics.median(all) for tokens, all in seconds.items()}
        print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, medians of {ROUNDS} rounds")
        print("tokens  processor seconds  per token beyond the first, ms")
        for tokens, taken in median.items():
            each = 1e3 * (taken - median[1]) / (tokens - 1) if tokens > 1 else 0.0
            print(f"{tokens:6}  {taken:17.2f}  {each:8.2f}")
        print(f"RESULT generate_cost_256_vs_128 {(median[256] - median[1]) / (median[128] - median[1]):.2f}")


if __name__ == "__main__":
    main()
