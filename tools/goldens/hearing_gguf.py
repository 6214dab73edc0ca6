"""Writes `mmproj` files with encoders of sound, as llama.cpp's converter names their tensors, and puts what was stored back into a model.

`hearing.py` uses it, and has the features that transformers finds with these weights. Ultravox, which transformers lacks, is here.
"""

import numpy as np
import torch
from seeded import Gguf

# What files call the projector, states of a feature where they say so, formats of some matrices.
KINDS = {
    "qwen2_audio": ("qwen2a", None, {}),
    "voxtral": ("voxtral", 4, {"mm.a.mlp.1.weight": "Q8_0", "a.blk.0.ffn_up.weight": "BF16"}),
    "qwen3_asr": ("qwen3a", None, {}),
    "audioflamingo3": ("musicflamingo", None, {}),
    "qwen2_5_omni": ("qwen2.5o", None, {}),
    "ultravox": ("ultravox", 8, {}),
}
NAMES = {"conv1": "a.conv1d.1", "conv2": "a.conv1d.2", "conv2d1": "a.conv2d.1", "conv2d2": "a.conv2d.2", "conv2d3": "a.conv2d.3",
         "conv_out": "a.conv_out", "embed_positions": "a.position_embd", "layer_norm": "a.post_ln", "ln_post": "a.post_ln", "proj": "mm.a.fc",
         "multi_modal_projector.linear": "mm.a.fc", "multi_modal_projector.linear_1": "mm.a.mlp.1",
         "multi_modal_projector.linear_2": "mm.a.mlp.2", "multi_modal_projector.ln_pre": "mm.a.norm_pre",
         "multi_modal_projector.ln_mid": "mm.a.norm_mid"}
LAYER = {"self_attn_layer_norm": "ln1", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.out_proj": "attn_out", "final_layer_norm": "ln2", "fc1": "ffn_up", "fc2": "ffn_down"}


def name_of(key):
    stem, end = key.removeprefix("model.").removeprefix("audio_tower.").rsplit(".", 1)
    if stem.startswith("layers."):
        _, number, part = stem.split(".", 2)
        return f"a.blk.{number}.{LAYER[part]}.{end}"
    return f"{NAMES[stem]}.{end}"


def mmproj(name, tensors, config, path, seed):
    """Stores an encoder: `tensors` are its parameters by name. `config` has its sizes."""
    kind, group, formats = KINDS[name]
    file = Gguf(path, "clip", seed)
    keys = file.keys
    keys.add_bool("clip.has_audio_encoder", True)
    # A file of eyes and ears says it for each of them.
    keys.add_string("clip.audio.projector_type" if name == "qwen3_asr" else "clip.projector_type", kind)
    numbers = {"embedding_length": config.d_model, "feed_forward_length": config.encoder_ffn_dim, "block_count": config.encoder_layers,
               "attention.head_count": config.encoder_attention_heads, "num_mel_bins": config.num_mel_bins, "projection_dim": 64}
    if group:
        numbers["projector.stack_factor"] = group
    for key, value in numbers.items():
        keys.add_uint32(f"clip.audio.{key}", value)
    keys.add_float32("clip.audio.attention.layer_norm_epsilon", 1e-5)
    with torch.no_grad():
        for key, p in tensors:
            own = name_of(key)
            value = p.float().numpy()
            if own.startswith("a.conv1d.") and own.endswith(".bias"):
                value = value[:, None]
            like = "F32" if value.ndim == 1 or "position" in own or own.endswith(".bias") else formats.get(own, "F16")
            p.copy_(torch.from_numpy(np.ascontiguousarray(file.put(own, value, like))).reshape(p.shape))
    file.finish()


class Ultravox(torch.nn.Module):
    """The encoder of fixie-ai's `ultravox_model.py`: a window at a time, which is not filled up."""

    def __init__(self, encoder, group, hidden, width):
        super().__init__()
        self.audio_tower, self.group = encoder, group
        joined = group * encoder.config.d_model
        self.multi_modal_projector = torch.nn.ModuleDict({
            "ln_pre": torch.nn.RMSNorm(joined, eps=1e-6), "linear_1": torch.nn.Linear(joined, hidden, bias=False),
            "ln_mid": torch.nn.RMSNorm(hidden // 2, eps=1e-6), "linear_2": torch.nn.Linear(hidden // 2, width, bias=False)})

    def forward(self, frames):
        tower, own = self.audio_tower, self.multi_modal_projector
        window, found = 2 * tower.config.max_source_positions, []
        for first in range(0, frames.shape[-1], window):
            x = torch.nn.functional.gelu(tower.conv1(frames[..., first : first + window]))
            x = torch.nn.functional.gelu(tower.conv2(x)).transpose(1, 2)
            x = x + tower.embed_positions.weight[: x.shape[1]]
            for layer in tower.layers:
                x = layer(x, None)
                x = x if torch.is_tensor(x) else x[0]
            x = tower.layer_norm(x)
            x = torch.nn.functional.pad(x, (0, 0, 0, -x.shape[1] % self.group)).reshape(1, -1, self.group * x.shape[-1])
            value, gate = own["linear_1"](own["ln_pre"](x)).chunk(2, -1)
            found.append(own["linear_2"](own["ln_mid"](torch.nn.functional.silu(gate) * value)))
        return torch.cat(found, 1)[0]
