//! What the two dialects call the tensors. `{}` is the layer's number.

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
    pub(crate) ffn_norm: &'static str,
    pub(crate) gate: &'static str,
    pub(crate) up: &'static str,
    pub(crate) down: &'static str,
    pub(crate) final_norm: &'static str,
    pub(crate) head: &'static str,
    /// Factors that divide the inverse frequencies of rope.
    pub(crate) rope_factors: &'static str,
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
    ffn_norm: "blk.{}.ffn_norm",
    gate: "blk.{}.ffn_gate",
    up: "blk.{}.ffn_up",
    down: "blk.{}.ffn_down",
    final_norm: "output_norm",
    head: "output",
    rope_factors: "rope_freqs",
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
    ffn_norm: "model.layers.{}.post_attention_layernorm",
    gate: "model.layers.{}.mlp.gate_proj",
    up: "model.layers.{}.mlp.up_proj",
    down: "model.layers.{}.mlp.down_proj",
    final_norm: "model.norm",
    head: "lm_head",
    // No Hugging Face checkpoint has such a tensor: there the factors follow from the configuration.
    rope_factors: "rope_freqs",
};

/// The weight's full name in a layer.
pub(crate) fn weight(template: &str, layer: u32) -> String {
    format!("{}.weight", template.replace("{}", &layer.to_string()))
}

/// The bias's full name in a layer.
pub(crate) fn bias(template: &str, layer: u32) -> String {
    format!("{}.bias", template.replace("{}", &layer.to_string()))
}

/// Tensors that old exporters leave behind and that say nothing new.
pub(crate) fn is_leftover(name: &str) -> bool {
    [
        ".rotary_emb.inv_freq",
        ".attn_rot_embd.weight",
        ".masked_bias",
    ]
    .iter()
    .any(|s| name.ends_with(s))
}
