//! The names that `mmproj` files have for tensors of encoders of sound.

/// Names in transformers, without `.weight` and `.bias`, and those in GGUF files.
const PARTS: [(&str, &str); 15] = [
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

/// The name in a GGUF file of a tensor that transformers calls so; `None` if it is not one of an encoder of sound.
pub(crate) fn in_gguf(name: &str) -> Option<String> {
    let (stem, end) = name.rsplit_once('.')?;
    let of = |table: &[(&str, &'static str)], part: &str| {
        let found = table.iter().find(|(known, _)| *known == part);
        found.map(|(_, own)| *own)
    };
    if let Some(rest) = stem.strip_prefix("audio_tower.layers.") {
        let (layer, part) = rest.split_once('.')?;
        let own = of(&OF_LAYER, part)?;
        return Some(format!("a.blk.{layer}.{own}.{end}"));
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
            ("model.layers.0.mlp.up_proj.weight", None),
            ("audio_tower", None),
        ] {
            assert_eq!(in_gguf(name).as_deref(), own, "{name}");
        }
    }
}
