#!/usr/bin/env python3
"""The likeliest tokens that `offstage generate` finds, with the keys and values that it keeps, are those of plain_model.py,
which computes every text anew, and of transformers where a Python has it: this one, or the one that
$TRANSFORMERS_PYTHON names."""
import json
import os
import subprocess
import sys
from pathlib import Path

import plain_model
from harness import ALL, OFFSTAGE, OffstageTest, main

os.environ.setdefault("OMP_NUM_THREADS", "1")
FILES = Path(__file__).resolve().parent / "files"
PROMPTS = {"llama": [[1], [5, 60, 7, 7, 12, 33]], "llama3": [[3, 9, 27], list(range(40, 64))], "qwen2": [[0, 63], [11]],
           "gpt2": [[2], [30, 31, 32, 5]], "qwen3": [[7], [50, 3, 3, 21]],
           "mistral": [[9], list(range(20, 32))], "linear": [[4, 8]], "yarn": [[60, 2, 5]], "phi3": [[7, 40]], "olmo2": [[13], [1, 2, 3]],
           "cerebras": [[27]]}  # of cerebras: GELU by tanh makes other tokens
LENGTHS = {"llama": 32, "llama3": 60, "qwen2": 32, "gpt2": 24, "qwen3": 32,
           "mistral": 48, "linear": 48, "yarn": 64, "phi3": 40, "olmo2": 32, "cerebras": 24}  # of prompt and continuation, at most what the model can look at
TRANSFORMERS = """
import json, sys
try:
    import torch, transformers
except ImportError as error:
    print(error)
    sys.exit(77)
found = []
for directory, prompt, count in json.load(sys.stdin):
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
    model.generation_config.eos_token_id = None  # no token ends the text
    tokens = torch.tensor([prompt])  # none of them is padding
    out = model.generate(tokens, attention_mask=torch.ones_like(tokens), do_sample=False, max_new_tokens=count, pad_token_id=0)
    found.append(out[0].tolist())
print(json.dumps(found))
"""


class Greedy(OffstageTest):
    def texts(self):
        """Directory, prompt and how many tokens are to come."""
        return [(str(FILES / model), prompt, LENGTHS[model] - len(prompt)) for model, prompts in PROMPTS.items() for prompt in prompts]

    def generated(self, directory, prompt, count, *options):
        result = self.call(OFFSTAGE, "generate", f"--from={directory}", "--tokenizer=none", f"--tokens={count}",
                           f"--prompt-tokens={','.join(map(str, prompt))}", *options)
        self.assertEqual(0, result.code, result)
        return list(map(int, result.out.split()))

    def test_tokens_are_those_of_a_model_that_keeps_nothing(self):
        texts = self.texts()
        for directory, prompt, count in texts if ALL else {text[0]: text for text in texts}.values():
            model = plain_model.open_model(directory)
            tokens = list(prompt)
            for _ in range(count):
                row = model.logits(tokens)[-1]
                tokens.append(row.index(max(row)))
            with self.subTest(directory=directory, prompt=prompt):
                self.assertEqual(tokens, self.generated(directory, prompt, count))

    def test_tokens_are_those_of_transformers(self):
        python = os.environ.get("TRANSFORMERS_PYTHON", sys.executable)
        done = subprocess.run([python, "-c", TRANSFORMERS], input=json.dumps(self.texts()), capture_output=True, text=True,
                              timeout=300, check=False)
        if done.returncode == 77:
            self.skipTest(f"{python}: {done.stdout.strip()}; plain_model.py has found the same tokens")
        self.assertEqual(0, done.returncode, done.stderr)
        for text, tokens in zip(self.texts(), json.loads(done.stdout.splitlines()[-1])):
            self.assertEqual(tokens, self.generated(*text))


if __name__ == "__main__":
    main()
