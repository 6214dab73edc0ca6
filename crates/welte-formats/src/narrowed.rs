//! Converts the 16-bit matrices of a checkpoint's layers to FP8 as they are read.

use crate::checkpoint::{Checkpoint, Error, Overlay, TensorInfo};
use crate::quant::{decode, f8_e4m3};
use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;
use welte_table::Format;

/// The products of a layer, as GGUF files and directories name them.
const GGUF: [&str; 9] = [
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_qkv",
    "attn_output",
    "attn_gate",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
];
const HUGGING_FACE: [&str; 9] = [
    "q_proj",
    "k_proj",
    "v_proj",
    "qkv_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "gate_up_proj",
    "down_proj",
];

/// Reads the matrices of a checkpoint's layers in F8_E4M3, with one scale per row, where they are in BF16 or F16 and their rows are whole
/// blocks. Embeddings, routers, experts, norms and the output matrix stay as they are.
pub struct Narrowed {
    from: Box<dyn Checkpoint>,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
}

impl Narrowed {
    /// Wraps a checkpoint.
    pub fn new(from: Box<dyn Checkpoint>) -> Narrowed {
        let mut tensors = from.tensors().to_vec();
        for tensor in tensors.iter_mut().filter(|tensor| narrows(tensor)) {
            tensor.format = Format::F8_E4M3;
        }
        let names = tensors.iter().map(|tensor| tensor.name.clone());
        let by_name = names.zip(0..).collect();
        Narrowed {
            from,
            tensors,
            by_name,
        }
    }
}

fn narrows(tensor: &TensorInfo) -> bool {
    let mut parts = tensor.name.rsplit('.');
    let is_weight = parts.next() == Some("weight");
    let is_product = parts
        .next()
        .is_some_and(|name| GGUF.contains(&name) || HUGGING_FACE.contains(&name));
    let is_wide = matches!(tensor.format, Format::BF16 | Format::F16);
    let whole = Format::F8_E4M3.bytes(tensor.k).is_some();
    let of_experts = tensor.stack > 1 || tensor.name.contains("expert");
    is_weight && is_product && is_wide && whole && !of_experts
}

impl Overlay for Narrowed {
    fn base(&self) -> &dyn Checkpoint {
        &*self.from
    }
    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }
    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(*self.by_name.get(name)?)
    }
    fn rows(&self, tensor: &TensorInfo, first: usize, rows: usize) -> Result<Cow<'_, [u8]>, Error> {
        let stored = self.from.tensor(&tensor.name).unwrap_or(tensor);
        let bytes = self.from.rows(stored, first, rows)?;
        if stored.format == tensor.format {
            return Ok(bytes);
        }
        let mut values = vec![0.0; rows * tensor.k];
        decode(stored.format, &bytes, &mut values);
        if !values.iter().all(|value| value.is_finite()) {
            let problem = "a value is not finite, so the tensor cannot be read as FP8";
            return Err(tensor.wrong(Path::new(self.from.origin()), problem));
        }
        let size = tensor.format.bytes(values.len()).unwrap_or(0);
        let mut narrowed = vec![0; size];
        let row = size / rows.max(1);
        for (values, row) in values
            .chunks_exact(tensor.k)
            .zip(narrowed.chunks_exact_mut(row.max(1)))
        {
            f8_e4m3::encode_row(values, row);
        }
        Ok(Cow::Owned(narrowed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic::Synthetic;

    #[test]
    fn layers_matrices_are_read_as_fp8_and_all_else_as_it_is() {
        let plain = || Synthetic::parse("qwen3-0.6b,layers=1:bf16").expect("a shape");
        let before = plain();
        let narrowed: Box<dyn Checkpoint> = Box::new(Narrowed::new(Box::new(plain())));
        let mut count = 0;
        for (old, new) in before.tensors().iter().zip(narrowed.tensors()) {
            assert_eq!(narrowed.tensor(&old.name), Some(new));
            let (old_rows, new_rows) = (
                before.rows(old, 0, 1).expect("a row"),
                narrowed.rows(new, 0, 1).expect("a row"),
            );
            if new.format == old.format {
                assert_eq!(old_rows, new_rows, "{}", old.name);
                continue;
            }
            count += 1;
            assert_eq!((new.format, new.n, new.k), (Format::F8_E4M3, old.n, old.k));
            let (mut exact, mut near) = (vec![0.0; old.k], vec![0.0; old.k]);
            decode(old.format, &old_rows, &mut exact);
            decode(new.format, &new_rows, &mut near);
            let most = exact.iter().fold(0.0f32, |most, x| most.max(x.abs()));
            for (x, y) in exact.iter().zip(&near) {
                // Three bits of mantissa, and a smallest step of the row's scale.
                let step = most / 448.0 / 512.0;
                assert!((x - y).abs() <= x.abs() / 16.0 + step, "{x} {y}");
            }
            let mut scales = new_rows.chunks(132).map(|block| &block[..4]);
            assert!(scales.all(|scale| scale == &new_rows[..4]));
        }
        assert_eq!(count, 7, "the products of a layer");
        let named = |name: &str| narrowed.tensors().iter().find(|t| t.name.starts_with(name));
        assert_eq!(
            named("token_embd").expect("embeddings").format,
            Format::BF16
        );
    }

    #[test]
    fn experts_keep_their_format_in_both_dialects() {
        let tensor = |name: &str, stack| TensorInfo {
            name: name.to_string(),
            format: Format::BF16,
            n: 256,
            k: 256,
            stack,
        };
        let layer = "model.layers.0";
        for (name, stack, narrow) in [
            (format!("{layer}.mlp.down_proj.weight"), 1, true),
            ("blk.0.ffn_down.weight".to_string(), 1, true),
            (format!("{layer}.mlp.experts.3.down_proj.weight"), 1, false),
            (
                format!("{layer}.mlp.shared_expert.down_proj.weight"),
                1,
                false,
            ),
            ("blk.0.ffn_down_exps.weight".to_string(), 8, false),
            ("blk.0.ffn_down_shexp.weight".to_string(), 1, false),
            (format!("{layer}.input_layernorm.weight"), 1, false),
            ("output.weight".to_string(), 1, false),
        ] {
            assert_eq!(narrows(&tensor(&name, stack)), narrow, "{name}");
        }
        let short = TensorInfo {
            k: 200,
            ..tensor("blk.0.ffn_down.weight", 1)
        };
        assert!(!narrows(&short), "its rows are not whole blocks");
    }
}
