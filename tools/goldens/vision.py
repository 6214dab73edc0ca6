"""Writes goldens of pictures: what transformers' processors make of them, what its encoders make of that, and the logits of a prompt
with two pictures.

    python3 tools/goldens/vision.py crates/welte/tests/goldens crates/welte-vision/tests/data [NAME ...]

Needs torch, torchvision, transformers, pillow, numpy. The weights are random and follow from a seed. `vision.json` lists the models with
their features and prompts. The data of the processors: `processors.json` lists settings, tiles and what stands in the prompt; the pixels
of the tiles are bytes.
"""

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import transformers
from make import KEPT, directory
from PIL import Image, ImageOps
from safetensors.torch import load_file, save_file
from seeded import Gguf
from transformers.image_processing_backends import TorchvisionBackend
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.conversion_mapping import get_checkpoint_conversion_mapping, register_checkpoint_conversion_mapping
from transformers.models.deepseek_ocr2 import modeling_deepseek_ocr2 as deepseek_ocr2
from transformers.models.deepseek_ocr2.image_processing_pil_deepseek_ocr2 import DeepseekOcr2ImageProcessorPil
from transformers.models.deepseek_ocr2.processing_deepseek_ocr2 import DeepseekOcr2Processor
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma3.processing_gemma3 import Gemma3Processor
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
from transformers.models.glm46v.image_processing_pil_glm46v import Glm46VImageProcessorPil
from transformers.models.granite4_vision.processing_granite4_vision import Granite4VisionProcessor
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.idefics3.processing_idefics3 import Idefics3Processor
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.kimi_k25.image_processing_kimi_k25 import Kimi_K25ImageProcessor
from transformers.models.idefics2.modeling_idefics2 import Idefics2VisionTransformer
from transformers.models.lfm2_vl.image_processing_lfm2_vl import Lfm2VlImageProcessor as LFM2_VL
from transformers.models.lfm2_vl.processing_lfm2_vl import Lfm2VlProcessor
from transformers.models.llava.processing_llava import LlavaProcessor
from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil
from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor
from transformers.models.minicpmv4_6.image_processing_pil_minicpmv4_6 import MiniCPMV4_6ImageProcessorPil
from transformers.models.minicpmv4_6.processing_minicpmv4_6 import MiniCPMV4_6Processor
from transformers.models.paddleocr_vl.image_processing_pil_paddleocr_vl import PaddleOCRVLImageProcessorPil
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.pixtral.processing_pixtral import PixtralProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

VOCAB, IMAGE, VIDEO = 251, 7, 8
TEXT = dict(vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            head_dim=16, max_position_embeddings=512, bos_token_id=0, eos_token_id=1, pad_token_id=None)
SIGLIP = dict(hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=3, image_size=32, patch_size=8)
PIXTRAL = dict(model_type="pixtral", hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=2, head_dim=24,
               image_size=64, patch_size=4, hidden_act="silu")
PINPOINTS = [[32, 64], [64, 32], [64, 64], [96, 32], [32, 96]]
MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}


def qwen(depth, **more):
    return dict(depth=depth, num_heads=2, patch_size=4, spatial_merge_size=2, temporal_patch_size=2, **more)


class PilResize(TorchvisionBackend):
    """Resizes with pillow in place of torchvision, whose bytes are off by one at times."""

    def resize(self, image, size, resample=None, **kwargs):
        each = [Image.fromarray(one.permute(1, 2, 0).numpy()).resize((size.width, size.height), resample=int(resample)) for one in image]
        return torch.stack([torch.from_numpy(np.array(one)).permute(2, 0, 1) for one in each])


class Lfm2VlImageProcessor(LFM2_VL, PilResize):
    pass


class MiniCpmVProcessor(MiniCPMV4_6ImageProcessorPil):
    """That of the earlier versions: sides are multiples of a patch, of which later ones merge four."""

    def find_best_resize(self, image_size, scale_resolution, patch_size, downsample_mode, allow_upscale=False):
        sides = super().find_best_resize(image_size, scale_resolution, patch_size / 4, "16x", allow_upscale)
        return tuple(int(side) for side in sides)

    def save_pretrained(self, folder):
        settings = dict(image_processor_type="MiniCPMVImageProcessor", max_slice_nums=self.max_slice_nums, scale_resolution=32, patch_size=4,
                        use_image_id=True, image_feature_size=QUERIES, im_start="<image>", im_end="</image>", slice_start="<slice>",
                        slice_end="</slice>", im_id_start="<image_id>", im_id_end="</image_id>", slice_mode=True,
                        norm_mean=[0.5] * 3, norm_std=[0.5] * 3, version=4.0)
        (Path(folder) / "preprocessor_config.json").write_text(json.dumps(settings, indent=1) + "\n")


class KimiImageProcessor(Kimi_K25ImageProcessor, PilResize):
    pass


MODELS = {
    "smolvlm": (lambda: transformers.SmolVLMForConditionalGeneration(transformers.SmolVLMConfig(
        vision_config=SIGLIP, text_config=dict(model_type="llama", **TEXT), scale_factor=2, image_token_id=IMAGE, pad_token_id=2)),
        lambda: Idefics3ImageProcessorPil(size={"longest_edge": 96}, max_image_size={"longest_edge": 32})),
    "gemma3": (lambda: transformers.Gemma3ForConditionalGeneration(transformers.Gemma3Config(
        vision_config=SIGLIP, text_config=TEXT | dict(sliding_window=8, query_pre_attn_scalar=16), mm_tokens_per_image=4,
        image_token_index=IMAGE, image_token_id=IMAGE)),
        lambda: Gemma3ImageProcessorPil(size={"height": 32, "width": 32})),
    "qwen2_vl": (lambda: transformers.Qwen2VLForConditionalGeneration(transformers.Qwen2VLConfig(
        vision_config=qwen(2, embed_dim=48, hidden_size=64, mlp_ratio=2), text_config=TEXT | dict(rope_parameters=MROPE),
        image_token_id=IMAGE)),
        lambda: Qwen2VLImageProcessorPil(patch_size=4, merge_size=2, size={"shortest_edge": 64, "longest_edge": 1600})),
    "qwen2_5_vl": (lambda: transformers.Qwen2_5_VLForConditionalGeneration(transformers.Qwen2_5_VLConfig(
        vision_config=qwen(3, hidden_size=48, intermediate_size=80, out_hidden_size=64, window_size=16, fullatt_block_indexes=[1]),
        text_config=TEXT | dict(rope_parameters=MROPE), image_token_id=IMAGE)),
        lambda: Qwen2VLImageProcessorPil(patch_size=4, merge_size=2, size={"shortest_edge": 64, "longest_edge": 1600})),
    "pixtral": (lambda: transformers.LlavaForConditionalGeneration(transformers.LlavaConfig(
        vision_config=PIXTRAL, text_config=dict(model_type="mistral", **TEXT), vision_feature_layer=-1,
        vision_feature_select_strategy="full", image_token_index=IMAGE, image_token_id=IMAGE)),
        lambda: PixtralImageProcessorPil(patch_size={"height": 4, "width": 4}, size={"longest_edge": 40})),
    "mistral3": (lambda: transformers.Mistral3ForConditionalGeneration(transformers.Mistral3Config(
        vision_config=PIXTRAL, text_config=dict(model_type="ministral3", **TEXT), spatial_merge_size=2, image_token_index=IMAGE,
        image_token_id=IMAGE)),
        lambda: PixtralImageProcessorPil(patch_size={"height": 8, "width": 8}, size={"longest_edge": 64})),
    "lfm2_vl": (lambda: transformers.Lfm2VlForConditionalGeneration(transformers.Lfm2VlConfig(
        vision_config={key: value for key, value in SIGLIP.items() if key != "image_size"} | dict(
            model_type="siglip2_vision_model", num_patches=16),
        text_config=TEXT | dict(model_type="lfm2", layer_types=["conv", "full_attention"], block_auto_adjust_ff_dim=False),
        projector_hidden_size=72, image_token_id=IMAGE)),
        lambda: Lfm2VlImageProcessor(encoder_patch_size=8, tile_size=32, min_tiles=2, max_tiles=4, min_image_tokens=2, max_image_tokens=3,
                                     return_row_col_info=True)),
    "internvl": (lambda: transformers.InternVLForConditionalGeneration(transformers.InternVLConfig(
        vision_config=SIGLIP | dict(image_size=[32, 32], patch_size=[8, 8], attention_bias=True), text_config=TEXT | dict(model_type="qwen2"),
        image_token_id=IMAGE)),
        lambda: GotOcr2ImageProcessorPil(size={"height": 32, "width": 32}, crop_to_patches=True, max_patches=4)),
    "qwen3_vl": (lambda: transformers.Qwen3VLForConditionalGeneration(transformers.Qwen3VLConfig(
        vision_config=qwen(3, hidden_size=48, intermediate_size=80, out_hidden_size=64, num_position_embeddings=36,
                           deepstack_visual_indexes=[0, 2]),
        text_config=TEXT | dict(num_hidden_layers=3, rope_parameters=MROPE | {"mrope_interleaved": True}), image_token_id=IMAGE)),
        lambda: Qwen2VLImageProcessorPil(patch_size=4, merge_size=2, size={"shortest_edge": 64, "longest_edge": 1600},
                                         image_mean=[0.5] * 3, image_std=[0.5] * 3)),
}


def llava_next(vision, text, **more):
    """LLaVA-NeXT and Granite Vision differ in their encoders and language models."""
    config = transformers.LlavaNextConfig(vision_config=SIGLIP | dict(num_hidden_layers=3) | vision, text_config=TEXT | text,
                                          image_grid_pinpoints=PINPOINTS, image_token_index=IMAGE, **more)
    return transformers.LlavaNextForConditionalGeneration(config)


def llava_next_processor():
    side = {"height": 32, "width": 32}
    return LlavaNextImageProcessorPil(size=side, crop_size=side, image_grid_pinpoints=PINPOINTS)


MODELS |= {
    "llava_next": (lambda: llava_next(dict(model_type="clip_vision_model"), dict(model_type="llama")), llava_next_processor),
    "granite_vision": (lambda: llava_next(dict(model_type="siglip_vision_model"),
                                          dict(model_type="granite", embedding_multiplier=3.0, attention_multiplier=0.15,
                                               residual_multiplier=0.7, logits_scaling=0.5),
                                          vision_feature_layer=[-3, -1], vision_feature_select_strategy="full"), llava_next_processor),
}
LLAVA_NEXT = ("llava_next", "granite_vision", "granite4_vision")
QWEN3_TOWER = qwen(3, hidden_size=48, intermediate_size=80, out_hidden_size=64, num_position_embeddings=36)
INTERLEAVED = MROPE | {"mrope_interleaved": True}


def qwen3_processor():
    return Qwen2VLImageProcessorPil(patch_size=4, merge_size=2, size={"shortest_edge": 64, "longest_edge": 1600}, image_mean=[0.5] * 3,
                                    image_std=[0.5] * 3)


QWEN3_5_TEXT = TEXT | dict(rope_parameters=INTERLEAVED | {"partial_rotary_factor": 1.0}, layer_types=["linear_attention", "full_attention"],
                           linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16,
                           linear_conv_kernel_dim=4)
MODELS |= {
    "qwen3_vl_moe": (lambda: transformers.Qwen3VLMoeForConditionalGeneration(transformers.Qwen3VLMoeConfig(
        vision_config=QWEN3_TOWER | dict(deepstack_visual_indexes=[1]),
        text_config=TEXT | dict(rope_parameters=INTERLEAVED, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=48,
                                experts_implementation="eager"), image_token_id=IMAGE)), qwen3_processor),
    "qwen3_5": (lambda: transformers.Qwen3_5ForConditionalGeneration(transformers.Qwen3_5Config(
        vision_config=QWEN3_TOWER, text_config=QWEN3_5_TEXT, image_token_id=IMAGE)), qwen3_processor),
    "paddleocr_vl": (lambda: transformers.PaddleOCRVLForConditionalGeneration(transformers.PaddleOCRVLConfig(
        vision_config=SIGLIP | dict(image_size=24, patch_size=4), text_config=TEXT | dict(rope_parameters=MROPE), image_token_id=IMAGE)),
        lambda: PaddleOCRVLImageProcessorPil(patch_size=4, merge_size=2, size={"shortest_edge": 64, "longest_edge": 1600})),
}

GEMMA4_TOWER = dict(hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=3, head_dim=16,
                    patch_size=4, position_embedding_size=256, use_clipped_linears=True, standardize=True)
FULL, WINDOWED = "full_attention", "sliding_attention"
MODELS |= {
    "gemma4": (lambda: transformers.Gemma4ForConditionalGeneration(transformers.Gemma4Config(
        vision_config=GEMMA4_TOWER, audio_config=None,
        text_config=TEXT | dict(num_hidden_layers=3, global_head_dim=32, hidden_size_per_layer_input=32, num_kv_shared_layers=1, pad_token_id=0,
                                vocab_size_per_layer_input=VOCAB, sliding_window=8, layer_types=[WINDOWED, FULL, FULL],
                                rope_parameters={FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 10000.0},
                                                 WINDOWED: {"rope_type": "default", "rope_theta": 1000.0}}),
        image_token_id=IMAGE, video_token_id=VOCAB + 1, audio_token_id=VOCAB + 2)),
        lambda: Gemma4ImageProcessorPil(patch_size=4, max_soft_tokens=70)),
}


def glm_processor():
    # Its sizes count the pixels of two frames.
    return Glm46VImageProcessorPil(patch_size=4, merge_size=2, size={"shortest_edge": 128, "longest_edge": 3200})


MODELS |= {
    "glm4v": (lambda: transformers.Glm4vForConditionalGeneration(transformers.Glm4vConfig(
        vision_config=qwen(2, hidden_size=48, intermediate_size=72, out_hidden_size=64, image_size=24),
        text_config=TEXT | dict(rope_parameters=MROPE | {"partial_rotary_factor": 0.5, "mrope_section": [1, 1, 2]}), image_token_id=IMAGE)),
        glm_processor),
    "glm_ocr": (lambda: transformers.GlmOcrForConditionalGeneration(transformers.GlmOcrConfig(
        vision_config=qwen(2, hidden_size=48, intermediate_size=80, out_hidden_size=64), text_config=TEXT | dict(rope_parameters=MROPE),
        image_token_id=IMAGE)), glm_processor),
}
MODELS |= {
    "glm4v_moe": (lambda: transformers.Glm4vMoeForConditionalGeneration(transformers.Glm4vMoeConfig(
        vision_config=qwen(2, hidden_size=48, intermediate_size=72, out_hidden_size=64, image_size=24),
        text_config=TEXT | dict(rope_parameters=MROPE | {"partial_rotary_factor": 0.5, "mrope_section": [1, 1, 2]}, n_routed_experts=4,
                                num_experts_per_tok=2, moe_intermediate_size=48, experts_implementation="eager"), image_token_id=IMAGE)),
        glm_processor),
}
GLM = ("glm4v", "glm4v_moe", "glm_ocr")
LATENT = dict(num_key_value_heads=4, q_lora_rank=None, kv_lora_rank=32, qk_rope_head_dim=16, qk_nope_head_dim=16, v_head_dim=16,
              n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, first_k_dense_replace=1, n_group=1, topk_group=1,
              n_shared_experts=1, experts_implementation="eager")
MODELS |= {
    "kimi": (lambda: transformers.Kimi_K25ForConditionalGeneration(transformers.Kimi_K25Config(
        vision_config=dict(patch_size=4, pos_emb_height=6, pos_emb_width=6, num_attention_heads=2, num_hidden_layers=2, hidden_size=48,
                           intermediate_size=80),
        text_config={key: value for key, value in TEXT.items() if key != "head_dim"} | LATENT | dict(model_type="deepseek_v3"),
        image_token_id=IMAGE, projection_hidden_size=48, tie_word_embeddings=False)),
        lambda: KimiImageProcessor(patch_size=4, max_patches=100)),
}
GEMMA4_TEXT = dict(num_hidden_layers=3, global_head_dim=32, pad_token_id=0, layer_types=[WINDOWED, FULL, FULL],
                   rope_parameters={FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 10000.0},
                                    WINDOWED: {"rope_type": "default", "rope_theta": 1000.0}})


def gemma4_large(**more):
    """The larger models have no embeddings per layer. Their features attend to each other in windowed layers."""
    return transformers.Gemma4ForConditionalGeneration(transformers.Gemma4Config(
        vision_config=GEMMA4_TOWER | dict(use_clipped_linears=False), audio_config=None,
        text_config=TEXT | GEMMA4_TEXT | dict(hidden_size_per_layer_input=0, vocab_size_per_layer_input=VOCAB, sliding_window=70,
                                              use_bidirectional_attention="vision", attention_k_eq_v=True, num_global_key_value_heads=1,
                                              layer_types=[FULL, WINDOWED, FULL], **more),
        image_token_id=IMAGE, video_token_id=VOCAB + 1, audio_token_id=VOCAB + 2))


MODELS |= {
    "llava": (lambda: transformers.LlavaForConditionalGeneration(transformers.LlavaConfig(
        vision_config=SIGLIP | dict(num_hidden_layers=3, model_type="clip_vision_model"), text_config=TEXT | dict(model_type="llama"),
        image_token_index=IMAGE, image_token_id=IMAGE)),
        lambda: CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})),
    "gemma3_scan": (MODELS["gemma3"][0],
                    lambda: Gemma3ImageProcessorPil(size={"height": 32, "width": 32}, do_pan_and_scan=True, pan_and_scan_min_crop_size=16,
                                                    pan_and_scan_max_num_crops=3, pan_and_scan_min_ratio_to_activate=1.2)),
    "gemma4_31b": (gemma4_large, MODELS["gemma4"][1]),
    "gemma4_26b": (lambda: gemma4_large(enable_moe_block=True, num_experts=4, top_k_experts=2, moe_intermediate_size=48,
                                        experts_implementation="eager"), MODELS["gemma4"][1]),
}
QUERIES, SLICES = 4, 4


class MiniCpmVConfig(transformers.PreTrainedConfig):
    model_type = "minicpmv"


class Resampler(torch.nn.Module):
    """One layer of cross attention: learned queries read patches, whose keys know their line and column."""

    def __init__(self, width, dim):
        super().__init__()
        self.query = torch.nn.Parameter(torch.empty(QUERIES, width))
        self.kv_proj = torch.nn.Linear(dim, width, bias=False)
        self.attn = torch.nn.MultiheadAttention(width, max(1, width // 128))
        self.ln_q, self.ln_kv, self.ln_post = (torch.nn.LayerNorm(width, 1e-6) for _ in range(3))
        self.proj = torch.nn.Parameter(torch.empty(width, width))

    def forward(self, x, rows, columns):
        width = self.query.shape[1]
        powers = 10000.0 ** -(np.arange(width // 4) / (width // 4))
        waves = lambda count: np.concatenate([f(np.outer(np.arange(count), powers)) for f in (np.sin, np.cos)], 1)
        # A column's waves come first.
        places = np.concatenate([np.tile(waves(columns), (rows, 1)), np.repeat(waves(rows), columns, 0)], 1)
        x = self.ln_kv(self.kv_proj(x))
        found = self.attn(self.ln_q(self.query), x + torch.from_numpy(places).to(x), x, need_weights=False)[0]
        return self.ln_post(found) @ self.proj


class MiniCpmV(transformers.PreTrainedModel):
    """Puts the parts of MiniCPM-V together, of which transformers has the encoder and the language models."""
    config_class = MiniCpmVConfig

    def __init__(self, config):
        super().__init__(config)
        kind = transformers.Qwen3ForCausalLM if config.version == 4.5 else transformers.LlamaForCausalLM
        keys = {key: value for key, value in config.to_dict().items() if key in TEXT or key == "rope_parameters"}
        self.llm = kind(kind.config_class(**keys, attn_implementation="eager"))
        tower = {key: value for key, value in config.vision_config.items() if key != "model_type"}
        self.vpm = Idefics2VisionTransformer(transformers.models.idefics2.configuration_idefics2.Idefics2VisionConfig(
            **tower, attn_implementation="eager"))
        self.resampler = Resampler(config.hidden_size, tower["hidden_size"])
        self.post_init()

    def _init_weights(self, module):
        pass

    def get_image_features(self, pixel_values, target_sizes, return_dict=True):
        features = []
        tiles = pixel_values[0].split([4 * int(h * w) for h, w in target_sizes], -1)
        for tile, (h, w) in zip(tiles, target_sizes):
            h, w = int(h), int(w)
            pixels = tile.reshape(3, 4, h, w, 4).permute(0, 2, 1, 3, 4).reshape(1, 3, 4 * h, 4 * w)
            states = self.vpm(pixels, torch.ones(1, h, w, dtype=torch.bool)).last_hidden_state
            features.append(self.resampler(states[0], h, w))
        return SimpleNamespace(pooler_output=features)

    def forward(self, input_ids, **inputs):
        embeds = self.llm.model.embed_tokens(input_ids)
        embeds[input_ids == IMAGE] = torch.cat(self.get_image_features(**inputs).pooler_output)
        return self.llm(inputs_embeds=embeds)


def minicpmv(version):
    return MiniCpmV(MiniCpmVConfig(
        **TEXT | dict(hidden_size=256 if version == 4.5 else 64, hidden_act="silu", rms_norm_eps=1e-6, tie_word_embeddings=False, rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
        version=version, query_num=QUERIES, image_size=32, slice_config=dict(max_slice_nums=SLICES, scale_resolution=32, patch_size=4),
        vision_config=SIGLIP | dict(model_type="siglip_vision_model", image_size=40, patch_size=4)))


MODELS |= {
    "minicpmv4": (lambda: minicpmv(4.0), lambda: MiniCpmVProcessor(patch_size=4, scale_resolution=32, max_slice_nums=SLICES)),
    "minicpmv4_5": (lambda: minicpmv(4.5), lambda: MiniCpmVProcessor(patch_size=4, scale_resolution=32, max_slice_nums=SLICES)),
}
MINICPM_MERGED = {"minicpmv4_6": 16, "minicpmv4_6_4x": 4}
MINICPM = ("minicpmv4", "minicpmv4_5", *MINICPM_MERGED)


def minicpmv4_6(mode):
    return (lambda: transformers.MiniCPMV4_6ForConditionalGeneration(transformers.MiniCPMV4_6Config(
        vision_config=SIGLIP | dict(num_hidden_layers=3, image_size=40, patch_size=4), insert_layer_id=1, image_token_id=IMAGE,
        downsample_mode=mode, text_config=QWEN3_5_TEXT | dict(model_type="qwen3_5_text"))),
        lambda: MiniCPMV4_6ImageProcessorPil(patch_size=4, scale_resolution=32, max_slice_nums=SLICES, downsample_mode=mode))


MODELS |= {
    "minicpmv4_6": minicpmv4_6("16x"),
    "kimi_k25": MODELS["kimi"],
}
KIMI = ("kimi", "kimi_k25")
MODELS |= {
    "minicpmv4_6_4x": minicpmv4_6("4x"),
    "lighton_ocr": (lambda: transformers.LightOnOcrForConditionalGeneration(transformers.LightOnOcrConfig(
        vision_config=PIXTRAL, text_config=dict(model_type="qwen3", **TEXT), spatial_merge_size=2, image_token_id=IMAGE)),
        MODELS["mistral3"][1]),
}
SAM = dict(hidden_size=48, output_channels=24, num_hidden_layers=3, num_attention_heads=3, image_size=64, patch_size=4, window_size=5,
           global_attn_indexes=[1], mlp_dim=80, downsample_channels=[32, 48])
SMALL, LARGE = 9, 16  # queries of a tile and of the whole picture
DEEPSEEK_TEXT = {key: value for key, value in TEXT.items() if key != "head_dim"} | dict(
    n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=48, n_shared_experts=2, n_group=1, topk_group=1,
    mlp_layer_types=["dense", "sparse"], experts_implementation="eager", rope_parameters={"rope_type": "default", "rope_theta": 10000.0})


class SmallVision(deepseek_ocr2.DeepseekOcr2VisionModel):
    """Transformers has 144 and 256 queries, whatever the sizes."""

    def __init__(self, config):
        super().__init__(config)
        width = config.encoder_config.hidden_size
        self.query_768_resolution, self.query_1024_resolution = (torch.nn.Embedding(count, width) for count in (SMALL, LARGE))

    def forward(self, pixel_values, **kwargs):
        states = self.sam_encoder(pixel_values).last_hidden_state.flatten(2).transpose(1, 2)
        queries = (self.query_768_resolution if states.shape[1] <= SMALL else self.query_1024_resolution).weight
        both = torch.cat([states, queries.expand(len(states), -1, -1)], 1)
        found = self.vision_encoder(inputs_embeds=both, num_patches=states.shape[1]).last_hidden_state
        return transformers.modeling_outputs.BaseModelOutput(last_hidden_state=found[:, states.shape[1]:])


deepseek_ocr2.DeepseekOcr2VisionModel = SmallVision


class Clip(torch.nn.Module):
    """The second encoder of DeepSeek-OCR, with the names of its files."""

    class Layer(torch.nn.Module):
        def __init__(self, dim, ffn, heads):
            super().__init__()
            self.heads = heads
            self.layer_norm1, self.layer_norm2 = (torch.nn.LayerNorm(dim, 1e-5) for _ in range(2))
            self.self_attn, self.mlp = torch.nn.Module(), torch.nn.Module()
            self.self_attn.qkv_proj, self.self_attn.out_proj = torch.nn.Linear(dim, 3 * dim), torch.nn.Linear(dim, dim)
            self.mlp.fc1, self.mlp.fc2 = torch.nn.Linear(dim, ffn), torch.nn.Linear(ffn, dim)

        def forward(self, x):
            q, k, v = self.self_attn.qkv_proj(self.layer_norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            found = torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1) @ v
            x = x + self.self_attn.out_proj(found.transpose(1, 2).flatten(2))
            up = self.mlp.fc1(self.layer_norm2(x))
            return x + self.mlp.fc2(up * torch.sigmoid(1.702 * up))

    def __init__(self, dim, side):
        super().__init__()
        self.side = side
        self.embeddings, self.transformer = torch.nn.Module(), torch.nn.Module()
        self.embeddings.class_embedding = torch.nn.Parameter(torch.empty(dim))
        self.embeddings.position_embedding = torch.nn.Embedding(side**2 + 1, dim)
        self.pre_layrnorm = torch.nn.LayerNorm(dim, 1e-5)
        self.transformer.layers = torch.nn.ModuleList(Clip.Layer(dim, 80, 3) for _ in range(2))

    def forward(self, states):
        count, side = states.shape[1], round(states.shape[1] ** 0.5)
        table = self.embeddings.position_embedding.weight
        places = table[1:].T.reshape(1, -1, self.side, self.side)
        if side != self.side:
            places = torch.nn.functional.interpolate(places, size=(side, side), mode="bicubic", antialias=True, align_corners=False)
        x = torch.cat([self.embeddings.class_embedding.expand(len(states), 1, -1), states], 1)
        x = self.pre_layrnorm(x + torch.cat([table[:1], places.reshape(-1, count).T]))
        for layer in self.transformer.layers:
            x = layer(x)
        return x[:, 1:]


class DeepSeekOcrConfig(transformers.DeepseekOcr2Config):
    model_type = "deepseek_vl_v2"


class DeepSeekOcr(transformers.DeepseekOcr2ForConditionalGeneration):
    """DeepSeek-OCR as its authors' code has it: SAM and the language model are those of the second version."""
    config_class = DeepSeekOcrConfig

    def __init__(self, config):
        super().__init__(config)
        sam, width = config.vision_config.sam_config, config.text_config.hidden_size
        del self.model.vision_tower.vision_encoder, self.model.vision_tower.query_768_resolution, self.model.vision_tower.query_1024_resolution
        dim = sam.downsample_channels[1]
        self.model.vision_model = Clip(dim, sam.image_size // sam.patch_size // 4)
        self.model.multi_modal_projector = torch.nn.Linear(2 * dim, width)
        self.model.image_newline = torch.nn.Parameter(torch.empty(width))
        self.model.get_image_features = self.get_image_features

    def encode(self, pixels):
        states = self.model.vision_tower.sam_encoder(pixels).last_hidden_state.flatten(2).transpose(1, 2)
        found = self.model.multi_modal_projector(torch.cat([self.model.vision_model(states), states], -1))
        side = round(found.shape[1] ** 0.5)
        return found.reshape(len(found), side, side, -1)

    def get_image_features(self, pixel_values, pixel_values_local=None, num_local_patches=None, grids=None, return_dict=True, **kwargs):
        ends = lambda grid: torch.cat([grid, self.model.image_newline.expand(len(grid), 1, -1)], 1).flatten(0, 1)
        local = self.encode(pixel_values_local) if pixel_values_local is not None else None
        features, first = [], 0
        for whole, (columns, rows), count in zip(self.encode(pixel_values), self.grids, num_local_patches):
            parts = []
            if count:
                own = local[first : first + count].unflatten(0, (rows, columns))
                parts.append(ends(own.permute(0, 2, 1, 3, 4).flatten(0, 1).flatten(1, 2)))
                first += count
            features.append(torch.cat([*parts, ends(whole), self.model.view_separator[None]]))
        return transformers.modeling_outputs.BaseModelOutputWithPooling(pooler_output=features)


register_checkpoint_conversion_mapping("deepseek_vl_v2", get_checkpoint_conversion_mapping("deepseek_ocr2"))


class DeepSeekOcrProcessor(DeepseekOcr2ImageProcessorPil):
    """That of the authors' code, which uses pillow."""

    def __call__(self, images, return_tensors=None):
        whole, local, counts, grids = [], [], [], []
        values = lambda image: ((np.asarray(image, np.float32) / 255 - 0.5) / 0.5).transpose(2, 0, 1)
        for image in images if isinstance(images, list) else [images]:
            image = image.convert("RGB")
            columns, rows = grid = (1, 1)
            if max(image.size) > self.tile_size:
                sides = sorted({(i, j) for n in range(self.min_patches, self.max_patches + 1) for i in range(1, n + 1)
                                for j in range(1, n + 1) if self.min_patches <= i * j <= self.max_patches}, key=lambda x: x[0] * x[1])
                ratio, closest = image.width / image.height, float("inf")
                for one in sides:
                    off = abs(ratio - one[0] / one[1])
                    if off < closest or off == closest and image.width * image.height > 0.5 * self.tile_size**2 * one[0] * one[1]:
                        closest, grid = off, one
                columns, rows = grid
                side = self.tile_size
                large = image.resize((side * columns, side * rows))
                boxes = [(x * side, y * side, x * side + side, y * side + side) for y in range(rows) for x in range(columns)]
                local += [values(large.crop(box)) for box in boxes]
            whole.append(values(ImageOps.pad(image, (self.size["height"],) * 2, color=(127, 127, 127))))
            counts.append(columns * rows if grid != (1, 1) else 0)
            grids.append(grid)
        found = dict(pixel_values=np.stack(whole), num_local_patches=counts, grids=grids)
        return found | (dict(pixel_values_local=np.stack(local)) if local else {})


def deepseek_vision():
    return dict(sam_config=SAM, encoder_config=dict(hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=3,
                                                    num_key_value_heads=1, rope_parameters={"rope_type": "default", "rope_theta": 1e6}))


def deepseek_processor(kind, tile=48):
    return kind(size={"height": 64, "width": 64}, tile_size=tile, min_patches=2, max_patches=4)


MODELS |= {
    "granite4_vision": (lambda: transformers.Granite4VisionForConditionalGeneration(transformers.Granite4VisionConfig(
        vision_config=dict(SIGLIP, model_type="siglip_vision_model", hidden_size=128, num_attention_heads=2, num_hidden_layers=3, patch_size=4),
        text_config=dict(TEXT, num_hidden_layers=6, embedding_multiplier=3.0, attention_multiplier=0.15, residual_multiplier=0.7, logits_scaling=0.5),
        qformer_config=dict(model_type="blip_2_qformer", num_hidden_layers=1, intermediate_size=96, cross_attention_frequency=1,
                            max_position_embeddings=2048, use_qformer_text_input=False, hidden_size=128),
        image_grid_pinpoints=PINPOINTS, image_token_index=IMAGE, downsample_rate="2/4", vision_feature_select_strategy="full",
        deepstack_layer_map=[[-2, 1], [-1, 0]], spatial_target_layers=[2, 3, 4, 5])), llava_next_processor),
}
DEEPSEEK = ("deepseek_ocr", "deepseek_ocr2")
MODELS |= {
    "deepseek_ocr": (lambda: DeepSeekOcr(DeepSeekOcrConfig(vision_config=deepseek_vision(), text_config=DEEPSEEK_TEXT, image_token_id=IMAGE)),
                     lambda: deepseek_processor(DeepSeekOcrProcessor)),
    "deepseek_ocr2": (lambda: transformers.DeepseekOcr2ForConditionalGeneration(transformers.DeepseekOcr2Config(
        vision_config=deepseek_vision(), text_config=DEEPSEEK_TEXT, image_token_id=IMAGE)),
        lambda: deepseek_processor(DeepseekOcr2ImageProcessorPil)),
}
# These read videos, too.
FILMS = ("qwen2_5_vl", "qwen3_vl")
# Models of embeddings have the last state of a conversation.
EMBEDS = ("qwen3_vl",)
# Only one picture's features are kept.
LONG = ("granite4_vision",)
# Their processors are those of others.
SAME_PROCESSOR = ("gemma4_31b", "gemma4_26b", "minicpmv4_5", "kimi_k25", "lighton_ocr")
GEMMA3, GEMMA4 = ("gemma3", "gemma3_scan"), ("gemma4", "gemma4_31b", "gemma4_26b")
# Transformers writes these names of Kimi otherwise than the files on the hub have them.
KIMI_HUB = {"language_model.model.blocks.": "language_model.model.layers.", ".self_wqkv.": ".self_attn.q_proj.",
            "vision_tower.encoder.patch_embed.": "vision_tower.patch_embed.", "model.mm_projector.": "mm_projector."}


def pictures(out):
    """Pictures of several shapes, without loss."""
    out.mkdir(parents=True, exist_ok=True)
    for name, width, height in (("wide", 61, 37), ("tall", 24, 70), ("square", 33, 33)):
        y, x = np.mgrid[:height, :width].astype(np.float64)
        planes = [128 + 110 * np.sin(x / 5 + y / 9), 255 * ((x // 7 + y // 5) % 2), (x * 255 / width + y * 160 / height) % 256]
        pixels = np.stack(planes, -1).clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(out / f"{name}.png", optimize=True)
    return sorted(out.glob("*.png"))


def spread(model, seed):
    """Random weights under which every part matters."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() == 1:
                centre = 1.0 if any(part in name.lower() for part in ("norm", "ln_", "lambda_")) else 0.0
                if "norm" in name and name.endswith("bias") or "gemma3" in type(model).__name__.lower() and "language" in name:
                    centre = 0.0
                if "soft_emb_norm" in name:
                    centre = 0.0
                p.normal_(centre, 0.15)
            elif "embed_tokens" in name or "lm_head" in name:
                p.normal_(0, 0.5)
            elif "position_embedding" in name or "pos_embed" in name:
                p.normal_(0, 0.4)
            elif "rel_pos" in name:
                p.normal_(0, 0.15)
            else:
                fan = p.shape[0] if "mm_input_projection" in name else p[0].numel()
                # The chain of DeepSeek-OCR 2 is long, and its second encoder has no norm before it.
                p.normal_(0, (1.0 if "vision_encoder" in name else 1.6) / fan**0.5)
        for name, b in model.named_buffers():
            if name.endswith(("input_min", "input_max", "output_min", "output_max")):
                # The first layer's matrices have the limits of what they read in common.
                limit = 1.2 if "layers.0." in name and "input" in name else 0.9 + 0.6 * float(torch.rand(()))
                b.fill_(limit if name.endswith("max") else -0.9 * limit)
            elif "std_scale" in name:
                b.normal_(0.5, 0.1)
            elif "std_bias" in name:
                b.normal_(0, 1)
            elif "layer_scalar" in name:
                b.normal_(0.8, 0.1)
    return model.bfloat16()


def layout(name, processor, inputs):
    """What stands in the prompt for the first picture."""
    if name == "smolvlm":
        own = SimpleNamespace(fake_image_token="<fake_token_around_image>", image_token="<image>", global_image_tag="<global-img>",
                              image_seq_len=(SIGLIP["image_size"] // SIGLIP["patch_size"] // 2) ** 2)
        return Idefics3Processor.replace_image_token(own, inputs, 0)
    if name == "lfm2_vl":
        own = SimpleNamespace(image_start_token="<|image_start|>", image_end_token="<|image_end|>", image_token="<image>",
                              image_thumbnail_token="<|img_thumbnail|>")
        height, width = (int(n) // 16 for n in inputs["image_sizes"][0])
        return Lfm2VlProcessor._build_image_tokens(own, inputs["image_rows"][0], inputs["image_cols"][0], 4, height * width, True, True)
    if name == "internvl":
        return "<img>" + "<IMG_CONTEXT>" * 4 * inputs["num_patches"][0] + "</img>"
    if name in ("pixtral", "mistral3"):
        own = SimpleNamespace(patch_size=4, spatial_merge_size=2 if name == "mistral3" else 1, image_token="[IMG]",
                              image_break_token="[IMG_BREAK]", image_end_token="[IMG_END]")
        return PixtralProcessor.replace_image_token(own, inputs, 0)
    if name in LLAVA_NEXT:
        clip, windows = name == "llava_next", name == "granite4_vision"
        kind = Granite4VisionProcessor if windows else LlavaNextProcessor
        own = kind.__new__(kind)
        own.__dict__ |= dict(image_processor=processor, patch_size=4 if windows else 8, image_token="<image>", downsample_rate="2/4", num_additional_image_tokens=int(clip),
                             vision_feature_select_strategy="default" if clip else "full")
        return own.replace_image_token(inputs, 0)
    if name in GEMMA4:
        return "<|image>" + "<|image|>" * int(inputs["num_soft_tokens_per_image"][0]) + "<image|>"
    if name in MINICPM:
        merges = name in MINICPM_MERGED
        own = SimpleNamespace(image_start_token="<image>", image_end_token="</image>", image_token="<|image_pad|>" if merges else "<unk>",
                              slice_start_token="<slice>", slice_end_token="</slice>", slice_mode=True)
        if merges:
            return MiniCPMV4_6Processor.replace_image_token(own, inputs, 0, image_token_divisor=MINICPM_MERGED[name])
        sizes = np.array([[1, QUERIES]] * inputs["num_patches_per_image"][0])
        return MiniCPMV4_6Processor.replace_image_token(own, inputs | dict(target_sizes=sizes), 0, image_token_divisor=1)
    if name == "deepseek_ocr2":
        own = SimpleNamespace(image_processor=processor, patch_size=4, downsample_ratio=4, image_token="<image>")
        return DeepseekOcr2Processor.replace_image_token(own, inputs, 0)
    if name == "deepseek_ocr":
        (columns, rows), count = inputs["grids"][0], inputs["num_local_patches"][0]
        return "<image>" * ((3 * columns + 1) * 3 * rows * (count > 0) + 5 * 4 + 1)
    if name == "llava":
        own = LlavaProcessor.__new__(LlavaProcessor)
        own.__dict__ |= dict(patch_size=8, image_token="<image>", num_additional_image_tokens=1, vision_feature_select_strategy="default")
        return own.replace_image_token(inputs, 0)
    if name == "gemma3_scan":
        own = SimpleNamespace(full_image_sequence=layout("gemma3", processor, inputs))
        return Gemma3Processor.replace_image_token(own, inputs, 0)
    if name == "gemma3":
        return "\n\n<start_of_image>" + "<image_soft_token>" * 4 + "<end_of_image>\n\n"
    pad = {"kimi": "<|media_pad|>", "kimi_k25": "<|media_pad|>", "paddleocr_vl": "<|IMAGE_PLACEHOLDER|>"}.get(name, "<|image|>" if name in GLM else "<|image_pad|>")
    return pad * int(inputs["image_grid_thw"][0].prod() // 4)


def tiles(name, processor, inputs):
    """The pixels of each tile as bytes, [height, width, 3]."""
    values = inputs["pixel_values"]
    mean, std = (np.array(v, np.float64)[:, None, None] for v in (processor.image_mean, processor.image_std))
    if name in GEMMA4:
        places = inputs["image_position_ids"][0]
        columns, rows = (int(n) + 1 for n in places.max(0))
        flat = np.asarray(values)[0][: rows * columns].reshape(rows, columns, 4, 4, 3)
        found = [flat.transpose(4, 0, 2, 1, 3).reshape(3, rows * 4, columns * 4)]
    elif name in ("paddleocr_vl", *KIMI):
        _, rows, columns = (int(n) for n in inputs["image_grid_thw"][0])
        found = [np.asarray(values).reshape(rows, columns, 3, 4, 4).transpose(2, 0, 3, 1, 4).reshape(3, rows * 4, columns * 4)]
    elif "image_grid_thw" in inputs:
        _, rows, columns = (int(n) for n in inputs["image_grid_thw"][0])
        flat = np.asarray(values).reshape(rows // 2, columns // 2, 2, 2, 3, 2, 4, 4)[:, :, :, :, :, 0]
        found = [flat.transpose(4, 0, 2, 5, 1, 3, 6).reshape(3, rows * 4, columns * 4)]
    elif name in MINICPM:
        found, at = [], 0
        for h, w in inputs["target_sizes"]:
            flat = np.asarray(values)[0, :, :, at : at + 4 * h * w].reshape(3, 4, h, w, 4)
            found.append(flat.transpose(0, 2, 1, 3, 4).reshape(3, 4 * h, 4 * w))
            at += 4 * h * w
    elif name == "lfm2_vl":
        shapes = [[int(n) for n in shape] for shape in inputs["spatial_shapes"]]
        each = [np.asarray(tile)[: h * w].reshape(h, w, 8, 8, 3) for tile, (h, w) in zip(values, shapes)]
        found = [tile.transpose(4, 0, 2, 1, 3).reshape(3, 8 * tile.shape[0], 8 * tile.shape[1]) for tile in each]
    elif name in DEEPSEEK:
        found = [*inputs.get("pixel_values_local", []), *values]
    elif name == "smolvlm" or name in LLAVA_NEXT:
        found = list(np.asarray(values[0]))
    else:
        found = list(np.asarray(values))
    result = []
    for tile in found:
        exact = (np.asarray(tile, np.float64) * std + mean) * 255
        assert np.abs(exact - exact.round()).max() < 0.01
        result.append(np.ascontiguousarray(exact.round().astype(np.uint8).transpose(1, 2, 0)))
    return result


def encoder_inputs(name, inputs):
    """What the encoder of this family takes."""
    tensors = {"pixel_values": torch.as_tensor(np.asarray(inputs["pixel_values"])).float()}
    if "image_grid_thw" in inputs:
        tensors["image_grid_thw"] = torch.as_tensor(np.asarray(inputs["image_grid_thw"]))
    if name in DEEPSEEK:
        tensors["num_local_patches"] = list(map(int, inputs["num_local_patches"]))
        if "pixel_values_local" in inputs:
            tensors["pixel_values_local"] = torch.as_tensor(np.asarray(inputs["pixel_values_local"])).float()
        DeepSeekOcr.grids = inputs.get("grids")
    if name in MINICPM:
        tensors["target_sizes"] = torch.as_tensor(np.asarray(inputs["target_sizes"]))
    if name in GEMMA4:
        tensors["image_position_ids"] = torch.as_tensor(np.asarray(inputs["image_position_ids"]))
    if name == "lfm2_vl":
        tensors |= {key: torch.as_tensor(np.asarray(inputs[key])) for key in ("spatial_shapes", "pixel_attention_mask")}
    if name in ("pixtral", "mistral3", "lighton_ocr", *LLAVA_NEXT):
        tensors["image_sizes"] = torch.as_tensor(np.asarray(inputs["image_sizes"]))
    return tensors


def features_of(name, model, tensors):
    if name == "granite4_vision":
        # The parts in the order of their layers.
        parts = model.model.get_image_features(**tensors, vision_feature_select_strategy="full", return_dict=True).deepstack_features
        return torch.cat([torch.cat(part) for _, part in sorted(parts, key=lambda part: part[0])], -1)
    output = model.get_image_features(**tensors, return_dict=True)
    found = output.pooler_output
    parts = found if isinstance(found, (list, tuple)) else [found]
    first = torch.cat([part.reshape(-1, part.shape[-1]) for part in parts])
    # What early layers of the language model add follows.
    deep = getattr(output, "deepstack_features", None) or []
    return torch.cat([first, *(part if torch.is_tensor(part) else torch.cat(list(part)) for part in deep)], -1)


SIGLIP_NAMES = {"embeddings.patch_embedding": "v.patch_embd", "embeddings.position_embedding": "v.position_embd",
                "post_layernorm": "v.post_ln", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
                "self_attn.out_proj": "attn_out", "layer_norm1": "ln1", "layer_norm2": "ln2", "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down",
                "connector.modality_projection.proj": "mm.model.fc", "mm_input_projection_weight": "mm.input_projection.weight",
                "mm_soft_emb_norm": "mm.soft_emb_norm"}
QWEN_NAMES = {"patch_embed.proj": "v.patch_embd", "norm1": "ln1", "norm2": "ln2", "attn.proj": "attn_out", "mlp.gate_proj": "ffn_gate",
              "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "merger.ln_q": "v.post_ln", "merger.mlp": "mm"}
QWEN3_NAMES = {"patch_embed.proj": "v.patch_embd", "pos_embed": "v.position_embd", "norm1": "ln1", "norm2": "ln2",
               "attn.proj": "attn_out", "mlp.linear_fc1": "ffn_up", "mlp.linear_fc2": "ffn_down", "merger.norm": "v.post_ln",
               "merger.linear_fc1": "mm.0", "merger.linear_fc2": "mm.2"}
PIXTRAL_NAMES = {"patch_conv": "v.patch_embd", "ln_pre": "v.pre_ln", "attention_norm": "ln1", "ffn_norm": "ln2",
                 "attention.q_proj": "attn_q", "attention.k_proj": "attn_k", "attention.v_proj": "attn_v", "attention.o_proj": "attn_out",
                 "feed_forward.gate_proj": "ffn_gate", "feed_forward.up_proj": "ffn_up", "feed_forward.down_proj": "ffn_down",
                 "multi_modal_projector.norm": "mm.input_norm", "patch_merger.merging_layer": "mm.patch_merger",
                 "multi_modal_projector.linear_1": "mm.1", "multi_modal_projector.linear_2": "mm.2"}
LFM2_NAMES = SIGLIP_NAMES | {"multi_modal_projector.layer_norm": "mm.input_norm", "multi_modal_projector.linear_1": "mm.1",
                             "multi_modal_projector.linear_2": "mm.2"}
INTERN_VL_NAMES = {"embeddings.cls_token": "v.class_embd", "embeddings.position_embeddings": "v.position_embd.weight",
                   "patch_embeddings.projection": "v.patch_embd", "layernorm_before": "ln1", "layernorm_after": "ln2",
                   "attention.q_proj": "attn_q", "attention.k_proj": "attn_k", "attention.v_proj": "attn_v",
                   "attention.projection_layer": "attn_out", "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down", "lambda_1": "ls1.weight",
                   "lambda_2": "ls2.weight", "multi_modal_projector.layer_norm": "mm.model.mlp.0",
                   "multi_modal_projector.linear_1": "mm.model.mlp.1", "multi_modal_projector.linear_2": "mm.model.mlp.3"}
LLAVA_NEXT_NAMES = SIGLIP_NAMES | {"embeddings.class_embedding": "v.class_embd", "pre_layrnorm": "v.pre_ln",
                                   "image_newline": "model.image_newline", "multi_modal_projector.linear_1": "mm.0",
                                   "multi_modal_projector.linear_2": "mm.2"}
GEMMA4_NAMES = {"patch_embedder.input_proj": "v.patch_embd", "position_embedding_table": "v.position_embd.weight", "std_bias": "v.std_bias",
                "std_scale": "v.std_scale", "input_layernorm": "ln1", "pre_feedforward_layernorm": "ln2",
                "post_attention_layernorm": "attn_post_norm", "post_feedforward_layernorm": "ffn_post_norm",
                "q_proj.linear": "attn_q", "k_proj.linear": "attn_k", "v_proj.linear": "attn_v", "o_proj.linear": "attn_out",
                "gate_proj.linear": "ffn_gate", "up_proj.linear": "ffn_up", "down_proj.linear": "ffn_down",
                "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_out", "gate_proj": "ffn_gate",
                "up_proj": "ffn_up", "down_proj": "ffn_down", "q_norm": "attn_q_norm", "k_norm": "attn_k_norm",
                "embed_vision.embedding_projection": "mm.input_projection"}
GLM_NAMES = {"patch_embed.proj": "v.patch_embd", "embeddings.position_embedding": "v.position_embd", "post_conv_layernorm": "v.norm_embd",
             "post_layernorm": "v.post_ln", "downsample": "mm.patch_merger", "merger.proj": "mm.model.fc",
             "merger.post_projection_norm": "mm.post_norm", "merger.gate_proj": "mm.gate", "merger.up_proj": "mm.up",
             "merger.down_proj": "mm.down", "norm1": "ln1", "norm2": "ln2", "attn.qkv": "attn_qkv", "attn.proj": "attn_out",
             "attn.q_norm": "attn_q_norm", "attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
             "mlp.down_proj": "ffn_down"}
KIMI_NAMES = {"patch_embed.proj": "v.patch_embd", "pos_emb.position_embeddings": "v.position_embd.weight", "norm1": "ln1", "norm2": "ln2",
              "attn.proj": "attn_out", "attn.q_proj": "attn_q", "attn.k_proj": "attn_k", "attn.v_proj": "attn_v", "mlp.fc1": "ffn_up",
              "mlp.fc2": "ffn_down", "final_layernorm": "v.post_ln", "mm_projector.pre_norm": "mm.input_norm",
              "mm_projector.in_proj": "mm.1", "mm_projector.out_proj": "mm.2"}
MINICPM_NAMES = SIGLIP_NAMES | {"resampler.query": "resampler.query", "resampler.kv_proj": "resampler.kv", "attn.out_proj": "resampler.attn.out",
                                "resampler.ln_q": "resampler.ln_q", "resampler.ln_kv": "resampler.ln_kv", "resampler.ln_post": "resampler.ln_post",
                                "resampler.proj": "resampler.proj.weight"}
MINICPM_V46_NAMES = {"vit_merger.layer_norm1": "v.vit_merger.ln1", "vit_merger.self_attn.q_proj": "v.vit_merger.attn_q",
                     "vit_merger.self_attn.k_proj": "v.vit_merger.attn_k", "vit_merger.self_attn.v_proj": "v.vit_merger.attn_v",
                     "vit_merger.self_attn.out_proj": "v.vit_merger.attn_out", "vit_merger.pre_norm": "v.vit_merger.ds_ln",
                     "vit_merger.linear_1": "v.vit_merger.ds_ffn_up", "vit_merger.linear_2": "v.vit_merger.ds_ffn_down",
                     "merger.mlp.0.pre_norm": "mm.input_norm", "merger.mlp.0.linear_1": "mm.up", "merger.mlp.0.linear_2": "mm.down"} | SIGLIP_NAMES
LIGHT_ON_OCR_NAMES = PIXTRAL_NAMES | {"vision_projection.norm": "mm.input_norm", "vision_projection.linear_1": "mm.1",
                                      "vision_projection.linear_2": "mm.2"}
PADDLE_OCR_NAMES = SIGLIP_NAMES | {"projector.pre_norm": "mm.input_norm", "projector.linear_1": "mm.1", "projector.linear_2": "mm.2"}
# Files of these families do not say how pictures are cut.
DEFAULTS = {"lfm2_vl": lambda: Lfm2VlImageProcessor(encoder_patch_size=8, return_row_col_info=True),
            "kimi": lambda: KimiImageProcessor(patch_size=4, max_patches=4096),
            "minicpmv4_6": lambda: MiniCPMV4_6ImageProcessorPil(patch_size=4, scale_resolution=32),
            "minicpmv4_5": lambda: MiniCpmVProcessor(patch_size=4, scale_resolution=32),
            "deepseek_ocr": lambda: DeepSeekOcrProcessor(size={"height": 64, "width": 64}, tile_size=64, min_patches=2, max_patches=9),
            "deepseek_ocr2": lambda: DeepseekOcr2ImageProcessorPil(size={"height": 64, "width": 64}, tile_size=64),
            "internvl": lambda: GotOcr2ImageProcessorPil(size={"height": 32, "width": 32}, crop_to_patches=True)}
MMPROJ = {"lfm2_vl": ("lfm2", LFM2_NAMES), "internvl": ("internvl", INTERN_VL_NAMES), "smolvlm": ("idefics3", SIGLIP_NAMES), "gemma3": ("gemma3", SIGLIP_NAMES), "qwen2_5_vl": ("qwen2.5vl_merger", QWEN_NAMES),
          "qwen3_vl": ("qwen3vl_merger", QWEN3_NAMES), "gemma4": ("gemma4v", GEMMA4_NAMES),
          "mistral3": ("pixtral", PIXTRAL_NAMES), "llava_next": ("mlp", LLAVA_NEXT_NAMES),
          "paddleocr_vl": ("paddleocr", PADDLE_OCR_NAMES), "glm4v": ("glm4v", GLM_NAMES), "glm_ocr": ("glm4v", GLM_NAMES),
          "granite_vision": ("mlp", LLAVA_NEXT_NAMES), "llava": ("mlp", LLAVA_NEXT_NAMES), "minicpmv4_5": ("resampler", MINICPM_NAMES), "kimi": ("kimivl", KIMI_NAMES),
          "deepseek_ocr": ("deepseekocr", None), "deepseek_ocr2": ("deepseekocr2", None), "granite4_vision": ("granite4_vision", None),
          "lighton_ocr": ("lightonocr", LIGHT_ON_OCR_NAMES), "minicpmv4_6": ("minicpmv4_6", MINICPM_V46_NAMES), "kimi_k25": ("kimik25", KIMI_NAMES)}


def mmproj(name, model, processor, path, seed):
    """Writes the encoder as llama.cpp's converter names it, with other weights, which the model gets, too."""
    kind, names = MMPROJ[name]
    file = Gguf(path, "clip", seed)
    config = model.config.vision_config
    config = SimpleNamespace(**config) if isinstance(config, dict) else config
    qwen = name.startswith("qwen") or name in GLM
    heads = config.num_heads if qwen else config.num_attention_heads
    numbers = {"block_count": config.depth if qwen else config.num_hidden_layers, "embedding_length": config.hidden_size,
               "feed_forward_length": config.intermediate_size, "attention.head_count": heads, "patch_size": config.patch_size,
               "image_size": {"qwen2_5_vl": 560, "qwen3_vl": 24, "glm4v": 24, "kimi": 24, "kimi_k25": 24, "mistral3": PIXTRAL["image_size"], "lighton_ocr": PIXTRAL["image_size"]}.get(name, 32),
               "projection_dim": 64}
    if name == "gemma4":
        numbers |= {"projector.scale_factor": 3, "image_max_pixels": 70 * 12**2}
    if name == "smolvlm":
        numbers |= {"projector.scale_factor": 2, "preproc_image_size": 96}
    if name in ("gemma3", "lfm2_vl", "internvl", "paddleocr_vl", *KIMI):
        numbers |= {"projector.scale_factor": 2}
    if name == "kimi_k25":
        numbers |= {"image_min_pixels": 8 * 16, "image_max_pixels": 100 * 16}
    if name == "minicpmv4_6":
        numbers |= {"projector.scale_factor": 4}
        file.keys.add_array("clip.vision.wa_layer_indexes", [1])
    if name == "internvl":
        numbers["patch_size"] = SIGLIP["patch_size"]
    if name == "qwen2_5_vl":
        numbers |= {"spatial_merge_size": 2, "n_wa_pattern": 2, "image_min_pixels": 64, "image_max_pixels": 1600}
        model.model.visual.window_size = 112
    if name == "paddleocr_vl":
        numbers |= {"image_size": 40, "image_min_pixels": 64, "image_max_pixels": 1600}
    if name in GLM:
        numbers |= {"spatial_merge_size": 2, "image_min_pixels": 64, "image_max_pixels": 1600}
    if name == "qwen3_vl":
        numbers |= {"spatial_merge_size": 2, "image_min_pixels": 64, "image_max_pixels": 1600}
        deep = config.deepstack_visual_indexes
        file.keys.add_array("clip.vision.is_deepstack_layers", [layer in deep for layer in range(config.depth)])
    if name in ("mistral3", "lighton_ocr"):
        numbers |= {"spatial_merge_size": 2}
    if name in LLAVA_NEXT:
        file.keys.add_array("clip.vision.image_grid_pinpoints", sum(PINPOINTS, []))
        file.keys.add_string("clip.vision.mm_patch_merge_type", "spatial_unpad")
        file.keys.add_bool("clip.has_llava_projector", True)
    if name == "granite_vision":
        file.keys.add_array("clip.vision.feature_layer", [1, 3])
    if name == "minicpmv4_5":
        file.keys.add_uint32("clip.minicpmv_query_num", QUERIES)
        file.keys.add_int32("clip.minicpmv_version", 6)
    file.keys.add_bool("clip.has_vision_encoder", True)
    file.keys.add_string("clip.projector_type", kind)
    file.keys.add_bool("clip.use_silu" if name in ("qwen2_5_vl", "mistral3", "lighton_ocr", *GLM) else "clip.use_gelu", name not in ("llava", "llava_next"))
    for key, value in numbers.items():
        file.keys.add_uint32(f"clip.vision.{key}", value)
    file.keys.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-5 if name in ("mistral3", "lighton_ocr", "llava", "llava_next", *KIMI, *GLM) else 1e-6)
    file.keys.add_array("clip.vision.image_mean", list(map(float, processor.image_mean)))
    file.keys.add_array("clip.vision.image_std", list(map(float, processor.image_std)))

    def stored(own, value, change=lambda v: v, back=lambda v: v):
        value = np.asarray(value, np.float32)
        put = file.put(own, change(value), "F32" if value.ndim <= 1 or "position" in own else "F16")
        return torch.from_numpy(np.ascontiguousarray(back(put)))

    swap = lambda v, a, b: v.reshape(heads, a, b, -1).swapaxes(1, 2).reshape(v.shape)
    fused = {}

    def fuse(own, part, p):
        """Kimi K2.5: the pairs of queries and keys that turn by the column come first, and all three are one tensor."""
        parts = fused.setdefault(own, {})
        parts[part] = p
        if len(parts) < 3:
            return
        half = len(p) // heads // 2
        sort = lambda v, a, b: v.reshape(heads, a, b, 2, -1).swapaxes(1, 2).reshape(v.shape)
        change = lambda v: sort(swap(v, 2, half), half // 2, 2)
        back = lambda v: swap(sort(v, 2, half // 2), half, 2)
        all_of = lambda change, q, k, v: np.concatenate([change(q), change(k), v])
        put = stored(own, all_of(change, *(parts[part].float().numpy() for part in "qkv")), back=lambda v: all_of(back, *np.split(v, 3)))
        for part, value in zip("qkv", put.split(len(put) // 3)):
            parts[part].copy_(value)

    with torch.no_grad():
        of_tower = [(key, b) for key, b in model.named_buffers() if key.endswith(("_min", "_max")) or ".std_" in key]
        for key, p in [*model.named_parameters(), *of_tower]:
            match = re.search(r"(?:layers?|blocks)\.(\d+)\.", key)
            layer = f"v.blk.{match[1]}." if match else ""
            value = p.float().numpy()
            if "language_model" in key or "text_model" in key or ".head." in key or key.startswith(("lm_head", "llm.")):
                continue
            if name in ("llava", *LLAVA_NEXT) and "post_layernorm" in key:
                continue
            if ".attn.qkv." in key and name not in GLM:
                end = key.rsplit(".", 1)[1]
                parts = [stored(f"{layer}attn_{part}.{end}", v) for part, v in zip("qkv", np.split(value, 3))]
                p.copy_(torch.cat(parts))
                continue
            if ".attn.in_proj_" in key:
                end = key.rsplit("_", 1)[1]
                p.copy_(torch.cat([stored(f"resampler.attn.{part}.{end}", v) for part, v in zip("qkv", np.split(value, 3))]))
                continue
            if "deepstack_merger_list" in key:
                number, part, end = key.split("deepstack_merger_list.")[1].replace("linear_", "").split(".")
                p.copy_(stored(f"v.deepstack.{deep[int(number)]}.{part}.{end}", value))
                continue
            found = re.search(r"attn\.([qkv])_proj\.(.*)", key)
            if name == "kimi_k25" and found:
                fuse(f"{layer}attn_qkv.{found[2]}", found[1], p)
                continue
            old, new = next((old, new) for old, new in names.items() if old in key)
            own = layer + new + key[key.index(old) + len(old) :]
            if "patch_embed.proj.weight" in key and name not in KIMI:
                frames = [stored(own + end, value[:, :, i]) for i, end in enumerate(("", ".1"))]
                p.copy_(torch.stack(frames, 2))
            elif name == "kimi_k25" and "position_embeddings" in key:
                p.copy_(stored(own, value, lambda v: v.reshape(6, 6, -1)).reshape(p.shape))
            elif name == "kimi" and "position_embeddings" in key:
                p.copy_(stored(own, value, lambda v: v.reshape(-1, v.shape[-1])).reshape(p.shape))
            elif "position_embeddings" in key:
                p.copy_(stored(own, value, lambda v: v[0], lambda v: v[None]))
            elif "cls_token" in key:
                p.copy_(stored(own, value.reshape(-1)).reshape(p.shape))
            elif name in ("lfm2_vl", "gemma4") and own == "v.patch_embd.weight":
                n, side = value.shape[0], config.patch_size
                p.copy_(stored(own, value, lambda v: v.reshape(n, side, side, 3).transpose(0, 3, 1, 2),
                               lambda v: v.transpose(0, 2, 3, 1).reshape(n, -1)))
            elif key == "resampler.proj":
                p.copy_(stored(own, value, np.transpose, np.transpose))
            elif "soft_emb_norm" in key:
                p.copy_(stored(own, value, lambda v: v + 1, lambda v: v - 1))
            elif name in ("mistral3", "lighton_ocr", "kimi") and ("q_proj" in key or "k_proj" in key):
                # Rotated pairs become neighbours.
                half = value.shape[0] // heads // 2
                p.copy_(stored(own, value, lambda v: swap(v, 2, half), lambda v: swap(v, half, 2)))
            else:
                p.copy_(stored(own, value).reshape(p.shape))
    file.finish()


SAM_NAMES = {"sam_encoder.patch_embed.projection": "sam.patch_embd", "sam_encoder.pos_embed": "sam.pos_embd.weight", "layer_norm1": "pre_ln",
             "layer_norm2": "post_ln", "attn.qkv": "attn.qkv", "attn.proj": "attn.out", "attn.rel_pos_h": "attn.pos_h.weight",
             "attn.rel_pos_w": "attn.pos_w.weight", "mlp.lin1": "mlp.lin1", "mlp.lin2": "mlp.lin2", "neck.conv1": "sam.neck.0",
             "neck.layer_norm1": "sam.neck.1", "neck.conv2": "sam.neck.2", "neck.layer_norm2": "sam.neck.3", "proj.conv1": "sam.net_2",
             "proj.conv2": "sam.net_3"}
OCR_NAMES = {"embeddings.class_embedding": "v.class_embd", "embeddings.position_embedding": "v.position_embd", "pre_layrnorm": "v.pre_ln",
             "layer_norm1": "ln1", "layer_norm2": "ln2", "self_attn.qkv_proj": "attn_qkv", "self_attn.out_proj": "attn_out",
             "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down", "input_layernorm": "ln1", "post_attention_layernorm": "ln2",
             "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_out",
             "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "vision_encoder.norm": "v.post_ln",
             "query_768_resolution": "v.resample_query_768", "query_1024_resolution": "v.resample_query_1024",
             "multi_modal_projector": "mm.model.fc", "image_newline": "v.image_newline", "view_separator": "v.view_seperator"}


def mmproj_of_sam(name, model, processor, path, seed):
    """The same for encoders that begin with SAM."""
    file = Gguf(path, "clip", seed)
    file.keys.add_bool("clip.has_vision_encoder", True)
    file.keys.add_string("clip.projector_type", name.replace("_", ""))
    numbers = {"block_count": 2, "embedding_length": 48, "feed_forward_length": 80, "attention.head_count": 3, "patch_size": 4, "image_size": 64,
               "projection_dim": 64, "window_size": 5, "sam.block_count": 3, "sam.embedding_length": 48, "sam.head_count": 3}
    for key, value in numbers.items():
        file.keys.add_uint32(f"clip.vision.{key}", value)
    file.keys.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    file.keys.add_bool("clip.use_gelu", True)
    with torch.no_grad():
        for key, p in model.named_parameters():
            if "language_model" in key or key.startswith("lm_head"):
                continue
            match = re.search(r"layers\.(\d+)\.", key)
            sam = "sam_encoder" in key
            names = SAM_NAMES if sam else OCR_NAMES
            old, new = next((old, new) for old, new in names.items() if old in key and (match or "layer_norm" not in old or "neck" in old))
            if match:
                new = ("v.sam.blk." if sam else "v.blk.") + f"{match[1]}." + new
            elif sam:
                new = "v." + new
            plain = any(part in key for part in ("pos_embed", "rel_pos", "neck", "proj.conv", "embeddings")) or p.dim() == 1
            value = p.float().numpy()
            shape = (1, -1) if "separator" in key else value.shape
            put = file.put(new + key[key.index(old) + len(old) :], value.reshape(shape), "F32" if plain else "F16")
            p.copy_(torch.from_numpy(np.ascontiguousarray(put)).reshape(p.shape))
    file.finish()


GRANITE4_NAMES = {"crossattention.attention.query": "cross_attn_q", "crossattention.attention.key": "cross_attn_k",
                  "crossattention.attention.value": "cross_attn_v", "crossattention.output.dense": "cross_attn_out",
                  "crossattention.output.LayerNorm": "cross_attn_norm", "attention.attention.query": "self_attn_q",
                  "attention.attention.key": "self_attn_k", "attention.attention.value": "self_attn_v",
                  "attention.output.dense": "self_attn_out", "attention.output.LayerNorm": "self_attn_norm",
                  "intermediate_query.dense": "ffn_up", "output_query.dense": "ffn_down", "output_query.LayerNorm": "ffn_norm",
                  "qformer.layernorm": "post_norm", "image_positions": "img_pos", "out_linear": "linear", "query": "query", "norm": "norm"}


def mmproj_of_granite4(name, model, processor, path, seed):
    """The same for Granite Vision 4, whose projectors have the order of the layers that they are added before."""
    file, config = Gguf(path, "clip", seed), model.config
    vision, count = config.vision_config, config.vision_config.num_hidden_layers
    projectors = [(before, after % count, -1, f"layerwise_projectors.{i}.") for i, (after, before) in enumerate(config.deepstack_layer_map)]
    projectors += [(before, config.spatial_vision_layer % count, i, f"spatial_projectors.{i}.") for i, before in enumerate(config.spatial_target_layers)]
    projectors.sort()
    file.keys.add_bool("clip.has_vision_encoder", True)
    file.keys.add_string("clip.projector_type", name)
    file.keys.add_bool("clip.use_gelu", True)
    numbers = {"block_count": count, "embedding_length": vision.hidden_size, "feed_forward_length": vision.intermediate_size,
               "attention.head_count": vision.num_attention_heads, "patch_size": vision.patch_size, "image_size": 32, "projection_dim": 64,
               "preproc_image_size": 32, "projector.query_side": 2, "projector.window_side": 4}
    for key, value in numbers.items():
        file.keys.add_uint32(f"clip.vision.{key}", value)
    file.keys.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    file.keys.add_array("clip.vision.image_mean", list(map(float, processor.image_mean)))
    file.keys.add_array("clip.vision.image_std", list(map(float, processor.image_std)))
    file.keys.add_array("clip.vision.feature_layer", [after for _, after, *_ in projectors])
    file.keys.add_array("clip.vision.projector.spatial_offsets", [offset for *_, offset, _ in projectors])
    # Widths come first.
    file.keys.add_array("clip.vision.image_grid_pinpoints", [side for pair in PINPOINTS for side in reversed(pair)])
    with torch.no_grad():
        for key, p in model.named_parameters():
            if "language_model" in key or key.startswith("lm_head") or "vision_tower.head" in key or "post_layernorm" in key:
                continue
            number = next((i for i, own in enumerate(projectors) if own[-1] in key), None)
            match = re.search(r"layers\.(\d+)\.", key)
            names = LLAVA_NEXT_NAMES if number is None else GRANITE4_NAMES
            own = key if number is None else key.split(projectors[number][-1])[1]
            old, new = next((old, new) for old, new in names.items() if old in own)
            place = f"v.proj_blk.{number}." if number is not None else f"v.blk.{match[1]}." if match else ""
            plain = p.dim() == 1 or "position_embedding" in key
            put = file.put(place + new + own[own.index(old) + len(old) :], p.float().numpy(), "F32" if plain else "F16")
            p.copy_(torch.from_numpy(np.ascontiguousarray(put)).reshape(p.shape))
    file.finish()


def tiles_of(inputs, number):
    """How many tiles LFM2-VL makes of a picture."""
    count = inputs["image_rows"][number] * inputs["image_cols"][number]
    return count + (count > 1)


def conversation(name, files, inputs, counts, random):
    """A prompt with two pictures: tokens, and a list of its parts as the index keeps them. Every text within a picture's layout becomes
    two tokens."""
    words = lambda n: [int(token) for token in random.integers(10, VOCAB, n)]
    tokens, parts = [], []

    def say(n):
        parts.append({"tokens": words(n)})
        tokens.extend(parts[-1]["tokens"])

    def show(n):
        tokens.extend([IMAGE] * n)

    for number, (file, count) in enumerate(zip(files, counts)):
        say(6)
        part = {"picture": file.name, "marks": []}
        parts.append(part)

        def mark():
            part["marks"].append(words(2))
            tokens.extend(part["marks"][-1])

        if name == "smolvlm":
            for _ in range(count // 4):
                mark()
                show(4)
            mark()
        elif name == "lfm2_vl":
            shapes, left = inputs["spatial_shapes"], count
            start = sum(tiles_of(inputs, i) for i in range(number))
            for h, w in shapes[start : start + tiles_of(inputs, number)]:
                mark()
                show(int(h) * int(w) // 4)
                left -= int(h) * int(w) // 4
            assert left == 0
            mark()
        elif name == "internvl":
            mark()
            show(count)
            mark()
        elif name in ("pixtral", "mistral3"):
            height, width = (int(n) // (8 if name == "mistral3" else 4) for n in inputs["image_sizes"][number])
            for _ in range(height):
                show(width)
                mark()
        elif name in MINICPM_MERGED:
            ends = np.cumsum(inputs["num_patches_per_image"])
            for h, w in inputs["target_sizes"][ends[number] - inputs["num_patches_per_image"][number] : ends[number]]:
                mark()
                show(int(h * w) // MINICPM_MERGED[name])
            mark()
        elif name in MINICPM:
            for _ in range(count // QUERIES):
                mark()
                show(QUERIES)
            mark()
        elif name in GEMMA3:
            for _ in range(count // 4):
                mark()
                show(4)
            mark()
        elif name in GEMMA4:
            mark()
            show(count)
            mark()
        else:
            show(count)
    say(9)
    return tokens, parts


def logits_of(name, model, processor, files, counts, random):
    images = [Image.open(file) for file in files]
    inputs = processor([images] if name == "smolvlm" else images, return_tensors="np")
    tokens, parts = conversation(name, files, inputs, counts, random)
    more = encoder_inputs(name, inputs)
    if name == "smolvlm":
        more["pixel_attention_mask"] = torch.as_tensor(np.asarray(inputs["pixel_attention_mask"]))
    kinds = torch.tensor([[int(token == IMAGE) for token in tokens]])
    if name in GEMMA4:
        more["mm_token_type_ids"] = kinds
    if name in GEMMA3:
        more["token_type_ids"] = kinds
    if name.startswith("qwen") or name in ("paddleocr_vl", *GLM):
        more["mm_token_type_ids"] = kinds
    inputs = dict(input_ids=torch.tensor([tokens]), **more)
    found = model(**inputs).logits[0, -KEPT:].float().numpy()
    # Granite's language model has a factor of the logits, which LlavaNext leaves out around it.
    if name != "granite4_vision":
        found = found / getattr(model.config.get_text_config(), "logits_scaling", 1.0)
    assert np.isfinite(found).all() and found.std() > 0.8, (name, found.std())
    vector = model.model(**inputs).last_hidden_state[0, -1] if name in EMBEDS else None
    return parts, found, vector


def video(name, model, processor, data, random):
    """A conversation with a video of three frames, of which two become a picture: its parts, its features and the logits. Frames are resized
    as pictures are, since pillow and torchvision differ by a byte at times."""
    moved = data / "pictures/video/moved.png"
    if not moved.exists():
        moved.parent.mkdir(exist_ok=True)
        frame = np.asarray(Image.open(data / "pictures/wide.png"))
        Image.fromarray(np.roll(frame, 5, 1)).save(moved, optimize=True)
    names = ["wide.png", "video/moved.png", "wide.png"]
    inputs = [processor(Image.open(data / "pictures" / one), return_tensors="np") for one in names]
    frames = [np.asarray(one["pixel_values"]).reshape(-1, 3, 2, 16)[:, :, 0] for one in inputs]
    pairs = [np.stack(pair, 2) for pair in ((frames[0], frames[1]), (frames[2], frames[2]))]
    values = torch.from_numpy(np.concatenate(pairs)).reshape(2 * len(frames[0]), -1).float()
    grid = torch.tensor([[2, *(int(n) for n in inputs[0]["image_grid_thw"][0][1:])]])
    output = model.get_video_features(values, video_grid_thw=grid, return_dict=True)
    deep = getattr(output, "deepstack_features", None) or []
    features = torch.cat([torch.cat(list(part)) if not torch.is_tensor(part) else part for part in (output.pooler_output, *deep)], -1)
    words = lambda n: [int(token) for token in random.integers(10, VOCAB, n)]
    # Qwen3-VL tells the time before each picture; Qwen2.5-VL has one for all frames, with steps of time.
    seconds, count = 0.25, len(features) // 2
    clips = [names[:2], names[2:]] if name == "qwen3_vl" else [names]
    parts, tokens, kinds = [], [], []
    for clip in clips:
        parts += [{"tokens": words(6)}, {"clip": clip, "seconds": seconds}]
        own = count * 2 // len(clips)
        tokens += parts[-2]["tokens"] + [VIDEO] * own
        kinds += [0] * 6 + [2] * own
    parts.append({"tokens": words(9)})
    tokens, kinds = tokens + parts[-1]["tokens"], kinds + [0] * 9
    more = {} if name == "qwen3_vl" else {"second_per_grid_ts": torch.tensor([seconds])}
    model.config.video_token_id = VIDEO
    logits = model(input_ids=torch.tensor([tokens]), pixel_values_videos=values, video_grid_thw=grid,
                   mm_token_type_ids=torch.tensor([kinds]), **more).logits[0, -KEPT:].float().numpy()
    return parts, features.numpy(), logits


def main():
    torch.set_num_threads(1)
    out, data = map(Path, sys.argv[1:3])
    wanted = sys.argv[3:] or list(MODELS)
    files = pictures(data / "pictures")
    (out / "vision").mkdir(exist_ok=True)
    processed, models = [], []
    for number, (name, (make, make_processor)) in enumerate(MODELS.items()):
        if name not in wanted:
            continue
        folder = out / f"vision/{name}/hf"
        folder.parent.mkdir(exist_ok=True)
        processor = make_processor()
        model = spread(make(), 40 + number)

        def settings(folder):
            processor.save_pretrained(folder)
            if name in KIMI:
                file, kept = folder / "model.safetensors", {}
                for key, tensor in load_file(file).items():
                    for old, new in KIMI_HUB.items():
                        key = key.replace(old, new)
                    kept[key] = tensor
                save_file(kept, file, {"format": "pt"})
            if name == "qwen3_vl_moe":
                # Transformers 5 does not write experts transposed, as the files on the hub are. The golden has a layer of each kind.
                file = folder / "model.safetensors"
                swap = lambda key, t: t.transpose(1, 2).contiguous() if ".layers.0.mlp.experts." in key else t
                save_file({key: swap(key, t) for key, t in load_file(file).items()}, file, {"format": "pt"})

        model = directory(model, folder, 40 + number, settings)
        if name == "deepseek_ocr":
            # As the authors' file has it.
            config = json.loads((folder / "config.json").read_text())
            config |= {"language_config": config.pop("text_config") | {"use_mla": False, "first_k_dense_replace": 1}, "architectures": ["DeepseekOCRForCausalLM"]}
            del config["language_config"]["mlp_layer_types"], config["language_config"]["model_type"]
            config["vision_config"] = {"image_size": 64, "width": {"clip-l-14-224": {"heads": 3}, "sam_vit_b": {"heads": 3}}}
            (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        entry, counts = {"name": name, "path": f"vision/{name}/hf", "pictures": []}, {}
        for file in files:
            image = Image.open(file)
            extra = {"return_row_col_info": True} if name == "smolvlm" else {}
            inputs = processor([[image]] if name == "smolvlm" else image, return_tensors="np", **extra)
            pixels = tiles(name, processor, inputs)
            if name not in SAME_PROCESSOR:
                bytes_file = f"{name}-{file.stem}.rgb"
                (data / bytes_file).write_bytes(b"".join(tile.tobytes() for tile in pixels))
                processed.append({"model": name, "picture": file.name, "tiles": [list(tile.shape[:2]) for tile in pixels],
                                  "pixels": bytes_file, "layout": layout(name, processor, inputs)})
            with torch.no_grad():
                features = features_of(name, model, encoder_inputs(name, inputs)).numpy()
            assert np.isfinite(features).all() and features.std() > 0.1, (name, features.std())
            features_file = f"vision/{name}/{file.stem}.f32"
            counts[file.name] = len(features)
            if name in LONG and file.stem != "tall":
                continue
            np.ascontiguousarray(features, "<f4").tofile(out / features_file)
            print(name, file.stem, features.shape, f"std {features.std():.2f}", [tile.shape for tile in pixels])
            entry["pictures"].append({"picture": file.name, "features": features_file, "count": len(features)})
        shown = [files[2], files[1]]
        with torch.no_grad():
            random = np.random.default_rng(60 + number)
            parts, found, vector = logits_of(name, model, processor, shown, [counts[file.name] for file in shown], random)
        np.ascontiguousarray(found, "<f4").tofile(out / f"vision/{name}/logits.f32")
        print(name, "logits", found.shape, f"std {found.std():.2f}")
        entry |= {"parts": parts, "logits": f"vision/{name}/logits.f32"}
        if name in FILMS:
            with torch.no_grad():
                parts, features, found = video(name, model, processor, data, np.random.default_rng(90 + number))
            for kind, values in (("video", features), ("video-logits", found)):
                np.ascontiguousarray(values, "<f4").tofile(out / f"vision/{name}/{kind}.f32")
            print(name, "video", features.shape, f"std {features.std():.2f}, of the logits {found.std():.2f}")
            entry["video"] = {"parts": parts, "features": f"vision/{name}/video.f32", "logits": f"vision/{name}/video-logits.f32"}
        if vector is not None:
            np.ascontiguousarray(vector / vector.norm(), "<f4").tofile(out / f"vision/{name}/vector.f32")
            entry |= {"vector": f"vision/{name}/vector.f32"}
        if name in MMPROJ:
            path = out / f"vision/{name}/mmproj.gguf"
            write = mmproj_of_sam if name in DEEPSEEK else mmproj_of_granite4 if name == "granite4_vision" else mmproj
            write(name, model, processor, path, 80 + number)
            image = Image.open(files[2])
            processor = DEFAULTS[name]() if name in DEFAULTS else processor
            inputs = processor([[image]] if name == "smolvlm" else image, return_tensors="np")
            with torch.no_grad():
                features = features_of(name, model, encoder_inputs(name, inputs)).numpy()
            features_file = f"vision/{name}/mmproj.f32"
            np.ascontiguousarray(features, "<f4").tofile(out / features_file)
            print(name, "mmproj", features.shape, f"std {features.std():.2f}")
            one = {"picture": files[2].name, "features": features_file, "count": len(features)}
            entry["mmproj"] = {"path": f"vision/{name}/mmproj.gguf", "pictures": [one]}
            if name in FILMS:
                with torch.no_grad():
                    features = video(name, model, processor, data, np.random.default_rng(0))[1]
                np.ascontiguousarray(features, "<f4").tofile(out / f"vision/{name}/mmproj-video.f32")
                entry["mmproj"]["video"] = {"parts": entry["video"]["parts"], "features": f"vision/{name}/mmproj-video.f32"}
        models.append(entry)
    lines = lambda entries: "[\n" + ",\n".join(json.dumps(e) for e in entries) + "\n]\n"
    for path, key, made in ((data / "processors.json", "model", processed), (out / "vision.json", "name", models)):
        kept = json.loads(path.read_text()) if path.exists() else []
        path.write_text(lines([entry for entry in kept if entry[key] not in wanted] + made))


if __name__ == "__main__":
    main()
