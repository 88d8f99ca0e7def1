"""Reads a model directory and computes its logits in Python's standard library alone, in FP64 and with loops:
independent of Offstage, of PyTorch and of the safetensors package. Meant for tiny models.

Sources: the safetensors format (github.com/huggingface/safetensors); LLaMA, arXiv:2302.13971; RoPE scaling
of LLaMA 3, arXiv:2407.21783; Qwen2, arXiv:2407.10671; Qwen3, arXiv:2505.09388; Mistral, arXiv:2310.06825;
OLMo 2, arXiv:2501.00656; Phi-3, arXiv:2404.14219; YaRN, arXiv:2309.00071; GPT-2, Radford et al. 2019.
"""
import array
import itertools
import json
import math
import struct
import sys
from operator import mul
from pathlib import Path


def widen_bf16(data):
    return array.array("f", b"".join(b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2)))


DECODE = {
    "F32": lambda data: array.array("f", data),
    "BF16": widen_bf16,
    "F16": lambda data: array.array("f", struct.unpack(f"<{len(data) // 2}e", data)),
}
BYTES = {"F32": 4, "BF16": 2, "F16": 2}


class Tensor:
    def __init__(self, shape, values):
        self.shape, self.values = tuple(shape), values

    def row(self, index):
        return self.values[index * self.shape[1]:(index + 1) * self.shape[1]]

    def rows(self):
        return [self.row(i) for i in range(self.shape[0])]

    def transposed(self):
        return [self.values[i::self.shape[1]] for i in range(self.shape[1])]


def read_safetensors(path):
    """Tensors of one file by name; asserts all that the format promises."""
    assert sys.byteorder == "little"
    contents = Path(path).read_bytes()
    length = int.from_bytes(contents[:8], "little")
    assert length <= 100_000_000 and length % 8 == 0 and contents[8:9] == b"{", path

    def without_duplicates(pairs):
        assert len(pairs) == len(dict(pairs)), f"{path}: a name twice"
        return dict(pairs)

    header = json.loads(contents[8:8 + length], object_pairs_hook=without_duplicates)
    metadata = header.pop("__metadata__", {})
    assert all(isinstance(value, str) for value in metadata.values()), path
    buffer, end, tensors = contents[8 + length:], 0, {}
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        first, last = entry["data_offsets"]
        assert first == end and last - first == math.prod(entry["shape"]) * BYTES[entry["dtype"]], (path, name)
        tensors[name] = Tensor(entry["shape"], DECODE[entry["dtype"]](buffer[first:last]))
        end = last
    assert end == len(buffer), f"{path}: bytes beyond the last tensor"
    return tensors


def unfused(name, rows, config):
    """Names and rows of the parts of a tensor of Phi-3 that holds several; `rows` are all of it."""
    size = config.get("head_dim") or config.get("hidden_size", 0) // config.get("num_attention_heads", 1)
    q, kv = (config.get(f"num_{kind}_heads", 0) * size for kind in ("attention", "key_value"))
    for fused, parts in (("qkv_proj", {"q_proj": q, "k_proj": kv, "v_proj": kv}),
                         ("gate_up_proj", dict.fromkeys(("gate_proj", "up_proj"), config.get("intermediate_size")))):
        if f".{fused}." in name:
            begins = itertools.accumulate(parts.values(), initial=0)
            return {name.replace(fused, part): rows[begin:begin + count]
                    for begin, (part, count) in zip(begins, parts.items())}
    return {name: rows}


def read_tensors(directory):
    """Of model.safetensors or of all shards that the index names; fused ones by their parts."""
    config = json.loads((directory / "config.json").read_text())
    tensors = {}
    for name, tensor in read_stored_tensors(directory).items():
        width = math.prod(tensor.shape[1:])
        for part, numbers in unfused(name, [tensor.values[i:i + width] for i in range(0, len(tensor.values), width)],
                                     config).items():
            tensors[part] = Tensor((len(numbers), *tensor.shape[1:]), sum(numbers, array.array("f")))
    return tensors


def read_stored_tensors(directory):
    index = directory / "model.safetensors.index.json"
    if not index.exists():
        return read_safetensors(directory / "model.safetensors")
    places = json.loads(index.read_text())["weight_map"]
    tensors = {}
    for file in sorted(set(places.values())):
        found = read_safetensors(directory / file)
        assert found.keys() == {name for name, place in places.items() if place == file}, file
        tensors |= found
    return tensors


def product(rows, weight):
    """x W^T for W as a list of its output's rows."""
    return [[sum(map(mul, x, w)) for w in weight] for x in rows]


def add(a, b):
    return [[x + y for x, y in zip(left, right)] for left, right in zip(a, b)]


def plus_bias(rows, bias):
    return [[x + b for x, b in zip(row, bias.values)] for row in rows]


def attention(queries, keys, values, heads, kv_heads, window=None):
    """Causal; rows of (H D), (K D), (K D); consecutive query heads share a key head. A row sees `window` keys at most."""
    size = len(queries[0]) // heads
    result = []
    for t, query in enumerate(queries):
        row, first = [], max(0, t + 1 - (window or t + 1))
        for head in range(heads):
            begin = head * kv_heads // heads * size
            q = query[head * size:(head + 1) * size]
            scores = [sum(map(mul, q, key[begin:begin + size])) / math.sqrt(size)
                      for key in keys[first:t + 1]]
            top = max(scores)
            weights = [math.exp(score - top) for score in scores]
            total = sum(weights)
            row += [sum(w * value[begin + i] for w, value in zip(weights, values[first:])) / total for i in range(size)]
        result.append(row)
    return result


class Llama:
    """Also Qwen2, whose q, k and v have biases, Qwen3, whose heads of q and k have norms, and Mistral with its window."""
    def __init__(self, config, tensors):
        self.tensors = tensors
        self.layers, self.epsilon = config["num_hidden_layers"], config["rms_norm_eps"]
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.size = config.get("head_dim") or config["hidden_size"] // self.heads
        self.tied = config["tie_word_embeddings"]
        rope = dict(config.get("rope_parameters") or {})
        rope |= config.get("rope_scaling") or {}
        base = rope.get("rope_theta") or config["rope_theta"]
        self.frequencies = [base ** (-2 * i / self.size) for i in range(self.size // 2)]
        self.enlarged = 1.0
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind == "llama3":
            self.frequencies = [self.stretched(f, rope) for f in self.frequencies]
        elif kind == "linear":
            self.frequencies = [f / rope["factor"] for f in self.frequencies]
        elif kind == "yarn":
            self.frequencies = [self.stretched_by_yarn(i, f, base, rope) for i, f in enumerate(self.frequencies)]
            self.enlarged = rope.get("attention_factor") or 0.1 * math.log(rope["factor"]) + 1
        self.window = config.get("sliding_window")

    @staticmethod
    def stretched(frequency, rope):
        """Long wavelengths by the factor, short ones not, with a ramp between."""
        turns = rope["original_max_position_embeddings"] * frequency / (2 * math.pi)
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        kept = min(1.0, max(0.0, (turns - low) / (high - low)))
        return frequency * (kept + (1 - kept) / rope["factor"])

    def stretched_by_yarn(self, i, frequency, base, rope):
        """Stretched beyond the number of the frequency that turns beta_slow times, kept before that of beta_fast."""
        def number(turns):
            wavelength = rope["original_max_position_embeddings"] / turns
            return self.size * math.log(wavelength / (2 * math.pi)) / (2 * math.log(base))
        first, last = max(0, math.floor(number(rope["beta_fast"]))), min(self.size - 1, math.ceil(number(rope["beta_slow"])))
        kept = 1 - min(1.0, max(0.0, (i - first) / (last - first)))
        return frequency * (kept + (1 - kept) / rope["factor"])

    def weight(self, name):
        return [[float(x) for x in row] for row in self.tensors[name].rows()]

    def linear(self, rows, name):
        result = product(rows, self.weight(f"{name}.weight"))
        bias = self.tensors.get(f"{name}.bias")
        return plus_bias(result, bias) if bias else result

    def norm(self, rows, name):
        weight = self.tensors[name].values
        scales = [1 / math.sqrt(sum(x * x for x in row) / len(row) + self.epsilon) for row in rows]
        return [[x * scale * w for x, w in zip(row, weight)] for row, scale in zip(rows, scales)]

    def normed(self, rows, name):
        """Each head by itself, or all together, where the model has this norm."""
        if name not in self.tensors:
            return rows
        if self.tensors[name].shape[0] != self.size:
            return self.norm(rows, name)
        heads = range(0, len(rows[0]), self.size)
        return [sum(self.norm([row[begin:begin + self.size] for begin in heads], name), []) for row in rows]

    def rotated(self, rows):
        """Element i of a head turns with element i + D / 2."""
        result = []
        half = self.size // 2
        for t, row in enumerate(rows):
            row = list(row)
            for begin in range(0, len(row), self.size):
                for i, frequency in enumerate(self.frequencies):
                    a, b = row[begin + i], row[begin + half + i]
                    c, s = (self.enlarged * turn(t * frequency) for turn in (math.cos, math.sin))
                    row[begin + i], row[begin + half + i] = a * c - b * s, b * c + a * s
            result.append(row)
        return result

    def before(self, rows, name):
        """Norm of what a layer takes."""
        return self.norm(rows, name)

    def after(self, rows, name):
        """Norm of what a layer adds."""
        return rows

    def logits(self, tokens):
        embedding = self.weight("model.embed_tokens.weight")
        x = [embedding[token] for token in tokens]
        for layer in range(self.layers):
            at = f"model.layers.{layer}"
            h = self.before(x, f"{at}.input_layernorm.weight")
            q, k, v = (self.linear(h, f"{at}.self_attn.{name}_proj") for name in "qkv")
            q, k = self.normed(q, f"{at}.self_attn.q_norm.weight"), self.normed(k, f"{at}.self_attn.k_norm.weight")
            h = attention(self.rotated(q), self.rotated(k), v, self.heads, self.kv_heads, self.window)
            x = add(x, self.after(self.linear(h, f"{at}.self_attn.o_proj"), f"{at}.post_attention_layernorm.weight"))
            h = self.before(x, f"{at}.post_attention_layernorm.weight")
            gate, up = (self.linear(h, f"{at}.mlp.{name}_proj") for name in ("gate", "up"))
            h = [[g / (1 + math.exp(-g)) * u for g, u in zip(*pair)] for pair in zip(gate, up)]
            x = add(x, self.after(self.linear(h, f"{at}.mlp.down_proj"), f"{at}.post_feedforward_layernorm.weight"))
        x = self.norm(x, "model.norm.weight")
        return product(x, embedding if self.tied else self.weight("lm_head.weight"))


class Olmo2(Llama):
    def before(self, rows, name):
        return rows

    def after(self, rows, name):
        return self.norm(rows, name)


class Gpt2:
    def __init__(self, config, tensors):
        self.tensors = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
        self.layers, self.heads = config["n_layer"], config["n_head"]
        self.epsilon = config["layer_norm_epsilon"]
        self.gelu = self.exact_gelu if config["activation_function"] == "gelu" else self.approximate_gelu

    def linear(self, rows, name):
        """Weights are stored (in, out)."""
        weight = [[float(x) for x in column] for column in self.tensors[f"{name}.weight"].transposed()]
        return plus_bias(product(rows, weight), self.tensors[f"{name}.bias"])

    def norm(self, rows, name):
        weight, bias = (self.tensors[f"{name}.{part}"].values for part in ("weight", "bias"))
        result = []
        for row in rows:
            mean = sum(row) / len(row)
            scale = 1 / math.sqrt(sum((x - mean) ** 2 for x in row) / len(row) + self.epsilon)
            result.append([(x - mean) * scale * w + b for x, w, b in zip(row, weight, bias)])
        return result

    @staticmethod
    def approximate_gelu(x):
        return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))

    @staticmethod
    def exact_gelu(x):
        return 0.5 * x * (1 + math.erf(x / math.sqrt(2)))

    def logits(self, tokens):
        embedding = [[float(x) for x in row] for row in self.tensors["wte.weight"].rows()]
        x = add([embedding[token] for token in tokens], self.tensors["wpe.weight"].rows())
        for layer in range(self.layers):
            q, k, v = zip(*(self.thirds(row) for row in
                            self.linear(self.norm(x, f"h.{layer}.ln_1"), f"h.{layer}.attn.c_attn")))
            h = attention(q, k, v, self.heads, self.heads)
            x = add(x, self.linear(h, f"h.{layer}.attn.c_proj"))
            h = self.linear(self.norm(x, f"h.{layer}.ln_2"), f"h.{layer}.mlp.c_fc")
            x = add(x, self.linear([[self.gelu(value) for value in row] for row in h], f"h.{layer}.mlp.c_proj"))
        return product(self.norm(x, "ln_f"), embedding)

    @staticmethod
    def thirds(row):
        third = len(row) // 3
        return row[:third], row[third:2 * third], row[2 * third:]


FAMILIES = {"llama": Llama, "qwen2": Llama, "qwen3": Llama, "mistral": Llama, "phi3": Llama, "olmo2": Olmo2, "gpt2": Gpt2}


def open_model(directory):
    directory = Path(directory)
    config = json.loads((directory / "config.json").read_text())
    return FAMILIES[config["model_type"]](config, read_tensors(directory))


def loss(logits, targets):
    """Mean over all rows; negative targets add nothing."""
    total = 0.0
    for row, target in zip(logits, targets):
        if target >= 0:
            top = max(row)
            total += top + math.log(sum(math.exp(x - top) for x in row)) - row[target]
    return total / len(targets)
