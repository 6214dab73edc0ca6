//! The names that `mmproj` files have for tensors of encoders of sound.

/// Names in transformers, without `.weight` and `.bias`, and those in GGUF files.
const PARTS: [(&str, &str); 24] = [
    ("audio_tower.conv1", "a.conv1d.1"),
    ("audio_tower.conv2", "a.conv1d.2"),
    ("audio_tower.conv2d1", "a.conv2d.1"),
    ("audio_tower.conv2d2", "a.conv2d.2"),
    ("audio_tower.conv2d3", "a.conv2d.3"),
    ("audio_tower.conv_out", "a.conv_out"),
    ("audio_tower.embed_positions", "a.position_embd"),
    ("audio_tower.layer_norm", "a.post_ln"),
    ("audio_tower.ln_post", "a.post_ln"),
    ("audio_tower.proj", "mm.a.fc"),
    ("multi_modal_projector.linear", "mm.a.fc"),
    ("multi_modal_projector.linear_1", "mm.a.mlp.1"),
    ("multi_modal_projector.linear_2", "mm.a.mlp.2"),
    ("multi_modal_projector.ln_pre", "mm.a.norm_pre"),
    ("multi_modal_projector.ln_mid", "mm.a.norm_mid"),
    ("conformer.pre_encode.conv.0", "a.conv1d.0"),
    ("conformer.pre_encode.conv.2", "a.conv1d.2"),
    ("conformer.pre_encode.conv.3", "a.conv1d.3"),
    ("conformer.pre_encode.conv.5", "a.conv1d.5"),
    ("conformer.pre_encode.conv.6", "a.conv1d.6"),
    ("conformer.pre_encode.out", "a.pre_encode.out"),
    ("audio_adapter.model.0", "mm.a.mlp.0"),
    ("audio_adapter.model.1", "mm.a.mlp.1"),
    ("audio_adapter.model.3", "mm.a.mlp.3"),
];

/// The same within a layer.
const OF_LAYER: [(&str, &str); 8] = [
    ("self_attn_layer_norm", "ln1"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.out_proj", "attn_out"),
    ("final_layer_norm", "ln2"),
    ("fc1", "ffn_up"),
    ("fc2", "ffn_down"),
];

/// The same within a layer of LFM2-Audio.
const OF_CONFORMER: [(&str, &str); 18] = [
    ("norm_feed_forward1", "ffn_norm"),
    ("feed_forward1.linear1", "ffn_up"),
    ("feed_forward1.linear2", "ffn_down"),
    ("norm_self_att", "ln1"),
    ("self_attn.linear_q", "attn_q"),
    ("self_attn.linear_k", "attn_k"),
    ("self_attn.linear_v", "attn_v"),
    ("self_attn.linear_out", "attn_out"),
    ("self_attn.linear_pos", "linear_pos"),
    ("norm_conv", "norm_conv"),
    ("conv.pointwise_conv1", "conv_pw1"),
    ("conv.depthwise_conv", "conv_dw"),
    ("conv.batch_norm", "conv_norm"),
    ("conv.pointwise_conv2", "conv_pw2"),
    ("norm_feed_forward2", "ffn_norm_1"),
    ("feed_forward2.linear1", "ffn_up_1"),
    ("feed_forward2.linear2", "ffn_down_1"),
    ("norm_out", "ln2"),
];

/// The name in a GGUF file of a tensor that transformers calls so; `None` if it is not one of an encoder of sound.
pub(crate) fn in_gguf(name: &str) -> Option<String> {
    let (stem, end) = name.rsplit_once('.')?;
    let of = |table: &[(&str, &'static str)], part: &str| {
        let found = table.iter().find(|(known, _)| *known == part);
        found.map(|(_, own)| *own)
    };
    for (prefix, table) in [
        ("audio_tower.layers.", &OF_LAYER[..]),
        ("conformer.layers.", &OF_CONFORMER),
    ] {
        let Some(rest) = stem.strip_prefix(prefix) else {
            continue;
        };
        let (layer, part) = rest.split_once('.')?;
        return match end {
            // Vectors, whose names have no end.
            "pos_bias_u" | "pos_bias_v" => Some(format!("a.blk.{layer}.{end}")),
            _ => Some(format!("a.blk.{layer}.{}.{end}", of(table, part)?)),
        };
    }
    Some(format!("{}.{end}", of(&PARTS, stem)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_translated() {
        for (name, own) in [
            ("audio_tower.conv2.bias", Some("a.conv1d.2.bias")),
            (
                "audio_tower.layers.11.self_attn.out_proj.weight",
                Some("a.blk.11.attn_out.weight"),
            ),
            ("audio_tower.layers.0.fc3.weight", None),
            (
                "conformer.layers.3.conv.batch_norm.weight",
                Some("a.blk.3.conv_norm.weight"),
            ),
            (
                "conformer.layers.3.self_attn.pos_bias_u",
                Some("a.blk.3.pos_bias_u"),
            ),
            ("model.layers.0.mlp.up_proj.weight", None),
            ("audio_tower", None),
        ] {
            assert_eq!(in_gguf(name).as_deref(), own, "{name}");
        }
    }
}
