//! Model specs, and the one forward pass for all of them.
//!
//! [`spec`] reads a checkpoint's metadata into a [`ModelSpec`]. [`compile`] turns it into a [`welte_table::Program`]
//! with one table per pass. Neither reads weights, except a few rope factors and decays.

mod arch;
mod compile;
mod emit;
mod encoder;
mod error;
mod keys;
mod names;
mod rope;
mod spec;
mod survey;
mod vectors;
mod weights;

pub use arch::supported;
pub use compile::{CompileOptions, compile};
pub use encoder::{Dense, Encoder, Positions};
pub use error::Error;
pub use spec::{
    Act, AltUp, Biases, Delta, Experts, Groups, Latent, LayerKind, LayerRope, LayerShape, Mamba,
    ModelSpec, NormKind, PositionScale, QkNorm, Rope, Scaling, Scoring, SharedExpert, spec,
};
pub use survey::{Nearest, Pattern, Survey, survey};
pub use vectors::{Pooling, VectorSettings, vector_settings};
