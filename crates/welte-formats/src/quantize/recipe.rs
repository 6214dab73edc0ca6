//! Recipes: the format of each tensor, by llama.cpp's names and rules.

use crate::{Checkpoint, TensorInfo, Value};
use welte_table::Format;

/// A mixture of formats, by its name in llama.cpp.
#[allow(non_camel_case_types, missing_docs)]
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Recipe {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q2_K_S,
    Q3_K_S,
    Q3_K_M,
    Q3_K_L,
    Q4_K_S,
    Q4_K_M,
    Q5_K_S,
    Q5_K_M,
    Q6_K,
    IQ1_S,
    IQ1_M,
    IQ2_XXS,
    IQ2_XS,
    IQ2_S,
    IQ2_M,
    IQ3_XXS,
    IQ3_XS,
    IQ3_S,
    IQ3_M,
    IQ4_NL,
    IQ4_XS,
    MXFP4_MOE,
    TQ1_0,
    TQ2_0,
}

/// One row per recipe: name, the format of most matrices, its number in `general.file_type`.
const ROWS: [(Recipe, &str, Format, u32); 33] = [
    (Recipe::F32, "F32", Format::F32, 0),
    (Recipe::F16, "F16", Format::F16, 1),
    (Recipe::BF16, "BF16", Format::BF16, 32),
    (Recipe::Q4_0, "Q4_0", Format::Q4_0, 2),
    (Recipe::Q4_1, "Q4_1", Format::Q4_1, 3),
    (Recipe::Q5_0, "Q5_0", Format::Q5_0, 8),
    (Recipe::Q5_1, "Q5_1", Format::Q5_1, 9),
    (Recipe::Q8_0, "Q8_0", Format::Q8_0, 7),
    (Recipe::Q2_K, "Q2_K", Format::Q2_K, 10),
    (Recipe::Q2_K_S, "Q2_K_S", Format::Q2_K, 21),
    (Recipe::Q3_K_S, "Q3_K_S", Format::Q3_K, 11),
    (Recipe::Q3_K_M, "Q3_K_M", Format::Q3_K, 12),
    (Recipe::Q3_K_L, "Q3_K_L", Format::Q3_K, 13),
    (Recipe::Q4_K_S, "Q4_K_S", Format::Q4_K, 14),
    (Recipe::Q4_K_M, "Q4_K_M", Format::Q4_K, 15),
    (Recipe::Q5_K_S, "Q5_K_S", Format::Q5_K, 16),
    (Recipe::Q5_K_M, "Q5_K_M", Format::Q5_K, 17),
    (Recipe::Q6_K, "Q6_K", Format::Q6_K, 18),
    (Recipe::IQ1_S, "IQ1_S", Format::IQ1_S, 24),
    (Recipe::IQ1_M, "IQ1_M", Format::IQ1_M, 31),
    (Recipe::IQ2_XXS, "IQ2_XXS", Format::IQ2_XXS, 19),
    (Recipe::IQ2_XS, "IQ2_XS", Format::IQ2_XS, 20),
    (Recipe::IQ2_S, "IQ2_S", Format::IQ2_XS, 28),
    (Recipe::IQ2_M, "IQ2_M", Format::IQ2_S, 29),
    (Recipe::IQ3_XXS, "IQ3_XXS", Format::IQ3_XXS, 23),
    (Recipe::IQ3_XS, "IQ3_XS", Format::IQ3_S, 22),
    (Recipe::IQ3_S, "IQ3_S", Format::IQ3_S, 26),
    (Recipe::IQ3_M, "IQ3_M", Format::IQ3_S, 27),
    (Recipe::IQ4_NL, "IQ4_NL", Format::IQ4_NL, 25),
    (Recipe::IQ4_XS, "IQ4_XS", Format::IQ4_XS, 30),
    (Recipe::MXFP4_MOE, "MXFP4_MOE", Format::MXFP4, 38),
    (Recipe::TQ1_0, "TQ1_0", Format::TQ1_0, 36),
    (Recipe::TQ2_0, "TQ2_0", Format::TQ2_0, 37),
];

/// Short names of the usual sizes.
const ALIASES: [(&str, Recipe); 3] = [
    ("Q3_K", Recipe::Q3_K_M),
    ("Q4_K", Recipe::Q4_K_M),
    ("Q5_K", Recipe::Q5_K_M),
];

/// Matrices whose names contain these are not converted: they are small or sensitive.
const KEPT: [&str; 6] = [
    "_norm.weight",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "ffn_gate_inp.weight",
    "position_embd",
    "token_types",
];

impl Recipe {
    /// Every recipe, in declaration order.
    pub fn all() -> impl Iterator<Item = Recipe> {
        ROWS.iter().map(|row| row.0)
    }

    /// The name in llama.cpp.
    pub fn name(self) -> &'static str {
        ROWS[self as usize].1
    }

    /// The recipe of this name, in any case. `Q3_K`, `Q4_K` and `Q5_K` mean the M sizes.
    pub fn from_name(name: &str) -> Option<Recipe> {
        let named = Recipe::all().find(|r| r.name().eq_ignore_ascii_case(name));
        let alias = ALIASES
            .iter()
            .find(|(alias, _)| alias.eq_ignore_ascii_case(name));
        named.or(alias.map(|(_, recipe)| *recipe))
    }

    /// The recipe of a file with this number in `general.file_type`.
    pub fn of_file_type(number: u64) -> Option<Recipe> {
        let row = ROWS.iter().find(|row| u64::from(row.3) == number);
        row.map(|row| row.0)
    }

    /// True for about two bits and less: without an importance matrix such files are poor, and the matrices that matter most get more
    /// bits.
    pub fn needs_importance(self) -> bool {
        use Recipe::*;
        matches!(self, IQ1_S | IQ1_M | IQ2_XXS | IQ2_XS | IQ2_S | IQ2_M)
    }

    /// What the matrices of a low recipe become that matter most.
    fn raised(self) -> Format {
        if matches!(self, Recipe::IQ2_S | Recipe::IQ2_M) {
            Format::IQ3_S
        } else {
            Format::Q2_K
        }
    }

    /// The format of most matrices.
    pub fn format(self) -> Format {
        ROWS[self as usize].2
    }

    /// Its number in `general.file_type`.
    pub fn file_type(self) -> u32 {
        ROWS[self as usize].3
    }

    /// The tensors of a checkpoint with the formats of this recipe. Vectors become F32.
    pub fn plan(self, input: &dyn Checkpoint) -> Vec<TensorInfo> {
        let shape = Shape::of(input);
        let planned = |tensor: &TensorInfo| TensorInfo {
            format: if is_kernel(input, tensor) {
                self.of_kernel(tensor)
            } else {
                self.format_of(tensor, &shape)
            },
            ..tensor.clone()
        };
        input.tensors().iter().map(planned).collect()
    }

    /// The kernels of a convolution are small, and llama.cpp computes with them in F32 and F16 only.
    fn of_kernel(self, tensor: &TensorInfo) -> Format {
        match (self, tensor.format) {
            (Recipe::F16, _) => Format::F16,
            (Recipe::F32 | Recipe::BF16, _) => Format::F32,
            (_, Format::F16) => Format::F16,
            _ => Format::F32,
        }
    }

    fn format_of(self, tensor: &TensorInfo, shape: &Shape) -> Format {
        let name = tensor.name.as_str();
        if tensor.n == 1 {
            return Format::F32;
        }
        if !name.ends_with("weight") || KEPT.iter().any(|kept| name.contains(kept)) {
            return tensor.format;
        }
        if !self.format().is_quantised() {
            return self.format();
        }
        fitting(self.wanted(tensor, shape), tensor.k)
    }

    /// The format for the tensor's role in the model, whatever its width.
    fn wanted(self, tensor: &TensorInfo, shape: &Shape) -> Format {
        let name = tensor.name.as_str();
        let most = self.format();
        if name == "output.weight" || (shape.tied && name == "token_embd.weight") {
            let eight = matches!(most, Format::Q8_0 | Format::MXFP4)
                || !tensor.k.is_multiple_of(most.block());
            return match self {
                _ if eight => Format::Q8_0,
                low if low == Recipe::IQ3_XXS || low.needs_importance() => Format::Q5_K,
                _ => Format::Q6_K,
            };
        }
        if name == "token_embd.weight" {
            match self {
                Recipe::IQ3_XXS => return Format::IQ3_S,
                low if low.needs_importance() => return low.raised(),
                _ => (),
            }
        }
        if matches!(self, Recipe::TQ1_0 | Recipe::TQ2_0) && name == "token_embd.weight" {
            return Format::Q4_K;
        }
        if self == Recipe::MXFP4_MOE && !name.contains("_exps.") {
            return Format::Q8_0;
        }
        let layer = layer_of(name).unwrap_or(0);
        let special = if ["attn_v.weight", "attn_qkv.weight", "attn_kv_b.weight"]
            .iter()
            .any(|v| name.contains(v))
        {
            let format = self.attention_value(layer, shape).unwrap_or(most);
            // With eight query heads per value head this matrix is small, so more bits cost little.
            let cheap = shape.layers == 80 && shape.queries_per_value == 8;
            Some(if cheap && matches!(format, Format::Q3_K | Format::Q4_K) {
                Format::Q5_K
            } else {
                format
            })
        } else if name.contains("ffn_down") {
            self.down(layer, shape)
        } else if name.contains("attn_output.weight") {
            self.attention_output()
        } else if name.contains("attn_k.weight") || name.contains("attn_q.weight") {
            match self {
                Recipe::IQ3_XS => Some(Format::IQ3_XXS),
                Recipe::IQ3_XXS => Some(Format::IQ2_S),
                _ => None,
            }
        } else if name.contains("ffn_gate") || name.contains("ffn_up") {
            let eighth = shape.layers / 8;
            let inner = layer >= eighth && layer < shape.layers.saturating_mul(7) / 8;
            (self == Recipe::IQ3_XS && inner).then_some(Format::IQ3_XXS)
        } else {
            None
        };
        special.unwrap_or(most)
    }

    fn attention_value(self, layer: usize, shape: &Shape) -> Option<Format> {
        let grouped = shape.queries_per_value >= 4;
        match self {
            Recipe::Q2_K => Some(if grouped { Format::Q4_K } else { Format::Q3_K }),
            Recipe::Q2_K_S => grouped.then_some(Format::Q4_K),
            Recipe::Q3_K_M => Some(if layer < 2 {
                Format::Q5_K
            } else {
                Format::Q4_K
            }),
            Recipe::Q3_K_L => Some(Format::Q5_K),
            Recipe::IQ4_NL | Recipe::IQ4_XS => grouped.then_some(Format::Q5_K),
            Recipe::IQ3_XXS | Recipe::IQ3_XS | Recipe::IQ3_S => grouped.then_some(Format::Q4_K),
            Recipe::IQ3_M => Some(Format::Q4_K),
            low if low.needs_importance() => {
                Some(if grouped { Format::Q4_K } else { low.raised() })
            }
            Recipe::Q4_K_S => (layer < 4).then_some(Format::Q5_K),
            Recipe::Q4_K_M | Recipe::Q5_K_M => {
                more_bits(layer, shape.layers).then_some(Format::Q6_K)
            }
            _ => None,
        }
    }

    fn down(self, layer: usize, shape: &Shape) -> Option<Format> {
        let early = layer < shape.layers / 8;
        match self {
            Recipe::Q2_K => Some(Format::Q3_K),
            Recipe::Q2_K_S => early.then_some(Format::Q4_K),
            Recipe::Q3_K_M => Some(if layer < shape.layers / 16 {
                Format::Q5_K
            } else {
                Format::Q4_K
            }),
            Recipe::Q3_K_L => Some(Format::Q5_K),
            Recipe::Q4_K_S | Recipe::IQ4_NL | Recipe::IQ4_XS => early.then_some(Format::Q5_K),
            low if low.needs_importance() => early.then_some(low.raised()),
            Recipe::Q4_K_M | Recipe::Q5_K_M => {
                more_bits(layer, shape.layers).then_some(Format::Q6_K)
            }
            _ => None,
        }
    }

    fn attention_output(self) -> Option<Format> {
        match self {
            Recipe::Q2_K => Some(Format::Q3_K),
            Recipe::Q3_K_M | Recipe::IQ3_M => Some(Format::Q4_K),
            Recipe::Q3_K_L => Some(Format::Q5_K),
            Recipe::IQ3_XXS => Some(Format::IQ3_S),
            Recipe::IQ2_S | Recipe::IQ2_M => Some(Format::IQ3_S),
            Recipe::IQ1_S | Recipe::IQ1_M => Some(Format::IQ2_XXS),
            _ => None,
        }
    }
}

/// The number in `general.file_type` of a file whose matrices have one format; 1024 ("guessed") if there is none.
pub(crate) fn file_type(format: Format) -> u32 {
    let row = ROWS.iter().find(|row| row.2 == format);
    row.map_or(1024, |row| row.3)
}

/// Whether a tensor has the kernels of a convolution over pictures or sounds.
fn is_kernel(input: &dyn Checkpoint, tensor: &TensorInfo) -> bool {
    input.dimensions(tensor).is_some_and(|own| own.len() == 4)
        || tensor.n > 1 && tensor.name.starts_with("a.conv1d.") && tensor.name.ends_with(".weight")
}

/// The facts about a model that the rules use.
struct Shape {
    layers: usize,
    queries_per_value: u64,
    tied: bool,
}

impl Shape {
    fn of(input: &dyn Checkpoint) -> Shape {
        let layers = input
            .tensors()
            .iter()
            .filter_map(|t| layer_of(&t.name))
            .max()
            .map_or(0, |last| last.saturating_add(1));
        let heads = |key: &str| match input.metadata().get("general.architecture") {
            Some(Value::String(architecture)) => {
                first_number(input.metadata().get(&format!("{architecture}.{key}")))
            }
            _ => None,
        };
        let queries = heads("attention.head_count").unwrap_or(1);
        let values = heads("attention.head_count_kv").unwrap_or(queries);
        Shape {
            layers,
            queries_per_value: queries.checked_div(values).unwrap_or(1),
            tied: input.tensor("output.weight").is_none(),
        }
    }
}

/// A number, or the first number of a list.
fn first_number(value: Option<&Value>) -> Option<u64> {
    match value? {
        Value::U64(v) => Some(*v),
        Value::I64(v) => u64::try_from(*v).ok(),
        Value::Array(values) => match values.first()? {
            Value::U64(v) => Some(*v),
            Value::I64(v) => u64::try_from(*v).ok(),
            _ => None,
        },
        _ => None,
    }
}

/// The N of `blk.N.`.
fn layer_of(name: &str) -> Option<usize> {
    name.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}

/// The layers in which errors cost most: the first and last eighth, and every third one between.
pub(crate) fn more_bits(layer: usize, layers: usize) -> bool {
    let eighth = layers / 8;
    layer < eighth || layer >= layers.saturating_mul(7) / 8 || (layer - eighth) % 3 == 2
}

/// The wanted format if it can store rows of `k` elements, else the nearest in size that can.
pub(crate) fn fitting(wanted: Format, k: usize) -> Format {
    let narrow = match wanted {
        Format::Q2_K | Format::Q3_K | Format::TQ1_0 | Format::TQ2_0 => Format::Q4_0,
        Format::Q4_K => Format::Q5_0,
        Format::Q5_K => Format::Q5_1,
        Format::Q6_K => Format::Q8_0,
        Format::IQ4_XS
        | Format::IQ1_S
        | Format::IQ1_M
        | Format::IQ2_XXS
        | Format::IQ2_XS
        | Format::IQ2_S
        | Format::IQ3_XXS
        | Format::IQ3_S => Format::IQ4_NL,
        other => other,
    };
    let fits = |format: &Format| k.is_multiple_of(format.block());
    [wanted, narrow]
        .into_iter()
        .find(fits)
        .unwrap_or(Format::F16)
}
