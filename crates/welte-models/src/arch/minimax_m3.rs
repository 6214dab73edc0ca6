//! The language model of MiniMax M3: queries and keys are normed per head, and a part of each head is rotated. Experts chosen by sigmoid
//! with a bias are beside a shared one, after dense layers; activations are clamped. Norms multiply by `1 + w`. Contexts that are
//! no longer than the choice of its indexer see every position, so the indexer is left out.

use super::architecture::{Architecture, Usual, flags, no_windows};
use super::{deepseek2, gpt_oss, llama, minimax_m2};
use crate::keys::Keys;
use crate::names::{self, Names};
use crate::spec::{MOST_FFN, SharedExpert};
use crate::{Error, ModelSpec, QkNorm};
use welte_formats::checkpoint::Value;

pub(super) const MINIMAX_M3: Architecture = Architecture {
    name: "minimax-m3",
    gguf: &["minimax-m3"],
    hugging_face: &["minimax_m3_vl", "minimax_m3_vl_text"],
    usual: Usual {
        theta: 5e6,
        experts_scale: 2.0,
        ..Usual::PLAIN
    },
    hugging_face_names: Names {
        choice_bias: "model.layers.{}.block_sparse_moe.e_score_correction_bias",
        shared_expert: [
            "model.layers.{}.block_sparse_moe.shared_experts.gate_proj",
            "model.layers.{}.block_sparse_moe.shared_experts.up_proj",
            "model.layers.{}.block_sparse_moe.shared_experts.down_proj",
        ],
        ..names::HUGGING_FACE_MIXTRAL
    },
    gguf_interleaved: false,
    qk_norm: QkNorm::Head,
    windows: no_windows,
    finish,
    ..llama::LLAMA
};

fn finish(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    // Files have the sums.
    spec.norm_add = if keys.is_gguf() { 0.0 } else { 1.0 };
    minimax_m2::rotated(spec, keys)?;
    gpt_oss::clamped(spec, keys)?;
    let count = keys.name("expert_count", "num_local_experts");
    if spec.experts.is_none() {
        return Err(keys.error(&count, "is missing; MiniMax M3 has experts"));
    }
    deepseek2::experts(spec, keys)?;
    let width = keys.name(
        "expert_shared_feed_forward_length",
        "shared_intermediate_size",
    );
    if let Some(ffn) = keys.u32(&width)?.filter(|ffn| *ffn <= MOST_FFN) {
        let shared = SharedExpert { ffn, gated: false };
        spec.experts
            .iter_mut()
            .for_each(|e| e.shared = Some(shared));
    }
    if !keys.is_gguf() {
        if let Some(Value::Array(_)) = keys.value("moe_layer_freq") {
            spec.expert_layers = flags(keys, spec.layers, "moe_layer_freq")?;
        }
        spec.ffn = keys.size("dense_intermediate_size", Some(12288), MOST_FFN)?;
    }
    if let Some(experts) = &mut spec.experts {
        experts.renormalise = true;
    }
    spec.indexed = indexed(keys)?;
    Ok(())
}

/// The positions that an indexer chooses, if some layer has one.
fn indexed(keys: &Keys<'_>) -> Result<Option<u32>, Error> {
    let number = |gguf: &str, names: [&str; 2], usual| {
        let own = format!("sparse_attention_config.{}", names[1]);
        let key = keys.first_name(gguf, &[&own, names[0]]);
        keys.size(&key, Some(usual), 1 << 15)
    };
    let names = ["index_topk_blocks", "sparse_topk_blocks"];
    let blocks = number("attention.indexer.top_k", names, 16)?;
    let names = ["index_block_size", "sparse_block_size"];
    let size = number("attention.indexer.block_size", names, 128)?;
    let sparse = |name: &str| names::is_of_indexer(name);
    let some = keys.checkpoint.tensors().iter().any(|t| sparse(&t.name));
    Ok(some.then_some(blocks * size))
}
