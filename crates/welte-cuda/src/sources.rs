//! The kernels' sources.

use crate::launch::Unit;

/// Files in `kernels/`, by the names that `#include` and [`Unit`] use.
macro_rules! sources {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../kernels/", $name)))),*]
    };
}

/// Every file in `kernels/`.
pub(crate) const SOURCES: &[(&str, &str)] = sources![
    "angle.cuh",
    "attention.cu",
    "attention.cuh",
    "attention_plain.cu",
    "attention_prefill.cu",
    "attention_sparse.cu",
    "attention_wide.cu",
    "attention_wide_prefill.cu",
    "basic.cu",
    "blocks.cuh",
    "common.cuh",
    "choose_positions.cu",
    "columns.cu",
    "columns.cuh",
    "columns_wide.cu",
    "conv.cu",
    "dequant.cu",
    "dequant.cuh",
    "eighths.cu",
    "embed.cu",
    "encode.cu",
    "encode.cuh",
    "encode_tiles.cu",
    "exchange.cu",
    "experts.cu",
    "flash.cuh",
    "format/affine.cuh",
    "format/bf16.cuh",
    "format/codebook.cuh",
    "format/f16.cuh",
    "format/f32.cuh",
    "format/f8_e4m3.cuh",
    "format/integers.cuh",
    "format/iq1_m.cuh",
    "format/iq1_s.cuh",
    "format/iq2_s.cuh",
    "format/iq2_xs.cuh",
    "format/iq2_xxs.cuh",
    "format/iq3_s.cuh",
    "format/iq3_xxs.cuh",
    "format/iq4_nl.cuh",
    "format/iq4_xs.cuh",
    "format/k_head.cuh",
    "format/mxfp4.cuh",
    "format/nvfp4.cuh",
    "format/nvfp4_f32.cuh",
    "format/q1_0.cuh",
    "format/q2_k.cuh",
    "format/q3_k.cuh",
    "format/q4_0.cuh",
    "format/q4_1.cuh",
    "format/q4_k.cuh",
    "format/q5_0.cuh",
    "format/q5_1.cuh",
    "format/q5_k.cuh",
    "format/q6_k.cuh",
    "format/q8_0.cuh",
    "format/signed.cuh",
    "format/small_float.cuh",
    "format/tq1_0.cuh",
    "format/tq2_0.cuh",
    "gated_delta.cu",
    "gemm.cu",
    "gemm.cuh",
    "gemm_wide.cu",
    "heads.cu",
    "hidden.cu",
    "streams.cu",
    "adapters.cu",
    "kv.cuh",
    "logprobs.cu",
    "logprobs.cuh",
    "mamba2.cu",
    "matmul.cu",
    "persistent.cu",
    "persistent_rows.cu",
    "persistent/add_normed.cuh",
    "persistent/attend.cuh",
    "persistent/block.cuh",
    "persistent/cached.cuh",
    "persistent/choose.cuh",
    "persistent/conv.cuh",
    "persistent/copy.cuh",
    "persistent/embed.cuh",
    "persistent/exchange.cuh",
    "persistent/experts.cuh",
    "persistent/scores.cuh",
    "persistent/formats.cuh",
    "persistent/partition.cuh",
    "persistent/product.cuh",
    "persistent/recurrent.cuh",
    "persistent/route.cuh",
    "persistent/rows.cuh",
    "persistent/rows_attend.cuh",
    "persistent/rows_product.cuh",
    "persistent/stage.cuh",
    "persistent/start.cuh",
    "persistent/stream.cuh",
    "persistent/tile.cuh",
    "persistent/tensor.cuh",
    "persistent/rows_tensor.cuh",
    "prepare.cu",
    "prompt.cuh",
    "ptx.cuh",
    "quantise.cuh",
    "rank.cuh",
    "read.cu",
    "repack.cu",
    "rope.cu",
    "sample.cu",
    "sample.cuh",
    "softmax.cuh",
    "splits.cuh",
    "state.cuh",
    "tile.cuh",
    "turn.cu",
    "weights.cuh",
    "wide.cuh",
    "wgmma.cuh",
];

/// Files whose kernels compute the same for a row in several ways, alone and beside others, and must give it the same bits. The compiler may not choose where
/// a product and a sum become one operation: only `fmaf` does this.
pub(crate) const DECODE_UNITS: [&str; 6] = [
    "columns.cu",
    "columns_wide.cu",
    "logprobs.cu",
    "matmul.cu",
    "persistent.cu",
    "persistent_rows.cu",
];

/// The text of a file of `kernels/`.
pub(crate) fn source(file: &str) -> Option<&'static str> {
    SOURCES
        .iter()
        .find(|(name, _)| *name == file)
        .map(|(_, source)| *source)
}

/// A unit in words.
pub(crate) fn title(unit: &Unit) -> String {
    let mut name = unit.file.to_string();
    for (key, value) in &unit.defines {
        name += &format!(" {key}={value}");
    }
    name
}
