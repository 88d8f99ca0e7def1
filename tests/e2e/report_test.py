#!/usr/bin/env python3
"""What there is to look at: `offstage report` draws what metrics.jsonl says, and event files hold it for TensorBoard.

A reader of HTML and one of event files, both made here alone, get figures back from what the program wrote: places in a
picture by the numbers beside its axes, as an eye would.
"""
import json
import math
import os
import re
import struct
from html.parser import HTMLParser

from harness import OFFSTAGE, OffstageTest, main

VOID = {"meta", "br"}


class Element:
    def __init__(self, tag, attributes, parent):
        self.tag, self.attributes, self.parent = tag, dict(attributes), parent
        self.children, self.text = [], ""

    def classes(self):
        return set(self.attributes.get("class", "").split())

    def all(self, tag, *classes):
        found = [self] if self.tag == tag and set(classes) <= self.classes() else []
        for child in self.children:
            found += child.all(tag, *classes)
        return found

    def words(self):
        return self.text + "".join(child.words() for child in self.children)


class Page(HTMLParser):
    """The tree of a page, whose tags have to fit together."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.root = self.now = Element("", (), None)
        self.feed(text)
        self.close()
        assert self.now is self.root, f"{self.now.tag} is not closed"

    def handle_starttag(self, tag, attrs):
        element = Element(tag, attrs, self.now)
        self.now.children.append(element)
        if tag not in VOID:
            self.now = element

    def handle_startendtag(self, tag, attrs):
        self.now.children.append(Element(tag, attrs, self.now))

    def handle_endtag(self, tag):
        assert tag == self.now.tag, f"</{tag}> ends <{self.now.tag}>"
        self.now = self.now.parent

    def handle_data(self, data):
        self.now.text += data

    def figure(self, caption):
        return next(f for f in self.root.all("figure") if f.all("figcaption")[0].words() == caption)


def value(label):
    units = {"k": 1e3, "M": 1e6, "G": 1e9}
    return float(label[:-1]) * units[label[-1]] if label[-1] in units else float(label)


class Scales:
    """Of a picture, by the numbers beside its axes."""

    def __init__(self, figure, logarithmic=False):
        self.logarithmic = logarithmic
        self.x = self.line([(float(t.attributes["x"]), value(t.words())) for t in figure.all("text", "tick", "x")])
        down = figure.all("text", "tick", "y")
        self.y = down and self.line([(float(t.attributes["y"]) - 4, math.log10(value(t.words())) if logarithmic else value(t.words()))
                                     for t in down])

    @staticmethod
    def line(ticks):
        (place, number), (other_place, other) = ticks[0], ticks[-1]
        return lambda at: number + (at - place) * (other - number) / (other_place - place)

    def points(self, path):
        """[(x, y)] of a path's corners."""
        found = []
        for corner in re.findall(r"[ML]([-\d.]+) ([-\d.]+)", path.attributes["d"]):
            x, y = self.x(float(corner[0])), self.y(float(corner[1]))
            found.append((x, 10 ** y if self.logarithmic else y))
        return found


def masked_crc32c(data):
    rest = 0xFFFFFFFF
    for byte in data:
        rest ^= byte
        for _ in range(8):
            rest = rest >> 1 ^ (0x82F63B78 if rest & 1 else 0)
    rest ^= 0xFFFFFFFF
    return ((rest >> 15 | rest << 17) + 0xA282EAD8) & 0xFFFFFFFF


def fields(message):
    """[(number, value)] of a protobuf message; bytes, integers, or floats by their kind."""
    found, at = [], 0

    def varint():
        nonlocal at
        number = shift = 0
        while True:
            byte = message[at]
            at, number, shift = at + 1, number | (byte & 127) << shift, shift + 7
            if byte < 128:
                return number

    while at < len(message):
        key = varint()
        kind = key & 7
        if kind == 0:
            found.append((key >> 3, varint()))
            continue
        size = {1: 8, 2: None, 5: 4}[kind] or varint()
        data, at = message[at:at + size], at + size
        found.append((key >> 3, struct.unpack({1: "<d", 5: "<f"}[kind], data)[0] if kind != 2 else data))
    return found


def events(path):
    """[dict of an event's fields by number] of a TFRecord file, whose checksums have to be right."""
    data, at, found = path.read_bytes(), 0, []
    while at < len(data):
        (length, check), at = struct.unpack("<QI", data[at:at + 12]), at + 12
        event, (after,) = data[at:at + length], struct.unpack("<I", data[at + length:at + length + 4])
        assert check == masked_crc32c(data[at - 12:at - 4]) and after == masked_crc32c(event), path
        at += length + 4
        found.append(dict(fields(event)))
    return found


class Curves:
    """{tag: {step: value}} of a directory's event files, as TensorBoard puts them together."""

    def __init__(self, folder):
        self.by_tag = {}
        self.versions = []
        for path in sorted(folder.glob("events.out.tfevents.*")):
            first, *rest = events(path)
            self.versions.append(first[3])
            for event in rest:
                step = event.get(2, 0)
                if 7 in event:  # a start: what is later in earlier files does not count
                    assert fields(event[7]) == [(1, 1)]
                    for curve in self.by_tag.values():
                        for old in [s for s in curve if s >= step]:
                            del curve[old]
                for _, each in fields(event.get(5, b"")):
                    scalar = dict(fields(each))
                    self.by_tag.setdefault(scalar[1].decode(), {})[step] = scalar[2]


def two_starts(test, name, *options):
    """A run of 12 steps in two starts, on an emulated path, with saves of both levels and validations."""
    for folder in "path", "local":
        (test.folder / folder).mkdir(exist_ok=True)
    keys = [f"tiers.path={test.folder}/path,read=2GB/s,write=1GB/s,emulate-read=400MB/s,emulate-write=200MB/s",
            f"checkpoint.local={test.folder}/local", "checkpoint.local-every=3", "checkpoint.every=4",
            f"data.valid={test.valid}", "train.valid-every=5", "run.tensorboard=on", "optimizer.schedule=constant", *options]
    test.train(name, *keys, "train.steps=7", ranks=2)
    test.train(name, *keys, "train.steps=12", ranks=2)


class Looking(OffstageTest):
    def report(self, *runs):
        result = self.offstage("report", *(self.folder / run for run in runs), "--output", self.folder / "out.html")
        self.assertIn(f"wrote {self.folder}/out.html", result.out)
        text = (self.folder / "out.html").read_text()
        self.assertNotRegex(text, r"(?i)<script|<link|<img|<iframe|@import|url\(|https?:|\son\w+=")
        self.assertNotRegex(text, r"\bnan\b|\binf\b")
        return Page(text)

    def test_pictures_have_the_figures_of_the_metrics(self):
        two_starts(self, "run")
        steps = self.steps("run")
        page = self.report("run")
        with self.subTest("loss"):
            figure = page.figure("Loss")
            scales = Scales(figure)
            drawn = scales.points(figure.all("path", "line", "thin")[0])
            self.assertEqual(12, len(drawn))
            for (x, y), step in zip(drawn, steps):
                self.assertAlmostEqual(step["step"], x, delta=0.02)
                self.assertAlmostEqual(step["loss"], y, delta=0.02)
            marks = [(scales.x(float(c.attributes["cx"])), scales.y(float(c.attributes["cy"]))) for c in figure.all("circle")]
            validations = [(r["step"], r["valid_loss"]) for r in self.records("run") if "valid_loss" in r]
            self.assertEqual(len(validations), len(marks))
            for (x, y), (step, loss) in zip(marks, validations):
                self.assertAlmostEqual(step, x, delta=0.02)
                self.assertAlmostEqual(loss, y, delta=0.02)
        with self.subTest("norm"):
            figure = page.figure("Norm of the gradient, before clipping")
            drawn = Scales(figure, logarithmic=True).points(figure.all("path", "line", "thin")[0])
            for (_, y), step in zip(drawn, steps):
                self.assertAlmostEqual(1, y / step["grad_norm"], delta=0.03)
        with self.subTest("phases"):
            self.check_phases(page.figure("Phases of a step"), steps)
        with self.subTest("predictions"):
            self.check_predictions(page, steps)
        with self.subTest("storage"):
            self.check_storage(page, steps)
        with self.subTest("memory"):
            self.check_memory(page)
        with self.subTest("time"):
            self.check_time(page.figure("Steps over time"), steps)

    def check_phases(self, figure, steps):
        y = Scales(figure).y
        for phase in "forward", "backward", "update":
            bars = {int(re.match(r"step (\d+)", bar.all("title")[0].words())[1]): bar for bar in figure.all("rect", "bar", phase)}
            for step in steps[1:]:  # the first may be cut off
                bar = bars[step["step"]].attributes
                height = y(float(bar["y"])) - y(float(bar["y"]) + float(bar["height"]))
                top = y(0)
                self.assertAlmostEqual(step[f"{phase}_seconds"], height, delta=0.01 * abs(top) + 1e-3)

    def check_predictions(self, page, steps):
        figure = next(f for f in page.root.all("figure") if "by rates that" in f.all("figcaption")[0].words())
        x = Scales(figure).x
        record = [r for r in self.records("run") if "forecast" in r][-1]
        predicted = record["forecast"]
        bar, limit = figure.all("rect", "bar", "other")[0].attributes, figure.all("path", "limit")[-1].attributes
        self.assertGreaterEqual(record["step"], 7, "the second start predicts its own steps")
        counted = [s for s in steps if s["step"] > record["step"] and s["step"] != 8]
        mean = sum(s["step_seconds"] for s in counted) / len(counted)
        self.assertAlmostEqual(mean, x(float(bar["x"]) + float(bar["width"])), delta=0.01 * mean + 1e-3)
        self.assertAlmostEqual(predicted["step_seconds"], x(float(limit["d"][1:].split()[0])),
                               delta=0.01 * predicted["step_seconds"] + 1e-3)

    def check_storage(self, page, steps):
        figure = page.figure("Bandwidth inside transfers")
        x = Scales(figure).x
        seconds, before = {}, None  # from step to step; the first of a start has none before it
        for record in self.records("run"):
            if "loss" in record:
                seconds[record["step"]] = record["elapsed_seconds"] - before if before else record["step_seconds"]
            before = record["elapsed_seconds"] if "loss" in record else None if "start" in record else before
        busy = sum(s["paths"][0]["busy"] * seconds[s["step"]] for s in steps) / sum(seconds[s["step"]] for s in steps)
        busy = max(1, busy)  # above it transfers overlap
        for what, look, can in ("read", "forward", 2.0), ("write", "backward", 1.0):
            paths = [step["paths"][0] for step in steps if step["paths"][0][f"{what}_gb_per_s"]]
            rate = busy * (sum(p[f"{what}_bytes"] for p in paths) /
                           sum(p[f"{what}_bytes"] / p[f"{what}_gb_per_s"] for p in paths))
            bar = figure.all("rect", "bar", look)[0].attributes
            self.assertAlmostEqual(rate, x(float(bar["x"]) + float(bar["width"])), delta=0.02)
            limits = [x(float(p.attributes["d"][1:].split()[0])) for p in figure.all("path", "limit")]
            self.assertTrue(any(abs(limit - can) < 0.02 for limit in limits), limits)
        self.assertIn("emulated", next(s for s in page.root.all("section") if figure in s.all("figure")).words())

    def check_memory(self, page):
        end = [r for r in self.records("run") if "end" in r][-1]
        figure = page.figure("Host memory")
        unit = {"GB": 1e9, "MB": 1e6}[figure.all("text", "label", "x")[0].words()]
        x = Scales(figure).x
        bar = figure.all("rect", "bar")[0].attributes
        limit = figure.all("path", "limit", "limited")[0].attributes
        self.assertAlmostEqual(end["host_memory_peak"] / unit, x(float(bar["x"]) + float(bar["width"])),
                               delta=0.01 * end["host_memory_limit"] / unit)
        self.assertAlmostEqual(end["host_memory_limit"] / unit, x(float(limit["d"][1:].split()[0])),
                               delta=0.01 * end["host_memory_limit"] / unit)

    def check_time(self, figure, steps):
        tips = [title.words() for title in figure.all("title")]
        self.assertEqual(2, sum(": start " in tip for tip in tips), tips)
        saved = [(r["step"], r["saved"]) for r in self.records("run") if "saved" in r]
        self.assertTrue({1, 2} <= {level for _, level in saved}, saved)
        drawn = [tuple(map(int, m.groups())) for tip in tips if (m := re.search(r"step (\d+) saved, level (\d)", tip))]
        self.assertEqual(sorted(saved), sorted(drawn))
        lines = [Scales(figure).points(line) for line in figure.all("path", "line")]
        self.assertEqual([8, 6], [len(line) for line in lines])
        for line, part in zip(lines, (steps[:7], steps[7:])):
            begin = line[0][0]
            for (x, y), step in zip(line[1:], part):
                self.assertAlmostEqual(step["step"], y, delta=0.1)
                self.assertAlmostEqual(step["elapsed_seconds"], x - begin, delta=0.02 * lines[1][-1][0] + 1e-3)

    def test_runs_stand_beside_each_other(self):
        self.train("one")
        self.train("other", "optimizer.lr=0.003")
        page = self.report("one", "other")
        self.assertEqual(2, len(page.figure("Loss").all("path", "line", "bold")))
        self.assertEqual({"one", "other"} & {f.all("figcaption")[0].words() for f in page.root.all("figure")}, {"one", "other"})
        rows = [[cell.words() for cell in row.children] for row in page.root.all("tr")]
        self.assertIn(["optimizer.lr", "0.01", "0.003"], rows)
        self.assertIn("6", next(row for row in rows if row[0].startswith("other"))[3])
        losses = {run: self.steps(run)[-1]["loss"] for run in ("one", "other")}
        figure = page.figure("Loss")
        for run, line in zip(losses, figure.all("path", "line", "thin")):
            self.assertAlmostEqual(losses[run], Scales(figure).points(line)[-1][1], delta=0.02)

    def test_a_run_that_diverged_is_drawn_as_one(self):
        self.train("run", "train.steps=6")
        path = self.folder / "run/metrics.jsonl"
        lines = []
        for record in map(json.loads, path.read_text().splitlines()):
            if "loss" in record and record["step"] > 3:
                record.update(loss=None, grad_norm=None, skipped=True)
            lines.append(json.dumps(record) + "\n")
        path.write_text("".join(lines))
        page = self.report("run")
        cells = dict(zip(*([cell.words() for cell in row.children] for row in page.root.all("tr")[:2])))
        self.assertEqual("not finite since step 4", cells["loss, smoothed"])
        self.assertEqual("3", cells["of these skipped"])
        for look in "thin", "bold":
            line = page.figure("Loss").all("path", "line", look)[0]
            self.assertEqual(3, len(Scales(page.figure("Loss")).points(line)), "the line ends")

    def test_one_directory_spoils_no_report_of_many(self):
        for run in "one", "other":
            self.train(run, "train.steps=3")
        self.write("empty/header.txt", "")
        metrics = self.folder / "one/metrics.jsonl"
        lines = metrics.read_text().splitlines(keepends=True)
        metrics.write_text("".join([*lines[:2], "torn\n", "0\n", *lines[2:]]))
        config = self.folder / "other/effective.cfg"
        config.write_text(config.read_text() + "\n[train]\nof-tomorrow = 5\n")
        result = self.offstage("report", *(self.folder / run for run in ("empty", "one", "other", "gone")), "--output", self.folder / "out.html")
        self.assertEqual(3, len(result.warnings), result)
        self.assertIn(f"{metrics}:3: this is no JSON object; it is left out, as is 1 line behind it", result.warnings[0])
        self.assertIn(f"{self.folder}/empty: there is no metrics.jsonl", result.warnings[1])
        self.assertIn(f"{self.folder}/gone: there is no such directory", result.warnings[2])
        page = Page((self.folder / "out.html").read_text())
        rows = [[cell.words() for cell in row.children] for row in page.root.all("tr")]
        self.assertIn(["train.of-tomorrow", "not known", "5"], rows)
        self.assertEqual(2, len(page.figure("Loss").all("path", "line", "bold")))
        result = self.offstage("report", self.folder / "empty", self.folder / "gone", expect=65)
        self.assertIn("there is no metrics.jsonl", result.errors[0])

    def test_a_run_directory_that_may_only_be_read_says_where_to_write(self):
        self.train("run", "train.steps=2")
        (self.folder / "run").chmod(0o555)
        self.addCleanup((self.folder / "run").chmod, 0o755)
        # Root writes everywhere, unless it gives up that right.
        plain_user = ["setpriv", "--bounding-set=-dac_override"] if os.getuid() == 0 else []
        result = self.call(*plain_user, OFFSTAGE, "report", self.folder / "run")
        self.assertEqual(74, result.code, result)
        self.assertIn("Permission denied; write it elsewhere with --output FILE", result.errors[0])
        result = self.call(*plain_user, OFFSTAGE, "report", self.folder / "run", "--output", self.folder / "out.html")
        self.assertEqual(0, result.code, result)

    def test_a_report_takes_the_place_of_a_report_alone(self):
        self.train("run", "train.steps=2")
        records = self.folder / "run/metrics.jsonl"
        before = records.read_bytes()
        result = self.call(OFFSTAGE, "report", self.folder / "run", "--output", records)
        self.assertEqual(64, result.code, result)
        self.assertIn(f"--output={records}: there is a file that is no report", result.errors[0])
        self.assertEqual(before, records.read_bytes())
        for _ in range(2):
            self.offstage("report", self.folder / "run")

    def test_reports_at_the_same_time_do_not_meet(self):
        self.train("run", "train.steps=2")
        running = [self.begin(f"report-{i}", [OFFSTAGE, "report", self.folder / "run"]) for i in range(4)]
        for i, process in enumerate(running):
            result = self.finish(f"report-{i}", process)
            self.assertEqual(0, result.code, result)
        self.assertTrue((self.folder / "run/report.html").read_text().endswith("</html>\n"))
        self.assertEqual([], list((self.folder / "run").glob("*.tmp")))

    def test_a_run_that_goes_on_or_was_killed_is_drawn_as_far_as_it_came(self):
        self.train("run", "train.steps=3")
        path = self.folder / "run/metrics.jsonl"
        lines = [line for line in path.read_text().splitlines() if '"end"' not in line]
        path.write_text("\n".join(lines) + "\n" + '{"step":4,"lo')
        page = self.report("run")
        self.assertIn("runs still, or was killed", page.root.words())
        figure = page.figure("Loss")
        self.assertEqual(3, len(Scales(figure).points(figure.all("path", "line", "thin")[0])))

    def test_what_is_no_run_is_refused(self):
        (self.folder / "empty").mkdir()
        result = self.offstage("report", self.folder / "empty", expect=65)
        self.assertIn(f"{self.folder}/empty: there is no metrics.jsonl", result.errors[0])
        result = self.offstage("report", self.folder / "none", expect=65)
        self.assertIn(f"{self.folder}/none: there is no such directory; give the run.dir", result.errors[0])
        self.offstage("report", expect=64)
        self.train("run", "train.steps=2")
        (self.folder / "run/report.html").symlink_to(self.folder / "train.txt")
        result = self.offstage("report", self.folder / "run", expect=74)
        self.assertIn("symbolic link", result.errors[0])
        self.assertFalse((self.folder / "train.txt").read_bytes().startswith(b"<!DOCTYPE"))

    def test_event_files_have_the_figures_of_the_metrics(self):
        two_starts(self, "run")
        curves = Curves(self.folder / "run")
        self.assertEqual([b"brain.Event:2"] * 2, curves.versions)
        steps = self.steps("run")
        path = f"{self.folder}/path"
        tags = {"loss/train": lambda s: s["loss"], "optimizer/norm": lambda s: s["grad_norm"],
                "optimizer/rate": lambda s: s["learning_rate"], "speed/tflop_per_s": lambda s: s["tflops"],
                "speed/tokens_per_s": lambda s: 8 * 24 / s["step_seconds"], "seconds/step": lambda s: s["step_seconds"],
                f"storage/read_gb_per_s{path}": lambda s: s["paths"][0]["read_gb_per_s"],
                f"storage/write_gb_per_s{path}": lambda s: s["paths"][0]["write_gb_per_s"],
                f"storage/busy{path}": lambda s: s["paths"][0]["busy"]}
        for tag, of in tags.items():
            with self.subTest(tag):
                wanted = {s["step"]: of(s) for s in steps if of(s) is not None}
                self.assertEqual(wanted.keys(), curves.by_tag[tag].keys())
                for step, number in wanted.items():
                    self.assertAlmostEqual(1, curves.by_tag[tag][step] / number if number else 1, delta=1e-6)
        validations = {r["step"]: r["valid_loss"] for r in self.records("run") if "valid_loss" in r}
        self.assertEqual(validations.keys(), curves.by_tag["loss/validation"].keys())
        # A mean over both starts.
        mean = weight = 0.0
        for step in steps:
            mean, weight = 0.9 * mean + 0.1 * step["loss"], 0.9 * weight + 0.1
            self.assertAlmostEqual(mean / weight, curves.by_tag["loss/smoothed"][step["step"]], delta=1e-5)

    def test_event_files_follow_a_run_that_goes_back(self):
        self.train("run", "run.tensorboard=on", "optimizer.schedule=constant", "checkpoint.every=2")
        first = self.checkpoints("run")[0]
        self.train("run", "run.tensorboard=on", "optimizer.schedule=constant", f"checkpoint.resume={first}", "train.steps=5",
                   "optimizer.lr=0.02")
        steps = self.steps("run")
        curves = Curves(self.folder / "run").by_tag
        self.assertEqual({s["step"]: round(s["loss"], 4) for s in steps}, {k: round(v, 4) for k, v in curves["loss/train"].items()})
        self.assertEqual(list(range(1, 6)), sorted(curves["loss/train"]))

    def on_a_terminal(self, name, *options, columns=100, **environment):
        """What a run writes to a terminal."""
        return self.shown(self.command(name, *options), columns, **{"TERM": "xterm", **environment}).decode()

    def test_a_terminal_has_a_line_that_moves_and_a_log_has_none(self):
        text = self.on_a_terminal("run")
        self.assertIn("\x1b[42m" + 24 * " " + "\x1b[0m", text)
        moves = re.findall(r"(?:\x1b\[[\d;]*m|[^\x1b\r\n])*\x1b\[K\r", text)
        self.assertIn(" 100 %", moves[-1])
        self.assertIn("step 6/6", moves[-1])
        for line in moves:
            self.assertLess(len(re.sub(r"\x1b\[[\d;]*[mK]|\r", "", line)), 100)
        # What a terminal shows in the end has no trace of it.
        shown = [re.sub(r"\x1b\[[\d;]*[mK]", "", line.split("\r")[-1]) for line in text.replace("\r\n", "\n").split("\n")]
        self.assertRegex("\n".join(shown), r"(?m)^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ step      6/6  loss \d")
        self.assertNotIn("%  step", "\n".join(shown))
        self.assertNotIn("\x1b", self.train("log").out)
        self.assertNotIn("\x1b", self.train("ranks", ranks=2).out, "mpirun gives its ranks terminals")
        self.assertNotIn("\x1b", self.on_a_terminal("dumb", TERM="dumb"))
        self.assertNotIn("\x1b", self.on_a_terminal("off", "run.progress=off"))
        plain = self.on_a_terminal("plain", NO_COLOR="1")
        self.assertIn("#" * 24 + " 100 %", plain)
        self.assertNotRegex(plain, r"\x1b\[[\d;]*m")
        self.assertIn(" 100 %", self.train("wanted", "run.progress=on").out)
        self.assert_same_state("run", "log")
        narrow = self.on_a_terminal("narrow", columns=60, NO_COLOR="1")
        moves = re.findall(r"[^\x1b\r\n]*\x1b\[K\r", narrow)
        self.assertRegex(moves[-1], r"^#{4,23} 100 %  step 6/6  loss \d\.\d{4}(  \d+ tokens/s)?  left [\d.]+ \w+\x1b")

    def test_the_end_of_a_run_says_what_bounds_it(self):
        path = f"{self.folder}/path"
        os.mkdir(path)
        rates = ["device.emulate=h2d=40MB/s,d2h=40MB/s,compute=1G,update=4M,host-update=400k,host-sum=1GB/s",
                 f"tiers.path={path},read=4MB/s,write=4MB/s,emulate-read=4MB/s,emulate-write=4MB/s"]
        result = self.train("run", *rates, "train.steps=8", "checkpoint.every=0", "optimizer.clip=0")
        said = re.findall(r"(?m)^advice: (.*)$", result.out)
        self.assertTrue(1 <= len(said) <= 4, result)
        # A busy machine may make its steps much longer than they are simulated.
        self.assertRegex(said[0], rf"^(the step is bound by {path}: busy \d+ %|no resource alone bounds the step|steps took )")
        end = [r for r in self.records("run") if "end" in r][-1]
        self.assertEqual(said, end["advice"][:len(said)])
        page = self.report("run")
        self.assertEqual(end["advice"], [p.words() for p in page.root.all("p", "advice")])

    def test_traces_have_steps_validations_saves_and_communication(self):
        self.train("run", "run.trace=on", f"data.valid={self.valid}", "train.valid-every=3", "checkpoint.every=2", ranks=2)
        for rank in range(2):
            events = json.loads((self.folder / f"run/trace-{rank}.json").read_text())
            names = {e["tid"]: re.sub(r" \(\d+\)$", "", e["args"]["name"]) for e in events if e["name"] == "thread_name"}
            rows = {}
            for e in events:
                if e["ph"] == "X":
                    rows.setdefault(names[e["tid"]], []).append((e["ts"], e["ts"] + e["dur"], e["name"], e.get("args", {}).get("key")))
            steps = [span for span in rows["steps"] if span[2] == "step"]
            self.assertEqual(list(range(1, 7)), [key for *_, key in sorted(steps)])
            self.assertEqual([2, 4, 6], sorted(key for *_, what, key in rows["steps"] if what == "stands still for a save"))
            self.assertEqual([3, 6], sorted(key for *_, key in rows["validation"]))
            self.assertEqual([("level 2", 2), ("level 2", 4), ("level 2", 6)], sorted(span[2:] for span in rows["checkpoint"]))
            said = {what for _, _, what, _ in rows["communication"]}
            self.assertTrue({"all_gather", "all_reduce"} <= {re.match(r"\w+", what)[0] for what in said}, said)
            for begin, end, *_ in steps:  # parameters are gathered in each
                self.assertTrue(any(begin <= b and e <= end and what.startswith("all_gather")
                                    for b, e, what, _ in rows["communication"]))

    def test_no_bit_depends_on_it(self):
        self.train("plain")
        self.train("watched", "run.tensorboard=on", "run.trace=on", "run.progress=on")
        self.assert_same_state("plain", "watched")


if __name__ == "__main__":
    main()
