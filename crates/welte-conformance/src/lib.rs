//! The conformance suite: what every device must do, tested against another device, the oracle.
//!
//! A device's test file calls [`conformance_tests!`](crate::conformance_tests). It makes one test of every function
//! here. Each function panics with the first difference. Programs are made up from a seed: any mix of layers, in ugly
//! shapes. All float memory is filled with NaN before, so that unwritten and stray values show.
//!
//! A device may lack optional features (convolutions, pooling, attention sinks, biases of experts, the clamped
//! activation). [`Device::missing`](welte_device::Device::missing) must say so, and the suite leaves those programs out with a
//! note. Everything else is required.

mod adapters;
mod arithmetic;
mod caches;
mod case;
mod chains;
mod cross;
mod encoders;
mod features;
mod lifecycle;
mod logprobs;
pub mod made;
mod masks;
mod mixed;
pub mod model;
mod ops;
pub mod program;
mod requests;
mod sampling;
mod sparse;
mod steps;

pub use adapters::adapters;
pub use arithmetic::{decode_arithmetic, prompt_arithmetic};
pub use caches::{page_transfer, pages, per_layer_heads, recurrent, windows};
pub use chains::{chains, control, slots_in_a_chain, stops};
pub use cross::cross_attention;
pub use encoders::{encoders, pictures, places};
pub use features::{axes, deep_features, features, reach};
pub use lifecycle::{allocated, profiles, shared, weights};
pub use logprobs::{logprobs, logprobs_of_chains};
pub use masks::{masks, masks_in_chains, masks_of_guesses};
pub use mixed::mixed_arithmetic;
pub use ops::{
    affine_formats, contexts, contexts_in_brief, experts, formats, heads, integer_formats, made_up,
    ops, unfused,
};
pub use requests::{faults, limits};
pub use sampling::{choices, drafts, extended_sampling, random_settings, sampled_chains, sampling};
pub use sparse::sparse_attention;
pub use steps::{batches, outputs, parts, pooled};

/// Makes one test of every function of the suite. Attributes go to all tests.
///
/// ```ignore
/// welte_conformance::conformance_tests!(device(), oracle());
/// welte_conformance::conformance_tests!([#[ignore = "needs a GPU"]] device(), oracle());
/// welte_conformance::conformance_tests!(device(), oracle(), only experts chains);
/// ```
#[macro_export]
macro_rules! conformance_tests {
    ([$(#[$attribute:meta])*] $device:expr, $oracle:expr) => {
        $crate::conformance_tests!(@each [$(#[$attribute])*] ($device) ($oracle)
            ops formats affine_formats integer_formats heads experts contexts unfused made_up
            batches outputs parts pooled encoders pictures places cross_attention sparse_attention features deep_features axes reach adapters
            decode_arithmetic prompt_arithmetic mixed_arithmetic
            chains slots_in_a_chain stops control
            pages page_transfer windows recurrent per_layer_heads
            sampling sampled_chains extended_sampling choices drafts masks masks_in_chains masks_of_guesses
            logprobs logprobs_of_chains
            faults limits
            allocated shared profiles weights);
    };
    (@each $attributes:tt $device:tt $oracle:tt $($name:ident)*) => {
        $($crate::conformance_tests!(@one $attributes $device $oracle $name);)*
    };
    (@one [$($attribute:tt)*] ($device:expr) ($oracle:expr) $name:ident) => {
        $($attribute)*
        #[test]
        fn $name() {
            $crate::$name(&*$device, &*$oracle);
        }
    };
    ($device:expr, $oracle:expr, only $($name:ident)*) => {
        $crate::conformance_tests!(@each [] ($device) ($oracle) $($name)*);
    };
    ($device:expr, $oracle:expr) => {
        $crate::conformance_tests!([] $device, $oracle);
    };
}
