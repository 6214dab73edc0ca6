"""Writes goldens of rows that are not tokens of a text: features between tokens, three axes, and spans that attend both ways.

    python3 tools/goldens/rows.py crates/welte/tests/goldens          needs torch, transformers, numpy

The weights are those of other goldens. Qwen2-VL's text model gets an image's vectors and the positions that it gives to images; Gemma 3
gets an image's vectors and the masks that it makes for images, with an image longer than its window. `rows.json` lists the rows: what
each reads (`token` or `feature`), its axes, and the last position that it sees.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import load_file
from seeded import expand
from transformers.models.gemma3.modeling_gemma3 import create_masks_for_vision_model, get_block_sequence_ids_for_mask

VOCAB, DIM, SECTIONS = 251, 64, [8, 12, 12]


def weights(golden):
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.safetensors"
        file.write_bytes(expand(golden / "model.safetensors"))
        return {name: tensor.float() for name, tensor in load_file(file).items()}


def qwen2_vl(golden):
    config = json.loads((golden / "config.json").read_text())
    config["rope_parameters"]["mrope_section"] = SECTIONS
    keep = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
            "max_position_embeddings", "rms_norm_eps", "rope_parameters")
    text = transformers.Qwen2VLTextConfig(**{key: config[key] for key in keep}, bos_token_id=0, eos_token_id=1)
    text._attn_implementation = "eager"
    model = transformers.models.qwen2_vl.modeling_qwen2_vl.Qwen2VLTextModel(text).float().eval()
    stored = weights(golden)
    model.load_state_dict({name.removeprefix("model."): value for name, value in stored.items()})
    return model, stored["model.embed_tokens.weight"]


def images(random, parts):
    """Rows of tokens and of images of h by w patches, whose axes are Qwen2-VL's."""
    rows, axis, feature = [], 0, 0
    for part in parts:
        if isinstance(part, int):
            for token in random.integers(2, VOCAB, part):
                rows.append({"token": int(token), "axes": [axis] * 3})
                axis += 1
        else:
            height, width = part
            for i in range(height * width):
                rows.append({"feature": feature, "axes": [axis, axis + i // width, axis + i % width]})
                feature += 1
            axis += max(height, width)
    for position, row in enumerate(rows):
        row["reach"] = position
    return rows


def main():
    torch.set_num_threads(1)
    out, random = Path(sys.argv[1]), np.random.default_rng(7)
    (out / "rows").mkdir(exist_ok=True)
    features = (random.standard_normal((16, DIM)) * 0.6).astype("<f4")
    features.tofile(out / "rows/features.f32")
    entries = []

    def keep(name, path, rows, first, logits):
        logits = logits[0, first:].numpy()
        assert np.isfinite(logits).all() and logits.std() > 0.8, (name, logits.std())
        np.ascontiguousarray(logits, "<f4").tofile(out / f"rows/{name}.f32")
        print(name, logits.shape, f"std {logits.std():.2f}")
        entries.append({"name": name, "path": path, "first": first, "rows": rows})

    def inputs(rows, embedding):
        each = [embedding(torch.tensor(row["token"])) if "token" in row else torch.from_numpy(features[row["feature"]]) for row in rows]
        return torch.stack(each)[None]

    with torch.no_grad():
        model, head = qwen2_vl(out / "qwen2/hf")
        rows = images(random, [7, (2, 3), 4, (3, 2), 7])
        axes = torch.tensor([row["axes"] for row in rows]).T[:, None]
        hidden = model(inputs_embeds=inputs(rows, model.embed_tokens), position_ids=axes).last_hidden_state
        keep("qwen2_vl", "qwen2/hf", rows, 7, hidden @ head.T)

        with tempfile.TemporaryDirectory() as folder:
            for file in (out / "gemma3/hf").glob("*.json"):
                (Path(folder) / file.name).write_text(file.read_text())
            (Path(folder) / "model.safetensors").write_bytes(expand(out / "gemma3/hf/model.safetensors"))
            model = transformers.Gemma3ForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        start, end = 9, 20
        rows = images(random, [start, (1, end - start), 8])
        for position, row in enumerate(rows):
            row["axes"] = [position] * 3
            row["reach"] = end - 1 if start <= position < end else position
        values = inputs(rows, model.model.embed_tokens)
        kinds = torch.tensor([[int("feature" in row) for row in rows]])
        masks = create_masks_for_vision_model(config=model.config, inputs_embeds=values, attention_mask=None, cache=None,
                                              position_ids=torch.arange(len(rows))[None],
                                              block_sequence_ids=get_block_sequence_ids_for_mask(kinds))
        seen = masks["sliding_attention"][0, 0]
        assert model.config.sliding_window == 8 and (seen[start + 9] == 0).nonzero().flatten().tolist() == list(range(start + 2, end)), seen
        keep("gemma3", "gemma3/hf", rows, 7, model(inputs_embeds=values, attention_mask=masks).logits)
    text = ",\n".join(json.dumps(entry, separators=(",", ":")) for entry in entries)
    (out / "rows.json").write_text(f"[\n{text}\n]\n")


if __name__ == "__main__":
    main()
