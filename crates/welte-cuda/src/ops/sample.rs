//! Sampling: the kernel, and the host's copy of its state.
#![allow(unsafe_code)]

use super::gemm::for_rows;
use super::need::MemoryNeed;
use crate::gpu::Gpu;
use crate::launch::{ByRows, Launch, Listed, Node, Unit, args, bytes_of};
use crate::lower::{Lowering, MAILBOX_SLOTS};
use crate::mirror::{Layout, mirrored};
use crate::{Error, GpuInfo};
use welte_device::{HostSlot, LogprobQuery, MaskBoard, SlotState};
use welte_table::{Command, Program, params};

/// Threads per block.
const THREADS: u32 = 512;
/// The fewest logits per block.
const LEAST_SLICE: u32 = 1024;
/// Bytes of `Scratch` and of `GridSync` in `sample.cuh`.
const SHARED_BYTES: u32 = 16_688;
const MEETING_BYTES: u64 = 16 + 8 + 12 * 4 + 8 + 7 * 2048 * 8;
/// Bytes of `SampleScratch` in `sample.cuh`.
const SCRATCH_BYTES: u64 = 1024 * 8 + 1024 * 4;
/// The most blocks that sample for a row (`MOST_BLOCKS`).
const MOST_BLOCKS: u32 = 1024;
/// Multiprocessors per block of a row, for steps of up to a number of rows. A block's time is mostly latency, so large steps have few blocks per row.
const SHARES: [(u32, u32); 3] = [(2, 1), (8, 4), (u32::MAX, 8)];
const MOST_ENDS: usize = SlotState::MOST_ENDS;
/// Words before the end tokens.
const HEAD_WORDS: usize = size_of::<Head>() / 4;

mirrored! {
    /// The beginning of a slot's sampling state.
    #[derive(Default)]
    struct Head = "Sampler" {
        temperature: f32,
        top_k: u32,
        top_p: f32,
        /// The logarithm of min-p; minus infinity if min-p is off.
        least: f32,
        repeat: f32,
        frequency: f32,
        presence: f32,
        last_n: u32,
        seed: u64,
        ends: u32,
        biases: u32,
        size: u32,
        head: u32,
        len: u32,
        most_ends: u32,
        masked: u32,
        logprobs: u32,
    }
}

mirrored! {
    /// What `sample_block` (`sample.cuh`) needs.
    pub(crate) struct Args = "SampleArgs" {
        step: u64,
        states: u64,
        logits: u64,
        samplers: u64,
        grid_sync: u64,
        scratch: u64,
        tokens: u64,
        mailbox: u64,
        cancel: u64,
        masks: u64,
        fault: u64,
        sampler_bytes: u64,
        n: u32,
        slice: u32,
        mailbox_slots: u32,
        shift: u32,
        row: u32,
        stride: u32,
        mask_stride: u32,
        patience_us: u32,
        guess: u32,
        pad: u32,
    }
}

/// Whether tokens are guesses (`guess` of `SampleArgs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guess {
    /// They count.
    No,
    /// They leave no trace in their slots.
    Alone,
    /// So do these, and the rows of a draft step go on with them.
    Moves,
    /// Likewise, but the rows stay at their positions. So many guesses came before.
    Stays(u32),
    /// Likewise, of the rows' own positions.
    Masked,
}

impl Guess {
    fn word(self) -> u32 {
        match self {
            Guess::No => 0,
            Guess::Alone => 1,
            Guess::Moves => 2,
            Guess::Masked => 3,
            Guess::Stays(before) => 4 + before,
        }
    }
}

/// The structs that the kernels check.
pub(crate) const MIRRORS: &[Layout] = &[Args::LAYOUT, Head::LAYOUT];

/// The unit that samples.
pub(crate) fn sample_unit() -> Unit {
    Unit {
        file: "sample.cu",
        generated: String::new(),
        defines: Vec::new(),
    }
}

/// Logits per block, given the number of blocks.
pub(crate) fn slice(n: u32, blocks: u32) -> u32 {
    n.div_ceil(blocks.max(1)).next_multiple_of(4)
}

/// Bytes of shared memory that `sample_block` needs for a slice of logits.
pub(crate) fn shared_bytes(slice: u32) -> u64 {
    u64::from(SHARED_BYTES) + u64::from(slice) * 8
}

/// Fraction bits of a probability in fixed point: a sum of n stays below 2^62, and each is exact in an f64.
pub(crate) fn fraction_bits(n: u32) -> u32 {
    let bits = 32 - n.saturating_sub(1).leading_zeros();
    (62 - bits).min(52)
}

/// The arguments of `sample_block` for the first row, where each block takes `slice` of `n` logits.
pub(crate) fn arguments(cx: &Lowering<'_>, logits: u64, n: u32, slice: u32) -> Args {
    let tokens = cx.places.buffers.get(cx.program.tokens as usize);
    Args {
        step: cx.places.step,
        states: cx.places.states,
        logits,
        samplers: cx.places.samplers,
        grid_sync: cx.places.counters,
        scratch: cx.places.scratch,
        tokens: tokens.copied().unwrap_or(0),
        mailbox: cx.places.mailbox,
        cancel: cx.places.cancel,
        masks: cx.places.masks,
        fault: 0,
        sampler_bytes: region_bytes(cx.program),
        n,
        slice,
        mailbox_slots: MAILBOX_SLOTS,
        shift: fraction_bits(n),
        row: 0,
        stride: n,
        mask_stride: MaskBoard::stride(n as usize) as u32,
        patience_us: MaskBoard::PATIENCE.as_micros() as u32,
        guess: 0,
        pad: 0,
    }
}

/// The launches that sample for rows of the step: by the number of rows. All choose the same tokens.
#[derive(Clone, Copy)]
pub(crate) struct SampleLaunch {
    shapes: [Shape; SHARES.len()],
    args: Args,
}

/// How a row's logits are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    /// The most rows.
    rows: u32,
    /// Blocks of a row, and the logits of each.
    blocks: u32,
    slice: u32,
    /// Bytes of a block.
    shared: u32,
}

impl Shape {
    /// `None` if a slice does not fit a block.
    fn of(n: u32, (rows, share): (u32, u32), gpu: &GpuInfo) -> Option<Shape> {
        // All blocks of a row must run at once, so there is at most one per multiprocessor.
        let most = gpu.sms.clamp(1, MOST_BLOCKS).min(n.div_ceil(LEAST_SLICE));
        let room = gpu.shared_per_block.saturating_sub(SHARED_BYTES) / 8;
        let widest = (room / 4 * 4).max(1);
        let blocks = (gpu.sms / share)
            .max(n.div_ceil(widest))
            .clamp(1, most.max(1));
        let slice = slice(n, blocks);
        let shared = shared_bytes(slice);
        let fits = n > 0 && shared <= u64::from(gpu.shared_per_block);
        fits.then(|| Shape {
            rows,
            blocks: n.div_ceil(slice),
            slice,
            shared: shared as u32,
        })
    }

    fn launch(self, rows: u32, args_of_first: &Args) -> Launch {
        Launch {
            unit: sample_unit(),
            function: "sample",
            grid: [self.blocks, rows, 1],
            by_rows: ByRows::Axis { axis: 1, per: 1 },
            block: THREADS,
            shared: self.shared,
            args: args(&Args {
                slice: self.slice,
                ..*args_of_first
            }),
        }
    }
}

impl SampleLaunch {
    /// For `n` logits per row, from an address on, `stride` apart.
    pub(crate) fn new(
        cx: &Lowering<'_>,
        logits: u64,
        n: u32,
        stride: u32,
    ) -> Result<SampleLaunch, Error> {
        let shapes = SHARES.map(|share| Shape::of(n, share, cx.gpu));
        let [Some(few), Some(some), Some(many)] = shapes else {
            let room = cx.gpu.shared_per_block;
            return Err(Error::Program(format!(
                "sampling from {n} logits does not fit a block's {room} bytes"
            )));
        };
        Ok(SampleLaunch {
            shapes: [few, some, many],
            args: Args {
                stride,
                ..arguments(cx, logits, n, few.slice)
            },
        })
    }

    /// The launches for up to `rows` rows.
    fn nodes(&self, rows: u32) -> Vec<Node> {
        let mut nodes = Vec::new();
        let mut least = 1;
        for shape in self.shapes {
            if least > rows {
                break;
            }
            let most = shape.rows.min(rows);
            nodes.push(for_rows(
                least,
                most,
                vec![Node::Kernel(shape.launch(most, &self.args))],
            ));
            least = most + 1;
        }
        nodes
    }

    /// A launch of each shape, for its kernel.
    pub(crate) fn each(&self) -> [Launch; SHARES.len()] {
        self.shapes.map(|shape| shape.launch(1, &self.args))
    }

    /// The shape for `count` rows, its blocks per row, and its parameters. The first row has this number in the step, and its logits are at
    /// this address. `fault` is where a kernel says that they are invalid, or 0.
    pub(crate) fn for_count(
        &self,
        row: u32,
        count: u32,
        logits: u64,
        fault: u64,
        guess: Guess,
    ) -> (usize, u32, Args) {
        let larger = SHARES.iter().position(|(rows, _)| count <= *rows);
        let nth = larger.unwrap_or(0);
        let args = Args {
            row,
            logits,
            fault,
            guess: guess.word(),
            slice: self.shapes[nth].slice,
            ..self.args
        };
        (nth, self.shapes[nth].blocks, args)
    }
}

/// The kernels of a command.
pub(crate) fn lower(cx: &Lowering<'_>, command: &Command, rows: u32) -> Result<Vec<Node>, Error> {
    let p = params::Sample::of(&command.params);
    let launch = SampleLaunch::new(cx, cx.buffer(command.buffers[0]), p.n, p.logits_stride)?;
    Ok(launch.nodes(rows))
}

/// Private scratch of a command.
pub(crate) fn scratch(need: &MemoryNeed<'_>) -> u64 {
    u64::from(need.rows) * SCRATCH_BYTES
}

/// Bytes that are zero between commands.
pub(crate) fn counters(need: &MemoryNeed<'_>) -> u64 {
    u64::from(need.rows) * MEETING_BYTES
}

/// The units that tests compile.
pub(crate) fn catalogue() -> Vec<Listed> {
    vec![Listed {
        unit: sample_unit(),
        hot: true,
    }]
}

/// The capacity of the history.
fn history_of(program: &Program) -> usize {
    program.context.max(1) as usize
}

/// Bytes of a slot's sampling state in device memory.
pub(crate) fn region_bytes(program: &Program) -> u64 {
    let words = HEAD_WORDS + MOST_ENDS + history_of(program) + 2 * SlotState::MOST_BIASES;
    let words = words as u64;
    (4 * words).next_multiple_of(16)
}

/// The host's copy of a slot's sampling state on the device: [`Head`], end tokens, a ring of the last tokens, and biases. Nothing
/// allocates after `new`.
pub(crate) struct Sampler {
    head: Head,
    /// All of it as the device has it, with room for the head.
    words: Vec<u32>,
    history: usize,
    vocab: u32,
    /// Whether the device has another state.
    changed: bool,
    /// The same state, for choices on the host.
    host: HostSlot,
}

impl Sampler {
    /// Allocates the full capacity.
    pub(crate) fn new(program: &Program) -> Sampler {
        let history = history_of(program);
        let fixed = HEAD_WORDS + MOST_ENDS + history;
        let mut words = Vec::with_capacity(fixed + 2 * SlotState::MOST_BIASES);
        words.resize(fixed, 0);
        let head = Head {
            size: history as u32,
            most_ends: MOST_ENDS as u32,
            ..Head::default()
        };
        let mut sampler = Sampler {
            head,
            words,
            history,
            vocab: program.vocab,
            changed: true,
            host: HostSlot::new(program.vocab as usize, history),
        };
        sampler.set(&SlotState::default());
        sampler
    }

    /// Replaces everything. The contract bounds biases and end tokens.
    pub(crate) fn set(&mut self, state: &SlotState<'_>) {
        let SlotState {
            sampling: s,
            bias,
            history,
            ends,
            masked,
            breakers: _,
            logprobs,
            adapter: _,
        } = state;
        self.host.set(state);
        let least = if s.min_p > 0.0 {
            s.min_p.min(1.0).ln()
        } else {
            f32::NEG_INFINITY
        };
        self.words.truncate(HEAD_WORDS + MOST_ENDS + self.history);
        let known = bias.iter().filter(|(token, _)| *token < self.vocab);
        for (token, bias) in known.take(SlotState::MOST_BIASES) {
            self.words.extend([*token, bias.to_bits()]);
        }
        let words = self.words.len() - HEAD_WORDS - MOST_ENDS - self.history;
        let ends = &ends[..ends.len().min(MOST_ENDS)];
        self.words[HEAD_WORDS..HEAD_WORDS + ends.len()].copy_from_slice(ends);
        self.head = Head {
            temperature: s.temperature,
            top_k: s.top_k,
            top_p: s.top_p,
            least,
            repeat: s.repeat_penalty,
            frequency: s.frequency_penalty,
            presence: s.presence_penalty,
            last_n: s.repeat_last_n,
            seed: s.seed,
            ends: ends.len() as u32,
            biases: (words / 2) as u32,
            head: 0,
            len: 0,
            masked: u32::from(*masked),
            logprobs: logprobs.map_or(0, |top| top + 1),
            ..self.head
        };
        for token in &history[history.len().saturating_sub(self.history)..] {
            self.append(*token);
        }
        self.changed = true;
    }

    /// Whether a token ends a chain.
    pub(crate) fn ends_with(&self, token: u32) -> bool {
        self.words[HEAD_WORDS..][..self.head.ends as usize].contains(&token)
    }

    /// Whether choices depend on the history (`has_penalties` of `sample.cuh`).
    pub(crate) fn looks_back(&self) -> bool {
        let h = &self.head;
        h.last_n > 0 && !(h.repeat == 1.0 && h.frequency == 0.0 && h.presence == 0.0)
    }

    /// What chains report of a row's token, if they report probabilities and there is a token.
    pub(crate) fn logprob_query(&self, output: usize, token: u32) -> Option<LogprobQuery> {
        self.host.logprob_query(output, token)
    }

    /// Whether chains report probabilities.
    pub(crate) fn reports_logprobs(&self) -> bool {
        self.head.logprobs > 0
    }

    /// Notes that the device's history may differ. It does not matter where the device never reads it.
    pub(crate) fn mark_changed(&mut self) {
        self.changed |= self.looks_back();
    }

    /// Uploads the state to the slot's region, if the device has another one.
    ///
    /// # Safety
    /// The region has [`region_bytes`] bytes from `region` on.
    pub(crate) unsafe fn upload(&mut self, gpu: &Gpu, region: u64) -> Result<(), Error> {
        match self.take_changes() {
            // SAFETY: the largest state fits into the region.
            Some(state) => unsafe { gpu.upload(region, state) },
            None => Ok(()),
        }
    }

    /// The bytes of the state, if the device has another one. It has this one afterwards.
    fn take_changes(&mut self) -> Option<&[u8]> {
        std::mem::take(&mut self.changed).then(|| self.bytes())
    }

    /// True if the kernel does not know the settings: the host chooses the tokens.
    pub(crate) fn is_left_to_host(&self) -> bool {
        self.host.settings().is_extended()
    }

    /// The state for choices on the host.
    pub(crate) fn host(&self) -> &HostSlot {
        &self.host
    }

    /// Appends an emitted token to the history.
    pub(crate) fn remember(&mut self, token: u32) {
        self.host.remember(token);
        self.append(token);
    }

    fn append(&mut self, token: u32) {
        let Head { head, len, .. } = &mut self.head;
        let at = *head as usize;
        self.words[HEAD_WORDS + MOST_ENDS + at] = token;
        *head = ((at + 1) % self.history) as u32;
        *len = (*len + 1).min(self.history as u32);
    }

    /// The state as the device has it.
    fn bytes(&mut self) -> &[u8] {
        // SAFETY: words are plain numbers, and the slice borrows them.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(self.words.as_mut_ptr().cast(), self.words.len() * 4)
        };
        bytes[..size_of::<Head>()].copy_from_slice(bytes_of(&self.head));
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use welte_table::Sampling;

    fn program(vocab: u32, context: u32) -> Program {
        Program {
            weights: Vec::new(),
            buffers: Vec::new(),
            caches: Vec::new(),
            vocab,
            context,
            page: 16,
            slots: 1,
            tokens: 0,
            features: welte_table::NO_BUFFER,
            adapters: None,
            block: None,
            passes: Vec::new(),
        }
    }

    fn words(sampler: &mut Sampler) -> Vec<u32> {
        let words = sampler.bytes().chunks_exact(4);
        words
            .map(|b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]))
            .collect()
    }

    #[test]
    fn the_mirror_is_laid_out_as_the_kernel_reads_it() {
        let program = program(50, 4);
        let mut sampler = Sampler::new(&program);
        assert!(sampler.take_changes().is_some());
        assert!(sampler.take_changes().is_none());
        let sampling = Sampling {
            temperature: 0.5,
            top_k: 7,
            min_p: 2.0,
            seed: 5 << 32 | 9,
            ..Sampling::default()
        };
        sampler.set(&SlotState {
            sampling,
            bias: &[(3, 1.5), (50, 1.0), (3, -2.0)],
            history: &[1, 2, 3, 4, 5, 6],
            ends: &[8, 9],
            masked: true,
            breakers: &[],
            logprobs: Some(4),
            adapter: None,
        });
        sampler.remember(7);
        assert!(sampler.take_changes().is_some());
        let words = words(&mut sampler);
        let history = HEAD_WORDS + MOST_ENDS;
        assert_eq!(words[..2], [0.5f32.to_bits(), 7]);
        // min-p is capped at 1 and stored as its logarithm.
        assert_eq!(words[3], 0.0f32.to_bits());
        assert_eq!(words[8..16], [9, 5, 2, 2, 4, 1, 4, MOST_ENDS as u32]);
        assert_eq!(words[16..18], [1, 5]);
        assert_eq!(words[HEAD_WORDS..HEAD_WORDS + 2], [8, 9]);
        // A ring of the last four tokens. Token 50 is not in the vocabulary.
        assert_eq!(words[history..history + 4], [7, 4, 5, 6]);
        let biases = [3, 1.5f32.to_bits(), 3, (-2.0f32).to_bits()];
        assert_eq!(words[history + 4..], biases);
        assert!(words.len() as u64 * 4 <= region_bytes(&program));
    }

    #[test]
    fn more_rows_have_fewer_and_longer_slices_that_fit() {
        for (sms, shared_per_block, most) in [
            (132, 227 << 10, 262_144),
            (8, 99 << 10, 32_000),
            (46, 64 << 10, 262_144),
        ] {
            let gpu = GpuInfo {
                sms,
                shared_per_block,
                ..crate::info::h200()
            };
            for n in [1, 3, 1000, 32_000, 151_936, 262_144].map(|n| most.min(n)) {
                let shapes = SHARES.map(|share| Shape::of(n, share, &gpu));
                let shapes = shapes.map(|shape| shape.expect("a vocabulary that fits"));
                for shape in shapes {
                    assert!(shape.blocks <= sms && shape.blocks * shape.slice >= n);
                    assert!((shape.blocks - 1) * shape.slice < n, "{shape:?}");
                    assert!(shape.shared <= shared_per_block);
                }
                assert!(shapes.is_sorted_by_key(|shape| shape.slice));
            }
        }
        let blocks = SHARES.map(|share| {
            let shape = Shape::of(151_936, share, &crate::info::h200());
            shape.expect("a vocabulary that fits").blocks
        });
        assert_eq!(blocks, [132, 33, 16]);
        let old = GpuInfo {
            shared_per_block: 16 << 10,
            ..crate::info::h200()
        };
        assert_eq!(Shape::of(1_000_000, SHARES[0], &old), None);
    }

    #[test]
    fn end_tokens_are_known_until_others_are_set() {
        let ends: Vec<u32> = (1000..1256).collect();
        let mut sampler = Sampler::new(&program(50, 4));
        sampler.set(&SlotState {
            ends: &ends,
            ..SlotState::default()
        });
        assert!(sampler.ends_with(1000) && sampler.ends_with(1255));
        assert!(!sampler.ends_with(999) && !sampler.ends_with(1256) && !sampler.ends_with(0));
        let words = words(&mut sampler);
        assert_eq!(sampler.head.ends as usize, MOST_ENDS);
        assert_eq!(words[HEAD_WORDS + MOST_ENDS - 1], 1255);
        sampler.set(&SlotState::default());
        assert!(!sampler.ends_with(1000));
    }
}
