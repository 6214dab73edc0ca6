//! The device contract: what a device does for the engine, and what every device checks in the same way.
//!
//! A [`Device`] plans a program and loads its weights. The [`Loaded`] weights are shared by any number of [`Context`]s.
//! A context owns all memory that replay changes: buffers, caches, page lists and slots. After a context has been made,
//! nothing allocates.
//!
//! A *slot* is a place in the running batch. It has a page list in every cache and a sampling state. Slots know nothing
//! of each other: what a row computes depends only on its own slot.
//!
//! A new device implements the three traits and runs the crate `welte-conformance` against the reference device.

mod argmax;
mod chain;
mod checks;
mod draft;
mod error;
mod host;
mod id;
mod logprobs;
mod mask;
mod meeting;
mod noise;
mod options;
mod phases;
mod plan;
mod profile;
mod report;
mod shelf;
mod slot;
mod step;
pub mod timeline;

pub use argmax::argmax;
pub use chain::{Made, StepChain, chain_by_steps};
pub use checks::{Checks, StepPlan};
pub use draft::{RunDraftStep, check_draft, draft_by_steps};
pub use error::Error;
pub use host::{HostScratch, HostSlot};
pub use id::{DeviceId, DeviceInfo};
pub use logprobs::{LogprobQuery, Logprobs};
pub use mask::{MaskBoard, MaskMemory, NO_MASK, NO_TOKEN, SKIPPED, is_token};
pub use meeting::{Meeting, Seat};
pub use noise::{chance, noise};
pub use options::{Activations, DeviceOptions, Exchange, Replay, Replaying, Steps, cpu_list};
pub use phases::{Phase, Phases};
pub use plan::{Demand, Plan, Progress};
pub use profile::Profile;
pub use report::DeviceReport;
pub use shelf::Shelf;
pub use slot::{ChainStart, Control, Emitted, SlotAdapter, SlotState};
pub use step::{
    Choice, Guesses, Pick, Place, Role, Span, Stage, Step, StepOptions, Want, same_commands,
};

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use timeline::Timeline;
use welte_formats::Checkpoint;
use welte_table::{BufferId, Class, Pattern, Program, Row};

/// A place where programs run.
pub trait Device: Send + Sync {
    /// What it is.
    fn info(&self) -> &DeviceInfo;

    /// The runs of commands that one op of the device replaces. [`fuse`](welte_table::fuse) applies them, so every other fused op
    /// stays away from the device.
    fn patterns(&self) -> &'static [Pattern];

    /// Whether slots may have adapters: it runs the passes that [`welte_table::adapt`] makes. Their banks are buffers of the program,
    /// which [`Context::write_bytes`] fills.
    fn adapts(&self) -> bool {
        false
    }

    /// What a program needs that this device lacks, in words for a person. Asked before the program is fused.
    fn missing(&self, program: &Program) -> Option<String>;

    /// Whether rows may read features, and have axes and a reach of their own. The features lie in the program's buffer
    /// ([`Program::features`]), where [`Context::write_bytes`] puts them.
    fn takes_features(&self) -> bool {
        false
    }

    /// Whether it runs draft passes ([`PassKind::Draft`](welte_table::PassKind::Draft)).
    fn drafts(&self) -> bool {
        false
    }

    /// Everything that loading the program and making one context will allocate.
    fn plan(&self, program: Arc<Program>) -> Result<Plan, Error>;

    /// Memory that can be allocated now, if the system tells.
    fn available_memory(&self) -> Option<u64>;

    /// What a plan of this device takes of each memory: of its own, unless it consists of several devices.
    fn demands(&self, plan: &Plan) -> Vec<Demand> {
        vec![Demand {
            device: self.info().id,
            need: plan.memory.total(),
            have: self.available_memory(),
        }]
    }

    /// Reads the weights from the checkpoint into the device's own layout, compiles kernels and tunes them.
    fn load(
        &self,
        plan: Plan,
        checkpoint: &dyn Checkpoint,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Arc<dyn Loaded>, Error>;

    /// Puts the compiled kernels with which a plan can be loaded into a folder, for machines without a compiler, and returns how many
    /// are new. `progress` hears of kernels done and in all.
    fn make_ready(
        &self,
        plan: &Plan,
        folder: &Path,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<u64, Error> {
        let _ = (plan, folder, progress);
        Err(Error::Unavailable {
            device: self.info().id,
            why: "it has no kernels that could be compiled in advance".to_string(),
        })
    }

    /// Bytes per second that the device reads from its memory, measured for about `seconds`.
    fn read_bandwidth(&self, seconds: f64) -> Result<f64, Error>;
}

/// A program's weights on a device.
pub trait Loaded: Send + Sync {
    /// The program.
    fn program(&self) -> &Arc<Program>;

    /// Everything besides the program and the weights that decides which bits come out: the device and its instruction
    /// set or architecture, the way of replaying, the version of the kernels. Pages of a cache may be kept and used
    /// again where this text is the same. One line.
    fn arithmetic(&self) -> String;

    /// Allocates everything that replay changes.
    fn context(&self) -> Result<Box<dyn Context>, Error>;

    /// The same for a rank's part of a program ([`welte_table::shard`]), whose [`Op::Exchange`](welte_table::Op::Exchange)
    /// commands meet those of the other ranks. The ranks call it at the same time, each on a thread of its own, so they may
    /// wait for each other. A device without it refuses such programs ([`Device::missing`]).
    fn rank_context(&self, seat: Seat) -> Result<Box<dyn Context>, Error> {
        let _ = seat;
        Err(Error::request("ranks are not supported by this device"))
    }

    /// What loading and contexts have spent their time on so far, for a person. Devices that do not note it return nothing.
    fn phases(&self) -> Vec<Phase> {
        Vec::new()
    }
}

/// Everything that replay changes: buffers, caches, page lists, slots. No method allocates on the device; on the host
/// only the methods for tests and tools do.
pub trait Context: Send {
    /// The program.
    fn program(&self) -> &Arc<Program>;

    /// The most slots of one chain.
    fn chain_slots(&self) -> usize;

    /// Bytes by class that the weights and this context take: what the plan says.
    fn allocated(&self) -> BTreeMap<Class, u64>;

    /// Sets entries `first..` of a slot's page list in a cache. At the start, entry `i` of slot `s` is page
    /// `(s * entries + i) % pages`.
    fn set_pages(
        &mut self,
        cache: usize,
        slot: u32,
        first: u32,
        pages: &[u32],
    ) -> Result<(), Error>;

    /// Copies one page of a cache to another, in all layers. A page of a recurrent cache is a sequence's state.
    fn copy_page(&mut self, cache: usize, from: u32, to: u32) -> Result<(), Error>;

    /// Copies one page of a cache to the host: all layers, run by run as in [`welte_table::CacheSpec::page_ranges`].
    /// `bytes` has the page's size, [`welte_table::CacheSpec::page_bytes`].
    fn read_page(&mut self, cache: usize, page: u32, bytes: &mut [u8]) -> Result<(), Error>;

    /// Overwrites one page of a cache with bytes that [`Context::read_page`] returned, of this context or of another one
    /// with the same [`Loaded::arithmetic`] and the same caches.
    fn write_page(&mut self, cache: usize, page: u32, bytes: &[u8]) -> Result<(), Error>;

    /// Bytes of host memory that a page of every cache takes, if the context itself keeps pages there. `None`: it does not, and the
    /// [`Shelf`] has them copied. The five methods below are for contexts that do.
    fn shelf_place(&self) -> Option<u64> {
        None
    }

    /// Allocates host memory in which the context keeps pages, in place of earlier one: `places` of a page of every cache.
    fn make_shelf(&mut self, _places: u32) -> Result<(), Error> {
        Err(Error::request("a context without a shelf"))
    }

    /// See [`Shelf::put`]. Need not wait.
    fn shelve(&mut self, _place: u32, _pages: &[u32]) -> Result<(), Error> {
        Err(Error::request("a context without a shelf"))
    }

    /// See [`Shelf::fetch`]. Need not wait, and other work goes on meanwhile.
    fn fetch(&mut self, _place: u32, _pages: &[u32]) -> Result<(), Error> {
        Err(Error::request("a context without a shelf"))
    }

    /// See [`Shelf::has_fetched`].
    fn has_fetched(&mut self, _wait: bool) -> Result<bool, Error> {
        Ok(true)
    }

    /// Copies bytes of the shelf, after what was put there has come.
    fn read_shelf(&mut self, _range: Range<usize>, _bytes: &mut [u8]) -> Result<(), Error> {
        Err(Error::request("a context without a shelf"))
    }

    /// Runs a step, or a part of one. Returns its output rows: those of all generated rows, then those of the other rows
    /// that are picked. What is returned is empty if tokens were asked for or the step has not ended.
    ///
    /// A row's bits depend on its sequence and its role only, so every row of a mixed step has the bits that it has in a
    /// step of its own pass.
    fn step(&mut self, step: &Step, options: StepOptions<'_>) -> Result<&[f32], Error>;

    /// In how many parts of about the same work a command of the step at hand can be cut ([`Stage::Run`]). The cut changes no
    /// bit.
    fn parts(&self, _command: usize) -> u32 {
        1
    }

    /// Whether generated rows and prompt rows can share a step, which reads the weights once. The same for the context's
    /// life.
    fn mixes(&self) -> bool {
        false
    }

    /// Whether rows with and without an adapter can share a step or a chain, each with the bits that it has without the others. The same
    /// for the context's life.
    fn mixes_adapters(&self) -> bool {
        true
    }

    /// Sets a slot's sampling state and adapter, and takes its masks away. Longer lists than [`SlotState::MOST_BIASES`] and [`SlotState::MOST_ENDS`] are
    /// refused, so that nothing is allocated. Tokens that [`Context::sample`] and [`Context::chain`] choose join its history.
    fn set_slot(&mut self, slot: u32, state: &SlotState<'_>) -> Result<(), Error>;

    /// Where the masks of slots are written whose state is [`SlotState::masked`]. The same board for the context's life.
    fn masks(&self) -> Arc<MaskBoard>;

    /// Chooses tokens from the output rows of the last step, once more or by other slots than the step's own. A slot's mask
    /// may leave it without a token: then it gets [`NO_TOKEN`] or [`NO_MASK`], which does not join its history. A choice that is
    /// skipped ([`Choice::draft`]) gets [`SKIPPED`] and leaves no trace. Cannot follow a step that has chosen tokens.
    fn sample(&mut self, choices: &[Choice], tokens: &mut [u32]) -> Result<(), Error>;

    /// Computes probabilities from the logits of the last step, in the order of `queries`. [`Context::sample`] may have
    /// been called in between. A row's bits do not depend on other rows.
    fn logprobs(&mut self, queries: &[LogprobQuery], answers: &mut [Logprobs])
    -> Result<(), Error>;

    /// Decodes several slots together. Each step reads one token of every live slot, chooses the next one, emits it and
    /// feeds it back. A slot stops at one of its end tokens (which is emitted), after its `steps`, or when `emit` returns
    /// false. The chain ends when all slots have stopped, or within one token after `control` asks. A token is emitted as
    /// soon as it exists. The last token of a slot is not yet in its caches. A slot without a token stops: it emits [`NO_TOKEN`]
    /// or [`NO_MASK`].
    fn chain(
        &mut self,
        starts: &[ChainStart],
        control: &Control,
        emit: &mut dyn FnMut(Emitted) -> bool,
    ) -> Result<(), Error>;

    /// Runs a draft step and goes on from its guesses: the token after a pick is what the pick's next row reads. `wanted` says how many
    /// guesses each pick wants, at least one; `tokens` gets the first guess of all picks, then the second ones, and so on, and after
    /// the last guess that a pick wants anything. What is in `step` afterwards is not defined.
    ///
    /// The draft layer writes keys and values of a pick's rows and, if another one wants more guesses, of one row more. The call may return
    /// before the device has run a step without picks.
    fn draft(&mut self, step: &mut Step, wanted: &[u32], tokens: &mut [u32]) -> Result<(), Error> {
        draft_by_steps(step, wanted, tokens, &mut |step, tokens| {
            self.step(step, StepOptions::tokens(tokens)).map(drop)
        })
    }

    /// Runs rows of any slots through one pass: for tests and tools. `outputs` names the output rows; of a decode pass all
    /// rows are.
    fn step_rows(&mut self, pass: usize, rows: &[Row], outputs: &[u32]) -> Result<&[f32], Error> {
        let step = step_of(self.program(), pass, rows, outputs)?;
        self.step(&step, StepOptions::default())
    }

    /// As [`Context::step_rows`], but only the first `commands` commands: for finding the first one that differs.
    fn step_until(
        &mut self,
        pass: usize,
        rows: &[Row],
        outputs: &[u32],
        commands: usize,
    ) -> Result<(), Error> {
        let step = step_of(self.program(), pass, rows, outputs)?;
        self.step(&step, StepOptions::stage(Stage::Begin))?;
        let part = Stage::run(0..commands);
        self.step(&step, StepOptions::stage(part)).map(drop)
    }

    /// Copies bytes of a buffer, from byte `first` on, to the host.
    fn read_bytes(&mut self, id: BufferId, first: u64, bytes: &mut [u8]) -> Result<(), Error>;

    /// Overwrites bytes of a buffer, from byte `first` on.
    fn write_bytes(&mut self, id: BufferId, first: u64, bytes: &[u8]) -> Result<(), Error>;

    /// A copy of a buffer: for tests and tools.
    fn read_buffer(&mut self, id: BufferId) -> Result<Vec<u8>, Error> {
        let spec = self.program().buffers.get(id as usize);
        let mut bytes = vec![0; spec.map_or(0, |spec| spec.bytes as usize)];
        self.read_bytes(id, 0, &mut bytes)?;
        Ok(bytes)
    }

    /// Overwrites the start of a buffer: for tests and tools.
    fn write_buffer(&mut self, id: BufferId, bytes: &[u8]) -> Result<(), Error> {
        self.write_bytes(id, 0, bytes)
    }

    /// Switches profiling on, from zero, or off. Profiled steps are slower: every command is timed on its own.
    fn set_profiling(&mut self, on: bool) -> Result<(), Error>;

    /// What each op did since profiling was switched on; empty if it is off.
    fn profile(&self) -> Vec<Profile>;

    /// When the commands of the last profiled step ran, or those of the last [`Stage::Run`].
    fn last_step(&self) -> Timeline;

    /// Further ways to replay, if the device has them: for benchmarks and tools.
    fn replays(&mut self) -> Option<&mut dyn ReplayTools> {
        None
    }
}

/// An extension of [`Context`] for devices that replay in more than one way.
pub trait ReplayTools {
    /// How chains are replayed now.
    fn replaying(&mut self) -> Replaying;

    /// Replays chains in another way from now on.
    fn set_replay(&mut self, replay: Replay) -> Result<(), Error>;

    /// Whether [`ReplayTools::timeline`] answers.
    fn has_timeline(&self) -> bool {
        true
    }

    /// Decodes `steps` tokens with clocks on, and says which worker did what in the last step.
    fn timeline(&mut self, start: ChainStart) -> Result<Timeline, Error>;

    /// Nanoseconds that one step's launches take when every kernel returns at once, over `times` steps.
    fn launch_ns(&mut self, times: u32) -> Result<u64, Error>;

    /// The tuning parameters in use, in words, if the way of replaying has any.
    fn tuning(&mut self) -> Option<String>;
}

/// The step over rows of one pass.
fn step_of(program: &Program, pass: usize, rows: &[Row], outputs: &[u32]) -> Result<Step, Error> {
    let known = program.passes.len();
    let spec = program.passes.get(pass);
    let spec =
        spec.ok_or_else(|| Error::request(format!("pass {pass}; the program has {known}")))?;
    Ok(Step::of(Role::of(spec.kind), rows, outputs))
}
