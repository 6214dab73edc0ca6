"""Writes what MLX makes: small quantised models with MLX's own logits, and matrices in every affine format with MLX's own
dequantisation and quantised product.

    python3 mlx_goldens.py crates          needs mlx (its CPU backend will do) and mlx-lm

Models go to welte/tests/goldens/mlx, listed in welte/tests/goldens/mlx.json as the other goldens are in index.json. They
are quantised by mlx-lm from BF16; the logits are computed with scales, biases and activations in F32. Matrices go to
welte-formats/tests/fixtures/mlx: a directory with one module per format, and their values and products as floats.
"""

import json
import shutil
import sys
from pathlib import Path

import mlx.core as mx
import mlx_lm.utils
import numpy as np
from mlx.utils import tree_flatten, tree_map
from mlx_lm.models import llama, qwen3, qwen3_moe
from seeded import Goldens, Safetensors, digits

BITS, GROUPS, TYPES = (2, 3, 4, 5, 6, 8), (32, 64, 128), {"bf16": mx.bfloat16, "f16": mx.float16}
ROWS, K = 2, 256
PROMPT, KEPT, VOCAB = 24, 8, 97
SHAPE = {"hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
         "head_dim": 64, "rms_norm_eps": 1e-5, "vocab_size": VOCAB, "max_position_embeddings": 512, "rope_theta": 10000.0}


MODULES = {"llama": llama, "qwen3": qwen3, "qwen3_moe": qwen3_moe}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "decoder_sparse_step": 1, "mlp_only_layers": [],
           "norm_topk_prob": True}


def floats(path, array):
    np.array(array.astype(mx.float32)).astype(np.float32).tofile(path)


def matrices(out):
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    rng = np.random.default_rng(1)
    x = mx.array(rng.standard_normal((1, K)), mx.float32)
    parts, overrides, values, products = {}, {}, [], []
    for bits in BITS:
        for group in GROUPS:
            for name, dtype in TYPES.items():
                # Sizes far apart, so that scales of both types meet the ends of what they can say.
                size = 10.0 ** rng.integers(-4, 3, (ROWS, 1))
                w = mx.array(rng.standard_normal((ROWS, K)) * size, mx.float32).astype(dtype)
                q, scales, biases = mx.quantize(w, group_size=group, bits=bits)
                module = f"b{bits}_g{group}_{name}"
                parts |= {f"{module}.weight": q, f"{module}.scales": scales, f"{module}.biases": biases}
                overrides[module] = {"bits": bits, "group_size": group}
                wide = (q, scales.astype(mx.float32), biases.astype(mx.float32))
                values.append(mx.dequantize(*wide, group_size=group, bits=bits))
                products.append(mx.quantized_matmul(x, *wide, transpose=True, group_size=group, bits=bits))
    mx.save_safetensors(str(out / "model.safetensors"), parts, {"format": "mlx"})
    config = {"model_type": "none", "quantization": {"bits": 4, "group_size": 64, "mode": "affine", **overrides}}
    (out / "config.json").write_text(json.dumps(config) + "\n")
    floats(out / "x.f32", x)
    floats(out / "values.f32", mx.concatenate([v.flatten() for v in values]))
    floats(out / "products.f32", mx.concatenate([v.flatten() for v in products]))


def random_model(module, config, seed, dtype):
    """As tools/goldens/make.py: weights that spread the logits over several units."""
    model = module.Model(module.ModelArgs.from_dict(config))
    rng = np.random.default_rng(seed)

    def fill(name, p):
        random = rng.standard_normal(p.shape)
        if "norm" in name:
            value = 1 + 0.2 * random
        elif "embed" in name:
            value = random * (0.3 if config["tie_word_embeddings"] else 1.0)
        elif "lm_head" in name:
            value = random * 2.5 / p.shape[1] ** 0.5
        else:
            value = random * 1.3 / p.shape[-1] ** 0.5
        return mx.array(value, mx.float32).astype(dtype)

    model.load_weights([(name, fill(name, p)) for name, p in tree_flatten(model.parameters())])
    return model


def mixed(path, _):
    """A recipe as mlx-lm's own: more bits where it matters, other groups, some layers left alone."""
    if "layers.0.mlp.down_proj" in path or "v_proj" in path:
        return {"bits": 6, "group_size": 64}
    if "layers.1.self_attn.o_proj" in path or "layers.0.mlp.up_proj" in path:
        return False
    if "embed_tokens" in path:
        return {"bits": 8, "group_size": 128}
    if "layers.1.mlp" in path:
        return {"bits": 3, "group_size": 128}
    return True


def fields(parts, config):
    """Scales about as large as those of MLX, of either sign, and biases that put the middle of the codes at 0."""
    made = {}
    for number, (name, scales) in enumerate((name, value) for name, value in parts.items() if name.endswith(".scales")):
        module, kind = name.removesuffix(".scales"), {mx.bfloat16: "bf16", mx.float16: "f16"}[scales.dtype]
        own = config["quantization"].get(module)
        bits = own["bits"] if isinstance(own, dict) else config["quantization"]["bits"]
        size = digits(float(mx.abs(scales.astype(mx.float32)).mean())) * (-1) ** number
        middle = -size * (2**bits - 1) / 2
        made |= {name: [[0, 1, kind, size, digits(abs(size) / 7)]], f"{module}.biases": [[0, 1, kind, digits(middle), digits(abs(middle) / 10)]]}
    return made


def models(out):
    folder = out / "mlx"
    shutil.rmtree(folder, ignore_errors=True)
    goldens = Goldens(out, "mlx.json", anew=True)
    # Name, architecture, bits, group, type, layers, tied, recipe.
    plans = [(f"q{bits}", ("llama", "qwen3")[i % 2], bits, 64, mx.bfloat16, 1, i % 2 == 1, None) for i, bits in enumerate(BITS)]
    plans.append(("mixed", "llama", 4, 32, mx.float16, 2, True, mixed))
    plans.append(("moe", "qwen3_moe", 4, 64, mx.bfloat16, 1, False, None))
    for i, (name, arch, bits, group, dtype, layers, tied, recipe) in enumerate(plans):
        config = SHAPE | {"model_type": arch, "num_hidden_layers": layers, "tie_word_embeddings": tied}
        if arch == "qwen3_moe":
            config |= EXPERTS
        model = random_model(MODULES[arch], config, 40 + i, dtype)
        model, config = mlx_lm.utils.quantize_model(model, config, group, bits, quant_predicate=recipe)
        path = folder / name
        path.mkdir(parents=True)
        parts = dict(tree_flatten(model.parameters()))
        mx.save_safetensors(str(path / "model.safetensors"), parts, {"format": "mlx"})
        mlx_lm.utils.save_config(config, path / "config.json")
        weights = Safetensors(path / "model.safetensors", 40 + i, fields(parts, config))
        model.load_weights(list(mx.load(str(weights.path)).items()))
        model.update(tree_map(lambda p: p if p.dtype == mx.uint32 else p.astype(mx.float32), model.parameters()))
        prompt = np.random.default_rng(200 + i).integers(2, VOCAB, PROMPT).tolist()
        logits = np.array(model(mx.array([prompt]))[0, -KEPT:].astype(mx.float32))
        weights.cut()
        goldens.keep(f"mlx/{name}", f"mlx/{name}", "mlx", f"MLX{bits}_{group}", prompt, logits, VOCAB)


def main():
    crates = Path(sys.argv[1])
    matrices(crates / "welte-formats/tests/fixtures/mlx")
    models(crates / "welte/tests/goldens")


if __name__ == "__main__":
    main()
