#!/usr/bin/env python3
"""Makes the reference files with PyTorch and transformers: make_references.py [--out DIRECTORY] [MODEL ...].

Per model: its directory as save_pretrained writes it, and beside it reference.safetensors (a batch, its
logits, loss and gradients) and curves.json (a training of 50 steps in fp32, bf16 and fp16). README.md says
what is in them. The same versions on the same machine give the same bytes.
"""
import argparse
import json
import math
import shutil
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from transformers import GPT2Config, LlamaConfig, MistralConfig, Olmo2Config, Phi3Config, Qwen2Config, Qwen3Config

import plain_model
import recipe

BATCH = 2
IGNORED = -1  # a target that takes no part in the loss; the mean is over B T all the same

SIZES = {"num_hidden_layers": 2, "vocab_size": recipe.VOCAB, "initializer_range": 0.1,
         "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}

CONFIGS = {
    # Head size 6 and a feed-forward part of 40: no multiples of a vector's length.
    "llama": LlamaConfig(hidden_size=24, num_attention_heads=4, num_key_value_heads=2, intermediate_size=40,
                         max_position_embeddings=32, rms_norm_eps=1e-5, tie_word_embeddings=False,
                         rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, **SIZES),
    # Wavelengths 6, 35, 199 and 1117: one is kept, one lies between the bounds of 16 and 64, two are stretched.
    "llama3": LlamaConfig(hidden_size=16, num_attention_heads=2, num_key_value_heads=1, intermediate_size=44,
                          max_position_embeddings=512, rms_norm_eps=1e-5, tie_word_embeddings=True,
                          rope_parameters={"rope_type": "llama3", "rope_theta": 1000.0, "factor": 8.0,
                                           "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                           "original_max_position_embeddings": 64}, **SIZES),
    # A small base: with a large one the slow frequencies hardly turn within 16 tokens, so that the gradient of
    # k's bias there is rounding noise, which AdamW scales to full steps.
    "qwen2": Qwen2Config(hidden_size=16, num_attention_heads=4, num_key_value_heads=2, intermediate_size=36,
                         max_position_embeddings=32, rms_norm_eps=1e-6, tie_word_embeddings=False,
                         use_sliding_window=False,
                         rope_parameters={"rope_type": "default", "rope_theta": 500.0}, **SIZES),
    "gpt2": GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=24, vocab_size=recipe.VOCAB,
                       initializer_range=0.1, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                       bos_token_id=None, eos_token_id=None),
    # Heads wider than hidden / heads, and norms of q and k.
    "qwen3": Qwen3Config(hidden_size=16, num_attention_heads=4, num_key_value_heads=2, head_dim=6, intermediate_size=36,
                         max_position_embeddings=32, rms_norm_eps=1e-6, tie_word_embeddings=True,
                         use_sliding_window=False,
                         rope_parameters={"rope_type": "default", "rope_theta": 500.0}, **SIZES),
    # A window of less than half a sequence.
    "mistral": MistralConfig(hidden_size=16, num_attention_heads=4, num_key_value_heads=2, head_dim=8, intermediate_size=40,
                             max_position_embeddings=64, rms_norm_eps=1e-5, tie_word_embeddings=False, sliding_window=7,
                             rope_parameters={"rope_type": "default", "rope_theta": 500.0}, **SIZES),
    "linear": LlamaConfig(hidden_size=16, num_attention_heads=2, num_key_value_heads=1, intermediate_size=44,
                          max_position_embeddings=64, rms_norm_eps=1e-5, tie_word_embeddings=True,
                          rope_parameters={"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}, **SIZES),
    # Of eight frequencies two are kept, two lie on the ramp and four are stretched.
    "yarn": LlamaConfig(hidden_size=16, num_attention_heads=2, num_key_value_heads=1, head_dim=16, intermediate_size=44,
                        max_position_embeddings=256, rms_norm_eps=1e-5, tie_word_embeddings=False,
                        rope_parameters={"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "beta_fast": 4.0,
                                         "beta_slow": 0.5, "original_max_position_embeddings": 64}, **SIZES),
    # q, k and v as one tensor, gate and up as another.
    "phi3": Phi3Config(hidden_size=16, num_attention_heads=4, num_key_value_heads=2, intermediate_size=36,
                       max_position_embeddings=64, rms_norm_eps=1e-5, tie_word_embeddings=False, sliding_window=9,
                       rope_parameters={"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 1.0},
                       **SIZES),
    # Norms behind attention and the MLP, and of all of q and all of k.
    "olmo2": Olmo2Config(hidden_size=16, num_attention_heads=4, num_key_value_heads=2, intermediate_size=36,
                         max_position_embeddings=32, rms_norm_eps=1e-5, tie_word_embeddings=False,
                         rope_parameters={"rope_type": "default", "rope_theta": 500.0}, **SIZES),
    # GPT-2 with GELU itself, and weights so large that the approximation makes other tokens.
    "cerebras": GPT2Config(n_embd=16, n_layer=2, n_head=4, n_inner=36, n_positions=24, vocab_size=recipe.VOCAB,
                           activation_function="gelu", initializer_range=0.3, resid_pdrop=0.0, embd_pdrop=0.0,
                           attn_pdrop=0.0, bos_token_id=None, eos_token_id=None),
}


def make_model(config, seed):
    """Random weights; norms and biases, which transformers would start at 1 and 0, are random too."""
    config._attn_implementation = "eager"
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model.train()


def open_model(directory, dtype):
    return transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=dtype, attn_implementation="eager").train()


def mean_loss(logits, targets):
    """In fp32 from 16-bit logits, as Offstage computes it."""
    rows = logits.flatten(0, 1).to(torch.promote_types(logits.dtype, torch.float32))
    losses = torch.nn.functional.cross_entropy(rows, targets.flatten(), ignore_index=IGNORED, reduction="sum")
    return losses / targets.numel()


def passes(model, tokens, targets):
    """Logits, loss and gradients by name."""
    logits = model(input_ids=tokens, use_cache=False).logits
    loss = mean_loss(logits, targets)
    model.zero_grad(set_to_none=True)
    loss.backward()
    return logits.detach(), loss.detach(), {name: p.grad.detach() for name, p in model.named_parameters()}


def stored_names(directory):
    """Names in files: GPT-2's have no prefix in some versions of transformers and one in others."""
    header = (directory / "model.safetensors").read_bytes()
    return json.loads(header[8:8 + int.from_bytes(header[:8], "little")]).keys() - {"__metadata__"}


def relative_error(value, truth):
    return ((value.double() - truth).abs().max() / truth.abs().max()).item()


def write_reference(directory, seed):
    torch.manual_seed(seed)
    tokens = torch.randint(recipe.VOCAB, (BATCH, recipe.SEQUENCE))
    targets = torch.randint(recipe.VOCAB, (BATCH, recipe.SEQUENCE))
    targets[1, -3:] = IGNORED
    logits, loss, gradients = passes(open_model(directory, torch.float32), tokens, targets)
    assert gradients.keys() == stored_names(directory), (gradients.keys(), stored_names(directory))
    tensors = {"tokens": tokens.float(), "targets": targets.float(), "logits": logits, "loss": loss[None]}
    config = json.loads((directory / "config.json").read_text())
    for name, gradient in gradients.items():
        tensors |= {f"grad/{part}": rows.contiguous()
                    for part, rows in plain_model.unfused(name, gradient, config).items()}
    save_file(tensors, directory / "reference.safetensors")

    exact_logits, _, exact = passes(open_model(directory, torch.float64), tokens, targets)
    errors = {name: relative_error(gradient, exact[name]) for name, gradient in gradients.items()}
    worst = max(errors, key=errors.get)
    print(f"  fp32 against fp64: logits {relative_error(logits, exact_logits):.1e}, "
          f"worst gradient {errors[worst]:.1e} ({worst})")


class LossScale:
    """As torch.amp.GradScaler: halved on overflow, doubled after a window without one."""
    def __init__(self, dtype):
        self.dynamic = dtype == torch.float16
        self.value = recipe.LOSS_SCALE_START if self.dynamic else 1.0
        self.good_steps = 0

    def after(self, finite):
        self.good_steps = self.good_steps + 1 if finite else 0
        if self.dynamic and not finite:
            self.value /= 2
        elif self.dynamic and self.good_steps == recipe.LOSS_SCALE_WINDOW:
            self.value *= 2
            self.good_steps = 0


def set_to(copy, masters):
    with torch.no_grad():
        for master, parameter in zip(masters, copy.parameters()):
            parameter.copy_(master)


def make_masters(directory, dtype, nudge):
    """The weights in dtype; nudge is the seed of a relative change of 1e-6, 0 of none."""
    torch.manual_seed(nudge)
    masters = [p.detach() for p in open_model(directory, dtype).parameters()]
    return [torch.nn.Parameter(p * (1 + 1e-6 * torch.randn_like(p)) if nudge else p) for p in masters]


def train(directory, data, dtype, nudge=0):
    """Masters, moments and sums over micro-batches in fp32 (fp64 for fp64); forward and backward in dtype."""
    copy = open_model(directory, dtype)
    exact = torch.promote_types(dtype, torch.float32)
    masters = make_masters(directory, exact, nudge)
    set_to(copy, masters)
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in masters if p.dim() == 2], "weight_decay": recipe.WEIGHT_DECAY},
         {"params": [p for p in masters if p.dim() != 2], "weight_decay": 0.0}],
        betas=recipe.BETAS, eps=recipe.EPSILON)
    scale = LossScale(dtype)
    curve = {"loss": [], "grad_norm": [], "skipped": []}
    for step in range(1, recipe.STEPS + 1):
        optimizer.zero_grad()
        batches = recipe.micro_batches(data, step)
        losses = []
        for batch in batches:
            tokens, targets = (torch.tensor(part) for part in zip(*batch))
            loss = mean_loss(copy(input_ids=tokens, use_cache=False).logits, targets)
            copy.zero_grad(set_to_none=True)
            (loss * scale.value).backward()
            losses.append(loss.item())
            for master, parameter in zip(masters, copy.parameters()):
                gradient = parameter.grad.to(exact)
                master.grad = gradient if master.grad is None else master.grad + gradient
        for master in masters:
            master.grad /= len(batches) * scale.value
        norm = torch.nn.utils.clip_grad_norm_(masters, recipe.CLIP).item()
        finite = math.isfinite(norm)
        if finite:
            for group in optimizer.param_groups:
                group["lr"] = recipe.learning_rate(step)
            optimizer.step()
            set_to(copy, masters)
        else:
            curve["skipped"].append(step)
        scale.after(finite)
        curve["loss"].append(float(f"{sum(losses) / len(losses):.8g}"))
        curve["grad_norm"].append(float(f"{norm:.8g}") if finite else None)
    return curve


def distances(curve, reference):
    return [abs(a - b) / b for a, b in zip(curve["loss"], reference["loss"])]


def make_curves(directory, data):
    """Of the 16-bit types also how far they leave fp32: the most that any of four runs does, three of them
    from weights nudged so little that only where sums round differs."""
    curves = {"fp32": train(directory, data, torch.float32)}
    for word, dtype in ("bf16", torch.bfloat16), ("fp16", torch.float16):
        runs = [train(directory, data, dtype, nudge) for nudge in range(4)]
        apart = [distances(run, curves["fp32"]) for run in runs]
        curves[word] = runs[0] | {"largest_distance": float(f"{max(map(max, apart)):.3g}"),
                                  "mean_distance": float(f"{max(map(sum, apart)) / recipe.STEPS:.3g}")}
    return curves


def make_data():
    """Words of a small dictionary in random order, bytes below the vocabulary: something to learn."""
    torch.manual_seed(5)
    words = [bytes(torch.randint(1, recipe.VOCAB, (int(n),)).tolist()) for n in torch.randint(2, 6, (24,))]
    text = b"\0".join(words[int(i)] for i in torch.randint(len(words), (200,)))
    return text[:45 * recipe.SEQUENCE + 4]


def describe(curves):
    fp32 = curves["fp32"]
    print(f"  loss {fp32['loss'][0]:.3f} -> {fp32['loss'][-1]:.3f}, "
          f"clipped in {sum(n > recipe.CLIP for n in fp32['grad_norm'])} of {recipe.STEPS} steps, "
          f"norms {min(fp32['grad_norm']):.2f} to {max(fp32['grad_norm']):.2f}")
    for dtype in "fp64", "bf16", "fp16":
        apart = distances(curves[dtype], fp32)
        print(f"  {dtype}: largest distance to fp32 {max(apart):.1e} of the loss, "
              f"mean {sum(apart) / len(apart):.1e}, skipped {curves[dtype]['skipped']}")
        if dtype != "fp64":
            print(f"    of four runs: {curves[dtype]['largest_distance']}, mean {curves[dtype]['mean_distance']}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "files")
    parser.add_argument("models", nargs="*", help=f"which of {', '.join(CONFIGS)}; all if none is named")
    arguments = parser.parse_args()
    out = arguments.out
    assert set(arguments.models) <= CONFIGS.keys(), arguments.models
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    out.mkdir(parents=True, exist_ok=True)
    data = make_data()
    (out / "tokens.txt").write_bytes(data)
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, {recipe.windows(data)} windows")
    for seed, (name, config) in enumerate(CONFIGS.items(), start=1):
        if arguments.models and name not in arguments.models:
            continue
        print(name)
        directory = out / name
        shutil.rmtree(directory, ignore_errors=True)
        model = make_model(config, seed)
        model.save_pretrained(directory)
        if name == "cerebras":  # as it is published
            torch.save(model.state_dict(), directory / "pytorch_model.bin")
        write_reference(directory, seed)
        curves = make_curves(directory, data)
        (directory / "curves.json").write_text(json.dumps(curves, indent=1) + "\n")
        describe(curves | {"fp64": train(directory, data, torch.float64)})


if __name__ == "__main__":
    main()
