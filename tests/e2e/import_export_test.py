#!/usr/bin/env python3
"""Hugging Face models in and out, with writers of their own of what comes in and a reader of what goes out."""
import json
import math
import os
import random
import re
import struct
import zipfile

from harness import OFFSTAGE, OffstageTest, main

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 256, "hidden_size": 32,
         "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "rope_scaling": None,
         "tie_word_embeddings": False, "torch_dtype": "float32"}
QWEN2 = {**LLAMA, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "use_sliding_window": False,
         "tie_word_embeddings": True}
GPT2 = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 256, "n_embd": 32, "n_layer": 2,
        "n_head": 4, "n_positions": 64, "activation_function": "gelu_new"}
MODELS = {"llama": LLAMA, "qwen2": QWEN2, "gpt2": GPT2}
WIDTH = {"F32": 4, "BF16": 2, "F16": 2}


def shapes_of(config):
    """Tensors of a model by name, as transformers makes them."""
    shapes = {}
    if config["model_type"] == "gpt2":
        c = config["n_embd"]
        shapes["transformer.wte.weight"] = [config["vocab_size"], c]
        shapes["transformer.wpe.weight"] = [config["n_positions"], c]
        for i in range(config["n_layer"]):
            block = f"transformer.h.{i}."
            for name, shape in {"attn.c_attn": [c, 3 * c], "attn.c_proj": [c, c], "mlp.c_fc": [c, 4 * c],
                                "mlp.c_proj": [4 * c, c]}.items():
                shapes[f"{block}{name}.weight"], shapes[f"{block}{name}.bias"] = shape, shape[1:]
            for norm in "ln_1", "ln_2":
                shapes[f"{block}{norm}.weight"] = shapes[f"{block}{norm}.bias"] = [c]
        shapes["transformer.ln_f.weight"] = shapes["transformer.ln_f.bias"] = [c]
        return shapes
    c, f = config["hidden_size"], config["intermediate_size"]
    kv = c // config["num_attention_heads"] * config["num_key_value_heads"]
    shapes["model.embed_tokens.weight"] = [config["vocab_size"], c]
    for i in range(config["num_hidden_layers"]):
        block = f"model.layers.{i}."
        for name, shape in {"q_proj": [c, c], "k_proj": [kv, c], "v_proj": [kv, c], "o_proj": [c, c]}.items():
            shapes[f"{block}self_attn.{name}.weight"] = shape
            if config["model_type"] == "qwen2" and name != "o_proj":
                shapes[f"{block}self_attn.{name}.bias"] = shape[:1]
        for name, shape in {"gate_proj": [f, c], "up_proj": [f, c], "down_proj": [c, f]}.items():
            shapes[f"{block}mlp.{name}.weight"] = shape
        shapes[f"{block}input_layernorm.weight"] = shapes[f"{block}post_attention_layernorm.weight"] = [c]
    shapes["model.norm.weight"] = [c]
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = [config["vocab_size"], c]
    return shapes


def write_safetensors(path, tensors):
    """tensors: name -> (dtype, shape, bytes)."""
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(data)]}
        end += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            file.write(data)


def pickled(value):
    """Texts, whole numbers and tuples of them, as opcodes of a pickle."""
    if isinstance(value, str):
        return b"X" + struct.pack("<I", len(value)) + value.encode()
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    return b"(" + b"".join(map(pickled, value)) + b"t"


def write_torch(path, tensors):
    """As torch.save writes a state_dict: an archive of a pickle and a record for each tensor."""
    storages = {"F32": b"ctorch\nFloatStorage\n", "F16": b"ctorch\nHalfStorage\n", "BF16": b"ctorch\nBFloat16Storage\n"}
    pickle = b"\x80\x02ccollections\nOrderedDict\n)R("
    for record, (name, (dtype, shape, _)) in enumerate(tensors.items()):
        elements = math.prod(shape)
        strides = tuple(math.prod(shape[i + 1:]) for i in range(len(shape)))
        storage = b"(" + pickled("storage") + storages[dtype] + pickled(str(record)) + pickled("cpu") + pickled(elements) + b"tQ"
        pickle += (pickled(name) + b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + pickled(0) + pickled(tuple(shape)) +
                   pickled(strides) + b"\x89ccollections\nOrderedDict\n)RtR")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle + b"u.")
        archive.writestr("archive/byteorder", "little")
        for record, (_, _, data) in enumerate(tensors.values()):
            archive.writestr(f"archive/data/{record}", data)


def read_safetensors(path):
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + length])
    assert length % 8 == 0 and header.pop("__metadata__") == {"format": "pt"}
    tensors, reached = {}, 0
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        assert begin == reached and end - begin == WIDTH[entry["dtype"]] * math.prod(entry["shape"]), name
        tensors[name] = (entry["dtype"], entry["shape"], data[8 + length + begin:8 + length + end])
        reached = end
    assert 8 + length + reached == len(data)
    return tensors


def read_model(folder):
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return read_safetensors(folder / "model.safetensors")
    tensors = {}
    for name, file in json.loads(index.read_text())["weight_map"].items():
        tensors[name] = read_safetensors(folder / file)[name]
    return tensors


def bytes_in(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


class ImportExport(OffstageTest):
    def make_model(self, name, config, dtype="F32", shards=1):
        numbers = random.Random(3)
        tensors = {}
        for tensor, shape in shapes_of(config).items():
            values = [numbers.uniform(-0.3, 0.3) for _ in range(math.prod(shape))]
            data = struct.pack(f"<{len(values)}{'e' if dtype == 'F16' else 'f'}", *values)
            if dtype == "BF16":
                data = b"".join(data[i + 2:i + 4] for i in range(0, len(data), 4))
            tensors[tensor] = (dtype, shape, data)
        folder = self.folder / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        if shards == 1:
            write_safetensors(folder / "model.safetensors", tensors)
            return folder, tensors
        weight_map = {}
        for i in range(shards):
            part = dict(list(tensors.items())[i::shards])
            file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
            write_safetensors(folder / file, part)
            weight_map.update(dict.fromkeys(part, file))
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
        return folder, tensors

    def refused(self, code, *arguments, ranks=1):
        result = self.offstage(*arguments, ranks=ranks, expect=code)
        self.assertEqual(1, len(result.errors), result)
        return result.errors[0]

    def test_an_export_of_an_import_holds_the_same_bytes(self):
        for name, config in MODELS.items():
            for dtype, option in {"F32": "fp32", "BF16": "bf16", "F16": "fp16"}.items():
                with self.subTest(name, dtype=dtype):
                    label = f"{name}_{option}"
                    source, tensors = self.make_model(f"{label}_in", config, dtype)
                    checkpoint, out = self.folder / f"{label}_checkpoint", self.folder / f"{label}_out"
                    self.offstage("import", "--from", source, "--to", checkpoint)
                    self.offstage("export", f"--from={checkpoint}", f"--to={out}", f"--dtype={option}")
                    self.assertEqual(tensors, read_model(out))
                    written = json.loads((out / "config.json").read_text())
                    self.assertEqual(config["model_type"], written["model_type"])
                    self.assertEqual(config["architectures"], written["architectures"])
                    if dtype == "BF16":  # the tensors are the same in all, and the model is described alike
                        again = self.folder / f"{label}_again"
                        self.offstage("import", "--from", out, "--to", again)
                        self.assert_same_state(checkpoint, again)

    def test_a_model_that_was_saved_without_its_head_is_the_same(self):
        config = {**LLAMA, "architectures": ["LlamaModel"], "tie_word_embeddings": True}
        source, tensors = self.make_model("whole", config)
        self.offstage("import", "--from", source, "--to", self.folder / "one")
        write_safetensors(source / "model.safetensors", {name.removeprefix("model."): each for name, each in tensors.items()})
        self.offstage("import", "--from", source, "--to", self.folder / "other")
        self.assert_same_state(self.folder / "one", self.folder / "other")

    def test_files_of_torch_save_hold_the_same_model(self):
        for name, config in MODELS.items():
            for dtype, shards in ("F32", 1), ("BF16", 2), ("F16", 1):
                with self.subTest(name, dtype=dtype):
                    label = f"{name}_{dtype}"
                    source, tensors = self.make_model(f"{label}_in", config, dtype)
                    self.offstage("import", "--from", source, "--to", self.folder / f"{label}_one")
                    (source / "model.safetensors").unlink()
                    files = [f"pytorch_model-0000{i + 1}-of-0000{shards}.bin" for i in range(shards)]
                    for i, file in enumerate(files):
                        write_torch(source / file, dict(list(tensors.items())[i::shards]))
                    if shards == 1:
                        (source / files[0]).rename(source / "pytorch_model.bin")
                    else:
                        self.assertIn(f"has {files[0]}, but pytorch_model.bin.index.json is missing",
                                      self.refused(65, "import", "--from", source, "--to", self.folder / "x"))
                        weight_map = {tensor: files[i % shards] for i, tensor in enumerate(tensors)}
                        (source / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
                    self.offstage("import", "--from", source, "--to", self.folder / f"{label}_other", ranks=shards)
                    self.assert_same_state(self.folder / f"{label}_one", self.folder / f"{label}_other")

    def test_ranks_and_shards_change_no_bit(self):
        for name, config in MODELS.items():
            with self.subTest(name):
                # More than 1 MiB, the smallest shard.
                wide = {"n_embd": 128} if name == "gpt2" else {"hidden_size": 128, "intermediate_size": 256}
                source, tensors = self.make_model(f"{name}_in", {**config, **wide}, shards=3)
                exports = []
                for ranks in (1, 2, 3) if name == "llama" else (1, 3):
                    checkpoint, out = self.folder / f"{name}_{ranks}", self.folder / f"{name}_{ranks}_out"
                    self.offstage("import", "--from", source, "--to", checkpoint, ranks=ranks)
                    self.offstage("export", "--from", self.folder / f"{name}_1", "--to", out, "--shard-size", "1MiB",
                                  ranks=ranks)
                    if ranks > 1:
                        self.assert_same_state(self.folder / f"{name}_1", checkpoint)
                    exports.append(bytes_in(out))
                for other in exports[1:]:
                    self.assertEqual(exports[0], other)
                self.assertGreater(len(exports[0]), 3)
                self.assertEqual(tensors, read_model(out))
                self.assertFalse(list(self.folder.rglob("*.part")))

    def test_training_goes_on_from_an_import_and_its_checkpoints_are_exported(self):
        source, tensors = self.make_model("in", LLAMA)
        checkpoints = self.folder / "run/checkpoints"
        self.offstage("import", "--from", source, "--to", checkpoints)
        self.train("run", "model.max-sequence=64", "train.steps=2", ranks=2)
        self.assertEqual([1, 2], [record["step"] for record in self.steps("run")])
        for label, path in {"run": self.folder / "run", "directory": checkpoints,
                            "step": checkpoints / "step-000000002"}.items():
            self.offstage("export", "--from", path, "--to", self.folder / f"out_{label}")
        trained = read_model(self.folder / "out_run")
        self.assertEqual(tensors.keys(), trained.keys())
        self.assertNotEqual(tensors["lm_head.weight"], trained["lm_head.weight"])
        self.assertEqual(trained, read_model(self.folder / "out_step"))
        self.assertEqual(trained, read_model(self.folder / "out_directory"))

    def test_an_export_of_a_run_takes_the_checkpoints_of_its_own_configuration(self):
        self.train("run", "train.steps=2")
        elsewhere = self.folder / "elsewhere"
        said = self.train("run", "train.steps=3", f"checkpoint.dir={elsewhere}", f"train.init-from={self.folder}/run").out
        self.assertIn(f"from the weights in {self.folder}/run/checkpoints/step-000000002\n", said)
        said = self.offstage("export", "--from", self.folder / "run", "--to", self.folder / "out").out
        self.assertIn(f"out from {elsewhere}/step-000000003: ", said)
        said = self.offstage("evaluate", "--from", self.folder / "run", "--data", self.text, "--sequence=24").out
        loss = re.search(r"loss (\S+)", said).group(1)
        said = self.offstage("evaluate", "--from", elsewhere, "--data", self.text, "--sequence=24").out
        self.assertIn(f"loss {loss} ", said)

    def test_an_export_without_like_of_a_model_whose_tokens_are_no_bytes_says_what_is_not_there(self):
        source, _ = self.make_model("in", {**LLAMA, "vocab_size": 300})
        tokenizer = source / "vocab.txt"
        tokenizer.write_text("a")
        words = "it has no tokenizer, and config.json no bos and eos; --like={} brings them"
        self.offstage("import", "--from", source, "--to", self.folder / "imported")
        wide = ["model.vocab=300", "model.max-sequence=64", "data.format=text", "train.steps=2"]
        self.train("tuned", f"train.init-from={source}", *wide)
        self.offstage("import", "--from", source, "--to", self.folder / "on/checkpoints")
        self.train("on", *wide)
        self.train("own", "train.steps=2", "checkpoint.dir=checkpoints-of-own")
        for name, like in {"in": source, "imported": "DIR", "tuned": source, "on": "DIR", "own": None}.items():
            said = self.offstage("export", "--from", self.folder / name, "--to", self.folder / f"{name}_out").out
            self.assertEqual(like is not None, "--like" in said, said)
            self.assertIn(words.format(like) if like else "exported", said)
        said = self.offstage("export", "--from", self.folder / "tuned", "--to", self.folder / "out", "--like", source).out
        self.assertNotIn("--like", said)
        tokenizer.unlink()  # it brings nothing any more
        told = self.offstage("export", "--from", self.folder / "tuned", "--to", self.folder / "bare")
        self.assertIn(words.format("DIR"), told.out)
        told = self.offstage("export", "--from", self.folder / "tuned", "--to", self.folder / "like", "--like", source)
        self.assertIn(f"--like={source}: it has no tokenizer, so the export has none", told.err)
        told = self.offstage("export", "--from", self.folder / "tuned", "--to", self.folder / "not", "--like", self.folder / "nowhere",
                             expect=65)
        self.assertEqual([f"offstage: error: --like={self.folder}/nowhere: it is no directory; name that of a model"], told.errors)

    def test_a_vocabulary_grows_by_rows_of_the_mean(self):
        unset = [f"model.{key}=" for key in ("family", "layers", "hidden", "heads", "kv-heads", "ffn-hidden")]
        for config in {**LLAMA, "tie_word_embeddings": False}, GPT2:
            family = config["model_type"]
            source, tensors = self.make_model(family, config)
            start = ["train.steps=1", "optimizer.warmup-steps=0", "optimizer.lr=1e-30", f"train.init-from={source}", "data.format=text", *unset]
            outs = []
            for ranks in 1, 3:
                run, out = f"{family}{ranks}", self.folder / f"{family}{ranks}-out"
                said = self.train(run, *start, "model.vocab=391", ranks=ranks).out
                self.assertIn("135 tokens are added to the vocabulary of 256: they begin as the mean of all others\n", said)
                # The checkpoint has the model now.
                self.assertNotIn("are added", self.train(run, *start, "model.vocab=391", "train.steps=2", ranks=4 - ranks).out)
                self.offstage("export", "--from", self.folder / run, "--to", out)
                outs.append(bytes_in(out))
            self.assertEqual(*outs)
            self.assertEqual(391, json.loads(outs[0]["config.json"])["vocab_size"])
            grown = read_model(out)
            self.assertEqual(set(tensors), set(grown))
            for name, (_, (rows, *columns), data) in tensors.items():
                if rows != 256:
                    self.assertEqual(data, grown[name][2], name)
                    continue
                values = struct.unpack(f"<{len(data) // 4}f", data)
                means = [math.fsum(values[c::columns[0]]) / rows for c in range(columns[0])]
                self.assertEqual((391, data), (grown[name][1][0], grown[name][2][:len(data)]), name)
                added = struct.unpack(f"<{135 * columns[0]}f", grown[name][2][len(data):])
                for i, value in enumerate(added):
                    self.assertAlmostEqual(means[i % columns[0]], value, delta=1e-8)
        said = self.train("smaller", *start, "model.vocab=255", expect=64).errors[0]
        self.assertIn(f"model.vocab=255 is not the 256 of train.init-from={source}; leave it out, or name more: tokens can be added", said)

    def test_the_mean_of_several_checkpoints(self):
        keys = ["checkpoint.every=2", "checkpoint.keep=4", "numerics.dtype=fp32", "train.steps=8", "optimizer.schedule=constant"]
        self.train("run", *keys, ranks=2)
        run = self.folder / "run"
        ends = {}
        for step in 4, 6, 8:
            self.offstage("export", "--from", run / f"checkpoints/step-{step:09}", "--to", self.folder / f"of-{step}")
            ends[step] = read_model(self.folder / f"of-{step}")
        outs = []
        for ranks in 1, 3:
            out = self.folder / f"mean-{ranks}"
            said = self.offstage("export", "--from", run, "--average=3", "--to", out, ranks=ranks).out
            self.assertIn(f"from the mean of 3 checkpoints in {run}/checkpoints, step-000000004, step-000000006, step-000000008: ",
                          said)
            outs.append(bytes_in(out))
        self.assertEqual(*outs)
        for name, (_, _, data) in read_model(out).items():
            count = len(data) // 4
            values = [struct.unpack(f"<{count}f", ends[step][name][2]) for step in ends]
            means = struct.pack(f"<{count}f", *(sum(each) / 3 for each in zip(*values)))
            self.assertEqual(means, data, name)
            self.assertNotEqual(ends[8][name][2], data, name)
        said = self.refused(65, "export", "--from", run, "--average=5", "--to", self.folder / "none")
        self.assertIn(f"--average=5: {run}/checkpoints has 4 complete checkpoints; a run keeps more with checkpoint.keep or checkpoint.keep-every", said)
        said = self.refused(64, "export", "--from", self.folder / "of-8", "--average=2", "--to", self.folder / "none")
        self.assertIn(f"--average=2 is for a run or a directory of checkpoints, and --from={self.folder}/of-8 is one model", said)
        said = self.refused(65, "export", "--from", self.folder / "nowhere", "--average=2", "--to", self.folder / "none")
        self.assertIn("there is no such directory", said)
        self.refused(64, "export", "--from", run / "checkpoints/step-000000008", "--average=2", "--to", self.folder / "none")
        self.refused(64, "export", "--from", run, "--average=0", "--to", self.folder / "none")
        self.assertFalse((self.folder / "none").exists())
        (run / "checkpoints/step-000000006/rank-0001.h5").unlink()
        said = self.offstage("export", "--from", run, "--average=3", "--to", self.folder / "gap")
        self.assertIn("step-000000006/rank-0001.h5 is missing: the mean is without this checkpoint", said.err)
        self.assertIn("the mean of 3 checkpoints in ", said.out)

    def test_dropout_is_told(self):
        source, _ = self.make_model("in", {**GPT2, "resid_pdrop": 0.1, "embd_pdrop": 0.0})
        words = "config.json has resid_pdrop=0.1: training here is without dropout"
        self.assertIn(words, self.offstage("import", "--from", source, "--to", self.folder / "imported").out)
        self.assertIn(words, self.offstage(
            "train", "--run.dir", self.folder / "run", "--train.init-from", source, "--data.train", self.text, "--train.steps=2",
            "--train.sequence=16", "--train.micro-batch=1", "--train.global-batch=2", "--device.kind=host", ranks=2).out)
        self.offstage("export", "--from", self.folder / "run", "--to", self.folder / "out")
        self.assertEqual(0.0, json.loads((self.folder / "out" / "config.json").read_text())["resid_pdrop"])
        self.assertNotIn("dropout", self.offstage("import", "--from", self.folder / "out", "--to", self.folder / "again").out)

    def test_bad_input_is_named_and_leaves_nothing_behind(self):
        source, _ = self.make_model("in", LLAMA)
        good = self.folder / "good"
        self.offstage("import", "--from", source, "--to", good)

        def refused_with(file, contents, ranks=1):
            kept = (source / file).read_bytes()
            (source / file).write_bytes(contents)
            error = self.refused(65, "import", "--from", source, "--to", self.folder / "new", ranks=ranks)
            (source / file).write_bytes(kept)
            self.assertFalse(list((self.folder / "new").glob("step-*")), error)
            return error

        file = (source / "model.safetensors").read_bytes()
        self.assertIn("cut short", refused_with("model.safetensors", file[:-4], ranks=2))
        self.assertIn("100000000", refused_with("model.safetensors", b"\xff" * 8 + file))
        changed = json.dumps({**LLAMA, "rope_scaling": {"type": "dynamic", "factor": 2.0}}).encode()
        self.assertIn("rope_scaling.type", refused_with("config.json", changed))
        changed = json.dumps({**LLAMA, "intermediate_size": 60}).encode()
        self.assertIn("shape [64, 32], but config.json asks for [60, 32]", refused_with("config.json", changed, ranks=2))
        self.assertIn("step-000000000", self.refused(64, "import", "--from", source, "--to", good))
        run = self.folder / "run"
        self.offstage("import", "--from", source, "--to", run / "checkpoints")
        self.assertIn("holds checkpoints already", self.refused(64, "import", "--from", source, "--to", run))
        text = self.text
        for command, where in ("import", source), ("export", good):
            self.assertIn(f"--to={text} is a file; name a directory", self.refused(74, command, "--from", where, "--to", text))
        self.assertIn("no Hugging Face model", self.refused(65, "import", "--from", good, "--to", self.folder / "x"))
        self.assertIn("no such directory", self.refused(65, "export", "--from", "nowhere", "--to", self.folder / "x"))
        self.assertIn("holds no model", self.refused(65, "export", "--from", self.folder, "--to", self.folder / "x"))
        self.assertIn("holds a model", self.refused(64, "export", "--from", good, "--to", source))
        error = self.refused(74, "import", "--from", source, "--to", "/proc/nowhere/x", ranks=2)
        self.assertIn("--to=/proc/nowhere/x: cannot create the directory /proc/nowhere", error)
        rank_file = next(good.glob("step-*/rank-0000.h5"))
        damaged = bytearray(rank_file.read_bytes())
        damaged[20000] ^= 1
        rank_file.write_bytes(damaged)
        self.assertIn("checksum", self.refused(65, "export", "--from", good, "--to", self.folder / "x", ranks=2))
        self.assertFalse((self.folder / "x").exists())

    def test_a_number_beyond_fp16_is_refused(self):
        source, tensors = self.make_model("in", LLAMA)
        _, shape, data = tensors["model.norm.weight"]
        tensors["model.norm.weight"] = ("F32", shape, struct.pack("<f", 70000.0) + data[4:])
        write_safetensors(source / "model.safetensors", tensors)
        self.offstage("import", "--from", source, "--to", self.folder / "c")
        error = self.refused(65, "export", "--from", self.folder / "c", "--to", self.folder / "out", "--dtype=fp16")
        self.assertIn("model.norm.weight", error)
        self.assertIn("--dtype=bf16 or fp32", error)
        self.assertFalse((self.folder / "out").exists())

    def test_options_are_checked(self):
        self.assertIn("the nearest is --from", self.refused(64, "import", "--form=a", "--to=b"))
        self.assertIn("--to is missing", self.refused(64, "import", "--from=a"))
        self.assertIn("given twice", self.refused(64, "import", "--from=a", "--from=a", "--to=b"))
        self.assertIn("needs a value", self.refused(64, "import", "--to=b", "--from"))
        self.assertIn("--dtype=fp8: 'fp8' is none of fp32, bf16, fp16", self.refused(64, "export", "--from=a", "--to=b", "--dtype=fp8"))
        self.assertIn("--shard-size=big", self.refused(64, "export", "--from=a", "--to=b", "--shard-size=big"))
        for size in "5", "1023KiB":
            self.assertIn(f"--shard-size={size}: it must be at least 1MiB",
                          self.refused(64, "export", "--from=a", "--to=b", f"--shard-size={size}"))
        self.assertIn("unexpected argument 'b'", self.refused(64, "export", "--from=a", "b"))
        self.assertIn("Usage: offstage import", self.offstage("import", "--help").out)
        self.assertIn("Usage: offstage export", self.offstage("export", "--help").out)

    def test_help_names_the_models_that_are_known(self):
        source, _ = self.make_model("in", LLAMA)
        (source / "config.json").write_text(json.dumps({**LLAMA, "model_type": "other"}))
        error = self.refused(65, "import", "--from", source, "--to", self.folder / "c")
        known = error.split("known are ")[1].replace(" and ", " or ")
        self.assertIn(known, self.offstage("import", "--help").out)

    def peak(self, *arguments):
        """The highest resident memory of a command, in MB."""
        pid = os.posix_spawn(OFFSTAGE, [OFFSTAGE, *map(str, arguments)], os.environ)
        _, status, usage = os.wait4(pid, 0)
        self.assertEqual(0, os.waitstatus_to_exitcode(status))
        return usage.ru_maxrss / 1024

    def test_memory_is_bounded_whatever_the_models_size(self):
        def peaks(name, vocab):
            config = {**LLAMA, "vocab_size": vocab, "hidden_size": 256, "tie_word_embeddings": True}
            folder = self.folder / name
            folder.mkdir()
            (folder / "config.json").write_text(json.dumps(config))
            write_safetensors(folder / "model.safetensors",
                              {tensor: ("F32", shape, bytes(4 * math.prod(shape)))
                               for tensor, shape in shapes_of(config).items()})
            checkpoint, out = self.folder / f"{name}_checkpoint", self.folder / f"{name}_out"
            return (self.peak("import", "--from", folder, "--to", checkpoint),
                    self.peak("export", "--from", checkpoint, "--to", out))

        small, large = peaks("small", 256), peaks("large", 200_000)  # 2 and 206 MB of parameters
        for i, command in enumerate(("import", "export")):
            print(f"{command}: peak {small[i]:.0f} MB of a small model, {large[i]:.0f} MB of one of 206 MB")
            self.assertLess(large[i] - small[i], 100, command)


if __name__ == "__main__":
    main()
