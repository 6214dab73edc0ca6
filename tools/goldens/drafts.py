"""Writes small models with a draft layer of their own (multi-token prediction), and the logits of that layer.

    python3 tools/goldens/drafts.py crates/welte/tests/goldens [architecture ...]          needs torch, transformers, gguf, numpy

transformers ignores these layers, so they are computed here from the published definition (DeepSeek-V3, section 2.2): a layer of the
model's own kind reads `eh_proj(enorm(embedding of the next token), hnorm(hidden state))`, where the hidden state is that after the model's
last norm, or the draft layer's own one for guesses further ahead. A model of transformers with one layer more has the layer's weights.

A prompt in `drafts.json` is that of the model, then the token after it, then guesses. `rows` logits are kept: those of the first pass at
the last positions of the prompt, then one for each guess.
"""

import functools
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from choose import clearest
from make import PROMPT, VOCAB, add_to_config, directory
from plain import MIXED, build, write_gguf
from safetensors.torch import load, load_file, save_file
from seeded import Goldens, expand

GUESSES, KEPT = 2, 4
# The last one drafts.
MIXED["num_hidden_layers"] = 3
OWN = ("eh_proj", "enorm", "hnorm", "shared_head.norm")
GGUF = {"eh_proj": "eh_proj", "enorm": "enorm", "hnorm": "hnorm", "shared_head.norm": "shared_head_norm"}


class Drafted(torch.nn.Module):
    """The draft logits of a model whose last layer is the draft layer."""

    def __init__(self, model, own):
        super().__init__()
        self.model, self.own, self.config = model, own, model.config

    def hidden(self, tokens):
        layers = self.model.model.layers
        try:
            self.model.model.layers = layers[:-1]
            return self.model.model(tokens).last_hidden_state
        finally:
            self.model.model.layers = layers

    def norm(self, x, name):
        eps = self.config.rms_norm_eps
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * self.own[name]

    def draft(self, tokens, hidden):
        embedded = self.model.model.embed_tokens(tokens)
        x = torch.cat([self.norm(embedded, "enorm"), self.norm(hidden, "hnorm")], -1)
        x = torch.nn.functional.linear(x, self.own["eh_proj"])
        count = x.shape[1]
        at = torch.arange(count)[None]
        mask = torch.full((count, count), float("-inf")).triu(1)[None, None]
        x = self.model.model.layers[-1](x, attention_mask=mask, position_ids=at, position_embeddings=self.model.model.rotary_emb(x, at))
        x = x[0] if isinstance(x, tuple) else x
        return self.norm(x, "shared_head.norm")

    def forward(self, tokens):
        prompt = tokens.shape[1] - 1 - GUESSES
        hidden, rows = self.hidden(tokens[:, :prompt]), []
        for count in range(GUESSES + 1):
            out = self.draft(tokens[:, 1 : 1 + prompt + count], hidden)
            rows.append(out if count == 0 else out[:, -1:])
            hidden = torch.cat([hidden, out[:, -1:]], 1)
        return SimpleNamespace(logits=self.model.lm_head(torch.cat(rows, 1)))


def drafted(model, own):
    """`choose` asks how experts are scored by the name of the model's class."""
    return type(type(model).__name__, (Drafted,), {})(model, own)


def random_own(dim, seed):
    g = torch.Generator().manual_seed(seed)
    norm = lambda: 1 + 0.2 * torch.randn(dim, generator=g)
    return {"eh_proj": torch.randn(dim, 2 * dim, generator=g) * 1.3 / (2 * dim) ** 0.5, "enorm": norm(), "hnorm": norm(),
            "shared_head.norm": norm()}


def write_directory(name, folder, seed):
    model = build(name, seed).to(torch.bfloat16)
    own = random_own(model.config.hidden_size, seed)

    def edit(folder):
        tensors = load_file(folder / "model.safetensors")
        tensors |= {f"model.layers.2.{key}.weight": value.to(torch.bfloat16).contiguous() for key, value in own.items()}
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})

    model = directory(model, folder, seed, edit)
    stored = load(expand(folder / "model.safetensors"))
    kinds = getattr(model.config, "mlp_layer_types", None)
    kinds = {"mlp_layer_types": kinds[:2]} if kinds else {}
    add_to_config(folder, num_hidden_layers=2, num_nextn_predict_layers=1, **kinds)
    return drafted(model, {key: stored[f"model.layers.2.{key}.weight"].float() for key in OWN})


def write_file(name, path, seed):
    model = build(name, seed)
    own = random_own(model.config.hidden_size, seed)

    def more(made):
        made.keys.add_nextn_predict_layers(1)
        for key, value in own.items():
            kind = "F32" if value.ndim == 1 else "Q8_0"
            own[key] = torch.from_numpy(made.put(f"blk.2.nextn.{GGUF[key]}.weight", value.numpy(), kind))

    write_gguf(path, name, model, seed, more=more)
    return drafted(model, own)


def main():
    out, wanted = Path(sys.argv[1]), sys.argv[2:] or ["glm4_moe", "glm4_moe_lite"]
    torch.set_num_threads(1)
    goldens = Goldens(out, "drafts.json")
    for name in wanted:
        folder = out / "drafts" / name
        folder.mkdir(parents=True, exist_ok=True)
        number = sum(name.encode())
        prompt = np.random.default_rng(number).integers(2, VOCAB, PROMPT + 1 + GUESSES).tolist()

        def keep(model, kind, path):
            with torch.no_grad():
                logits = model(torch.tensor([prompt])).logits[0, -KEPT - GUESSES :].float().numpy()
            stem = path.removesuffix(".gguf")
            goldens.keep(f"drafts/{name}/{stem}", f"drafts/{name}/{path}", name, kind, prompt, logits, VOCAB)

        select = functools.partial(clearest, tries=40)
        keep(select(lambda seed: write_directory(name, folder / "hf", seed), prompt, 10 * number, "BF16"), "BF16", "hf")
        keep(select(lambda seed: write_file(name, folder / "q8_0.gguf", seed), prompt, 10 * number + 50, "Q8_0"), "Q8_0", "q8_0.gguf")


if __name__ == "__main__":
    main()
