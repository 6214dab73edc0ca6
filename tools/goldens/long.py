"""Writes small models with transformers' logits at the end of a prompt of 8,192 tokens.

    python3 tools/goldens/long.py crates/welte/tests/goldens [model ...]

They go to long, listed in long.json: directories as transformers saves them (BF16), one for each way to see far back: scaled rotary
positions, windows beside full attention, latents, and recurrent states. Scores are sharp and states decay slowly, so that what is far back
counts: with other tokens in place of all but the last 1,024, or of recurrent models the last 256, the logits must move by several times the
tolerance. Prompts follow from a seed (`seeded.tokens`).
"""

import functools
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

import gemma4
import gpt_oss
import hybrid
import make
import plain
from choose import moved
from families import build as family
from make import KEPT, THETA, VOCAB, directory
from seeded import Goldens, tokens

LENGTH, WINDOW, ORIGINAL = 8192, 512, 1024
LONG = {"max_position_embeddings": 2 * LENGTH}
WINDOWED = LONG | {"sliding_window": WINDOW}


def yarn(**more):
    return {"rope_type": "yarn", "rope_theta": THETA, "factor": 16.0, "original_max_position_embeddings": ORIGINAL, **more}


LLAMA3 = dict(make.LLAMA3, rope_theta=THETA, factor=16.0, original_max_position_embeddings=ORIGINAL)
OLMO3 = {"full_attention": yarn(), "sliding_attention": plain.ROPE}
# The number from which its seeds follow, how each is made, what its configuration says in place of the short golden's, and whether the weights of norms are added to 1.
MODELS = {
    "llama": (0, functools.partial(make.build, "llama", make.SMALL), LONG | {"rope_parameters": LLAMA3}, False),
    "gpt-oss": (1, gpt_oss.build, LONG | {"sliding_window": 128, "rope_parameters": yarn(beta_fast=32.0, beta_slow=1.0, truncate=False)}, False),
    "gemma3": (2, functools.partial(make.build, "gemma3", make.SMALL | make.SHAPES["gemma3"]), WINDOWED, True),
    "olmo3": (3, functools.partial(plain.build, "olmo3"), WINDOWED | {"rope_parameters": OLMO3}, False),
    "gemma4": (4, functools.partial(gemma4.build, gemma4.EFFECTIVE), WINDOWED, False),
    "deepseek_v2": (5, functools.partial(plain.build, "deepseek_v2"), LONG | {"rope_parameters": yarn(mscale=0.707, mscale_all_dim=0.707)}, False),
    "qwen35": (6, functools.partial(hybrid.build, "qwen35"), LONG, True),
    "granitehybrid": (8, functools.partial(hybrid.build, "granitehybrid"), LONG | {"mamba_chunk_size": 64}, False),
    "falcon_h1": (9, functools.partial(family, "falcon_h1"), LONG | {"mamba_chunk_size": 64}, False),
    "lfm2": (10, functools.partial(hybrid.build, "lfm2"), LONG, False),
}


def recurrent(model):
    return any("conv" in name for name, _ in model.named_parameters())


def sharpen(model, centred, sharper):
    """Makes scores sharp and states last."""
    names = [name for name, _ in model.named_parameters()]
    norms = [name for name in names if "q_norm" in name or "q_layernorm" in name]
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name in norms:
                p.copy_(sharper * p + (sharper - 1 if centred else 0))
            elif not norms and "q_proj.weight" in name:
                p.mul_(4 if recurrent(model) else 2)
            elif name.endswith("dt_bias"):
                p.copy_(1.5 * (p + 1) - 5.5)
    return model


class End:
    """A model that gives the logits of the last positions only."""

    def __init__(self, model):
        self.model, self.named_modules = model, model.named_modules

    def __call__(self, prompt):
        return SimpleNamespace(logits=self.model(prompt).logits[:, -KEPT:])


def logits(model, prompt):
    with torch.no_grad():
        return model(torch.tensor([prompt])).logits[0, -KEPT:].float().numpy()


def main():
    out, wanted = Path(sys.argv[1]), sys.argv[2:] or list(MODELS)
    goldens = Goldens(out, "long.json")
    (out / "long").mkdir(exist_ok=True)
    for name in wanted:
        number, build, config, centred = MODELS[name]
        prompt = tokens(number, LENGTH, VOCAB)

        for seed in range(3000 + 10 * number, 3010 + 10 * number):
            model = sharpen(build(seed), centred, 1.25 if name == "gemma4" else 3)
            model.config.update(config)
            model = directory(model.to(torch.bfloat16), out / "long" / name, seed)
            if name != "gpt-oss":  # its sinks are computed by the eager one only
                model.set_attn_implementation("sdpa")
            near = 256 if recurrent(model) else 1024
            want, others = logits(model, prompt), logits(model, tokens(number + 1000, LENGTH - near, VOCAB) + prompt[-near:])
            far = (np.abs(others - want).max(-1) / np.ptp(want, axis=-1)).min()
            rounded = moved(End(model), prompt, "BF16") if far > 0.012 else np.nan
            print(f"{name}, seed {seed}: what is far back moves the logits by {far:.3f}, rounding by {rounded:.2f} of what is allowed", flush=True)
            if rounded < 0.6:
                break
        else:
            sys.exit(f"error: no seed of {name} is calm, and sees far back")
        goldens.keep(f"long/{name}", f"long/{name}", name, "BF16", {"seed": number, "tokens": LENGTH}, want, VOCAB)


if __name__ == "__main__":
    main()
