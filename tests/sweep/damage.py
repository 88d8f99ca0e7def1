"""Damage to the files of a checkpoint: a bit that flips, a file that ends early, two files that are exchanged."""
import os
from dataclasses import dataclass

HEAD = 4096  # bytes at the front of a file, where its structure is
FLIPS = 0.7  # of all damages
NAME = 24  # bytes of level 1's name


@dataclass(frozen=True)
class Damage:
    """Named SCENARIO:KIND:PATH:DETAIL, paths below the run's checkpoints: flip of a bit, cut to a size, swap with a path."""
    scenario: str
    kind: str
    path: str
    detail: str

    def __str__(self):
        return ":".join((self.scenario, self.kind, self.path, self.detail))

    def group(self):
        return self.kind, os.path.basename(self.path).split("-")[0]

    def hits(self):
        """The checkpoints that it hits."""
        return {os.path.dirname(path) for path in (self.path, self.detail) if "/" in path}

    def do(self, checkpoints):
        path = checkpoints / self.path
        if self.kind == "flip":
            byte, bit = divmod(int(self.detail), 8)
            with open(path, "r+b") as file:
                file.seek(byte)
                value = file.read(1)[0]
                file.seek(byte)
                file.write(bytes([value ^ 1 << bit]))
        elif self.kind == "cut":
            os.truncate(path, int(self.detail))
        else:
            other, between = checkpoints / self.detail, checkpoints / "between"
            path.rename(between)
            other.rename(path)
            between.rename(other)


def damages(scenario, checkpoints, local, count, numbers):
    """So many of the newest checkpoint, of level 1 too and what names that, beside those whose places were chosen twice;
    others are swapped with its files."""
    newest = [max(level.glob("step-*")) for level in (checkpoints, local) if list(level.glob("step-*"))]
    files = sorted(path for step in newest for path in step.iterdir() if path.is_file())
    files += checkpoints.glob("level-1")
    others = sorted(path for level in (checkpoints, local) for path in level.glob("step-*/*") if path.is_file())
    found = {}
    for _ in range(count):
        file = numbers.choice(files)
        size = file.stat().st_size if file.name != "level-1" else NAME  # what follows is another folder's in each case
        chance = numbers.random()
        if chance < FLIPS:
            byte = numbers.randrange(min(size, HEAD) if numbers.random() < 0.5 else size)
            what = "flip", str(8 * byte + numbers.randrange(8))
        elif chance < (1 + FLIPS) / 2:
            what = "cut", str(numbers.choice((0, size - 1, numbers.randrange(size))))
        else:
            other = numbers.choice([path for path in others if path != file])
            what = "swap", os.path.relpath(other, checkpoints)
        found[Damage(scenario, what[0], os.path.relpath(file, checkpoints), what[1])] = None
    return list(found)
