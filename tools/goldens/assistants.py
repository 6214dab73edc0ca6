"""Writes small drafters for the golden `gemma4/effective` with transformers' logits: they attend to its keys and values.

    python3 tools/goldens/assistants.py crates/welte/tests/goldens

They join those of drafts.py in drafts.json: a directory as transformers saves it (BF16), and a GGUF file in F16. `rows` logits are kept: those
after the last positions of the prompt, then one for each guess, which stays where the last of them is.
"""

import sys
import tempfile
from pathlib import Path

import gemma4
import gguf
import numpy as np
import torch
from drafts import GUESSES, KEPT
from gemma4 import COMMON, FULL, WINDOWED
from make import PROMPT, VOCAB, directory
from seeded import Gguf, Goldens, expand
from transformers import Gemma4AssistantConfig, Gemma4AssistantForCausalLM, Gemma4ForCausalLM, Gemma4TextConfig

CONFIG = COMMON | {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_kv_shared_layers": 3, "num_key_value_heads": 2,
                   "global_head_dim": 64, "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0, "final_logit_softcapping": None,
                   "layer_types": [WINDOWED, WINDOWED, FULL]}
SEED = 7


def build(backbone, seed):
    model = Gemma4AssistantForCausalLM(Gemma4AssistantConfig(text_config=Gemma4TextConfig(**CONFIG), backbone_hidden_size=backbone))
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        scalars = [(name, b) for name, b in model.named_buffers() if name.endswith("layer_scalar")]
        for name, p in [*model.named_parameters(), *scalars]:
            random = torch.randn(p.shape, generator=g)
            if name.endswith("layer_scalar"):
                p.copy_(0.8 + 0.1 * random)
            elif "q_norm" in name:
                p.copy_(0.25 * (1 + 0.2 * random))
            elif "norm" in name:
                p.copy_(1 + 0.2 * random)
            elif "embed_tokens" in name:
                p.copy_(0.3 * random)
            else:
                p.copy_(random * 1.3 / p.shape[-1] ** 0.5)
    return model.float().eval()


def write_gguf(path, model, seed):
    c = model.config.text_config
    made = Gguf(path, "gemma4-assistant", seed)
    w = made.keys
    w.add_context_length(512)
    w.add_embedding_length(c.hidden_size)
    w.add_embedding_length_out(model.config.backbone_hidden_size)
    w.add_block_count(c.num_hidden_layers)
    w.add_nextn_predict_layers(c.num_hidden_layers)
    w.add_feed_forward_length(c.intermediate_size)
    w.add_head_count(c.num_attention_heads)
    w.add_head_count_kv(c.num_key_value_heads)
    w.add_key_length(CONFIG["global_head_dim"])
    w.add_value_length(CONFIG["global_head_dim"])
    w.add_key_length_swa(CONFIG["head_dim"])
    w.add_value_length_swa(CONFIG["head_dim"])
    w.add_rope_dimension_count(CONFIG["global_head_dim"])
    w.add_rope_dimension_count_swa(CONFIG["head_dim"])
    w.add_rope_freq_base(c.rope_parameters[FULL]["rope_theta"])
    w.add_rope_freq_base_swa(c.rope_parameters[WINDOWED]["rope_theta"])
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    w.add_sliding_window(c.sliding_window)
    w.add_sliding_window_pattern([kind == WINDOWED for kind in c.layer_types])
    w.add_shared_kv_layers(c.num_kv_shared_layers)
    w.add_embedding_length_per_layer_input(0)
    w.add_vocab_size(VOCAB)
    turned = int(CONFIG["global_head_dim"] * c.rope_parameters[FULL]["partial_rotary_factor"] / 2)
    made.exact("rope_freqs.weight", [1.0] * turned + [1e30] * (CONFIG["global_head_dim"] // 2 - turned))
    own = {"pre_projection.weight": "nextn.pre_projection.weight", "post_projection.weight": "nextn.post_projection.weight"}
    buffers = [(name, b) for name, b in model.named_buffers() if name.endswith("layer_scalar")]
    for name, p in [*model.named_parameters(), *buffers]:
        value = p.detach().numpy().copy()
        to = own.get(name) or gemma4.gguf_name(name)
        with torch.no_grad():
            p.copy_(torch.from_numpy(made.put(to, value, "F32" if value.ndim == 1 else "F16")))
    made.finish()


def logits(target, drafter, prompt):
    """What it guesses after the last positions, and then further ahead."""
    count = len(prompt) - 1 - GUESSES
    tokens = torch.tensor([prompt])
    with torch.no_grad():
        out = target(tokens[:, :count], output_hidden_states=True, return_shared_kv_states=True, use_cache=False)
        rows = []

        def guess(token, hidden, at):
            embedded = target.get_input_embeddings()(token)
            # A cache for a window has as many keys, whatever the drafter's mask allows.
            first = {WINDOWED: max(0, at + 1 - CONFIG["sliding_window"]), FULL: 0}
            kv = {kind: tuple(part[:, :, first[kind] : at + 1] for part in parts) for kind, parts in out.shared_kv_states.items()}
            made = drafter(inputs_embeds=torch.cat([embedded, hidden], -1), position_ids=torch.tensor([[at + 1]]), shared_kv_states=kv, use_cache=False)
            rows.append(made.logits[0, -1].float().numpy())
            return made.last_hidden_state

        for at in range(count - KEPT, count):
            hidden = guess(tokens[:, at + 1 : at + 2], out.hidden_states[-1][:, at : at + 1], at)
        for at in range(count, count + GUESSES):
            hidden = guess(tokens[:, at + 1 : at + 2], hidden, count - 1)
    return np.stack(rows)


def main():
    out = Path(sys.argv[1])
    folder = out / "drafts/gemma4_assistant"
    folder.mkdir(parents=True, exist_ok=True)
    goldens = Goldens(out, "drafts.json")
    with tempfile.TemporaryDirectory() as place:
        for name in ("config.json", "generation_config.json"):
            if (out / "gemma4/effective" / name).exists():
                (Path(place) / name).write_bytes((out / "gemma4/effective" / name).read_bytes())
        (Path(place) / "model.safetensors").write_bytes(expand(out / "gemma4/effective/model.safetensors"))
        target = Gemma4ForCausalLM.from_pretrained(place, dtype=torch.float32, attn_implementation="eager").eval()
    prompt = np.random.default_rng(SEED).integers(2, VOCAB, PROMPT + 1 + GUESSES).tolist()
    drafter = directory(build(target.config.hidden_size, SEED).to(torch.bfloat16), folder / "hf", SEED)
    keep = lambda path, drafter: goldens.keep(f"drafts/gemma4_assistant/{path}", "gemma4/effective", "gemma4_assistant", "BF16",
                                              prompt, logits(target, drafter, prompt), VOCAB)
    keep("hf", drafter)
    drafter = build(target.config.hidden_size, SEED)
    write_gguf(folder / "f16.gguf", drafter, SEED)
    keep("f16.gguf", drafter)


if __name__ == "__main__":
    main()
