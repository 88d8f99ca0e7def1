#!/usr/bin/env python3
"""Packed data in use: `data inspect` tells what files hold, and a training takes them, alone, by patterns and with weights."""
import json
import math
import re
import struct

from data_harness import CONFIGS, DATA, SEA, USAGE, DataTest, read_megatron, u16
from harness import OFFSTAGE, main


class Inspect(DataTest):
    def test_says_what_pack_wrote(self):
        text = self.write("a.txt", "The ship waits.\nThe tide leaves the harbour\nA map\n")
        self.pack("--from", text, "--documents=line", tokenizer=SEA)
        documents = read_megatron(self.folder / "out")
        tokens = sum(documents, [])
        lengths = sorted(map(len, documents))
        said = self.inspect(self.folder / "out", "--sequence=4")
        self.assertEqual("megatron", said["format"])
        self.assertEqual("u16", said["token type"])
        self.assertEqual(str(len(tokens)), said["tokens"])
        self.assertEqual("3; tokens: shortest {}, median {}, longest {}".format(*lengths), said["documents"])
        self.assertEqual([str(min(tokens)), str(max(tokens))], [said["smallest token"], said["largest token"]])
        within = sum(-(-(n - 1) // 4) for n in lengths)
        self.assertEqual(f"{(len(tokens) - 1) // 4}; {within} where none crosses documents", said["windows of 4"])

    def test_knows_every_format_without_being_told(self):
        self.pack("--from", self.text, form="llmc", prefix="llmc")
        self.pack("--from", self.text, form="nanogpt", prefix="nano")
        entropies = set()
        for path, form, kind in (self.text, "text", "u8"), ("llmc.bin", "llmc", "u16"), ("nano.bin", "nanogpt", "u16"):
            said = self.inspect(path, "--vocab=256", "--separator=32")
            self.assertEqual((form, kind), (said["format"], said["token type"]))
            self.assertTrue(said["documents"].startswith("1500; "), said)
            entropies.add(said["unigram entropy"])
        self.assertEqual(1, len(entropies), entropies)

    def test_says_the_same_in_json(self):
        chats = [("Where is the map?", "On deck."), ("And the tide?", "It leaves.")]
        text = self.write("chats.jsonl", "".join(json.dumps({"prompt": a, "completion": b}) + "\n" for a, b in chats))
        self.pack("--from", text, "--template", CONFIGS / "templates/completion.txt", prefix="chats", tokenizer=SEA)
        self.pack("--from", self.text, form="nanogpt", prefix="nano")
        paths = self.folder / "chats", self.folder / "nano.bin"
        packed, plain = map(json.loads, self.data("inspect", "{}:1,{}:3".format(*paths), "--sequence=9", "--json").out.splitlines())
        said = self.inspect(paths[0], "--sequence=9")
        self.assertEqual("{tokenizer}, {vocab} tokens".format(**packed), said["tokenizer"])
        for name, words in {"format": "format", "type": "token type", "tokens": "tokens",
                            "smallest_token": "smallest token", "largest_token": "largest token"}.items():
            self.assertEqual(said[words], str(packed[name]), name)
        self.assertEqual("{count}; tokens: shortest {shortest}, median {median}, longest {longest}".format(**packed["documents"]), said["documents"])
        self.assertEqual("{windows}; {windows_within_documents} where none crosses documents".format(**packed), said["windows of 9"])
        mask = packed["mask"]
        self.assertEqual("{packed_windows} windows; {documents_longer_than_a_window} documents are longer than one".format(**mask), said["whole documents"])
        self.assertEqual(f"{mask['path']}: {100 * mask['counted']:.1f} % of the tokens count", said["mask"])
        self.assertEqual([None] * 3, [plain[name] for name in ("documents", "windows_within_documents", "mask")])
        self.assertEqual([0.25, 0.75], [packed["share"], plain["share"]])

    def test_shows_text_without_conversations_too(self):
        text = self.write("b.txt", "The ship waits.\nThe tide.\n")
        self.pack("--from", text, "--documents=line", prefix="lines")
        said = self.data("inspect", self.folder / "lines", "--show=2").out
        self.assertTrue(said.endswith("\ndocument 1: 16 tokens\nThe ship waits.\n\n\ndocument 2: 10 tokens\nThe tide.\n\n"), said)
        self.refuse(self.data("inspect", text, "--show=1", expect=USAGE), ["no note beside", "--tokenizer=NAME"])
        said = self.data("inspect", text, "--show=2", "--tokenizer=bytes", "--sequence=8").out
        self.assertTrue(said.endswith("\nwindow 1: 8 tokens\nThe ship\n\nwindow 2: 8 tokens\n waits.\n\n"), said)
        self.refuse(self.data("inspect", text, "--show=1", "--json", expect=USAGE), ["--show", "--json"])
        self.refuse(self.data("inspect", text, "--tokenizer=bytes", expect=USAGE), ["--tokenizer", "--show=N"])
        long = self.write("long.txt", "x" * 5000)
        self.assertIn("... 904 more tokens", self.data("inspect", long, "--show=1", "--tokenizer=bytes", "--sequence=5000").out)

    def shares(self, path):
        return re.findall(r"share +(\S+) %", self.data("inspect", path, "--sequence=9").out)

    def test_takes_files_with_weights_as_data_train_does(self):
        self.assertEqual(["75", "25"], self.shares(f"{self.text}:3,{self.valid}:1"))
        self.refuse(self.data("inspect", f"{self.text}:3,{self.valid}", expect=USAGE), [self.valid, "has none"])

    def test_shares_without_weights_follow_the_sizes(self):
        small, large = (self.write(f"s_{i}.txt", b"x" * size) for i, size in enumerate((91, 271)))
        self.assertEqual(["25", "75"], self.shares(f"{small},{large}"))
        self.assertEqual(["25", "75"], self.shares(self.folder / "s_*.txt"))
        self.assertEqual(["12.5", "37.5", "50"], self.shares(f"{self.folder / 's_*.txt'}:1,{self.text}:1"))
        self.refuse(self.data("inspect", self.folder / "t_*", expect=DATA), [f"{self.folder}/t_*: no file matches"])

    def test_u32_is_refused_and_as_nanogpt_data_doubted(self):
        wide = self.write("wide.bin", struct.pack("<100I", *range(100)))
        self.assertIn(f"{wide}: looks like int32", self.data("inspect", wide, expect=DATA).errors[0])
        result = self.data("inspect", wide, "--format=nanogpt")
        self.assertIn("every second of its u16 are 0", result.warnings[0])

    def test_bad_data_is_named(self):
        self.pack("--from", self.text, tokenizer=SEA)
        index = self.folder / "out.idx"
        data = self.folder / "out.bin"
        whole = index.read_bytes()
        for change, words in ((whole[:-1], ["do not hold"]), (b"X" + whole[1:], ["MMIDIDX"]),
                              (whole[:9] + b"\2" + whole[10:], ["version 2"]),
                              (whole[:17] + b"\6" + whole[18:], ["f64"])):
            index.write_bytes(change)
            self.refuse(self.data("inspect", data, expect=DATA), [index, *words])
        index.write_bytes(whole)
        self.refuse(self.data("inspect", data, "--vocab=256", expect=DATA), [data, "--vocab=256", "position"])
        self.refuse(self.data("inspect", "nowhere", expect=DATA), ["nowhere", "No such file"])
        self.refuse(self.data("inspect", f"{data}:x", expect=USAGE), ["'x'", "weight"])
        self.refuse(self.data("inspect", data, "--vocab=0", expect=USAGE), ["--vocab: '0' is no whole number from 1"])
        self.refuse(self.data("inspect", data, "--separator=256", "--vocab=256", expect=USAGE), ["--separator: '256' is no whole number from 0 to 255"])
        self.refuse(self.data("inspect", expect=USAGE), ["inspect PATH"])
        self.refuse(self.data("inspect", "a", "b", expect=USAGE), ["a,b"])
        self.refuse(self.data("inspect", "-v", "a", expect=USAGE), ["unknown option -v", "the nearest is --vocab"])
        self.refuse(self.data("pack", "--tokeniser=a/long/path/to/tokenizer.json", expect=USAGE),
                    ["unknown option --tokeniser; the nearest is --tokenizer"])


class Train(DataTest):
    def test_packed_text_trains_to_the_bits_of_the_text_itself(self):
        self.train("text")
        for form in "megatron", "llmc", "nanogpt":
            self.pack("--from", self.text, form=form, prefix=form)
        for name, source in {"prefix": "megatron", "index": "megatron.idx", "llmc": "llmc.bin",
                             "nanogpt": "nanogpt.bin"}.items():
            self.train(name, f"data.train={self.folder / source}", ranks=2 if name == "prefix" else 1)
            self.assert_same_state("text", name)

    def test_documents_are_the_same_from_an_index_and_from_a_separator(self):
        words = self.text.read_bytes().split(b" ")
        lines = self.write("lines.txt", b"".join(b" ".join(words[i:i + i % 12 + 1]) + b"\n" for i in range(300)))
        self.pack("--from", lines, "--documents=line", prefix="packed")
        packed, apart = f"data.train={self.folder / 'packed'}", "data.cross-documents=false"
        self.train("crossed", packed)
        self.train("apart", packed, apart)
        self.train("apart-on-two", packed, apart, ranks=2)
        self.train("separator", f"data.train={lines}", "data.separator=10", apart)
        self.assert_same_state("apart", "apart-on-two")
        self.assert_same_state("apart", "separator")
        self.assertNotEqual(self.steps("apart")[-1]["loss"], self.steps("crossed")[-1]["loss"])

    def test_a_packed_token_beyond_the_vocabulary_ends_the_run_with_file_and_position(self):
        self.pack("--from", self.text)
        data = bytearray((self.folder / "out.bin").read_bytes())
        data[1::2] = b"\1" * (len(data) // 2)
        (self.folder / "out.bin").write_bytes(data)
        for ranks in 1, 2:
            result = self.train("bad", f"data.train={self.folder / 'out'}", ranks=ranks, expect=DATA)
            # Ranks that find one at the same time each say so.
            self.assertRegex(result.errors[0], r"data\.train=.*/out\.bin: token \d+ at position \d+ is no token of "
                                               r"model\.vocab=256")

    def test_shards_train_like_the_files_that_their_pattern_names(self):
        shards = [self.write(f"shard_{i}.txt", part) for i, part in
                  enumerate((self.text.read_bytes()[:700], self.text.read_bytes()[700:]))]
        for i, shard in enumerate(shards):
            self.pack("--from", shard, prefix=f"packed_{i}")
        self.train("named", f"data.train={shards[0]},{shards[1]}")
        self.train("pattern", f"data.train={self.folder / 'shard_*'}")
        self.train("two", f"data.train={self.folder / 'packed_*'}", ranks=2)  # with files .idx
        self.assert_same_state("named", "pattern")
        self.assert_same_state("named", "two")
        result = self.train("none", f"data.train={self.folder / 'shards_*'}", ranks=2, expect=DATA)
        self.assertIn(f"data.train={self.folder / 'shards_*'}: no file matches", result.errors[0])

    def test_an_end_that_is_held_out_trains_and_validates_as_files_cut_by_hand(self):
        text = self.text.read_bytes()
        cut = math.floor(0.9 * len(text) + 0.5)
        head, tail = self.write("head.txt", text[:cut]), self.write("tail.txt", text[cut:])
        keys = ["train.valid-every=2"]
        self.train("files", *keys, f"data.train={head}", f"data.valid={tail}")
        held = self.train("held", *keys, "data.valid=10%", ranks=2)
        self.assert_same_state("files", "held")
        losses = [[r["valid_loss"] for r in self.records(name) if "valid_loss" in r] for name in ("files", "held")]
        self.assertEqual(3, len(losses[0]))
        self.assertEqual(*losses)
        self.assertIn(f"data.train {self.text}, all but the last 10 %: text, u8, {cut} tokens, ", held.out)
        self.assertIn(f"data.valid {self.text}, the last 10 %: text, u8, {len(text) - cut} tokens, ", held.out)
        evaluate = [OFFSTAGE, "evaluate", "--from", self.folder / "held", "--sequence=24", "--data"]
        both = [self.call(*evaluate, *data) for data in ([tail], [self.text, "--held-out=10%"])]
        self.assertEqual(0, both[0].code, both[0])
        self.assertEqual(*[re.search(r"loss \S+ .*", result.out)[0].split(" in ")[0] for result in both])

    def test_sequences_are_left_out_behind_a_step(self):
        # Updates too small for a float: a loss depends on its data alone.
        keys = ["optimizer.kind=sgd", "optimizer.lr=1e-30", "optimizer.weight-decay=0", "optimizer.schedule=constant",
                "optimizer.warmup-steps=0", "checkpoint.every=2", "checkpoint.keep=9"]
        self.train("all", *keys, "train.steps=9")
        losses = [record["loss"] for record in self.steps("all")]
        self.assertEqual(9, len(set(losses)))
        skip = ["data.skip=2:8,4:16", "train.steps=6"]
        some = self.train("some", *keys, *skip, ranks=2)
        self.assertIn("data.skip: 8 sequences left out behind step 2\ndata.skip: 16 sequences left out behind step 4\n", some.out)
        expected = [*losses[:2], *losses[3:5], *losses[7:9]]
        self.assertEqual(expected, [record["loss"] for record in self.steps("some")])
        back = self.folder / "all/checkpoints/step-000000002"
        self.train("all", *keys, *skip, f"checkpoint.resume={back}", "train.steps=4")
        self.train("all", *keys, *skip)
        self.assertEqual(expected, [record["loss"] for record in self.steps("all")])
        without = self.train("all", *keys, "train.steps=7")
        self.assertIn("data.skip leaves out 0 sequences before step 6, and the checkpoint's run left out 24", "".join(without.warnings))
        for bad in "5", "5:0", "x:1", "7:1,7:1":
            self.refuse(self.train("bad", f"data.skip={bad}", expect=USAGE), [f"data.skip={bad}"])

    def test_an_end_that_cannot_be_held_out_is_an_error(self):
        for part in "0%", "100%":
            self.refuse(self.train("run", f"data.valid={part}", expect=USAGE),
                        [f"data.valid={part}", "more than 0% and less than 100%"])
        self.refuse(self.train("run", "data.valid=0.01%", expect=DATA), ["data.valid: the last 0.01 % of no file", "train.sequence=24"])
        evaluate = self.call(OFFSTAGE, "evaluate", "--from=x", f"--data={self.text}", "--held-out=0%")
        self.assertEqual(USAGE, evaluate.code, evaluate)
        self.assertIn("--held-out: '0%' leaves nothing", evaluate.errors[0])

    def test_files_with_weights_give_the_same_bits_on_any_number_of_ranks(self):
        sources = f"data.train={self.text}:0.7,{self.valid}:0.3"
        self.train("one", sources)
        self.train("two", sources, ranks=2)
        self.assert_same_state("one", "two")
        self.train("other", f"data.train={self.text}:0.3,{self.valid}:0.7")
        self.assertNotEqual(self.steps("one")[-1]["loss"], self.steps("other")[-1]["loss"])


if __name__ == "__main__":
    main()
