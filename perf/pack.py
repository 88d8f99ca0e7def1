"""pack.py OFFSTAGE DIRECTORY: `offstage data pack` beside the `tokenizers` package, both from a file to a file of u16 tokens.

The text is what this machine has of programs and documentation, lines are documents, and tokenizers of 32,000 tokens are trained on a part of
it. Rounds alternate; a round of the package is one process that reads the lines, encodes them with encode_batch_fast in batches and
writes them, by the times of the process itself, without Python's start and imports. Tokens of both are compared. Prints medians and ends with
RESULT pack_vs_tokenizers, the smallest ratio of the kinds of tokenizers: how many times as fast Offstage is."""
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/tokens"))
ROUNDS = int(os.environ.get("ROUNDS", "3"))
MEGABYTES = int(os.environ.get("MEGABYTES", "64"))
BATCH = 20_000
SOURCES = [ROOT / "src", "/usr/include", "/usr/lib/python3", "/usr/share/doc", "/usr/share/perl", "/usr/lib/python3.11"]
ENDINGS = {".cpp", ".hpp", ".h", ".py", ".pm", ".pod", ".md", ".txt", ".html", ".c", ".rst", ""}


def encode(tokenizer_path, text, out):
    """The package's round: seconds in all, and of encoding alone."""
    import numpy
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(tokenizer_path)
    begin, encoding = time.perf_counter(), 0.0
    with open(text, encoding="utf-8", newline="\n") as lines, open(out, "wb") as file:
        while batch := [line for _, line in zip(range(BATCH), lines)]:
            start = time.perf_counter()
            found = tokenizer.encode_batch_fast(batch, add_special_tokens=False)
            encoding += time.perf_counter() - start
            for one in found:
                numpy.array(one.ids, dtype=numpy.uint16).tofile(file)
    print(time.perf_counter() - begin, encoding)


def make_text(path):
    size = 0
    with path.open("wb") as out:
        for folder in SOURCES:
            for name in sorted(Path(folder).rglob("*")):
                if size >= MEGABYTES * 1_000_000:
                    return size
                try:
                    if name.suffix in ENDINGS and name.is_file() and not name.is_symlink():
                        data = name.read_bytes()
                        data.decode()
                        if b"\0" not in data:
                            size += out.write(data.replace(b"\r", b""))
                except (OSError, UnicodeDecodeError):
                    continue
    return size


def run(command, **more):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **more)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def main():
    import tokenizers_of_each_kind as kinds
    from tokenizers import normalizers as N, pre_tokenizers as P
    offstage, directory = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="offstage-perf-", dir=directory) as folder:
        folder = Path(folder)
        text = folder / "text"
        size = make_text(text)
        sample = text.read_text(errors="replace")[:20_000_000].splitlines(keepends=True)
        made = {
            "GPT-2": kinds.byte_level(sample, 32_000, [P.ByteLevel(add_prefix_space=False)]),
            "LLaMA 3": kinds.byte_level(sample, 32_000, kinds.by_patterns(kinds.LLAMA3), ignore_merges=True),
            "Qwen": kinds.byte_level(sample, 32_000, kinds.by_patterns(kinds.QWEN), N.NFC()),
            "LLaMA 2": kinds.pieces(sample, 32_000, N.Sequence([N.Prepend("▁"), N.Replace(" ", "▁")]), None,
                                    kinds.LLAMA2_DECODER),
            "Unigram": kinds.unigram(sample[::10], 8_000, N.Sequence([N.Nmt(), N.NFKC()]), P.Metaspace("▁"), None),
        }
        print(f"{size / 1e6:.0f} MB of text, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; medians of {ROUNDS} rounds, MB/s")
        print(f"{'tokenizer':10} {'offstage':>9} {'tokenizers':>11} {'encoding alone':>15} {'ratio':>6}")
        ratios = []
        for name, tokenizer in made.items():
            path = folder / "tokenizer.json"
            tokenizer.save(str(path))
            ours, theirs, alone = [], [], []
            for _ in range(ROUNDS):
                begin = time.perf_counter()
                run([offstage, "data", "pack", "--from", text, "--to", folder / "ours", "--tokenizer", path,
                     "--format=nanogpt", "--documents=line", "--end-token=none"])
                ours.append(time.perf_counter() - begin)
                times = run([sys.executable, __file__, "encode", path, text, folder / "theirs"],
                            env=dict(os.environ, TOKENIZERS_PARALLELISM="true")).split()
                theirs.append(float(times[0]))
                alone.append(float(times[1]))
                if (folder / "ours.bin").read_bytes() != (folder / "theirs").read_bytes():
                    sys.exit(f"{name}: the tokens differ")
                (folder / "ours.bin").unlink()
            rates = [size / 1e6 / statistics.median(times) for times in (ours, theirs, alone)]
            ratios.append(rates[0] / rates[1])
            print(f"{name:10} {rates[0]:9.1f} {rates[1]:11.1f} {rates[2]:15.1f} {ratios[-1]:6.2f}", flush=True)
        print(f"RESULT pack_vs_tokenizers {min(ratios):.2f}")


if __name__ == "__main__":
    if sys.argv[1] == "encode":
        encode(*sys.argv[2:])
    else:
        main()
