#!/usr/bin/env python3
"""Many ranks: the bits of one, and messages that grow with the logarithm of their number. SCALE_RANKS=64 takes so many (32).

Messages are those that Open MPI sends, the ones inside its collectives included (its component pml_monitoring)."""
import math
import os
import re
import shutil
import subprocess
import unittest
from unittest import mock

import harness
from harness import OffstageTest, main

harness.PATIENCE = 500  # so many processes take their time where few cores are theirs
RANKS = int(os.environ.get("SCALE_RANKS", "32"))
LAYERS = 2 * 2 + 2  # of the tiny model: a block is two, and the embedding and the head are one each
LOG = math.ceil(math.log2(RANKS))


def monitors():
    """Whether this MPI counts messages."""
    info = shutil.which("ompi_info")
    return bool(info) and "pml: monitoring" in subprocess.run([info], capture_output=True, text=True, check=False).stdout


class Scale(OffstageTest):
    # Fewer micro-batches than ranks: most are idle in forward and backward, and own a part or none of each layer.
    COMMON = ["numerics.dtype=bf16", "train.global-batch=8", "optimizer.clip=0.05", "optimizer.schedule=constant"]

    def counted(self, name, steps):
        """Messages that each rank has sent in a run of so many steps."""
        prefix = self.folder / f"{name}-messages"
        with mock.patch.dict(os.environ, {"OMPI_MCA_pml": "ob1,monitoring", "OMPI_MCA_pml_monitoring_enable": "1",
                                          "OMPI_MCA_pml_monitoring_enable_output": "3",
                                          "OMPI_MCA_pml_monitoring_filename": str(prefix)}):
            self.train(name, *self.COMMON, f"train.steps={steps}", ranks=RANKS)
        counts = []
        for rank in range(RANKS):
            text = prefix.with_name(f"{prefix.name}.{rank}.prof").read_text()
            counts.append(sum(int(n) for n in re.findall(r"^[EI]\t.*?(\d+) msgs sent", text, re.MULTILINE)))
        return counts

    @unittest.skipUnless(monitors(), "this MPI does not count messages (Open MPI's pml_monitoring)")
    def test_many_ranks_have_the_bits_of_one_and_send_few_messages(self):
        few, many = self.counted("few", 2), self.counted("many", 4)
        messages = max((b - a) / 2 for a, b in zip(few, many))
        # A layer is gathered for forward and for backward, and its gradient exchanged; the norm, the loss and what
        # ranks agree on are a few collectives more.
        bound = (3 * LAYERS + 20) * LOG
        print(f"{RANKS} ranks: {messages:g} messages of a rank in a step at most, bound {bound} = (3 x {LAYERS} layers + 20) x {LOG}")
        self.assertGreaterEqual(messages, 3 * LAYERS)
        self.assertLessEqual(messages, bound)
        self.train("one", *self.COMMON, "train.steps=4")
        self.assert_same_state("one", "many")
        self.assertEqual([(r["loss"], r["grad_norm"]) for r in self.steps("one")],
                         [(r["loss"], r["grad_norm"]) for r in self.steps("many")])


if __name__ == "__main__":
    main()
