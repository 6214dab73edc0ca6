//! Small models that the persistent kernels can run, and contexts with them.
#![allow(dead_code, unreachable_pub)]

use std::sync::Arc;
use std::time::Duration;
use welte_conformance::made::{Made, Numbers};
use welte_conformance::model::{Attention, Dense, Layer, Model};
use welte_conformance::program;
use welte_cuda::{CudaContext, CudaDevice};
use welte_device::{
    ChainStart, Context, Control, DeviceOptions, Replay, ReplayTools, Replaying, SlotState,
};
use welte_formats::Checkpoint;
use welte_table::{Format, PassKind, Program, Row, Sampling};

/// Whether the GPU can run the persistent kernels. Says why, if not.
pub fn gpu() -> bool {
    let gpu = device(Replay::Persistent);
    let can = gpu.gpu().arch >= 80;
    if !can {
        eprintln!("skipped: {} is too old", gpu.gpu().name);
    }
    can
}

/// The first GPU.
pub fn device(replay: Replay) -> CudaDevice {
    CudaDevice::open(0, &replayed(replay)).unwrap()
}

/// Options that ask for a way of replaying.
pub fn replayed(replay: Replay) -> DeviceOptions {
    let mut options = DeviceOptions::default();
    options.replay = Some(replay);
    options
}

/// Whether the GPU is the pretend one (`tests/pretend`), where every kernel and every token takes long.
pub fn is_pretend() -> bool {
    device(Replay::Persistent).gpu().name == "a pretend GPU"
}

/// The tokens to generate, or a quarter of them on the pretend GPU.
pub fn long(tokens: usize) -> usize {
    if is_pretend() { tokens / 4 } else { tokens }
}

/// How long a soak runs: `WELTE_SOAK` seconds, 2 unless set.
pub fn soak() -> Duration {
    let set = std::env::var("WELTE_SOAK").ok();
    Duration::from_secs(set.and_then(|s| s.parse().ok()).unwrap_or(2))
}

/// The seed of a soak: `WELTE_SEED`, or the usual one. With it, soaks that run side by side differ.
pub fn seed(usual: u64) -> u64 {
    let set = std::env::var("WELTE_SEED").ok();
    set.and_then(|s| s.parse().ok()).unwrap_or(usual)
}

/// A transformer whose layers are all alike.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    pub seed: u64,
    pub format: Format,
    pub kv_format: Format,
    pub layers: u32,
    pub dim: u32,
    pub heads: u32,
    pub kv_heads: u32,
    pub head_dim: u32,
    pub rot: u32,
    pub interleaved: u32,
    pub hidden: u32,
    pub act: u32,
    pub vocab: u32,
    pub window: u32,
    pub softcap: f32,
    pub bias: bool,
    pub qk_norm: bool,
    pub tied: bool,
    pub page: u32,
    pub context: u32,
    pub slots: u32,
    pub decode_rows: u32,
    pub prompt_rows: u32,
}

/// A model that the persistent kernels can run.
pub fn config(seed: u64) -> Config {
    Config {
        seed,
        format: Format::Q4_0,
        kv_format: Format::F16,
        layers: 3,
        dim: 256,
        heads: 8,
        kv_heads: 2,
        head_dim: 64,
        rot: 64,
        interleaved: 0,
        hidden: 768,
        act: 0,
        vocab: 1003,
        window: 0,
        softcap: 0.0,
        bias: false,
        qk_norm: true,
        tied: true,
        page: 16,
        context: 2048,
        slots: 3,
        decode_rows: 12,
        prompt_rows: 256,
    }
}

pub fn make(c: &Config) -> (Program, Made) {
    make_with(
        c,
        Layer::Dense(Dense {
            hidden: c.hidden,
            act: c.act,
        }),
    )
}

/// The same with this layer after each attention.
pub fn make_with(c: &Config, after: Layer) -> (Program, Made) {
    let attention = Layer::Attention(Attention {
        heads: c.heads,
        kv_heads: c.kv_heads,
        head_dim: c.head_dim,
        rot: c.rot,
        interleaved: c.interleaved,
        window: c.window,
        chunked: false,
        window_cache: false,
        softcap: c.softcap,
        sinks: false,
        position_scale: false,
        places: 0,
        absent: false,
        slopes: false,
        bias: c.bias,
        qk_norm: c.qk_norm,
    });
    program::make(&Model {
        format: c.format,
        kv_format: c.kv_format,
        dim: c.dim,
        layers: [attention, after].repeat(c.layers as usize),
        vocab: c.vocab,
        tied: c.tied,
        page: c.page,
        context: c.context,
        slots: c.slots,
        decode_rows: c.decode_rows,
        prompt_rows: c.prompt_rows,
        prompt_outputs: 1,
        ..Model::small(c.seed)
    })
}

/// A context of a program on the GPU.
pub fn open(program: &Program, checkpoint: &dyn Checkpoint, replay: Replay) -> CudaContext {
    open_with(program, checkpoint, &replayed(replay))
}

/// The same with any options.
pub fn open_with(
    program: &Program,
    checkpoint: &dyn Checkpoint,
    options: &DeviceOptions,
) -> CudaContext {
    let device = CudaDevice::open(0, options).unwrap();
    let loaded = device.load_program(Arc::new(program.clone()), checkpoint);
    loaded.unwrap().cuda_context().unwrap()
}

/// The same, where the persistent kernel must be in use.
pub fn load(program: &Program, checkpoint: &Made) -> CudaContext {
    let mut context = open(program, checkpoint, Replay::Persistent);
    assert_eq!(replaying(&mut context), (Replay::Persistent, None));
    context
}

/// A context of the program on the reference device.
pub fn oracle(program: &Program, checkpoint: &dyn Checkpoint) -> Box<dyn Context> {
    let device = welte_reference::device();
    let plan = device.plan(Arc::new(program.clone())).unwrap();
    let loaded = device.load(plan, checkpoint, &mut |_| {}).unwrap();
    loaded.context().unwrap()
}

pub fn replaying(context: &mut CudaContext) -> (Replay, Option<String>) {
    let Replaying { replay, note } = ReplayTools::replaying(context);
    (replay, note)
}

/// Rows of random tokens of one slot, at `count` positions from `from`.
pub fn rows(n: &mut Numbers, vocab: u32, from: u32, count: u32, slot: u32) -> Vec<Row> {
    let row = |position| Row::new(n.below(vocab), position, slot);
    (from..from + count).map(row).collect()
}

/// The logits of a step: of all rows for a decode pass, of the last row for a prompt.
pub fn step(context: &mut dyn Context, kind: PassKind, rows: &[Row]) -> Vec<f32> {
    let pass = context.program().pass(kind).unwrap();
    let last = [rows.len() as u32 - 1];
    let outputs: &[u32] = match kind {
        PassKind::Decode => &[],
        PassKind::Prompt | PassKind::Embed | PassKind::Draft => &last,
    };
    context.step_rows(pass, rows, outputs).unwrap().to_vec()
}

/// Steps over a prompt of any length.
pub fn prompt(context: &mut dyn Context, rows: &[Row]) {
    let pass = context.program().pass(PassKind::Prompt).unwrap();
    let most = context.program().passes[pass].rows as usize;
    for part in rows.chunks(most) {
        context.step_rows(pass, part, &[]).unwrap();
    }
}

/// Resets a slot's sampling state.
pub fn set_slot(context: &mut dyn Context, slot: u32, sampling: &Sampling, ends: &[u32]) {
    let state = SlotState {
        sampling: *sampling,
        ends,
        ..SlotState::default()
    };
    context.set_slot(slot, &state).unwrap();
}

/// A chain of one slot from a row on. Returns the tokens.
pub fn chain_of(context: &mut dyn Context, row: Row, steps: usize) -> Vec<u32> {
    chain_while(context, row, steps, &Control::default(), &mut |_| true)
}

/// The same with a listener and a control.
pub fn chain_while(
    context: &mut dyn Context,
    row: Row,
    steps: usize,
    control: &Control,
    go_on: &mut dyn FnMut(&[u32]) -> bool,
) -> Vec<u32> {
    let start = ChainStart {
        slot: row.slot,
        token: row.token(),
        position: row.position,
        steps: steps as u32,
        shift: row.axes[0] as i32 - row.position as i32,
    };
    let mut tokens = Vec::new();
    let mut emit = |one: welte_device::Emitted| {
        assert_eq!(one.slot, row.slot);
        assert_eq!(one.position, row.position + 1 + tokens.len() as u32);
        tokens.push(one.token);
        go_on(&tokens)
    };
    context.chain(&[start], control, &mut emit).unwrap();
    tokens
}

/// Decodes in chains of these lengths, until one ends early.
pub fn chain(context: &mut dyn Context, mut row: Row, lengths: &[usize]) -> Vec<u32> {
    let mut tokens = Vec::new();
    for length in lengths {
        let some = chain_of(context, row, *length);
        let last = some.last().copied().unwrap_or(row.token());
        row = row.later(last, some.len() as u32);
        tokens.extend(&some);
        if some.len() < *length {
            break;
        }
    }
    tokens
}

/// The logits that the last token of a chain was chosen from.
pub fn logits(context: &mut dyn Context) -> Vec<f32> {
    let pass = &context.program().passes[0];
    let (result, width) = (pass.result, pass.width as usize);
    let bytes = context.read_buffer(result.buffer).unwrap();
    let words = bytes[result.offset as usize..].chunks_exact(4).take(width);
    words
        .map(|b| f32::from_ne_bytes(b.try_into().unwrap()))
        .collect()
}

/// The largest difference, relative to the largest wanted value. Infinite where a value is NaN.
pub fn difference(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    let largest = want.iter().fold(1e-3f32, |m, v| m.max(v.abs()));
    let each = got.iter().zip(want).map(|(g, w)| (g - w).abs() / largest);
    each.fold(
        0.0,
        |m, d| if d.is_nan() { f32::INFINITY } else { m.max(d) },
    )
}
