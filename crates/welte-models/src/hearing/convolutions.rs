//! The convolutions of Qwen3-ASR, over time and pitch, as products: no op needs to know neighbours.

use super::{HearingSpec, Pieces};
use crate::Error;
use crate::buffers::Buffers;
use crate::commands::{Commands, at, one_pass};
use crate::names::{bias, weight};
use crate::speech::parts::{Emitter, Linear, Taker, bytes};
use crate::speech::tower::{embed, nothing};
use crate::weights::Collector;
use welte_formats::Checkpoint;
use welte_table::{BufferRef, Class, Op, Pass, PassKind, Program, WeightSpec, params as p};

/// A gate as it is.
const NO_ACT: u32 = 5;
const TAPS: u32 = Pieces::TAPS;
const SIDE: u32 = Pieces::SIDE;

fn taker<'a>(spec: &HearingSpec, checkpoint: &'a dyn Checkpoint) -> Taker<'a> {
    Taker {
        collector: Collector::new(checkpoint),
        dim: spec.dim,
        key_bias: true,
    }
}

/// The tensor of a convolution, `[output][input][pitch][time]`.
fn tensor(number: u32) -> String {
    format!("audio_tower.conv2d{number}")
}

/// The place of a kernel's value for a neighbour, whose values come one after the other: by time, then by pitch.
fn stored(neighbour: u32) -> usize {
    (neighbour % 3 * 3 + neighbour / 3) as usize
}

/// A convolution as a matrix over its neighbours: all channels of the first one, then of the second one, and so on.
fn neighbours(taker: &mut Taker<'_>, number: u32, channels: u32) -> Result<Linear, Error> {
    let (name, k) = (tensor(number), TAPS * channels);
    let count = u64::from(channels) * u64::from(k);
    let stored_values = taker.values(&weight(&name, 0), count)?;
    let mut values = Vec::with_capacity(stored_values.len());
    for row in stored_values.chunks_exact(k as usize) {
        for tap in 0..TAPS {
            values.extend(row.iter().skip(stored(tap)).step_by(TAPS as usize));
        }
    }
    let label = format!("convolution {number}");
    Ok(Linear {
        weight: taker.constant(&label, (channels, k), values),
        n: channels,
        k,
        biases: vec![(
            taker
                .collector
                .vector(&format!("{label} bias"), &[(bias(&name, 0), channels)], 0.0)?,
            0,
            channels,
        )],
    })
}

/// The first convolution at nine neighbours as a matrix over a square of the spectrogram. `stored` says where a kernel has a neighbour.
pub(super) fn square(
    taker: &mut Taker<'_>,
    name: &str,
    channels: u32,
    stored: impl Fn(u32) -> usize,
) -> Result<Linear, Error> {
    let count = u64::from(channels) * u64::from(TAPS);
    let kernels = taker.values(&weight(name, 0), count)?;
    let k = Pieces::ROW_VALUES;
    let mut values = vec![0.0; (TAPS * channels * k) as usize];
    for neighbour in 0..TAPS {
        let (time, pitch) = (neighbour / 3, neighbour % 3);
        for (channel, kernel) in (0..).zip(kernels.chunks_exact(TAPS as usize)) {
            let row = ((neighbour * channels + channel) * k) as usize;
            for tap in 0..TAPS {
                let (frame, mel) = (2 * time + tap / 3, 2 * pitch + tap % 3);
                values[row + (frame * SIDE + mel) as usize] = kernel[stored(tap)];
            }
        }
    }
    let n = TAPS * channels;
    // GGUF files have it as a column.
    let bias = taker.values(&bias(name, 0), channels.into())?;
    let bias = taker.constant("convolution 1 bias", (1, n), bias.repeat(TAPS as usize));
    Ok(Linear {
        weight: taker.constant("convolution 1", (n, k), values),
        n,
        k,
        biases: vec![(bias, 0, n)],
    })
}

/// The first two convolutions of a piece. A row is a place after them and yields its values; it computes the nine neighbours that it reads.
pub(super) fn first_two(
    spec: &HearingSpec,
    pieces: &Pieces,
    checkpoint: &dyn Checkpoint,
) -> Result<Program, Error> {
    let mut taker = taker(spec, checkpoint);
    let (read, channels) = (Pieces::ROW_VALUES, pieces.channels);
    let rows = Pieces::after(pieces.frames, 2) * Pieces::after(spec.mels, 2);
    let none = nothing(&mut taker.collector, read);
    let first = square(&mut taker, &tensor(1), channels, stored)?;
    let second = neighbours(&mut taker, 2, channels)?;
    let wide = TAPS * channels;
    let parts = Parts::new(rows, [read, wide, channels], [rows, channels]);
    let mut e = parts.emitter(&taker, read);
    embed(&mut e.out, none, read, [parts.tokens, e.x]);
    let x = e.x;
    e.linear("first convolution", &first, (x, read), (parts.wide, wide));
    e.gelu("activation", parts.wide, wide);
    let gate = p::Gate {
        n: wide,
        gates: TAPS,
        act: NO_ACT,
        x_stride: read,
        y_stride: wide,
    };
    let inside = [at(x, Pieces::INSIDE), parts.wide];
    let what = "nothing beyond the piece";
    e.out.push(what, Op::Gate, &[], &inside, gate.words());
    e.linear(
        "second convolution",
        &second,
        (parts.wide, wide),
        (parts.made, channels),
    );
    e.gelu("activation", parts.made, channels);
    let pool = p::Pool {
        n: channels,
        kind: 0,
        normalise: 0,
        x_stride: channels,
        y_stride: channels,
        group: 1,
    };
    let buffers = [parts.made, parts.result];
    e.out.push("places", Op::Pool, &[], &buffers, pool.words());
    let pass = e
        .out
        .pass(PassKind::Embed, (rows, rows), (channels, parts.result));
    Ok(parts.program(taker.collector.list, pass))
}

/// The third convolution of a piece, and the matrix that makes a state of all pitches of a time. A row is a place after it, whose
/// neighbours it reads.
pub(super) fn third(
    spec: &HearingSpec,
    pieces: &Pieces,
    checkpoint: &dyn Checkpoint,
) -> Result<Program, Error> {
    let mut taker = taker(spec, checkpoint);
    let (channels, pitches) = (pieces.channels, Pieces::after(spec.mels, 3));
    let (states, read) = (pieces.each(), TAPS * channels);
    let rows = states * pitches;
    let none = nothing(&mut taker.collector, read);
    let third = neighbours(&mut taker, 3, channels)?;
    let joined = channels * pitches;
    let name = "audio_tower.conv_out".to_string();
    let last = taker.linear("states", &[(name, spec.dim, false)], joined)?;
    let parts = Parts::new(rows, [read, joined, channels], [states, spec.dim]);
    let mut e = parts.emitter(&taker, read);
    embed(&mut e.out, none, read, [parts.tokens, e.x]);
    let x = e.x;
    e.linear(
        "third convolution",
        &third,
        (x, read),
        (parts.made, channels),
    );
    e.gelu("activation", parts.made, channels);
    // The matrix has all pitches of a channel side by side.
    let pool = p::Pool {
        n: channels,
        kind: 4,
        normalise: 0,
        x_stride: channels,
        y_stride: joined,
        group: pitches,
    };
    let buffers = [parts.made, parts.wide];
    e.out.push("pitches", Op::Pool, &[], &buffers, pool.words());
    let result = (parts.result, spec.dim);
    e.linear("states", &last, (parts.wide, joined), result);
    let pass = e
        .out
        .pass(PassKind::Embed, (rows, states), (spec.dim, parts.result));
    Ok(parts.program(taker.collector.list, pass))
}

/// The buffers of a program.
pub(super) struct Parts {
    buffers: Buffers,
    pub(super) tokens: BufferRef,
    features: BufferRef,
    pub(super) read: BufferRef,
    pub(super) wide: BufferRef,
    pub(super) made: BufferRef,
    pub(super) result: BufferRef,
}

impl Parts {
    pub(super) fn new(
        rows: u32,
        [read, wide, made]: [u32; 3],
        [outputs, result]: [u32; 2],
    ) -> Parts {
        let mut buffers = Buffers::default();
        let class = Class::ScratchPrompt;
        Parts {
            tokens: buffers.add("tokens", Class::Tables, 4 * u64::from(rows)),
            features: buffers.add("features", class, bytes(rows, read)),
            read: buffers.add("prompt.read", class, bytes(rows, read)),
            wide: buffers.add("prompt.wide", class, bytes(rows, wide)),
            made: buffers.add("prompt.made", class, bytes(rows, made)),
            result: buffers.add("prompt.result", class, bytes(outputs, result)),
            buffers,
        }
    }

    fn emitter<'a>(&self, taker: &'a Taker<'_>, dim: u32) -> Emitter<'a> {
        Emitter {
            dim,
            x: self.read,
            norm: self.made,
            wide: self.wide,
            out: Commands::new(&taker.collector.list),
        }
    }

    pub(super) fn program(self, weights: Vec<WeightSpec>, pass: Pass) -> Program {
        let features = self.features.buffer;
        one_pass(
            weights,
            self.buffers.into_list(),
            (self.tokens, features),
            pass,
        )
    }
}
