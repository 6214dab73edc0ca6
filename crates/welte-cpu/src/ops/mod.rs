//! The ops as phases. A phase is cut into chunks that any thread may take; chunks of one phase write disjoint memory.
//! Every phase runs by an `unsafe fn` with the same contract:
//!
//! - `lower` checked the pointers of the phase against their buffers, for the most rows that the pass may have.
//! - `rows` is not larger than that.
//! - Each chunk of a phase runs at most once per step, and phases run one after the other.
//! - Rows, outputs and page lists of the state were validated by `welte_device::Checks`.
#![allow(unsafe_code)]

pub(crate) mod adapt;
pub(crate) mod altup;
pub(crate) mod attention;
pub(crate) mod attention_plain;
pub(crate) mod attention_prompt;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod attention_vectors;
pub(crate) mod basic;
pub(crate) mod cache;
pub(crate) mod choose_positions;
pub(crate) mod encode_attention;
pub(crate) mod encode_conv;
pub(crate) mod exchange;
pub(crate) mod experts;
pub(crate) mod gated_delta;
pub(crate) mod heads;
pub(crate) mod mamba2;
pub(crate) mod matmul;
pub(crate) mod output_rows;
pub(crate) mod positions;
pub(crate) mod rope;
pub(crate) mod sample;
pub(crate) mod short_conv;
mod vectors;

pub(crate) use crate::kernels::MANY_ROWS;
use std::sync::{Arc, Mutex};
use welte_device::{HostScratch, HostSlot, MaskBoard, SlotAdapter};
use welte_table::Row;

/// Rows of floats in a buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FloatRows {
    pub(crate) start: *mut f32,
    /// Elements from one row to the next.
    pub(crate) stride: usize,
}

// SAFETY: only an address; each use states why it is sound.
unsafe impl Send for FloatRows {}
// SAFETY: as above.
unsafe impl Sync for FloatRows {}

impl FloatRows {
    /// No rows.
    pub(crate) const NONE: FloatRows = FloatRows {
        start: std::ptr::dangling_mut(),
        stride: 0,
    };

    /// # Safety
    /// The row lies in the buffer, and nobody writes it while the slice lives.
    pub(crate) unsafe fn row<'a>(&self, row: usize, len: usize) -> &'a [f32] {
        // SAFETY: promised by the caller.
        unsafe { std::slice::from_raw_parts(self.start.add(row * self.stride), len) }
    }

    /// # Safety
    /// The row lies in the buffer, and nobody else uses it while the slice lives.
    pub(crate) unsafe fn row_mut<'a>(&self, row: usize, len: usize) -> &'a mut [f32] {
        // SAFETY: promised by the caller.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(row * self.stride), len) }
    }
}

/// Bytes that phases share: tiles, prepared activations, caches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes(pub(crate) *mut u8);

// SAFETY: only an address; each use states why it is sound.
unsafe impl Send for Bytes {}
// SAFETY: as above.
unsafe impl Sync for Bytes {}

/// A vector of weights, or none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Floats(pub(crate) *const f32);

// SAFETY: only an address of memory that nobody writes after load.
unsafe impl Send for Floats {}
// SAFETY: as above.
unsafe impl Sync for Floats {}

impl Floats {
    pub(crate) const NONE: Floats = Floats(std::ptr::null());

    pub(crate) fn is_none(self) -> bool {
        self.0.is_null()
    }

    /// # Safety
    /// The weight has `len` values, and outlives the slice.
    pub(crate) unsafe fn get<'a>(&self, len: usize) -> Option<&'a [f32]> {
        // SAFETY: promised by the caller; null means none.
        (!self.0.is_null()).then(|| unsafe { std::slice::from_raw_parts(self.0, len) })
    }
}

/// Memory of one thread that no other thread uses.
#[derive(Clone, Copy)]
pub(crate) struct ThreadMemory {
    pub(crate) scratch: *mut f32,
    /// The step and the phase of a prepared row, and the row `ROW_AFTER` bytes later.
    pub(crate) row: *mut u8,
}

/// Bytes of a thread's memory before its row.
pub(crate) const ROW_AFTER: usize = 64;

impl ThreadMemory {
    /// The prepared row of a phase, which is written first if it is not there.
    ///
    /// # Safety
    /// `row` is the thread's own, aligned to 64 bytes, zeroed once, and written by nobody else; steps count from 1.
    unsafe fn row_of(&self, step: u64, phase: u64, write: impl FnOnce(*mut u8)) -> *const u8 {
        // SAFETY: promised by the caller.
        unsafe {
            let holds = self.row.cast::<[u64; 2]>();
            let row = self.row.add(ROW_AFTER);
            if *holds != [step, phase] {
                write(row);
                *holds = [step, phase];
            }
            row
        }
    }
}

/// What changes from step to step.
pub(crate) struct State {
    /// Which step it is, from 1.
    pub(crate) step: u64,
    /// The input rows of the step: the first `live` ones.
    pub(crate) rows: Vec<Row>,
    pub(crate) live: usize,
    /// Generated rows, which come first: of a mixed step, else 0.
    pub(crate) generated: usize,
    /// Which input rows are output rows; unused by decode passes, where all are.
    pub(crate) outputs: Vec<u32>,
    /// The page lists of all caches: `[cache][slot][entry]`.
    pub(crate) pages: Vec<u32>,
    /// By row, while sampling: its token is the argmax of its logits.
    pub(crate) plain_argmax: Vec<bool>,
    /// Sampling state of the slots.
    pub(crate) slots: Vec<HostSlot>,
    /// The adapters of the slots.
    pub(crate) adapters: Vec<Option<SlotAdapter>>,
    /// Scratch by lane: as many tokens may be chosen at the same time. Each lane has one user, so nobody waits for a lock.
    pub(crate) lanes: Vec<Mutex<HostScratch>>,
    pub(crate) masks: Arc<MaskBoard>,
}

/// SiLU, GELU by tanh, GELU by erf: the table's numbers 0, 1, 2.
#[inline(always)]
fn activate(act: u32, x: f32) -> f32 {
    match act {
        0 => x * sigmoid(x),
        1 => x * sigmoid(2.0 * 0.797_884_6 * (x + 0.044_715 * x * x * x)),
        _ => 0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2)),
    }
}

/// What a gate multiplies by: activations 0, 1 and 2, 4 sigmoid, 5 none.
#[inline(always)]
fn gate_value(act: u32, x: f32) -> f32 {
    match act {
        4 => sigmoid(x),
        5 => x,
        6 => softplus(x),
        _ => activate(act, x),
    }
}

/// `ln(1 + e^x)`.
#[inline(always)]
fn softplus(x: f32) -> f32 {
    x.max(0.0) + exp_not_positive(-x.abs()).ln_1p()
}

/// `act(gate) * up`; activation 3 clamps both operands.
#[inline(always)]
pub(crate) fn gated(act: u32, gate: f32, up: f32) -> f32 {
    const LIMIT: f32 = 7.0;
    match act {
        3 => {
            // Unlike `min`, the comparison keeps NaN.
            let gate = if gate > LIMIT { LIMIT } else { gate };
            gate * sigmoid(1.702 * gate) * (up.clamp(-LIMIT, LIMIT) + 1.0)
        }
        _ => activate(act, gate) * up,
    }
}

/// `1 / (1 + e^-x)`, in a form that the compiler vectorises.
#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    let e = exp_not_positive(-x.abs());
    (if x < 0.0 { e } else { 1.0 }) / (1.0 + e)
}

/// Compiles a function for several vector widths and calls the widest one that the processor supports. The bits are the
/// same for all: the compiler neither reorders sums nor fuses multiply and add where the code does not say `mul_add`.
macro_rules! widest {
    ($(#[$meta:meta])* fn $name:ident($($arg:ident: $type:ty),*) $(-> $out:ty)? $body:block) => {
        $(#[$meta])*
        pub(crate) fn $name($($arg: $type),*) $(-> $out)? {
            #[inline(always)]
            fn each($($arg: $type),*) $(-> $out)? $body
            #[cfg(target_arch = "x86_64")]
            {
                use crate::kernels::Isa;
                #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
                fn avx512($($arg: $type),*) $(-> $out)? {
                    each($($arg),*)
                }
                #[target_feature(enable = "avx2,fma")]
                fn avx2($($arg: $type),*) $(-> $out)? {
                    each($($arg),*)
                }
                if Isa::Avx512.is_available() {
                    // SAFETY: the processor has it.
                    return unsafe { avx512($($arg),*) };
                }
                if Isa::Avx2.is_available() {
                    // SAFETY: the processor has it.
                    return unsafe { avx2($($arg),*) };
                }
            }
            each($($arg),*)
        }
    };
}

pub(crate) use widest;

widest! {
    /// `y = act(gate) * up`.
    fn activate_and_multiply(act: u32, gate: &[f32], up: &[f32], y: &mut [f32]) {
        // The branch is outside the loops, so that the compiler vectorises them.
        let all = y.iter_mut().zip(gate).zip(up);
        match act {
            0 => all.for_each(|((y, gate), up)| *y = gated(0, *gate, *up)),
            1 => all.for_each(|((y, gate), up)| *y = gated(1, *gate, *up)),
            2 => all.for_each(|((y, gate), up)| *y = gated(2, *gate, *up)),
            _ => all.for_each(|((y, gate), up)| *y = gated(3, *gate, *up)),
        }
    }
}

/// The error function to about 2e-7, in a form that the compiler vectorises (Abramowitz and Stegun, 7.1.26).
#[inline(always)]
pub(crate) fn erf(x: f32) -> f32 {
    let a = x.abs();
    let t = 1.0 / (1.0 + 0.327_591_1 * a);
    let mut p = 1.061_405_4;
    p = p * t - 1.453_152;
    p = p * t + 1.421_413_7;
    p = p * t - 0.284_496_74;
    p = p * t + 0.254_829_6;
    let y = 1.0 - p * t * exp_not_positive(-a * a);
    if x < 0.0 { -y } else { y }
}

/// `e^x` for x <= 0, in a form that the compiler vectorises. The relative error is below 2e-7; `e^0` is exact.
#[inline(always)]
pub(crate) fn exp_not_positive(x: f32) -> f32 {
    const MAGIC: f32 = 12_582_912.0;
    let t = x.max(-87.0) * std::f32::consts::LOG2_E;
    let whole = t + MAGIC;
    let f = t - (whole - MAGIC);
    let mut p = 1.535_336_2e-4;
    p = p * f + 1.339_887_4e-3;
    p = p * f + 9.618_437e-3;
    p = p * f + 5.550_332_7e-2;
    p = p * f + 2.402_264_8e-1;
    p = p * f + std::f32::consts::LN_2;
    p = p * f + 1.0;
    let exponent = whole
        .to_bits()
        .wrapping_sub(MAGIC.to_bits())
        .wrapping_add(127)
        << 23;
    p * f32::from_bits(exponent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_close() {
        assert_eq!(exp_not_positive(0.0), 1.0);
        for i in 0..8700 {
            let x = -i as f32 / 100.0;
            let (got, want) = (exp_not_positive(x) as f64, (x as f64).exp());
            assert!(
                ((got - want) / want).abs() < 8e-6 + x.abs() as f64 * 1.2e-7,
                "{x}: {got} {want}"
            );
        }
        assert!(exp_not_positive(f32::NEG_INFINITY) < 1e-37);
    }

    #[test]
    fn erf_is_close() {
        for (x, want) in [
            (0.0, 0.0),
            (0.5, 0.520_499_9),
            (1.0, 0.842_700_8),
            (2.4, 0.999_311_5),
            (2.6, 0.999_764),
        ] {
            assert!((erf(x) - want).abs() < 1e-6);
            assert!((erf(-x) + want).abs() < 1e-6);
        }
    }
}
