//! Tensor names in the two dialects. `{}` is the layer's number.

use crate::hearing::names::in_gguf;
use welte_formats::Checkpoint;
use welte_formats::checkpoint::Dialect;

/// The names of one architecture in one dialect, without `.weight` and `.bias`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names {
    pub(crate) embed: &'static str,
    pub(crate) attn_norm: &'static str,
    pub(crate) q: &'static str,
    pub(crate) k: &'static str,
    pub(crate) v: &'static str,
    pub(crate) q_norm: &'static str,
    pub(crate) k_norm: &'static str,
    pub(crate) o: &'static str,
    /// The sinks' full name, for architectures that have them.
    pub(crate) sinks: &'static str,
    /// Q, K and V as one tensor, for architectures that store them so.
    pub(crate) qkv: &'static str,
    /// In it, each group of query heads is followed by its key and its value.
    pub(crate) grouped_qkv: bool,
    /// The gate of attention's output as a tensor of its own. Without one, each head's gate follows its query.
    pub(crate) attn_gate: &'static str,
    /// Norm of the attention output, before it is added.
    pub(crate) post_attn_norm: &'static str,
    pub(crate) ffn_norm: &'static str,
    pub(crate) gate: &'static str,
    pub(crate) up: &'static str,
    /// Gate and up as one tensor, for architectures that store them so.
    pub(crate) gate_up: &'static str,
    pub(crate) down: &'static str,
    /// The matrix that scores the experts.
    pub(crate) router: &'static str,
    /// The full names of tensors with gate and up (or up alone) of all experts, one expert after the other, and with down.
    pub(crate) fused_experts: [&'static str; 2],
    /// Which of each expert's matrices in them are transposed.
    pub(crate) transposed_experts: TransposedExperts,
    /// The full name of a bias of the sum of all chosen experts.
    pub(crate) expert_sum_bias: &'static str,
    /// Gate, up and down of the expert that every token uses, and the row that scores its gate.
    pub(crate) shared_expert: [&'static str; 3],
    pub(crate) shared_gate: &'static str,
    /// The matrices to the width in which chosen experts compute, and back.
    pub(crate) expert_latent: [&'static str; 2],
    /// The full name of the bias of the experts' choice.
    pub(crate) choice_bias: &'static str,
    /// Gate, up and down: each a tensor of all experts, or one tensor per expert with `[]` for its number.
    pub(crate) experts: [&'static str; 3],
    /// Projections before a convolution, its kernel, and the projection after it.
    pub(crate) conv: [&'static str; 3],
    /// Norm of the feed-forward output, before it is added.
    pub(crate) post_ffn_norm: &'static str,
    pub(crate) final_norm: &'static str,
    pub(crate) head: &'static str,
    /// Divisors of the inverse frequencies of rope.
    pub(crate) rope_factors: &'static str,
}

/// Which matrices of experts in one tensor are transposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransposedExperts {
    /// None is.
    None,
    /// Both are, unless their shapes say otherwise: directories that transformers 5 wrote do not have them transposed.
    Published,
    /// Down is.
    Down,
}

pub(crate) const GGUF: Names = Names {
    embed: "token_embd",
    attn_norm: "blk.{}.attn_norm",
    q: "blk.{}.attn_q",
    k: "blk.{}.attn_k",
    v: "blk.{}.attn_v",
    q_norm: "blk.{}.attn_q_norm",
    k_norm: "blk.{}.attn_k_norm",
    o: "blk.{}.attn_output",
    sinks: "blk.{}.attn_sinks.weight",
    qkv: "blk.{}.attn_qkv",
    grouped_qkv: false,
    attn_gate: "blk.{}.attn_gate",
    post_attn_norm: "blk.{}.post_attention_norm",
    ffn_norm: "blk.{}.ffn_norm",
    gate: "blk.{}.ffn_gate",
    up: "blk.{}.ffn_up",
    gate_up: "blk.{}.ffn_up",
    down: "blk.{}.ffn_down",
    router: "blk.{}.ffn_gate_inp",
    fused_experts: [
        "blk.{}.ffn_gate_up_exps.weight",
        "blk.{}.ffn_down_exps.weight",
    ],
    transposed_experts: TransposedExperts::None,
    expert_sum_bias: "",
    shared_expert: [
        "blk.{}.ffn_gate_shexp",
        "blk.{}.ffn_up_shexp",
        "blk.{}.ffn_down_shexp",
    ],
    shared_gate: "blk.{}.ffn_gate_inp_shexp",
    expert_latent: ["blk.{}.ffn_latent_down", "blk.{}.ffn_latent_up"],
    choice_bias: "blk.{}.exp_probs_b.bias",
    experts: [
        "blk.{}.ffn_gate_exps",
        "blk.{}.ffn_up_exps",
        "blk.{}.ffn_down_exps",
    ],
    conv: [
        "blk.{}.shortconv.in_proj",
        "blk.{}.shortconv.conv",
        "blk.{}.shortconv.out_proj",
    ],
    post_ffn_norm: "blk.{}.post_ffw_norm",
    final_norm: "output_norm",
    head: "output",
    rope_factors: "rope_freqs",
};

/// Names where the norm before the feed-forward part is called the norm after attention.
pub(crate) const GGUF_POST_ATTENTION: Names = Names {
    ffn_norm: "blk.{}.post_attention_norm",
    ..GGUF
};

pub(crate) const HUGGING_FACE: Names = Names {
    embed: "model.embed_tokens",
    attn_norm: "model.layers.{}.input_layernorm",
    q: "model.layers.{}.self_attn.q_proj",
    k: "model.layers.{}.self_attn.k_proj",
    v: "model.layers.{}.self_attn.v_proj",
    q_norm: "model.layers.{}.self_attn.q_norm",
    k_norm: "model.layers.{}.self_attn.k_norm",
    o: "model.layers.{}.self_attn.o_proj",
    sinks: "model.layers.{}.self_attn.sinks",
    qkv: "model.layers.{}.self_attn.qkv_proj",
    grouped_qkv: false,
    attn_gate: "model.layers.{}.self_attn.gate_proj",
    post_attn_norm: "model.layers.{}.post_attention_layernorm",
    ffn_norm: "model.layers.{}.post_attention_layernorm",
    gate: "model.layers.{}.mlp.gate_proj",
    up: "model.layers.{}.mlp.up_proj",
    gate_up: "model.layers.{}.mlp.gate_up_proj",
    down: "model.layers.{}.mlp.down_proj",
    router: "model.layers.{}.mlp.gate",
    fused_experts: [
        "model.layers.{}.mlp.experts.gate_up_proj",
        "model.layers.{}.mlp.experts.down_proj",
    ],
    transposed_experts: TransposedExperts::None,
    expert_sum_bias: "",
    shared_expert: [
        "model.layers.{}.mlp.shared_expert.gate_proj",
        "model.layers.{}.mlp.shared_expert.up_proj",
        "model.layers.{}.mlp.shared_expert.down_proj",
    ],
    shared_gate: "model.layers.{}.mlp.shared_expert_gate",
    expert_latent: [
        "model.layers.{}.mixer.fc1_latent_proj",
        "model.layers.{}.mixer.fc2_latent_proj",
    ],
    choice_bias: "model.layers.{}.mlp.gate.e_score_correction_bias",
    experts: [
        "model.layers.{}.mlp.experts.[].gate_proj",
        "model.layers.{}.mlp.experts.[].up_proj",
        "model.layers.{}.mlp.experts.[].down_proj",
    ],
    conv: [
        "model.layers.{}.conv.in_proj",
        "model.layers.{}.conv.conv",
        "model.layers.{}.conv.out_proj",
    ],
    post_ffn_norm: "model.layers.{}.post_feedforward_layernorm",
    final_norm: "model.norm",
    head: "lm_head",
    // Hugging Face checkpoints keep the factors in the configuration.
    rope_factors: "rope_freqs",
};

pub(crate) const HUGGING_FACE_QWEN3_VL_MOE: Names = Names {
    transposed_experts: TransposedExperts::Published,
    ..HUGGING_FACE
};

/// Names with a norm after attention and another before the feed-forward part.
pub(crate) const HUGGING_FACE_POST: Names = Names {
    ffn_norm: "model.layers.{}.pre_feedforward_layernorm",
    ..HUGGING_FACE
};

/// Gemma 4 keeps the router and the experts beside the dense part.
pub(crate) const HUGGING_FACE_GEMMA4: Names = Names {
    router: "model.layers.{}.router.proj",
    fused_experts: [
        "model.layers.{}.experts.gate_up_proj",
        "model.layers.{}.experts.down_proj",
    ],
    ..HUGGING_FACE_POST
};

/// GLM-4 has norms after both parts.
pub(crate) const HUGGING_FACE_GLM4: Names = Names {
    post_attn_norm: "model.layers.{}.post_self_attn_layernorm",
    post_ffn_norm: "model.layers.{}.post_mlp_layernorm",
    ..HUGGING_FACE
};

/// Granite 4 has a shared expert in every layer, which is the feed-forward part of models without other experts.
pub(crate) const HUGGING_FACE_GRANITE_HYBRID: Names = Names {
    gate_up: "model.layers.{}.shared_mlp.input_linear",
    down: "model.layers.{}.shared_mlp.output_linear",
    shared_expert: [
        "model.layers.{}.shared_mlp.gate",
        "model.layers.{}.shared_mlp.up",
        "model.layers.{}.shared_mlp.output_linear",
    ],
    router: "model.layers.{}.block_sparse_moe.router.layer",
    fused_experts: [
        "model.layers.{}.block_sparse_moe.input_linear.weight",
        "model.layers.{}.block_sparse_moe.output_linear.weight",
    ],
    ..HUGGING_FACE
};

/// LFM2 names its norms and the feed-forward part differently.
pub(crate) const HUGGING_FACE_LFM2: Names = Names {
    attn_norm: "model.layers.{}.operator_norm",
    q_norm: "model.layers.{}.self_attn.q_layernorm",
    k_norm: "model.layers.{}.self_attn.k_layernorm",
    o: "model.layers.{}.self_attn.out_proj",
    ffn_norm: "model.layers.{}.ffn_norm",
    gate: "model.layers.{}.feed_forward.w1",
    up: "model.layers.{}.feed_forward.w3",
    down: "model.layers.{}.feed_forward.w2",
    final_norm: "model.embedding_norm",
    ..HUGGING_FACE
};

/// LFM2 with experts.
pub(crate) const HUGGING_FACE_LFM2_MOE: Names = Names {
    router: "model.layers.{}.feed_forward.gate",
    choice_bias: "model.layers.{}.feed_forward.expert_bias",
    experts: [
        "model.layers.{}.feed_forward.experts.[].w1",
        "model.layers.{}.feed_forward.experts.[].w3",
        "model.layers.{}.feed_forward.experts.[].w2",
    ],
    fused_experts: [
        "model.layers.{}.feed_forward.experts.gate_up_proj",
        "model.layers.{}.feed_forward.experts.down_proj",
    ],
    ..HUGGING_FACE_LFM2
};

/// LFM2's GGUF files call the last norm that of the embedding.
pub(crate) const GGUF_LFM2: Names = Names {
    final_norm: "token_embd_norm",
    ..GGUF
};

/// Nemotron-H calls whatever a layer has its mixer, and norms its input once.
pub(crate) const HUGGING_FACE_NEMOTRON_H: Names = Names {
    embed: "model.embeddings",
    attn_norm: "model.layers.{}.norm",
    q: "model.layers.{}.mixer.q_proj",
    k: "model.layers.{}.mixer.k_proj",
    v: "model.layers.{}.mixer.v_proj",
    o: "model.layers.{}.mixer.o_proj",
    ffn_norm: "model.layers.{}.norm",
    up: "model.layers.{}.mixer.up_proj",
    down: "model.layers.{}.mixer.down_proj",
    router: "model.layers.{}.mixer.gate",
    choice_bias: "model.layers.{}.mixer.gate.e_score_correction_bias",
    experts: [
        "model.layers.{}.mixer.experts.[].gate_proj",
        "model.layers.{}.mixer.experts.[].up_proj",
        "model.layers.{}.mixer.experts.[].down_proj",
    ],
    fused_experts: [
        "model.layers.{}.mixer.experts.up_proj",
        "model.layers.{}.mixer.experts.down_proj",
    ],
    shared_expert: [
        "model.layers.{}.mixer.shared_experts.gate_proj",
        "model.layers.{}.mixer.shared_experts.up_proj",
        "model.layers.{}.mixer.shared_experts.down_proj",
    ],
    final_norm: "model.norm_f",
    ..HUGGING_FACE
};

/// The norm of a layer has the same name in every layer.
pub(crate) const GGUF_NEMOTRON_H: Names = Names {
    ffn_norm: "blk.{}.attn_norm",
    ..GGUF
};

/// Mixtral names its experts differently.
pub(crate) const HUGGING_FACE_MIXTRAL: Names = Names {
    router: "model.layers.{}.block_sparse_moe.gate",
    experts: [
        "model.layers.{}.block_sparse_moe.experts.[].w1",
        "model.layers.{}.block_sparse_moe.experts.[].w3",
        "model.layers.{}.block_sparse_moe.experts.[].w2",
    ],
    ..HUGGING_FACE
};

/// gpt-oss's experts, with the names that `hf/gpt_oss.rs` of the formats gives them.
pub(crate) const HUGGING_FACE_GPT_OSS: Names = Names {
    router: "model.layers.{}.mlp.router",
    experts: [
        "model.layers.{}.mlp.experts.gate_proj",
        "model.layers.{}.mlp.experts.up_proj",
        "model.layers.{}.mlp.experts.down_proj",
    ],
    ..HUGGING_FACE
};

/// Prefixes in place of `model.`, most of them in multimodal checkpoints.
pub(crate) const LANGUAGE_MODEL: [&str; 7] = [
    "language_model.model.",
    "model.language_model.",
    // Idefics 3
    "model.text_model.",
    // Nemotron-H
    "backbone.",
    // MiniCPM-V
    "llm.model.",
    // Qwen3-ASR, as its authors write it
    "thinker.model.",
    // LFM2-Audio
    "lfm.",
];

/// Prefixes of an encoder's tensors in checkpoints with a classifier, beside a language model, and in jina-clip.
const ENCODER: [&str; 6] = [
    "bert.",
    "distilbert.",
    "roberta.",
    "model.",
    "thinker.",
    "text_model.transformer.roberta.",
];

/// The name of a tensor in this checkpoint.
pub(crate) fn resolve(checkpoint: &dyn Checkpoint, name: &str) -> String {
    if checkpoint.dialect() == Dialect::Gguf
        && let Some(own) = in_gguf(name)
    {
        return own;
    }
    let known = |name: &String| checkpoint.tensor(name).is_some();
    let other = |prefix: &str| match name.strip_prefix("model.") {
        Some(rest) => format!("{prefix}{rest}"),
        None => format!("{}{name}", prefix.strip_suffix("model.").unwrap_or(prefix)),
    };
    Some(name.to_string())
        .filter(known)
        .or_else(|| LANGUAGE_MODEL.map(other).into_iter().find(known))
        // Files of Falcon-H1 leave the suffix of a norm out.
        .or_else(|| {
            let block = name.strip_suffix(".ffn_norm.weight")?;
            Some(format!("{block}.ffn_norm")).filter(known)
        })
        // A checkpoint without a head may have no prefix.
        .or_else(|| name.strip_prefix("model.").map(String::from).filter(known))
        .or_else(|| {
            let within = |model: &str| format!("{model}{name}");
            ENCODER.map(within).into_iter().find(known)
        })
        .unwrap_or_else(|| name.to_string())
}

/// The names of a layer's experts: those of the architecture, or MLX's names, which stack all experts in one tensor.
pub(crate) fn experts(checkpoint: &dyn Checkpoint, names: &Names, layer: u32) -> [String; 3] {
    let own = names.experts.map(String::from);
    let Some((module, _)) = names.experts[0].split_once(".experts.[]") else {
        return own;
    };
    let stacked =
        ["gate_proj", "up_proj", "down_proj"].map(|part| format!("{module}.switch_mlp.{part}"));
    let first = resolve(checkpoint, &weight(&stacked[0], layer));
    match checkpoint.tensor(&first) {
        Some(_) => stacked,
        None => own,
    }
}

/// The full name of a weight.
pub(crate) fn weight(template: &str, layer: u32) -> String {
    format!("{}.weight", template.replace("{}", &layer.to_string()))
}

/// The full name of a bias.
pub(crate) fn bias(template: &str, layer: u32) -> String {
    format!("{}.bias", template.replace("{}", &layer.to_string()))
}

/// Redundant tensors that old exporters leave behind.
pub(crate) fn is_leftover(name: &str) -> bool {
    [
        ".rotary_emb.inv_freq",
        ".attn_rot_embd.weight",
        ".masked_bias",
        ".attention.bias",
    ]
    .iter()
    .any(|s| name.ends_with(s))
}

/// Tensors of what chooses the positions that a row sees.
pub(crate) fn is_of_indexer(name: &str) -> bool {
    [".self_attn.indexer.", ".self_attn.index_", ".indexer."]
        .iter()
        .any(|part| name.contains(part))
}

/// Tensors of layers that guess tokens ahead. They follow the other layers, or have a prefix of
/// their own.
pub(crate) fn is_of_draft_layer(name: &str, layers: u32, drafts: u32) -> bool {
    let number = ["blk.", "model.layers."]
        .iter()
        .find_map(|prefix| name.strip_prefix(prefix));
    let number = number.and_then(|rest| rest.split_once('.'));
    let number = number.and_then(|(number, _)| number.parse::<u32>().ok());
    let drafts = layers..layers.saturating_add(drafts);
    let apart = ["mtp.", "model.mtp.", "model.mtp_layers."];
    let apart = apart.iter().any(|prefix| name.starts_with(prefix));
    number.map_or(apart, |n| drafts.contains(&n))
}

/// Tensors of the vision and audio parts of a multimodal checkpoint.
pub(crate) fn is_of_other_modality(name: &str) -> bool {
    let mut inner = ["model.", "thinker."].into_iter();
    let inner = inner.find_map(|prefix| name.strip_prefix(prefix));
    let name = inner.unwrap_or(name);
    [
        "vision_tower.",
        "vision_model.",
        "connector.",
        "multi_modal_projector.",
        "mm_projector.",
        "embed_vision.",
        "audio_tower.",
        "embed_audio.",
        "visual.",
        "image_newline",
        "mlp_AR.",
        "vpm.",
        "resampler.",
        "merger.",
        "vision_encoder.",
        "vision_projection.",
        "vision_tokenizer.",
        "audio_tokenizer.",
        "patch_merge_mlp.",
        "vision_adapter.",
        "vit_large_projector.",
        "layerwise_projectors.",
        "spatial_projectors.",
        "sam_model.",
        "qwen2_model.",
        "projector.",
        "encoder.input_linear.",
        "encoder.layers.",
        "encoder.out",
        "conformer.",
        "audio_adapter.",
        // What makes sound of LFM2-Audio's states.
        "audio_embedding.",
        "audio_loss_weights",
        "codebook_offsets",
        "depth_embeddings.",
        "depth_linear.",
        "depthformer.",
        "view_seperator",
        "view_separator",
        "logit_scale",
    ]
    .iter()
    .any(|s| name.starts_with(s))
}
