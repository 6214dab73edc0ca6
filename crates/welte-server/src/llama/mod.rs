//! llama.cpp's API.

mod completion;
mod extras;
mod sampled;
mod settings;
mod state;
mod text;
mod timings;

pub(crate) use completion::{completion, infill, whole};
pub(crate) use extras::Extras;
pub(crate) use settings::of as settings;
pub(crate) use state::{metrics, props, slots, tokenizer_info};
pub(crate) use text::{apply_template, detokenize, tokenize};
pub(crate) use timings::{of as timings, progress, so_far};

use crate::error::Outcome;
use crate::fields::Fields;
use std::sync::Arc;
