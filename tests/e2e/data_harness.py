"""Packed data in tests: a folder to pack and inspect in, and readers of their own of what `data pack` writes."""
import struct
from pathlib import Path

from harness import OFFSTAGE, OffstageTest

USAGE, DATA = 64, 65
SEA = Path(__file__).resolve().parent.parent / "data" / "sea.model"
TOKENIZERS = Path(__file__).resolve().parent.parent / "tokens" / "files"
CONFIGS = Path(__file__).resolve().parent.parent.parent / "configs"
TYPES = {1: "B", 2: "b", 3: "h", 4: "i", 5: "q", 8: "H"}


def read_megatron(prefix):
    """Documents of PREFIX.bin by PREFIX.idx, as Megatron-LM reads them."""
    index = Path(f"{prefix}.idx").read_bytes()
    assert index[:9] == b"MMIDIDX\0\0"
    version, code, sequences, boundaries = struct.unpack_from("<QBQQ", index, 9)
    assert version == 1
    lengths = struct.unpack_from(f"<{sequences}i", index, 34)
    pointers = struct.unpack_from(f"<{sequences}q", index, 34 + 4 * sequences)
    documents = struct.unpack_from(f"<{boundaries}q", index, 34 + 12 * sequences)
    assert len(index) == 34 + 12 * sequences + 8 * boundaries
    data = Path(f"{prefix}.bin").read_bytes()
    read = [list(struct.unpack_from(f"<{n}{TYPES[code]}", data, p)) for n, p in zip(lengths, pointers)]
    assert sum(lengths) * struct.calcsize(TYPES[code]) == len(data)
    return [sum(read[a:b], []) for a, b in zip(documents, documents[1:])]


def u16(data):
    return list(struct.unpack(f"<{len(data) // 2}H", data))


class DataTest(OffstageTest):
    def data(self, *arguments, expect=0):
        result = self.call(OFFSTAGE, "data", *arguments)
        self.assertEqual(expect, result.code, result)
        return result

    def pack(self, *arguments, expect=0, tokenizer="bytes", form="megatron", prefix="out"):
        return self.data("pack", f"--tokenizer={tokenizer}", f"--format={form}", "--to",
                         self.folder / prefix, *arguments, expect=expect)

    def inspect(self, path, *arguments):
        """What inspect prints of one file, by name."""
        lines = self.data("inspect", path, *arguments).out.splitlines()
        return {line[2:17].strip(): line[19:] for line in lines[1:]}

    def refuse(self, result, words):
        self.assertEqual(1, len(result.errors), result)
        self.assertEqual(result.errors, result.err.splitlines(), result)
        for word in words:
            self.assertIn(str(word), result.errors[0])

    def left(self):
        return sorted(p.name for p in self.folder.iterdir())
