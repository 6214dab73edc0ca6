//! Sampling on the GPU: the settings and histories of slots, as its kernels read them (`shaders/sampling.wgsl`).

use crate::gpu::Gpu;
use crate::kernels::{SETTINGS, SETTINGS_HEAD};
use welte_device::{Error, HostSlot};
use welte_table::Sampling;
use wgpu::{Buffer, BufferUsages};

/// In place of a token: rounding could make a difference, so the host chooses.
pub(super) const UNDECIDED: u32 = 0xffff_fff0;

/// What the GPU knows of the slots.
pub(super) struct Samplers {
    pub(super) settings: Buffer,
    /// By slot: what it knows is up to date.
    known: Vec<Known>,
    /// On the way to the GPU.
    words: Vec<u8>,
}

#[derive(Clone, Copy, Default)]
struct Known {
    settings: bool,
    history: bool,
}

impl Samplers {
    /// For `slots` slots of `context` positions. `bytes` are those of all settings.
    pub(super) fn new(
        gpu: &Gpu,
        slots: usize,
        context: usize,
        bytes: u64,
    ) -> Result<Samplers, Error> {
        let usage = BufferUsages::STORAGE | BufferUsages::COPY_DST;
        Ok(Samplers {
            settings: gpu.buffer("sampling settings", bytes, usage)?,
            known: vec![Known::default(); slots],
            words: Vec::with_capacity(4 * (SETTINGS as usize).max(context + 2)),
        })
    }

    /// Notes that the slot has another state.
    pub(super) fn forget(&mut self, slot: u32) {
        self.known[slot as usize] = Known::default();
    }

    /// Notes that the slot's history has other tokens than the GPU's.
    pub(super) fn forget_history(&mut self, slot: u32) {
        self.known[slot as usize].history = false;
    }

    /// Tells the GPU what it does not know of a slot. `histories` is where they begin in the step state, in words.
    pub(super) fn update(
        &mut self,
        gpu: &Gpu,
        number: u32,
        slot: &HostSlot,
        state: &Buffer,
        histories: u32,
    ) {
        let known = &mut self.known[number as usize];
        if !known.settings {
            self.words.clear();
            write_settings(slot, &mut self.words);
            let at = u64::from(number * SETTINGS) * 4;
            gpu.queue.write_buffer(&self.settings, at, &self.words);
        }
        if !known.history && slot.settings().has_penalties() {
            self.words.clear();
            let capacity = slot.capacity() as u32;
            let tokens = slot.recent().rev();
            let count = tokens.len() as u32;
            let words = [count % capacity, count].into_iter().chain(tokens);
            self.words.extend(words.flat_map(u32::to_ne_bytes));
            let at = u64::from(histories + number * (capacity + 2)) * 4;
            gpu.queue.write_buffer(state, at, &self.words);
        }
        *known = Known {
            settings: true,
            history: true,
        };
    }
}

/// True if the kernels choose the slot's tokens as the host does. They know no masks and no extended settings, and leave numbers to
/// the host that GPUs may flush to zero.
pub(super) fn are_known(slot: &HostSlot) -> bool {
    let s = slot.settings();
    let is_moderate = |value: f32| value == 0.0 || (1e-6..=1e6).contains(&value.abs());
    let bias = |(_, bias): &(u32, f32)| *bias == f32::NEG_INFINITY || is_moderate(*bias);
    let penalties = !s.has_penalties()
        || (1e-2..=1e2).contains(&s.repeat_penalty)
            && is_moderate(s.frequency_penalty)
            && is_moderate(s.presence_penalty);
    let temperature = s.temperature.is_nan() || s.temperature <= 0.0 || s.temperature >= 1e-30;
    let masked = slot.is_masked() || s.is_extended();
    !masked && penalties && temperature && slot.biases().iter().all(bias)
}

/// The words of a slot's settings, as `sampling.wgsl` names them.
fn write_settings(slot: &HostSlot, out: &mut Vec<u8>) {
    let s: &Sampling = slot.settings();
    let is_warm = s.temperature > 0.0;
    let top_k = if (s.top_k as usize) < slot.vocab() {
        s.top_k
    } else {
        0
    };
    let top_p = if s.top_p < 1.0 { s.top_p } else { 1.0 };
    let least = if s.min_p > 0.0 {
        s.min_p.min(1.0).ln()
    } else {
        f32::MIN
    };
    let last_n = if s.has_penalties() {
        s.repeat_last_n
    } else {
        0
    };
    let mut biases = slot.biases().to_vec();
    biases.sort_by_key(|(token, _)| *token);
    let head: [u32; SETTINGS_HEAD as usize] = [
        if is_warm { s.temperature.to_bits() } else { 0 },
        top_k,
        top_p.to_bits(),
        least.to_bits(),
        s.repeat_penalty.to_bits(),
        s.frequency_penalty.to_bits(),
        s.presence_penalty.to_bits(),
        last_n,
        s.seed as u32,
        (s.seed >> 32) as u32,
        biases.len() as u32,
        0,
    ];
    let biases = biases
        .iter()
        .flat_map(|(token, bias)| [*token, bias.to_bits()]);
    let words = head.into_iter().chain(biases);
    out.extend(words.flat_map(u32::to_ne_bytes));
}
