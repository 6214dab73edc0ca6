"""How far rounding to 8 bits moves transformers' own logits of the Gemma 4 goldens.

    python3 tools/goldens/rounding.py

The weights are stored in Q8_0. Then the input of every matrix, or of some, is rounded as the CPU rounds activations of block formats: to
8 bits per block of 32, with a scale for each. What is printed is the largest difference as a share of the logits' range.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch

from choose import rounded
from gemma4 import MODELS, build, write_gguf
from make import PROMPT, VOCAB, logits

PARTS = (("q_proj", "k_proj", "v_proj"), ("o_proj",), ("gate_proj", "up_proj"), ("down_proj",), ("per_layer_input_gate",),
         ("per_layer_projection",), ("lm_head",))


def main():
    torch.set_num_threads(1)
    for i, (what, (config, _)) in enumerate(MODELS.items()):
        model = build(config, 92 + i)
        with tempfile.TemporaryDirectory() as folder:
            write_gguf(Path(folder) / "model.gguf", model, "Q8_0", 92 + i)
        prompt = np.random.default_rng(600).integers(2, VOCAB, PROMPT).tolist()
        want = logits(model, prompt)

        def moved(chosen):
            matrices = [m for name, m in model.named_modules() if isinstance(m, torch.nn.Linear) and chosen(name)]
            hooks = [m.register_forward_pre_hook(lambda m, inputs: (rounded(inputs[0]),)) for m in matrices]
            got = logits(model, prompt)
            for hook in hooks:
                hook.remove()
            return (np.abs(got - want).max(-1) / np.ptp(want, axis=-1)).max()

        print(what, f"{config['num_hidden_layers']} layers: all {moved(lambda name: True):.1e}")
        for part in PARTS:
            print("   ", ", ".join(part), f"{moved(lambda name: name.endswith(part)):.1e}")


if __name__ == "__main__":
    main()
