//! Model specs, and the one forward pass for all of them.
//!
//! [`spec`] reads a checkpoint's metadata into a [`ModelSpec`]. [`compile`] turns it into a [`welte_table::Program`]
//! with one table per pass. Neither reads weights, except a few rope factors and decays.

mod adapters;
mod arch;
mod buffers;
mod commands;
mod compile;
mod convert;
mod draft;
mod emit;
mod encoder;
mod error;
mod hearing;
mod keys;
mod model;
mod names;
mod options;
mod read;
mod rope;
mod spec;
mod speech;
mod steer;
mod survey;
mod vectors;
mod vision;
mod weights;

pub use adapters::{AdapterData, adapt, adapter_data};
pub use arch::supported;
pub use compile::compile;
pub use convert::directory::as_directory;
pub use convert::mmproj::as_mmproj;
pub use convert::translated::Translated;
pub use convert::{as_gguf, gguf_keys};
pub use draft::find::{HeadKind, head_kind};
pub use encoder::TOKEN_WEIGHT_FLOATS;
pub use error::Error;
pub use hearing::{
    Conformer, FastConformer, GraniteSpeech, HearingFamily, HearingSpec, Pieces, Rest,
    RunningNorms, compile_hearing, hearing_spec, running_norms, speech_queries, unknown_hearing,
};
pub use model::spec;
pub use options::CompileOptions;
pub use spec::{
    Act, AltUp, Biases, Delta, Dense, Encoder, Experts, Groups, Hyper, Indexer, Latent, LayerKind,
    LayerRope, LayerShape, Limits, Mamba, ModelSpec, Multipliers, NormKind, OutputGate,
    PositionScale, Positions, QkNorm, Rope, Scaling, Scoring, Selective, SelectiveNorms,
    SharedExpert,
};
pub use speech::{Rotation, SpeechLayers, SpeechPrograms, SpeechSpec, compile_speech, speech_spec};
pub use steer::steer;
pub use survey::{Nearest, Pattern, Survey, survey};
pub use vectors::{Pooling, VectorSettings, vector_settings};
pub use vision::{
    Places, VisionAct, VisionFamily, VisionSpec, WindowProjector, Windows, compile_vision,
    learned_ends, learned_positions, learned_queries, learned_windows, unknown_vision, vision_spec,
};
