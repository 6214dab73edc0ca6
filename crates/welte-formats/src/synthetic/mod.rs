//! Synthetic models: real shapes, random weights from a seed, no download.

mod fill;
mod gemma3n;
mod gemma4;
mod hybrid;
mod latent;
mod layout;
mod shape;
mod vocabulary;

pub use fill::blocks as random_blocks;
pub use shape::{
    DeltaShape, Family, Gemma3n, Gemma4, Hybrid, LatentShape, Llama3Scaling, NAMES, Shape, SsmShape,
};

use crate::tensors::Tensors;
use crate::{Checkpoint, Dialect, Error, Metadata, TensorInfo, Value, gguf, quantize};
use fill::Fill;
use layout::Layout;
use std::borrow::Cow;
use std::path::Path;
use welte_table::Format;

/// Taps of convolutions.
const TAPS: usize = 4;

/// The approximate number of bytes made at a time when writing a file.
const PIECE: usize = 32 << 20;

/// A synthetic checkpoint with GGUF names. Rows are made on request and are always the same.
#[derive(Debug)]
pub struct Synthetic {
    origin: String,
    shape: Shape,
    seed: u64,
    metadata: Metadata,
    tensors: Tensors,
    fills: Vec<Fill>,
}

/// The formats of the matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recipe {
    /// One format for all.
    Pure(Format),
    /// Q6_K for the output and the most sensitive matrices, this format for the others.
    Medium(Format),
    /// MXFP4 for experts, Q8_0 for the others.
    Mxfp4Experts,
}

impl Recipe {
    fn from_name(name: &str) -> Option<Recipe> {
        match name.to_ascii_lowercase().as_str() {
            "q4_k_m" => Some(Recipe::Medium(Format::Q4_K)),
            "q5_k_m" => Some(Recipe::Medium(Format::Q5_K)),
            "mxfp4_moe" => Some(Recipe::Mxfp4Experts),
            // The usual group size may be left out: `mlx4`.
            other => Format::from_name(other)
                .or_else(|| Format::from_name(&format!("{other}_64")))
                .map(Recipe::Pure),
        }
    }

    /// The number in `general.file_type`.
    fn file_type(self) -> u32 {
        match self {
            Recipe::Medium(Format::Q4_K) => 15,
            Recipe::Medium(_) => 17,
            Recipe::Mxfp4Experts => 38,
            Recipe::Pure(format) => quantize::file_type(format),
        }
    }

    /// The format of a matrix with rows of `k` elements. Mixed recipes give `important` ones more bits.
    fn format(self, important: bool, expert: bool, k: usize) -> Format {
        let wanted = match self {
            Recipe::Medium(_) if important => Format::Q6_K,
            Recipe::Mxfp4Experts if expert => Format::MXFP4,
            Recipe::Mxfp4Experts => Format::Q8_0,
            Recipe::Medium(format) | Recipe::Pure(format) => format,
        };
        quantize::fitting(wanted, k)
    }
}

impl Synthetic {
    /// Parses `SHAPE[,KEY=VALUE...]:FORMAT`, such as `qwen3-0.6b:q4_0`, `llama-1b,layers=2:q8_0` or
    /// `custom,arch=llama,layers=2,dim=256,heads=4,kv_heads=2,head_dim=64,ffn=512,vocab=1000,seed=7:q4_k_m`.
    pub fn parse(text: &str) -> Result<Synthetic, Error> {
        let origin = format!("synthetic:{text}");
        let refuse = |problem: String| Error::unsupported(Path::new(&origin), problem);
        let Some((shape, format)) = text.rsplit_once(':') else {
            return Err(refuse(
                "lacks a format: write SHAPE:FORMAT, such as qwen3-0.6b:q4_0".to_string(),
            ));
        };
        let recipe = Recipe::from_name(format).ok_or_else(|| {
            let ours = Format::ALL.into_iter().filter(|f| gguf::type_id(*f).is_some());
            let ours: Vec<&str> = ours.map(Format::name).collect();
            refuse(format!(
                "format {format} is unknown; known are {}, Q4_K_M, Q5_K_M, MXFP4_MOE, MLXb_g and MLXb_g_F16 (b bits in groups of g)",
                ours.join(", ")
            ))
        })?;
        let mut words = shape.split(',');
        let name = words.next().unwrap_or_default();
        let mut shape = Shape::named(&name.to_ascii_lowercase()).ok_or_else(|| {
            refuse(format!(
                "shape {name} is unknown; known are {}",
                NAMES.join(", ")
            ))
        })?;
        let mut seed = 0;
        for word in words {
            let (key, value) = word
                .split_once('=')
                .ok_or_else(|| refuse(format!("{word}: expected KEY=VALUE")))?;
            if key == "seed" {
                seed = value
                    .parse()
                    .map_err(|_| refuse(format!("seed={value}: expected a number")))?;
            } else {
                shape.set(key, value).map_err(&refuse)?;
            }
        }
        shape.check().map_err(&refuse)?;
        let metadata = metadata(&shape, name, recipe);
        let mut made = Synthetic {
            metadata,
            seed,
            tensors: Tensors::default(),
            fills: Vec::new(),
            shape: shape.clone(),
            origin,
        };
        made.lay_out(&shape, recipe);
        Ok(made)
    }

    /// The model's shape.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    fn lay_out(&mut self, shape: &Shape, recipe: Recipe) {
        match &shape.family {
            Family::Gemma4(own) => return gemma4::lay_out(self, shape, own, recipe),
            Family::Gemma3n(own) => {
                return gemma3n::lay_out(&mut Layout { made: self, recipe }, shape, own);
            }
            Family::Hybrid(own) => {
                return hybrid::lay_out(&mut Layout { made: self, recipe }, shape, own);
            }
            Family::Latent(own) => {
                return latent::lay_out(&mut Layout { made: self, recipe }, shape, own);
            }
            _ => {}
        }
        let Shape {
            dim,
            heads,
            kv_heads,
            head_dim,
            ffn,
            vocab,
            layers,
            tied,
            ..
        } = *shape;
        let (q, kv) = (heads * head_dim, kv_heads * head_dim);
        let experts = match shape.has_experts() {
            true => shape.experts,
            false => 0,
        };
        let gpt_oss = shape.family == Family::GptOss;
        let mixture = shape.family == Family::Qwen35Moe;
        let gated = shape.family == Family::Qwen35 || mixture;
        let biased = shape.family == Family::PhiMoe;
        let delta = shape.delta;
        let values = delta.heads * delta.dim;
        let channels = 2 * delta.key_heads * delta.dim + values;
        // Adds `stack` matrices as one tensor.
        let mut stacked = |name: String, stack: usize, n: usize, k: usize, important: bool| {
            let format = recipe.format(important, stack > 1, k);
            self.add(name, format, stack, stack * n, k, Fill::Matrix);
        };
        let mut matrix =
            |name: String, n: usize, k: usize, important: bool| stacked(name, 1, n, k, important);
        matrix("token_embd.weight".to_string(), vocab, dim, tied);
        if !tied {
            matrix("output.weight".to_string(), vocab, dim, true);
        }
        for layer in 0..layers {
            let name = |part: &str| format!("blk.{layer}.{part}.weight");
            let more = quantize::more_bits(layer, layers);
            let mut matrix = |part: &str, n: usize, k: usize, important: bool| {
                stacked(name(part), 1, n, k, important);
            };
            if shape.is_delta(layer) {
                matrix("attn_qkv", channels, dim, more);
                matrix("attn_gate", values, dim, false);
                matrix("ssm_beta", delta.heads, dim, false);
                matrix("ssm_alpha", delta.heads, dim, false);
                matrix("ssm_out", dim, values, false);
            } else {
                matrix("attn_q", q * if gated { 2 } else { 1 }, dim, false);
                matrix("attn_k", kv, dim, false);
                matrix("attn_v", kv, dim, more);
                matrix("attn_output", dim, q, false);
            }
            if experts == 0 {
                matrix("ffn_gate", ffn, dim, false);
                matrix("ffn_up", ffn, dim, false);
                matrix("ffn_down", dim, ffn, more);
            } else {
                stacked(name("ffn_gate_exps"), experts, ffn, dim, false);
                stacked(name("ffn_up_exps"), experts, ffn, dim, false);
                stacked(name("ffn_down_exps"), experts, dim, ffn, more);
            }
            if mixture {
                // The shared expert is as wide as the others.
                stacked(name("ffn_gate_shexp"), 1, ffn, dim, false);
                stacked(name("ffn_up_shexp"), 1, ffn, dim, false);
                stacked(name("ffn_down_shexp"), 1, dim, ffn, more);
            }
        }
        for layer in (0..layers).filter(|_| experts > 0) {
            let name = format!("blk.{layer}.ffn_gate_inp.weight");
            self.add(name, Format::F32, 1, experts, dim, Fill::Matrix);
        }
        let mut vector =
            |name: String, k: usize, fill: Fill| self.add(name, Format::F32, 1, 1, k, fill);
        vector("output_norm.weight".to_string(), dim, Fill::Norm);
        for layer in 0..layers {
            vector(format!("blk.{layer}.attn_norm.weight"), dim, Fill::Norm);
            let ffn_norm = if gpt_oss || gated {
                "post_attention_norm"
            } else {
                "ffn_norm"
            };
            vector(format!("blk.{layer}.{ffn_norm}.weight"), dim, Fill::Norm);
            match shape.family {
                Family::Llama
                | Family::Gemma3n(_)
                | Family::Gemma4(_)
                | Family::Hybrid(_)
                | Family::Latent(_) => {}
                Family::Qwen2 => {
                    for (part, k) in [("q", q), ("k", kv), ("v", kv)] {
                        vector(format!("blk.{layer}.attn_{part}.bias"), k, Fill::Bias);
                    }
                }
                Family::GptOss => {
                    let parts = [
                        ("attn_q.bias", q),
                        ("attn_k.bias", kv),
                        ("attn_v.bias", kv),
                        ("attn_output.bias", dim),
                        ("attn_sinks.weight", heads),
                        ("ffn_gate_inp.bias", experts),
                    ];
                    for (part, k) in parts {
                        vector(format!("blk.{layer}.{part}"), k, Fill::Bias);
                    }
                }
                Family::PhiMoe => {
                    let parts = [
                        ("attn_q", q),
                        ("attn_k", kv),
                        ("attn_v", kv),
                        ("attn_output", dim),
                        ("attn_norm", dim),
                        ("ffn_norm", dim),
                    ];
                    for (part, k) in parts {
                        vector(format!("blk.{layer}.{part}.bias"), k, Fill::Bias);
                    }
                }
                Family::Qwen35 | Family::Qwen35Moe if shape.is_delta(layer) => {
                    let name = |part: &str| format!("blk.{layer}.{part}");
                    // Sequences forget within some to some hundred positions.
                    let decay = |i: usize| -0.02 * (1 + i % 8) as f32;
                    let decays = (0..delta.heads).map(decay).collect();
                    vector(name("ssm_a"), delta.heads, Fill::Given(decays));
                    vector(name("ssm_dt.bias"), delta.heads, Fill::Bias);
                    vector(name("ssm_norm.weight"), delta.dim, Fill::Norm);
                }
                Family::Qwen3
                | Family::Qwen3Moe
                | Family::Gemma3
                | Family::Qwen35
                | Family::Qwen35Moe => {
                    for part in ["q", "k"] {
                        let name = format!("blk.{layer}.attn_{part}_norm.weight");
                        vector(name, head_dim, Fill::Norm);
                    }
                }
            }
            if shape.family == Family::Gemma3 {
                for part in ["post_attention_norm", "post_ffw_norm"] {
                    vector(format!("blk.{layer}.{part}.weight"), dim, Fill::Norm);
                }
            }
        }
        if mixture {
            for layer in 0..layers {
                let name = format!("blk.{layer}.ffn_gate_inp_shexp.weight");
                vector(name, dim, Fill::Matrix);
            }
        }
        if biased {
            vector("output_norm.bias".to_string(), dim, Fill::Bias);
            vector("output.bias".to_string(), vocab, Fill::Bias);
        }
        for layer in (0..layers).filter(|_| gpt_oss) {
            for (part, k) in [("gate", ffn), ("up", ffn), ("down", dim)] {
                let name = format!("blk.{layer}.ffn_{part}_exps.bias");
                self.add(name, Format::F32, 1, experts, k, Fill::Bias);
            }
        }
        for layer in (0..layers).filter(|layer| shape.is_delta(*layer)) {
            let name = format!("blk.{layer}.ssm_conv1d.weight");
            self.add(name, Format::F32, 1, channels, TAPS, Fill::Matrix);
        }
        let mut vector =
            |name: String, k: usize, fill: Fill| self.add(name, Format::F32, 1, 1, k, fill);
        if let Some(factors) = shape.rope_factors() {
            vector(
                "rope_freqs.weight".to_string(),
                factors.len(),
                Fill::Given(factors),
            );
        }
    }

    fn add(&mut self, name: String, format: Format, stack: usize, n: usize, k: usize, fill: Fill) {
        let added = self.tensors.add(TensorInfo {
            name,
            format,
            n,
            k,
            stack,
        });
        debug_assert!(added, "tensor names are unique");
        self.fills.push(fill);
    }

    /// Fills `out`, a whole number of rows, with the rows from `first` on.
    fn make(&self, index: usize, first: usize, row_bytes: usize, out: &mut [u8]) {
        let TensorInfo {
            name, format, k, ..
        } = &self.tensors.list()[index];
        let key = fill::key(self.seed, name);
        for (i, row) in out.chunks_exact_mut(row_bytes).enumerate() {
            fill::row(
                &self.fills[index],
                *format,
                *k,
                key,
                (first + i) as u64,
                row,
            );
        }
    }

    /// Makes rows on all cores.
    fn make_together(&self, index: usize, first: usize, rows: usize, out: &mut Vec<u8>) {
        let tensor = &self.tensors.list()[index];
        let row = tensor.format.bytes(tensor.k).unwrap_or(1);
        out.resize(rows * row, 0);
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let share = rows.div_ceil(threads);
        std::thread::scope(|scope| {
            for (i, part) in out.chunks_mut((share * row).max(1)).enumerate() {
                scope.spawn(move || self.make(index, first + i * share, row, part));
            }
        });
    }
}

impl Checkpoint for Synthetic {
    fn origin(&self) -> &str {
        &self.origin
    }

    fn dialect(&self) -> Dialect {
        Dialect::Gguf
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn tensors(&self) -> &[TensorInfo] {
        self.tensors.list()
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name)
    }

    fn rows(&self, tensor: &TensorInfo, first: usize, rows: usize) -> Result<Cow<'_, [u8]>, Error> {
        let path = Path::new(&self.origin);
        let (number, rows) = self.tensors.rows(path, tensor, first, rows)?;
        let row = tensor.format.bytes(tensor.k);
        let bytes = row.and_then(|row| row.checked_mul(rows.len()));
        let (Some(row), Some(bytes)) = (row, bytes) else {
            return Err(tensor.wrong(path, "is too large"));
        };
        let mut out = vec![0; bytes];
        self.make(number, rows.start, row, &mut out);
        Ok(Cow::Owned(out))
    }
}

/// Writes a synthetic model as a GGUF file. `progress` receives the bytes written and their total.
pub fn write(
    model: &Synthetic,
    path: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), Error> {
    let row_bytes = |t: &TensorInfo| t.format.bytes(t.k).unwrap_or(1);
    let total = model
        .tensors()
        .iter()
        .map(|t| (row_bytes(t) * t.n) as u64)
        .sum();
    let mut writer = gguf::Writer::create(path, &model.metadata, model.kinds(), model.tensors())?;
    let pieces = model
        .tensors()
        .iter()
        .enumerate()
        .flat_map(|(index, tensor)| {
            let step = (PIECE / row_bytes(tensor)).max(1);
            let firsts = (0..tensor.n).step_by(step);
            firsts.map(move |first| (index, first, step.min(tensor.n - first)))
        });
    let (mut made, mut next, mut done) = (Vec::new(), Vec::new(), 0);
    // The next piece is made while one is written.
    for (index, first, rows) in pieces {
        let written = std::thread::scope(|scope| {
            scope.spawn(|| model.make_together(index, first, rows, &mut next));
            writer.write(&made)
        });
        written?;
        done += made.len() as u64;
        progress(done, total);
        std::mem::swap(&mut made, &mut next);
    }
    writer.write(&made)?;
    progress(total, total);
    writer.finish()
}

/// The metadata that a loader needs.
fn metadata(shape: &Shape, name: &str, recipe: Recipe) -> Metadata {
    let architecture = shape.architecture();
    let text = |s: &str| Value::String(s.to_string());
    let mut metadata = Metadata::from([
        ("general.architecture".to_string(), text(architecture)),
        (
            "general.name".to_string(),
            text(&format!("{name} (random weights)")),
        ),
        (
            "general.file_type".to_string(),
            Value::U64(recipe.file_type().into()),
        ),
        ("general.quantization_version".to_string(), Value::U64(2)),
    ]);
    for (key, value) in [
        ("context_length", shape.context),
        ("embedding_length", shape.dim),
        ("block_count", shape.layers),
        ("feed_forward_length", shape.ffn),
        ("attention.head_count", shape.heads),
        ("attention.head_count_kv", shape.kv_heads),
        ("attention.key_length", shape.head_dim),
        ("attention.value_length", shape.head_dim),
        (
            "rope.dimension_count",
            match shape.family {
                Family::Qwen35 | Family::Qwen35Moe => shape.head_dim / 4,
                _ => shape.head_dim,
            },
        ),
        ("vocab_size", shape.vocab),
    ] {
        metadata.insert(format!("{architecture}.{key}"), Value::U64(value as u64));
    }
    for (key, value) in [
        ("rope.freq_base", shape.rope_base),
        ("attention.layer_norm_rms_epsilon", shape.norm_epsilon),
    ] {
        metadata.insert(format!("{architecture}.{key}"), Value::F64(value.into()));
    }
    let experts = [
        ("expert_count", shape.experts),
        ("expert_used_count", shape.used),
        ("expert_feed_forward_length", shape.ffn),
    ];
    let delta = [
        ("full_attention_interval", shape.interval()),
        ("ssm.conv_kernel", TAPS),
        ("ssm.state_size", shape.delta.dim),
        ("ssm.group_count", shape.delta.key_heads),
        ("ssm.time_step_rank", shape.delta.heads),
        ("ssm.inner_size", shape.delta.heads * shape.delta.dim),
    ];
    let own: &[(&str, usize)] = match shape.family {
        Family::Qwen3Moe | Family::PhiMoe => &experts,
        Family::GptOss => &[
            experts[0],
            experts[1],
            experts[2],
            ("attention.sliding_window", shape.window),
            ("rope.scaling.original_context_length", 4096),
        ],
        Family::Gemma3 => &[("attention.sliding_window", shape.window)],
        Family::Qwen35 => &delta,
        Family::Qwen35Moe => {
            let shared = ("expert_shared_feed_forward_length", shape.ffn);
            &[delta.as_slice(), &experts, &[shared]].concat()
        }
        _ => &[],
    };
    for (key, value) in own {
        metadata.insert(format!("{architecture}.{key}"), Value::U64(*value as u64));
    }
    if shape.family == Family::GptOss {
        let key = |key: &str| format!("{architecture}.rope.scaling.{key}");
        metadata.insert(key("type"), text("yarn"));
        let factor = shape.scaling.map_or(32.0, |s| s.factor);
        metadata.insert(key("factor"), Value::F64(factor.into()));
    }
    if let Family::Qwen35 | Family::Qwen35Moe = shape.family {
        // The rotated pairs of text and of the two dimensions of pictures.
        let pairs = shape.head_dim / 8;
        let sections = [2, 1, 0].map(|more| Value::U64(((pairs + more) / 3) as u64));
        let sections = [sections.as_slice(), &[Value::U64(0)]].concat();
        let key = format!("{architecture}.rope.dimension_sections");
        metadata.insert(key, Value::Array(sections));
    }
    match &shape.family {
        Family::Gemma4(own) => gemma4::describe(&mut metadata, shape, own),
        Family::Gemma3n(own) => gemma3n::describe(&mut metadata, shape, own),
        Family::Hybrid(own) => hybrid::describe(&mut metadata, shape, own),
        Family::Latent(own) => latent::describe(&mut metadata, shape, own),
        _ => {}
    }
    let pre = match shape.family {
        Family::Llama | Family::Gemma3 | Family::Gemma3n(_) | Family::Gemma4(_) => "llama-bpe",
        Family::GptOss => "gpt-4o",
        Family::Qwen35 | Family::Qwen35Moe => "qwen35",
        _ => "qwen2",
    };
    vocabulary::add(&mut metadata, pre, shape.vocab);
    metadata
}
