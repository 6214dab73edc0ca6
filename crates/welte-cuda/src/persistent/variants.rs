//! The part of a persistent kernel's source that is written for one model: the header `generated.cuh`. It has a struct of
//! constants for each variant of an instruction, the cases of the kernel's switches, and the checks of mirrored structs.

use super::instruction::{LAYOUTS, TUNED_VARIANTS};
use crate::mirror::Layout;
use std::collections::BTreeMap;
use std::fmt::Write;
use welte_table::{Affine, Format};

/// Members of the affine family that one model may use, and the macros that name their parameters.
pub(crate) const AFFINE: [[&str; 3]; 4] = [
    ["AFFINE_0_BITS", "AFFINE_0_GROUP", "AFFINE_0_BF16"],
    ["AFFINE_1_BITS", "AFFINE_1_GROUP", "AFFINE_1_BF16"],
    ["AFFINE_2_BITS", "AFFINE_2_GROUP", "AFFINE_2_BF16"],
    ["AFFINE_3_BITS", "AFFINE_3_GROUP", "AFFINE_3_BF16"],
];

/// No layer of a cache (`persistent/attend.cuh`).
pub(crate) const NO_LAYER: u32 = u32::MAX;

/// The entry of the tuning parameters that a variant uses. Variants beyond the last entry share it.
pub(crate) fn tuning_index(variant: u32) -> usize {
    (variant as usize).min(TUNED_VARIANTS - 1)
}

/// What becomes of a product's results (`Output` of `persistent/stream.cuh`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Output {
    /// They replace the output.
    #[default]
    Store,
    /// They are added to the output.
    Add,
    /// The activation of one matrix's results times those of the other.
    ActMul,
    /// Their activation replaces the output.
    Act,
    /// They are logits.
    Logits,
    /// The block keeps them for the product with the next columns.
    Hold,
}

/// A Rust type with the C++ type that its constants have.
trait Constant {
    const CPP_TYPE: &'static str;
    fn literal(&self) -> String;
}

impl Constant for u32 {
    const CPP_TYPE: &'static str = "u32";
    fn literal(&self) -> String {
        format!("{self}u")
    }
}

impl Constant for f32 {
    const CPP_TYPE: &'static str = "float";
    fn literal(&self) -> String {
        // The shortest decimal fraction that reads back as the same float.
        format!("{self:?}f")
    }
}

impl Constant for bool {
    const CPP_TYPE: &'static str = "bool";
    fn literal(&self) -> String {
        self.to_string()
    }
}

impl Constant for Output {
    const CPP_TYPE: &'static str = "Output";
    fn literal(&self) -> String {
        format!("Output::{self:?}")
    }
}

/// Declares the constants of one kind of variant. The C++ struct has the same names.
macro_rules! constants {
    ($(#[$meta:meta])* $name:ident { $($(#[$field_meta:meta])* $field:ident: $type:ty),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq)]
        pub(crate) struct $name {
            $($(#[$field_meta])* pub(crate) $field: $type),*
        }

        impl $name {
            /// The members of the C++ struct.
            fn members(&self) -> String {
                let mut text = String::new();
                $(text += &member(stringify!($field), &self.$field);)*
                text
            }
        }
    };
}

fn member<T: Constant>(name: &str, value: &T) -> String {
    let (kind, literal) = (T::CPP_TYPE, value.literal());
    format!("    static constexpr {kind} {name} = {literal};\n")
}

constants! {
    /// An embedding (`persistent/embed.cuh`).
    Embedding {
        /// Rows of the table, and elements of each.
        n: u32,
        k: u32,
        scale: f32,
        /// Floats of a feature that rows may read in place of tokens; 0: they read none.
        features: u32,
    }
}

constants! {
    /// What each layer adds to its input, for all layers (`persistent/embed.cuh`).
    LayerInputs {
        /// Rows of the table, and elements of each.
        n: u32,
        k: u32,
        /// A factor of embeddings.
        scale: f32,
        /// Elements of a layer.
        width: u32,
        /// Of the projection's norm.
        eps: f32,
        /// A factor of the sum.
        factor: f32,
    }
}

constants! {
    /// A product of a matrix with the input (`persistent/product.cuh`, `rows_product.cuh`).
    Product {
        /// Rows of the matrix (of each, where there are two), and elements of each.
        n: u32,
        k: u32,
        output: Output,
        /// Elements of a whole row of the matrix, and the first column.
        row_k: u32,
        column: u32,
        /// The activation of [`Output::ActMul`], [`Output::Act`], or of `gates_inputs`.
        act: u32,
        /// Lanes that share a row.
        lanes: u32,
        /// Rows of a slot of the ring.
        rows: u32,
        /// Whether the input is normed, and whether each slice is normed by itself.
        norm: bool,
        grouped: bool,
        eps: f32,
        /// Whether the input is the output of attention.
        attended: bool,
        /// Whether the input is the block's own copy of the hidden vector (`persistent/add_normed.cuh`).
        local: bool,
        /// Whether a bias is added: the one that begins at `bias_at`.
        bias: bool,
        bias_at: u32,
        /// What logits are multiplied by, and their soft cap (0: none).
        scale: f32,
        cap: f32,
        /// Slots that are multiplied together, in a step of several rows.
        span: u32,
        /// Bytes that are kept beside a block of 32 activations, in a step of several rows.
        block_meta: u32,
        /// Chunks of a BF16 row (`persistent/tensor.cuh`); 0: lanes multiply the rows.
        chunks: u32,
        /// Chunks of the input that are staged together.
        staged: u32,
        /// Whether some blocks have no rows.
        partial: bool,
        /// Chosen experts, of how many (`persistent/experts.cuh`); 0 for other products. `n` is of one expert.
        used: u32,
        experts: u32,
        /// Whether results are multiplied by the sigmoid of one value, whose place the next instruction has.
        gated: bool,
        /// Whether the output was written by the product before, so that blocks may not have read it.
        follows: bool,
        /// Whether the results, after an activation, multiply inputs of the layer, whose place the next instruction has.
        gates_inputs: bool,
        /// Taps of a convolution of some rows, whose weights the next instruction has (`persistent/conv.cuh`); 0: none.
        taps: u32,
        /// The index of its cache, its channels, the row of the first one (modulo 2^32), and whether SiLU follows (1).
        conv_cache: u32,
        conv_n: u32,
        conv_begin: u32,
        conv_act: u32,
        /// Whether results go to all ranks.
        exchanged: bool,
        /// The token of the first row, of logits.
        first_id: u32,
        /// Floats of each chosen expert in the output.
        vector: u32,
    }
}

constants! {
    /// A convolution between two gates (`persistent/conv.cuh`). The places are relative to the input.
    GatedConv {
        taps: u32,
        conv_cache: u32,
        conv_n: u32,
        conv_act: u32,
        before_at: u32,
        value_at: u32,
        after_at: u32,
    }
}

constants! {
    /// A layer with a state per head (`persistent/recurrent.cuh`). The places are relative to the input.
    Recurrent {
        /// The index of the state's cache.
        cache: u32,
        /// The state space model of Mamba-2, and not the delta rule.
        mamba: bool,
        key_heads: u32,
        heads: u32,
        key_dim: u32,
        value_dim: u32,
        tiled: bool,
        eps: f32,
        /// Whether each head's result is normed.
        norm: bool,
        norm_eps: f32,
        query_at: u32,
        key_at: u32,
        value_at: u32,
        gate_at: u32,
        rate_at: u32,
        time_at: u32,
    }
}

constants! {
    /// The choice of experts (`persistent/route.cuh`).
    Route {
        experts: u32,
        used: u32,
        renormalise: bool,
        scale: f32,
        scoring: u32,
        /// Whether a bias decides the choice too.
        bias: bool,
        /// A factor of the router's logits.
        logit_scale: f32,
    }
}

constants! {
    /// Norms, rope, append and attention (`persistent/attend.cuh`).
    Attention {
        /// The index of the cache.
        cache: u32,
        heads: u32,
        kv_heads: u32,
        head_dim: u32,
        /// Elements of a head that rope turns.
        rot: u32,
        interleaved: u32,
        magnitude: f32,
        eps: f32,
        scale: f32,
        window: u32,
        softcap: f32,
        /// Whether heads have a score without a value.
        sinks: bool,
        /// Whether the result is multiplied by the sigmoids of gates, and where these begin in the input.
        gated: bool,
        gate_at: u32,
        /// Where this rope's angles begin.
        angles: u32,
        /// Whether angles follow a coordinate that may differ from the position.
        by_axes: bool,
        /// Where the results of this variant's splits begin, in floats of the exchange.
        splits_start: u32,
        /// The longest context that is not split.
        max_unsplit: u32,
        /// Positions of a split, while there are blocks for as many splits.
        split_positions: u32,
        /// The most splits.
        splits: u32,
        /// Queries of a job, and jobs that share a head of keys.
        queries: u32,
        query_groups: u32,
        /// Warps that share a tile.
        team: u32,
        /// Whether the values of each head are normed, and whether they are made from its keys.
        value_norm: bool,
        values_are_keys: bool,
        /// Whether keys and values are those of an earlier layer.
        shares: bool,
        /// The layer of the cache that later layers share ([`NO_LAYER`]: none), and where it publishes this turn's keys and values.
        source_layer: u32,
        shared_at: u32,
        /// Whether results go to all ranks.
        exchanged: bool,
    }
}

constants! {
    /// The sum of the hidden vector and a normed one (`persistent/add_normed.cuh`).
    AddNormed {
        n: u32,
        eps: f32,
        /// A factor of what is added.
        scale: f32,
        /// Whether the sum is multiplied by a factor, which the instruction has.
        rescales: bool,
        /// Whether a second part is added to the first, both with a norm of their own.
        beside: bool,
        eps_first: f32,
        eps_second: f32,
        /// Whether the hidden vector is in shared memory already.
        local: bool,
    }
}

constants! {
    /// A copy that stays in the exchange (`persistent/copy.cuh`).
    Copy {
        n: u32,
    }
}

/// A kind of instruction: the code that runs it and its constants.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Variant {
    Embed(Format, Embedding),
    LayerInputs(Format, LayerInputs),
    Product(Format, Product),
    Attention(Attention),
    AddNormed(AddNormed),
    Copy(Copy),
    Route(Route),
    GatedConv(GatedConv),
    Recurrent(Recurrent),
    /// What the instruction before it has no place for. No code runs it.
    More,
}

/// The variants of a pass's instructions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Variants {
    pub(crate) all: Vec<Variant>,
    pub(crate) affine: Vec<Affine>,
    /// For each rope, a variant that knows its width and magnitude.
    ropes: BTreeMap<usize, u32>,
}

impl Variants {
    /// The number of a variant. Equal variants have one number.
    pub(crate) fn add(&mut self, variant: Variant) -> u32 {
        if let Variant::Embed(format, _)
        | Variant::LayerInputs(format, _)
        | Variant::Product(format, _) = variant
            && let Format::Affine(affine) = format
            && !self.affine.contains(&affine)
        {
            self.affine.push(affine);
        }
        let known = self.all.iter().position(|known| *known == variant);
        known.unwrap_or_else(|| {
            self.all.push(variant);
            self.all.len() - 1
        }) as u32
    }

    /// Notes that a variant of attention knows a rope.
    pub(crate) fn know_rope(&mut self, rope: usize, variant: u32) {
        self.ropes.entry(rope).or_insert(variant);
    }

    /// The macros of `persistent/formats.cuh`: the affine formats that the model uses.
    pub(crate) fn affine_defines(&self) -> impl Iterator<Item = (&'static str, String)> {
        AFFINE.iter().zip(&self.affine).flat_map(|(names, a)| {
            let values = [a.bits(), a.group(), usize::from(a.bf16())];
            names.iter().copied().zip(values.map(|v| v.to_string()))
        })
    }

    /// The header `generated.cuh`. `arguments` are the structs that only this kernel has.
    pub(crate) fn header(&self, arguments: &[Layout]) -> String {
        let mut text = "// Written for one model by the host (persistent/variants.rs).\n#pragma once\n\n// ---- the variants of instructions ----\n".to_string();
        let (mut streamed, mut replayed) = (String::new(), String::new());
        for (i, variant) in self.all.iter().enumerate() {
            let (what, format, members) = match variant {
                Variant::Embed(format, embedding) => ("EMBED", Some(format), embedding.members()),
                Variant::LayerInputs(format, inputs) => {
                    ("LAYER_INPUTS", Some(format), inputs.members())
                }
                Variant::Product(format, product) => {
                    let entry = tuning_index(i as u32);
                    streamed += &format!(
                        " \\\n    case {i}: more = streamer.feed<V{i}>(in, share, a.params.in_flight[{entry}]); break;"
                    );
                    let what = match (product.output, product.used) {
                        (Output::Logits, _) => "LOGITS",
                        (_, 0) => "PRODUCT",
                        (Output::ActMul | Output::Act, _) => "EXPERTS_UP",
                        _ => "EXPERTS_DOWN",
                    };
                    (what, Some(format), product.members())
                }
                Variant::Attention(attention) => ("ATTENTION", None, attention.members()),
                Variant::AddNormed(sum) => ("ADD_NORMED", None, sum.members()),
                Variant::Copy(copy) => ("COPY", None, copy.members()),
                Variant::Route(route) => ("ROUTE", None, route.members()),
                Variant::GatedConv(conv) => ("GATED_CONV", None, conv.members()),
                Variant::Recurrent(layer) => ("RECURRENT", None, layer.members()),
                Variant::More => continue,
            };
            let format = format.map(|format| self.namespace(*format));
            let format = format.map_or_else(String::new, |f| {
                format!("    using Format = {f}::Format;\n")
            });
            let _ = write!(text, "\nstruct V{i} {{\n{format}{members}}};\n");
            replayed += &format!(" \\\n    case {i}: REPLAY_{what}(V{i}); break;");
        }
        let ropes = self.ropes.iter();
        let ropes: String = ropes
            .map(|(rope, variant)| format!(" \\\n    FILL_ROPE(V{variant}, {rope});"))
            .collect();
        let _ = write!(
            text,
            "\n// ---- the cases of the kernel's switches ----\n\n// How the weights of a variant are streamed.\n#define STREAM_VARIANTS{streamed}\n\n// What replays a variant.\n#define REPLAY_VARIANTS{replayed}\n\n// The angles of every rope.\n#define FILL_ROPES{ropes}\n\n// ---- structs that the host shares ----\n\n"
        );
        text.extend(LAYOUTS.iter().chain(arguments).map(Layout::static_assert));
        text
    }

    /// The namespace of a format in `persistent/formats.cuh`.
    fn namespace(&self, format: Format) -> String {
        match format {
            Format::Affine(affine) => {
                let place = self.affine.iter().position(|a| *a == affine);
                format!("affine_{}", place.unwrap_or(0))
            }
            _ => format.name().to_lowercase(),
        }
    }
}
