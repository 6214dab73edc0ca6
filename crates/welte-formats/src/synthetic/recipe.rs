//! Which formats the matrices have.

use crate::quantize;
use welte_table::Format;

/// The formats of the matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recipe {
    /// One format for all.
    Pure(Format),
    /// Q6_K for the output and the most sensitive matrices, this format for the others.
    Medium(Format),
    /// MXFP4 for experts, Q8_0 for the others.
    Mxfp4Experts,
}

impl Recipe {
    pub(super) fn from_name(name: &str) -> Option<Recipe> {
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
    pub(super) fn file_type(self) -> u32 {
        match self {
            Recipe::Medium(Format::Q4_K) => 15,
            Recipe::Medium(_) => 17,
            Recipe::Mxfp4Experts => 38,
            Recipe::Pure(format) => quantize::file_type(format),
        }
    }

    /// The format of a matrix with rows of `k` elements. Mixed recipes give `important` ones more bits.
    pub(super) fn format(self, important: bool, expert: bool, k: usize) -> Format {
        let wanted = match self {
            Recipe::Medium(_) if important => Format::Q6_K,
            Recipe::Mxfp4Experts if expert => Format::MXFP4,
            Recipe::Mxfp4Experts => Format::Q8_0,
            Recipe::Medium(format) | Recipe::Pure(format) => format,
        };
        quantize::fitting(wanted, k)
    }
}
