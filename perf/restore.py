#!/usr/bin/env python3
"""A checkpoint of 1.6 GB, loaded and verified, beside reading its files: restore.py OFFSTAGE DIRECTORY

A LLaMA of 134 M parameters saves after a step; then, in turns, its files are read (O_DIRECT, 8 MiB a request, 8 at a time, buffers on huge
pages), and a run with its state in host memory loads them. The page cache has nothing of either. What a load takes is measured from the header,
when all memory is made, to the line that says that it is loaded. Ends with a RESULT line: the median of the rounds' ratios of
bytes per second."""
import ctypes
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from peers_model import environment, offstage_arguments, write_tokens

ROUNDS = 7
REQUEST, DEPTH, HUGE_PAGE = 8 << 20, 8, 2 << 20


def buffer():
    """A request's memory, on huge pages."""
    memory = mmap.mmap(-1, REQUEST + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    view = memoryview(memory)
    begin = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % HUGE_PAGE
    for page in range(0, len(view), 4096):
        view[page] = 0
    return view[begin:begin + REQUEST]


def read_all(files):
    """Bytes and seconds."""
    requests = []
    for file in files:
        handle = os.open(file, os.O_RDONLY | os.O_DIRECT)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        size = os.fstat(handle).st_size // 4096 * 4096
        requests += [(handle, at, min(REQUEST, size - at)) for at in range(0, size, REQUEST)]
    todo, lock = iter(requests), threading.Lock()
    buffers = [buffer() for _ in range(DEPTH)]

    def work(memory):
        while True:
            with lock:
                request = next(todo, None)
            if request is None:
                return
            handle, at, size = request
            if os.preadv(handle, [memory[:size]], at) != size:
                raise OSError("a short read")

    threads = [threading.Thread(target=work, args=(memory,)) for memory in buffers]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - began
    for handle in {request[0] for request in requests}:
        os.close(handle)
    return sum(request[2] for request in requests), seconds


def load(command):
    """Seconds from the header to the checkpoint that is loaded."""
    times, lines = {}, []
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        for line in process.stdout:
            lines.append(line)
            if line.startswith("configuration:"):
                times["begin"] = time.monotonic()
            elif line.startswith("checkpoint ") and line.endswith(" loaded\n"):
                times["end"] = time.monotonic()
        if process.wait() != 0 or len(times) < 2:
            sys.exit(f"{command} failed:\n{''.join(lines)}")
    return times["end"] - times["begin"]


def main():
    program, directory = sys.argv[1:]
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        data = write_tokens(Path(folder) / "tokens.bin")
        command = offstage_arguments(program, f"{folder}/run", data, 1, checkpoint__dir=f"{folder}/saved", checkpoint__resume="auto")
        subprocess.run(command, env=environment(), check=True, stdout=subprocess.DEVNULL)
        files = sorted(Path(folder).glob("saved/step-*/*.h5"))
        ratios, rows = [], []
        for _ in range(ROUNDS):
            size, seconds = read_all(files)
            taken = load(command)
            rows.append((size / seconds / 1e9, size / taken / 1e9))
            ratios.append(seconds / taken)
            print(f"the disk gives {rows[-1][0]:.2f} GB/s; loaded with {rows[-1][1]:.2f} GB/s ({taken:.2f} s)", flush=True)
    disk, ours = (statistics.median(column) for column in zip(*rows))
    print(f"{size / 1e9:.2f} GB: disk {disk:.2f} GB/s, loaded and verified with {ours:.2f} GB/s")
    print(f"RESULT restore_vs_disk {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
