//! How to load a model.

use crate::{AdapterSource, DeviceChoice};
use std::path::PathBuf;
use welte_device::{Activations, DeviceOptions, Exchange, Replay, Steps};
use welte_models::{CompileOptions, Pooling};
use welte_table::Format;

/// The default context of a model whose own context is longer.
pub const DEFAULT_CONTEXT: u32 = 4096;

/// How to load a model.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LoadOptions {
    /// Where to run.
    pub device: DeviceChoice,
    /// Positions that a sequence can have; 0: the model's own context, at most [`DEFAULT_CONTEXT`] unless `fit_context`.
    pub context: u32,
    /// Sizes that are 0 follow the memory: the context is the model's own as far as memory allows, and the caches are cut
    /// to what fits ([`Model::fitted_context`](crate::Model::fitted_context) says what was chosen). Not for encoders.
    pub fit_context: bool,
    /// With `fit_context`: leave memory for other models, too.
    pub fit_with_others: bool,
    /// With `fit_context`: the bytes that the model may take in all; `None`: what is available.
    pub fit_within: Option<u64>,
    /// Threads of the CPU device; `None`: one for each core that the process may use, or for each core of `cpus`. Of a hybrid
    /// processor the performance cores count.
    pub threads: Option<usize>,
    /// The processors that threads of the CPU device are pinned to, as the system numbers them; `None`: the system chooses.
    /// [`cpu_list`](crate::cpu_list) reads a list such as `0-7,16`.
    pub cpus: Option<Vec<usize>>,
    /// Format of keys and values: F16 or Q8_0.
    pub kv_format: Format,
    /// Name of the CPU's instruction set; `None`: the best of this machine.
    pub instructions: Option<String>,
    /// Rows of a prompt that are computed together; 0: the device's default.
    pub prompt_rows: u32,
    /// The most rows of a step that yields the logits of every row.
    pub decode_rows: u32,
    /// Sequences that are decoded together.
    pub slots: u32,
    /// Positions in the caches, shared by all sequences; 0: as many as all slots need for their whole context.
    pub cache_positions: u32,
    /// States that are kept of earlier sequences, so that requests with the same prefix go on from there. Only for models
    /// with recurrent state.
    pub checkpoints: u32,
    /// Compute vectors of texts too, unless the checkpoint says that the model only scores pairs of texts.
    pub embeddings: bool,
    /// The rows of a text that make its vector; `None`: as the checkpoint says, else the last row.
    pub pooling: Option<Pooling>,
    /// Score pairs of texts in place of embeddings ([`Engine::score`](crate::Engine::score)).
    pub scores: bool,
    /// The tokens for yes and no, whose logits are the scores.
    pub(crate) score_tokens: Option<[u32; 2]>,
    /// Positions of a page, which tests make small.
    pub(crate) page: u32,
    /// Engines of this model may have a prefix store ([`EngineOptions::prefix_store`](crate::EngineOptions::prefix_store)). The load then samples the weights,
    /// so that stored pages are never used with other weights.
    pub prefix_store: bool,
    /// Bytes on the device that the encoder of images takes besides: a context that is chosen leaves room for it.
    pub(crate) encoder: u64,
    /// Vectors that rows may read in place of tokens ([`Program::features`](welte_table::Program::features)); 0: none. Not for encoders.
    pub features: u32,
    /// Load the model's own draft layer, if its checkpoint has one and the device can guess with it
    /// ([`Speculation::Own`](crate::Speculation::Own)).
    pub draft_layer: bool,
    /// A head that drafts for the model, trained for it: an EAGLE-3 head, a DFlash drafter or one of Gemma 4, as GGUF file or
    /// directory.
    pub draft_head: Option<String>,
    /// Without such a head, the DFlash drafter beside the model: in its folder a GGUF file with `dflash` in its name; beside a directory one
    /// whose name begins like the model's and has `dflash` in it. Of several that fit, the one whose name has most in common with the model's.
    pub draft_beside: bool,
    /// Adapters that engines load at their start.
    pub adapters: Vec<AdapterSource>,
    /// Adapters that may be loaded at a time; 0: as many as `adapters`.
    pub max_adapters: u32,
    /// The highest rank of an adapter; 0: the highest of `adapters`, at least 16.
    pub max_rank: u32,
    /// Control vectors, which are added to the outputs of layers: files and their scales.
    pub control_vectors: Vec<(PathBuf, f32)>,
    /// The first and the last layer that they are added to; `None`: all that they know.
    pub control_layers: Option<(u32, u32)>,
    /// Whether the model takes images, and where their encoder is.
    pub images: Images,
    /// The longest chain of tokens decoded in one submission.
    pub max_chain: u32,
    /// How a GPU replays chains; `None`: in the fastest way that has run on this kind of GPU.
    pub replay: Option<Replay>,
    /// Measure a device's tuning parameters at load even if stored ones exist.
    pub retune: bool,
    /// How a GPU rounds the activations that it multiplies with weights in FP8.
    pub activations: Activations,
    /// Which kernels a GPU may use for steps of few generated rows.
    pub steps: Steps,
    /// Runs of ops become one where the device can do that. Without it, every op's input can be read.
    pub fused: bool,
    /// Load even if the plan exceeds the memory that the device reports as available.
    pub ignore_memory: bool,
    /// The number of layers, from the first one on, whose experts run on the CPU, and all else on the device. 0: none;
    /// `u32::MAX`, or more than there are: all. Then a GPU runs kernel by kernel, whatever `replay` says.
    pub cpu_experts: u32,
    /// Through which memory GPUs exchange that share the model; `None`: each other's if they reach it, else the host's.
    pub exchange: Option<Exchange>,
    /// How many ranks the model is dealt to: GPUs from the device's number on, or parts of the CPU's cores. 0 and 1: it is on
    /// one device, unless `device` names several.
    pub ranks: u32,
    /// For tests: the bytes of the least matrix that is dealt where that costs an exchange.
    #[doc(hidden)]
    pub least_dealt: Option<u64>,
}

impl Default for LoadOptions {
    fn default() -> Self {
        LoadOptions {
            device: DeviceChoice::Auto,
            context: 0,
            fit_context: false,
            fit_with_others: false,
            fit_within: None,
            threads: None,
            cpus: None,
            kv_format: Format::F16,
            instructions: None,
            prompt_rows: 0,
            decode_rows: CompileOptions::default().decode_rows,
            slots: 1,
            cache_positions: 0,
            checkpoints: CompileOptions::default().checkpoints,
            embeddings: false,
            pooling: None,
            scores: false,
            score_tokens: None,
            page: CompileOptions::default().page,
            prefix_store: false,
            encoder: 0,
            features: 0,
            draft_layer: true,
            draft_head: None,
            draft_beside: false,
            adapters: Vec::new(),
            max_adapters: 0,
            max_rank: 0,
            control_vectors: Vec::new(),
            control_layers: None,
            images: Images::Off,
            max_chain: 256,
            replay: None,
            retune: false,
            activations: Activations::default(),
            steps: Steps::default(),
            fused: true,
            ignore_memory: false,
            cpu_experts: 0,
            least_dealt: None,
            exchange: None,
            ranks: 1,
        }
    }
}

impl LoadOptions {
    pub(crate) fn with_context(&self, context: u32) -> LoadOptions {
        LoadOptions {
            context,
            ..self.clone()
        }
    }

    /// Whether only a GPU can do what is asked for.
    pub(crate) fn needs_gpu(&self) -> bool {
        self.cpu_experts > 0 || self.activations == Activations::Float8
    }

    pub(crate) fn for_device(&self) -> DeviceOptions {
        let mut options = DeviceOptions::default();
        options.threads = self.threads;
        options.cpus = self.cpus.clone();
        options.instructions = self.instructions.clone();
        options.replay = match self.cpu_experts {
            0 => self.replay,
            _ => Some(Replay::Launches),
        };
        options.retune = self.retune;
        options.activations = self.activations;
        options.steps = self.steps;
        options
    }
}

/// Whether a model takes images and sounds, and where their encoders are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Images {
    /// It takes none.
    #[default]
    Off,
    /// In a file `mmproj*.gguf` beside the model's, or in its directory. Without one the model takes none.
    Beside,
    /// In this file. The load fails if the model cannot use it.
    File(PathBuf),
}
