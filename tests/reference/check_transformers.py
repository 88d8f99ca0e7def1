#!/usr/bin/env python3
"""Opens a model that Offstage exported in transformers: check_transformers.py DIRECTORY --tokens FILE --loss X

Every tensor must be found and none be left over; the logits must be those of plain_model.py, and the loss on
FILE (bytes, in windows of recipe.SEQUENCE) the one that Offstage logged for the same weights. Exit code 77
if this Python has no torch or transformers.
"""
import argparse
import sys
from pathlib import Path

import plain_model
import recipe

try:
    import torch
    import transformers
except ImportError as error:
    print(error)
    sys.exit(77)


def open_in_transformers(directory):
    transformers.logging.disable_progress_bar()
    model, found = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    for problem in "missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs":
        assert not found.get(problem), f"{problem}: {found[problem]}"
    return model.eval()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--tokens", type=Path, required=True)
    parser.add_argument("--loss", type=float, required=True)
    arguments = parser.parse_args()

    model, plain = open_in_transformers(arguments.directory), plain_model.open_model(arguments.directory)
    data = arguments.tokens.read_bytes()
    losses, error, largest = [], 0.0, 0.0
    with torch.no_grad():
        for index in range(recipe.windows(data)):
            tokens, targets = recipe.window(data, index)
            logits = model(input_ids=torch.tensor([tokens])).logits[0]
            losses.append(torch.nn.functional.cross_entropy(logits, torch.tensor(targets)).item())
            expected = torch.tensor(plain.logits(tokens))
            error = max(error, (logits - expected).abs().max().item())
            largest = max(largest, expected.abs().max().item())
    loss = sum(losses) / len(losses)
    print(f"{arguments.directory.name}: {type(model).__name__} of transformers {transformers.__version__}, loss "
          f"{loss:.7f}, Offstage's {arguments.loss:.7f}; logits within {error / largest:.1e} of plain_model.py's")
    assert error < 1e-5 * largest
    assert abs(loss - arguments.loss) < 1e-5 * loss


if __name__ == "__main__":
    main()
