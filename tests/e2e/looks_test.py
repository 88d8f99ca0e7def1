#!/usr/bin/env python3
"""A browser shows what `offstage report` writes, and the `tensorboard` package reads event files; of tests/campaign.sh looks.

Needs chromium, and a Python that has the package: $TENSORBOARD_PYTHON. LOOKS_PICTURE names a file for the picture.
"""
import json
import os
import shutil
import struct
import subprocess
import zlib
from pathlib import Path

import report_test
from harness import OffstageTest, main

BROWSER = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr",
           "--host-resolver-rules=MAP * ~NOTFOUND", "--window-size=1100,1600"]
LIGHT, DARK = (1, (0xFF, 0xFF, 0xFF)), (0, (0x16, 0x18, 0x1C))  # Chromium's number, the page's ground
COLOURS = {1: [(0x00, 0x72, 0xB2), (0xE6, 0x9F, 0x00)], 0: [(0x56, 0xB4, 0xE9), (0xF0, 0xB4, 0x29)]}
SCALARS = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0})
events.Reload()
print(json.dumps({tag: {each.step: each.value for each in events.Scalars(tag)} for tag in events.Tags()["scalars"]}))
"""


def pixels(path):
    """{colour: how often} of a PNG of 8 bits."""
    data, at, compressed = path.read_bytes(), 8, b""
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at:at + 8])
        chunk = data[at + 8:at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, sort = struct.unpack(">IIBB", chunk[:10])
        elif kind == b"IDAT":
            compressed += chunk
        at += length + 12
    size = {2: 3, 6: 4}[sort]
    assert depth == 8
    lines, above, found = zlib.decompress(compressed), bytearray(width * size), {}
    for row in range(height):
        begin = row * (width * size + 1)
        kind, line = lines[begin], bytearray(lines[begin + 1:begin + 1 + width * size])
        for i, byte in enumerate(line):
            left = line[i - size] if i >= size else 0
            up, corner = above[i], above[i - size] if i >= size else 0
            line[i] = (byte + (0, left, up, (left + up) // 2, paeth(left, up, corner))[kind]) & 255
        for i in range(0, len(line), size):
            colour = tuple(line[i:i + 3])
            found[colour] = found.get(colour, 0) + 1
        above = line
    return found


def paeth(left, up, corner):
    """The neighbour that the PNG standard predicts by."""
    guess = left + up - corner
    return min((left, up, corner), key=lambda each: (abs(guess - each), (left, up, corner).index(each)))


class Looks(OffstageTest):
    patience = 300

    def test_a_browser_shows_the_page_light_and_dark_without_a_word_on_its_console(self):
        report_test.two_starts(self, "run")
        self.offstage("report", self.folder / "run")
        for scheme, ground in LIGHT, DARK:
            picture = self.folder / f"page-{scheme}.png"
            said = subprocess.run([*BROWSER, f"--user-data-dir={self.folder}/browser", f"--screenshot={picture}",
                                   f"--blink-settings=preferredColorScheme={scheme}", f"file://{self.folder}/run/report.html"],
                                  capture_output=True, text=True, timeout=120, check=True).stderr
            self.assertNotIn("CONSOLE", said)
            colours = pixels(picture)
            self.assertGreater(colours.get(ground, 0), 300_000, sorted(colours.items(), key=lambda each: -each[1])[:9])
            for colour in COLOURS[scheme]:
                self.assertGreater(colours.get(colour, 0), 1000, colour)
            if scheme == 1 and "LOOKS_PICTURE" in os.environ:
                shutil.copy(picture, os.environ["LOOKS_PICTURE"])

    def test_tensorboard_reads_what_the_metrics_say(self):
        report_test.two_starts(self, "run")
        text = subprocess.run([os.environ["TENSORBOARD_PYTHON"], "-c", SCALARS, self.folder / "run"], capture_output=True,
                              text=True, timeout=120, check=True).stdout
        curves = {tag: {int(step): value for step, value in curve.items()} for tag, curve in json.loads(text).items()}
        own = report_test.Curves(Path(self.folder / "run")).by_tag
        self.assertEqual(own.keys(), curves.keys())
        for tag, curve in own.items():
            self.assertEqual(curve, curves[tag], tag)
        self.assertEqual({s["step"]: s["loss"] for s in self.steps("run")}.keys(), curves["loss/train"].keys())
        for step in self.steps("run"):
            self.assertAlmostEqual(step["loss"], curves["loss/train"][step["step"]], delta=1e-5)


if __name__ == "__main__":
    main()
