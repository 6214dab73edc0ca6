//! The names of an encoder's tensors.

use welte_formats::Checkpoint;

/// Names of tensors without `.weight` and `.bias`. Those of the encoder follow a prefix. An empty name: there is none.
pub(super) struct VisionNames {
    pub(super) patch: &'static str,
    pub(super) position: &'static str,
    /// The vector of the class; a full name.
    pub(super) class: &'static str,
    pub(super) first_norm: &'static str,
    pub(super) norm1: &'static str,
    pub(super) norm2: &'static str,
    pub(super) qkv: &'static str,
    pub(super) q: &'static str,
    pub(super) k: &'static str,
    /// Norms of a head's queries and keys.
    pub(super) head_norms: [&'static str; 2],
    /// Norms of what attention and feed-forward parts add.
    pub(super) post_norms: [&'static str; 2],
    /// Norms of what heads find, and of what is between the matrices of a feed-forward part.
    pub(super) inner_norms: [&'static str; 2],
    /// Biases of queries, keys and values, where they have names of their own; full names.
    pub(super) qkv_biases: [&'static str; 3],
    pub(super) v: &'static str,
    pub(super) o: &'static str,
    pub(super) gate: &'static str,
    pub(super) up: &'static str,
    pub(super) down: &'static str,
    /// What scores add by distance of lines and of columns; full names but for `.weight` in GGUF files.
    pub(super) distances: [&'static str; 2],
    /// Factors of what attention and feed-forward parts add; full names.
    pub(super) scales: [&'static str; 2],
    pub(super) last_norm: &'static str,
    /// Those of the attention of neighbours: a norm, queries, keys, values and the output.
    pub(super) window: [&'static str; 5],
    /// What is subtracted from features before the projector, and what they are multiplied by then; full names.
    pub(super) standard: [&'static str; 2],
    /// Those of the projector have prefixes of their own.
    pub(super) projector_norm: &'static str,
    pub(super) merging: &'static str,
    pub(super) linear1: &'static str,
    pub(super) linear2: &'static str,
    /// The gate and the other matrix before the second one, where they are gated.
    pub(super) gated: [&'static str; 2],
    /// Those of what makes further parts of features: a norm and two matrices.
    pub(super) deep: [&'static str; 3],
    /// Those of queries.
    pub(super) queries: QueryNames,
}

/// Names of what queries need, with the prefixes of their own.
pub(super) struct QueryNames {
    /// The sets of queries; full names.
    pub(super) queries: &'static [&'static str],
    /// What keys and values are made of.
    pub(super) kv: &'static str,
    /// Norms of queries, of keys and values, and of what they make.
    pub(super) norms: [&'static str; 3],
    /// The matrices of queries, keys and values, and their biases; full names. One name: a tensor of all three.
    pub(super) qkv: &'static [&'static str],
    pub(super) qkv_bias: &'static [&'static str],
    pub(super) o: &'static str,
}

const NO_QUERIES: QueryNames = QueryNames {
    queries: &[],
    kv: "",
    norms: ["", "", ""],
    qkv: &[],
    qkv_bias: &[],
    o: "",
};

pub(super) const SIGLIP: VisionNames = VisionNames {
    patch: "embeddings.patch_embedding",
    position: "embeddings.position_embedding",
    class: "",
    first_norm: "",
    norm1: "encoder.layers.{}.layer_norm1",
    norm2: "encoder.layers.{}.layer_norm2",
    qkv: "",
    q: "encoder.layers.{}.self_attn.q_proj",
    k: "encoder.layers.{}.self_attn.k_proj",
    head_norms: ["", ""],
    post_norms: ["", ""],
    inner_norms: ["", ""],
    qkv_biases: ["", "", ""],
    v: "encoder.layers.{}.self_attn.v_proj",
    o: "encoder.layers.{}.self_attn.out_proj",
    gate: "",
    up: "encoder.layers.{}.mlp.fc1",
    down: "encoder.layers.{}.mlp.fc2",
    distances: ["", ""],
    scales: ["", ""],
    last_norm: "post_layernorm",
    window: [""; 5],
    standard: ["", ""],
    projector_norm: "",
    merging: "",
    linear1: "connector.modality_projection.proj",
    linear2: "",
    gated: ["", ""],
    deep: ["", "", ""],
    queries: NO_QUERIES,
};

pub(super) const GEMMA3: VisionNames = VisionNames {
    projector_norm: "multi_modal_projector.mm_soft_emb_norm",
    linear1: "multi_modal_projector.mm_input_projection_weight",
    ..SIGLIP
};

pub(super) const GEMMA4: VisionNames = VisionNames {
    patch: "patch_embedder.input_proj",
    position: "patch_embedder.position_embedding_table",
    norm1: "encoder.layers.{}.input_layernorm",
    norm2: "encoder.layers.{}.pre_feedforward_layernorm",
    q: "encoder.layers.{}.self_attn.q_proj.linear",
    k: "encoder.layers.{}.self_attn.k_proj.linear",
    head_norms: [
        "encoder.layers.{}.self_attn.q_norm",
        "encoder.layers.{}.self_attn.k_norm",
    ],
    post_norms: [
        "encoder.layers.{}.post_attention_layernorm",
        "encoder.layers.{}.post_feedforward_layernorm",
    ],
    v: "encoder.layers.{}.self_attn.v_proj.linear",
    o: "encoder.layers.{}.self_attn.o_proj.linear",
    gate: "encoder.layers.{}.mlp.gate_proj.linear",
    up: "encoder.layers.{}.mlp.up_proj.linear",
    down: "encoder.layers.{}.mlp.down_proj.linear",
    last_norm: "",
    standard: ["std_bias", "std_scale"],
    linear1: "embed_vision.embedding_projection",
    ..SIGLIP
};

pub(super) const QWEN2_5: VisionNames = VisionNames {
    patch: "patch_embed.proj",
    position: "",
    norm1: "blocks.{}.norm1",
    norm2: "blocks.{}.norm2",
    qkv: "blocks.{}.attn.qkv",
    o: "blocks.{}.attn.proj",
    gate: "blocks.{}.mlp.gate_proj",
    up: "blocks.{}.mlp.up_proj",
    down: "blocks.{}.mlp.down_proj",
    last_norm: "merger.ln_q",
    linear1: "visual.merger.mlp.0",
    linear2: "visual.merger.mlp.2",
    ..SIGLIP
};

pub(super) const QWEN2: VisionNames = VisionNames {
    gate: "",
    up: "blocks.{}.mlp.fc1",
    down: "blocks.{}.mlp.fc2",
    ..QWEN2_5
};

pub(super) const QWEN3: VisionNames = VisionNames {
    position: "pos_embed",
    up: "blocks.{}.mlp.linear_fc1",
    down: "blocks.{}.mlp.linear_fc2",
    last_norm: "merger.norm",
    linear1: "visual.merger.linear_fc1",
    linear2: "visual.merger.linear_fc2",
    deep: [
        "deepstack_merger_list.{}.norm",
        "deepstack_merger_list.{}.linear_fc1",
        "deepstack_merger_list.{}.linear_fc2",
    ],
    ..QWEN2
};

pub(super) const GLM: VisionNames = VisionNames {
    position: "embeddings.position_embedding",
    first_norm: "post_conv_layernorm",
    head_norms: ["blocks.{}.attn.q_norm", "blocks.{}.attn.k_norm"],
    last_norm: "post_layernorm",
    merging: "visual.downsample",
    projector_norm: "visual.merger.post_projection_norm",
    linear1: "visual.merger.proj",
    gated: ["visual.merger.gate_proj", "visual.merger.up_proj"],
    linear2: "visual.merger.down_proj",
    ..QWEN2_5
};

pub(super) const KIMI_VL: VisionNames = VisionNames {
    patch: "patch_embed.proj",
    position: "patch_embed.pos_emb",
    norm1: "encoder.blocks.{}.norm0",
    norm2: "encoder.blocks.{}.norm1",
    qkv: "encoder.blocks.{}.wqkv",
    o: "encoder.blocks.{}.wo",
    up: "encoder.blocks.{}.mlp.fc0",
    down: "encoder.blocks.{}.mlp.fc1",
    last_norm: "encoder.final_layernorm",
    projector_norm: "multi_modal_projector.pre_norm",
    linear1: "multi_modal_projector.linear_1",
    linear2: "multi_modal_projector.linear_2",
    ..SIGLIP
};

/// Kimi K2.5 calls the projector differently.
pub(super) const KIMI: VisionNames = VisionNames {
    projector_norm: "mm_projector.pre_norm",
    linear1: "mm_projector.proj.0",
    linear2: "mm_projector.proj.2",
    ..KIMI_VL
};

pub(super) const PIXTRAL: VisionNames = VisionNames {
    patch: "patch_conv",
    position: "",
    first_norm: "ln_pre",
    norm1: "transformer.layers.{}.attention_norm",
    norm2: "transformer.layers.{}.ffn_norm",
    q: "transformer.layers.{}.attention.q_proj",
    k: "transformer.layers.{}.attention.k_proj",
    v: "transformer.layers.{}.attention.v_proj",
    o: "transformer.layers.{}.attention.o_proj",
    gate: "transformer.layers.{}.feed_forward.gate_proj",
    up: "transformer.layers.{}.feed_forward.up_proj",
    down: "transformer.layers.{}.feed_forward.down_proj",
    last_norm: "",
    linear1: "multi_modal_projector.linear_1",
    linear2: "multi_modal_projector.linear_2",
    ..SIGLIP
};

pub(super) const MISTRAL3: VisionNames = VisionNames {
    projector_norm: "multi_modal_projector.norm",
    merging: "multi_modal_projector.patch_merger.merging_layer",
    ..PIXTRAL
};

pub(super) const LIGHT_ON_OCR: VisionNames = VisionNames {
    projector_norm: "vision_projection.norm",
    merging: "vision_projection.patch_merger.merging_layer",
    linear1: "vision_projection.linear_1",
    linear2: "vision_projection.linear_2",
    ..PIXTRAL
};

pub(super) const LFM2: VisionNames = VisionNames {
    projector_norm: "multi_modal_projector.layer_norm",
    linear1: "multi_modal_projector.linear_1",
    linear2: "multi_modal_projector.linear_2",
    ..SIGLIP
};

pub(super) const INTERN_VL: VisionNames = VisionNames {
    patch: "embeddings.patch_embeddings.projection",
    position: "embeddings.position_embeddings",
    class: "embeddings.cls_token",
    norm1: "encoder.layer.{}.layernorm_before",
    norm2: "encoder.layer.{}.layernorm_after",
    q: "encoder.layer.{}.attention.q_proj",
    k: "encoder.layer.{}.attention.k_proj",
    v: "encoder.layer.{}.attention.v_proj",
    o: "encoder.layer.{}.attention.projection_layer",
    up: "encoder.layer.{}.mlp.fc1",
    down: "encoder.layer.{}.mlp.fc2",
    scales: ["encoder.layer.{}.lambda_1", "encoder.layer.{}.lambda_2"],
    last_norm: "",
    ..LFM2
};

pub(super) const LLAVA: VisionNames = VisionNames {
    class: "embeddings.class_embedding",
    first_norm: "pre_layrnorm",
    last_norm: "",
    linear1: "multi_modal_projector.linear_1",
    linear2: "multi_modal_projector.linear_2",
    ..SIGLIP
};

pub(super) const GRANITE4: VisionNames = VisionNames {
    last_norm: "",
    linear1: "",
    ..SIGLIP
};

pub(super) const MINICPM_V: VisionNames = VisionNames {
    linear1: "resampler.proj",
    queries: QueryNames {
        queries: &["resampler.query"],
        kv: "resampler.kv_proj",
        norms: ["resampler.ln_q", "resampler.ln_kv", "resampler.ln_post"],
        qkv: &["resampler.attn.in_proj_weight"],
        qkv_bias: &["resampler.attn.in_proj_bias"],
        o: "resampler.attn.out_proj",
    },
    ..SIGLIP
};

pub(super) const GGUF_MINICPM_V: VisionNames = VisionNames {
    linear1: "resampler.proj",
    queries: QueryNames {
        kv: "resampler.kv",
        qkv: &[
            "resampler.attn.q.weight",
            "resampler.attn.k.weight",
            "resampler.attn.v.weight",
        ],
        qkv_bias: &[
            "resampler.attn.q.bias",
            "resampler.attn.k.bias",
            "resampler.attn.v.bias",
        ],
        o: "resampler.attn.out",
        ..MINICPM_V.queries
    },
    ..GGUF
};

pub(super) const MINICPM_V46: VisionNames = VisionNames {
    projector_norm: "merger.mlp.0.pre_norm",
    linear1: "merger.mlp.0.linear_1",
    linear2: "merger.mlp.0.linear_2",
    ..SIGLIP
};

pub(super) const MINICPM_MERGER: VisionNames = VisionNames {
    last_norm: "",
    window: [
        "vit_merger.layer_norm1",
        "vit_merger.self_attn.q_proj",
        "vit_merger.self_attn.k_proj",
        "vit_merger.self_attn.v_proj",
        "vit_merger.self_attn.out_proj",
    ],
    projector_norm: "vit_merger.pre_norm",
    linear1: "vit_merger.linear_1",
    linear2: "vit_merger.linear_2",
    ..SIGLIP
};

pub(super) const GGUF_MINICPM_V46: VisionNames = VisionNames {
    projector_norm: "mm.input_norm",
    linear1: "mm.up",
    linear2: "mm.down",
    ..GGUF
};

pub(super) const GGUF_MINICPM_MERGER: VisionNames = VisionNames {
    last_norm: "",
    window: [
        "v.vit_merger.ln1",
        "v.vit_merger.attn_q",
        "v.vit_merger.attn_k",
        "v.vit_merger.attn_v",
        "v.vit_merger.attn_out",
    ],
    projector_norm: "v.vit_merger.ds_ln",
    linear1: "v.vit_merger.ds_ffn_up",
    linear2: "v.vit_merger.ds_ffn_down",
    ..GGUF
};

pub(super) const PADDLE_OCR: VisionNames = VisionNames {
    projector_norm: "mlp_AR.pre_norm",
    linear1: "mlp_AR.linear_1",
    linear2: "mlp_AR.linear_2",
    ..SIGLIP
};

/// EVA-02, as jina-clip has it.
pub(super) const JINA_CLIP: VisionNames = VisionNames {
    patch: "patch_embed.proj",
    position: "pos_embed",
    class: "cls_token",
    norm1: "blocks.{}.norm1",
    norm2: "blocks.{}.norm2",
    q: "blocks.{}.attn.q_proj",
    k: "blocks.{}.attn.k_proj",
    v: "blocks.{}.attn.v_proj",
    o: "blocks.{}.attn.proj",
    inner_norms: ["blocks.{}.attn.inner_attn_ln", "blocks.{}.mlp.ffn_ln"],
    qkv_biases: ["blocks.{}.attn.q_bias", "", "blocks.{}.attn.v_bias"],
    gate: "blocks.{}.mlp.w1",
    up: "blocks.{}.mlp.w2",
    down: "blocks.{}.mlp.w3",
    last_norm: "norm",
    linear1: "",
    ..SIGLIP
};

/// SAM as transformers writes it.
pub(super) const SAM: VisionNames = VisionNames {
    patch: "vision_tower.sam_encoder.patch_embed.projection",
    position: "vision_tower.sam_encoder.pos_embed",
    norm1: "vision_tower.sam_encoder.layers.{}.layer_norm1",
    norm2: "vision_tower.sam_encoder.layers.{}.layer_norm2",
    qkv: "vision_tower.sam_encoder.layers.{}.attn.qkv",
    o: "vision_tower.sam_encoder.layers.{}.attn.proj",
    up: "vision_tower.sam_encoder.layers.{}.mlp.lin1",
    down: "vision_tower.sam_encoder.layers.{}.mlp.lin2",
    distances: [
        "vision_tower.sam_encoder.layers.{}.attn.rel_pos_h",
        "vision_tower.sam_encoder.layers.{}.attn.rel_pos_w",
    ],
    last_norm: "",
    linear1: "sam_encoder.neck.conv1",
    projector_norm: "sam_encoder.neck.layer_norm1",
    ..SIGLIP
};

pub(super) const SAM_NECK: VisionNames = VisionNames {
    linear1: "sam_encoder.neck.conv2",
    projector_norm: "sam_encoder.neck.layer_norm2",
    ..SAM
};

pub(super) const SAM_HALF: VisionNames = VisionNames {
    linear1: "sam_encoder.proj.conv1",
    ..SAM
};

/// SAM as the files of DeepSeek-OCR have it.
pub(super) const SAM_HUB: VisionNames = VisionNames {
    patch: "sam_model.patch_embed.proj",
    position: "sam_model.pos_embed",
    norm1: "sam_model.blocks.{}.norm1",
    norm2: "sam_model.blocks.{}.norm2",
    qkv: "sam_model.blocks.{}.attn.qkv",
    o: "sam_model.blocks.{}.attn.proj",
    up: "sam_model.blocks.{}.mlp.lin1",
    down: "sam_model.blocks.{}.mlp.lin2",
    distances: [
        "sam_model.blocks.{}.attn.rel_pos_h",
        "sam_model.blocks.{}.attn.rel_pos_w",
    ],
    last_norm: "",
    linear1: "sam_model.neck.0",
    projector_norm: "sam_model.neck.1",
    ..SIGLIP
};

pub(super) const SAM_NECK_HUB: VisionNames = VisionNames {
    linear1: "sam_model.neck.2",
    projector_norm: "sam_model.neck.3",
    ..SAM_HUB
};

pub(super) const SAM_HALF_HUB: VisionNames = VisionNames {
    linear1: "sam_model.net_2",
    ..SAM_HUB
};

pub(super) const GGUF_SAM: VisionNames = VisionNames {
    patch: "v.sam.patch_embd",
    position: "v.sam.pos_embd",
    norm1: "v.sam.blk.{}.pre_ln",
    norm2: "v.sam.blk.{}.post_ln",
    qkv: "v.sam.blk.{}.attn.qkv",
    o: "v.sam.blk.{}.attn.out",
    up: "v.sam.blk.{}.mlp.lin1",
    down: "v.sam.blk.{}.mlp.lin2",
    distances: ["v.sam.blk.{}.attn.pos_h", "v.sam.blk.{}.attn.pos_w"],
    last_norm: "",
    linear1: "v.sam.neck.0",
    projector_norm: "v.sam.neck.1",
    ..SIGLIP
};

pub(super) const GGUF_SAM_NECK: VisionNames = VisionNames {
    linear1: "v.sam.neck.2",
    projector_norm: "v.sam.neck.3",
    ..GGUF_SAM
};

pub(super) const GGUF_SAM_HALF: VisionNames = VisionNames {
    linear1: "v.sam.net_2",
    ..GGUF_SAM
};

pub(super) const DEEPSEEK_OCR: VisionNames = VisionNames {
    patch: "sam_model.net_3",
    position: "vision_model.embeddings.position_embedding",
    class: "vision_model.embeddings.class_embedding",
    first_norm: "vision_model.pre_layrnorm",
    norm1: "vision_model.transformer.layers.{}.layer_norm1",
    norm2: "vision_model.transformer.layers.{}.layer_norm2",
    qkv: "vision_model.transformer.layers.{}.self_attn.qkv_proj",
    o: "vision_model.transformer.layers.{}.self_attn.out_proj",
    up: "vision_model.transformer.layers.{}.mlp.fc1",
    down: "vision_model.transformer.layers.{}.mlp.fc2",
    last_norm: "",
    linear1: "projector.layers",
    ..SIGLIP
};

pub(super) const GGUF_DEEPSEEK_OCR: VisionNames = VisionNames {
    patch: "v.sam.net_3",
    last_norm: "",
    linear1: "mm.model.fc",
    ..GGUF
};

const CAUSAL: QueryNames = QueryNames {
    queries: &[
        "vision_tower.query_768_resolution.weight",
        "vision_tower.query_1024_resolution.weight",
    ],
    ..NO_QUERIES
};

pub(super) const DEEPSEEK_OCR2: VisionNames = VisionNames {
    patch: "vision_tower.sam_encoder.proj.conv2",
    norm1: "vision_tower.vision_encoder.layers.{}.input_layernorm",
    norm2: "vision_tower.vision_encoder.layers.{}.post_attention_layernorm",
    q: "vision_tower.vision_encoder.layers.{}.self_attn.q_proj",
    k: "vision_tower.vision_encoder.layers.{}.self_attn.k_proj",
    v: "vision_tower.vision_encoder.layers.{}.self_attn.v_proj",
    o: "vision_tower.vision_encoder.layers.{}.self_attn.o_proj",
    gate: "vision_tower.vision_encoder.layers.{}.mlp.gate_proj",
    up: "vision_tower.vision_encoder.layers.{}.mlp.up_proj",
    down: "vision_tower.vision_encoder.layers.{}.mlp.down_proj",
    last_norm: "vision_tower.vision_encoder.norm",
    linear1: "multi_modal_projector",
    queries: CAUSAL,
    ..SIGLIP
};

pub(super) const DEEPSEEK_OCR2_HUB: VisionNames = VisionNames {
    patch: "sam_model.net_3",
    norm1: "qwen2_model.model.model.layers.{}.input_layernorm",
    norm2: "qwen2_model.model.model.layers.{}.post_attention_layernorm",
    q: "qwen2_model.model.model.layers.{}.self_attn.q_proj",
    k: "qwen2_model.model.model.layers.{}.self_attn.k_proj",
    v: "qwen2_model.model.model.layers.{}.self_attn.v_proj",
    o: "qwen2_model.model.model.layers.{}.self_attn.o_proj",
    gate: "qwen2_model.model.model.layers.{}.mlp.gate_proj",
    up: "qwen2_model.model.model.layers.{}.mlp.up_proj",
    down: "qwen2_model.model.model.layers.{}.mlp.down_proj",
    last_norm: "qwen2_model.model.model.norm",
    linear1: "projector.layers",
    queries: QueryNames {
        queries: &[
            "qwen2_model.query_768.weight",
            "qwen2_model.query_1024.weight",
        ],
        ..CAUSAL
    },
    ..SIGLIP
};

pub(super) const GGUF_DEEPSEEK_OCR2: VisionNames = VisionNames {
    patch: "v.sam.net_3",
    linear1: "mm.model.fc",
    queries: QueryNames {
        queries: &[
            "v.resample_query_768.weight",
            "v.resample_query_1024.weight",
        ],
        ..CAUSAL
    },
    ..GGUF
};

pub(super) const GGUF: VisionNames = VisionNames {
    patch: "v.patch_embd",
    position: "v.position_embd",
    class: "v.class_embd",
    first_norm: "v.pre_ln",
    norm1: "v.blk.{}.ln1",
    norm2: "v.blk.{}.ln2",
    qkv: "v.blk.{}.attn_qkv",
    q: "v.blk.{}.attn_q",
    k: "v.blk.{}.attn_k",
    head_norms: ["v.blk.{}.attn_q_norm", "v.blk.{}.attn_k_norm"],
    post_norms: ["v.blk.{}.attn_post_norm", "v.blk.{}.ffn_post_norm"],
    inner_norms: ["", ""],
    qkv_biases: ["", "", ""],
    v: "v.blk.{}.attn_v",
    o: "v.blk.{}.attn_out",
    gate: "v.blk.{}.ffn_gate",
    up: "v.blk.{}.ffn_up",
    down: "v.blk.{}.ffn_down",
    distances: ["", ""],
    scales: ["v.blk.{}.ls1.weight", "v.blk.{}.ls2.weight"],
    last_norm: "v.post_ln",
    window: [""; 5],
    standard: ["v.std_bias", "v.std_scale"],
    projector_norm: "",
    merging: "",
    linear1: "",
    linear2: "",
    gated: ["mm.gate", "mm.up"],
    deep: [
        "v.deepstack.{}.norm",
        "v.deepstack.{}.fc1",
        "v.deepstack.{}.fc2",
    ],
    queries: NO_QUERIES,
};

pub(super) const GGUF_IDEFICS3: VisionNames = VisionNames {
    linear1: "mm.model.fc",
    ..GGUF
};

pub(super) const GGUF_GEMMA3: VisionNames = VisionNames {
    projector_norm: "mm.soft_emb_norm",
    linear1: "mm.input_projection",
    ..GGUF
};

pub(super) const GGUF_GEMMA4: VisionNames = VisionNames {
    last_norm: "",
    linear1: "mm.input_projection",
    ..GGUF
};

pub(super) const GGUF_GRANITE4: VisionNames = VisionNames {
    last_norm: "",
    ..GGUF
};

pub(super) const GGUF_QWEN2: VisionNames = VisionNames {
    linear1: "mm.0",
    linear2: "mm.2",
    ..GGUF
};

pub(super) const GGUF_GLM: VisionNames = VisionNames {
    first_norm: "v.norm_embd",
    merging: "mm.patch_merger",
    projector_norm: "mm.post_norm",
    linear1: "mm.model.fc",
    linear2: "mm.down",
    ..GGUF
};

pub(super) const GGUF_LLAVA: VisionNames = VisionNames {
    last_norm: "",
    ..GGUF_QWEN2
};

pub(super) const GGUF_PIXTRAL: VisionNames = VisionNames {
    last_norm: "",
    projector_norm: "mm.input_norm",
    merging: "mm.patch_merger",
    linear1: "mm.1",
    linear2: "mm.2",
    ..GGUF
};

pub(super) const GGUF_LFM2: VisionNames = VisionNames {
    projector_norm: "mm.input_norm",
    linear1: "mm.1",
    linear2: "mm.2",
    ..GGUF
};

pub(super) const GGUF_INTERN_VL: VisionNames = VisionNames {
    last_norm: "",
    projector_norm: "mm.model.mlp.0",
    linear1: "mm.model.mlp.1",
    linear2: "mm.model.mlp.3",
    ..GGUF
};

/// The full names of the feature that ends the lines of a picture, and of the one that ends pictures, after any prefix.
pub(super) const LINE_END: &[&str] = &["image_newline"];
pub(super) const SEPARATOR: &[&str] = &["view_separator", "view_seperator"];

/// The full name of the tensor whose name ends so, after any prefix.
pub(super) fn ending(checkpoint: &dyn Checkpoint, end: &str) -> Option<String> {
    let fits = |name: &str| {
        let before = name.strip_suffix(end);
        before.is_some_and(|before| before.is_empty() || before.ends_with('.'))
    };
    let mut names = checkpoint.tensors().iter().map(|t| t.name.as_str());
    names.find(|name| fits(name)).map(String::from)
}
