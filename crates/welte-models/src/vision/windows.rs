//! The programs of queries in windows: among each other, and with the patches of their window.

use super::granite::{ProjectorNames, prefix};
use super::weights::{Linear, Taker, taker};
use super::{VisionFamily, VisionSpec, Windows};
use crate::Error;
use crate::buffers::Buffers;
use crate::commands::{Commands, at, one_pass};
use crate::weights::NormWeights;
use welte_formats::Checkpoint;
use welte_table::{BufferRef, Class, NO_WEIGHT, Op, PassKind, Program, Usage, params as p};

/// Attention that ends with a sum and a norm.
struct Attention {
    qkv: Linear,
    o: Linear,
    norm: NormWeights,
}

/// The weights of a projector's attention with these names.
fn attention(taker: &mut Taker<'_>, before: &str, names: &[&str; 5]) -> Result<Attention, Error> {
    let dim = taker.spec.dim;
    let [q, k, v, o, norm] = names.map(|name| format!("{before}{name}"));
    let qkv = [q, k, v].map(|name| (name, dim));
    Ok(Attention {
        qkv: taker.linear("qkv of queries", &qkv, dim)?,
        o: taker.linear("output of queries", &[(o, dim)], dim)?,
        norm: taker.norm_of("norm after attention", &norm, dim, 0.0)?,
    })
}

/// Buffers, and what is done to them.
struct Emitter<'a> {
    spec: &'a VisionSpec,
    qkv: BufferRef,
    out: Commands<'a>,
}

/// A vector of every row: where it is, and how far apart rows are.
type Rows = (BufferRef, u32);

impl Emitter<'_> {
    fn linear(&mut self, what: &str, linear: &Linear, (x, x_stride): Rows, (y, y_stride): Rows) {
        for piece in &linear.pieces {
            let params = p::Matmul {
                n: piece.n,
                k: linear.k,
                x_stride,
                y_stride,
            };
            let buffers = [x, at(y, piece.at)];
            self.out
                .push(what, Op::Matmul, &[piece.weight], &buffers, params.words());
        }
        for own in &linear.biases {
            let (n, y) = (own.n, at(y, own.at));
            let params = p::Bias { n, y_stride };
            self.out
                .push(what, Op::Bias, &[own.weight], &[y], params.words());
        }
    }

    /// y += x
    fn add(&mut self, (x, x_stride): Rows, (y, y_stride): Rows) {
        let params = p::Add {
            n: self.spec.dim,
            x_stride,
            y_stride,
        };
        self.out.push("sum", Op::Add, &[], &[x, y], params.words());
    }

    fn norm(&mut self, norm: NormWeights, (x, stride): Rows) {
        let how = (self.spec.dim, self.spec.projector_eps);
        let (norm, buffers) = ((norm, false), [x, x]);
        self.out
            .norm_strided("norm of queries", norm, how, buffers, [stride; 2]);
    }

    /// Attention within windows, of which no row sees the last `unseen` ones.
    fn attend(&mut self, own: &Attention, x: Rows, unseen: u32, (y, y_stride): Rows) {
        let (dim, heads) = (self.spec.dim, self.spec.heads);
        let qkv = (self.qkv, 3 * dim);
        self.linear("qkv of queries", &own.qkv, x, qkv);
        let params = p::EncodeAttention {
            heads,
            kv_heads: heads,
            head_dim: dim / heads,
            scale: 1.0 / ((dim / heads) as f32).sqrt(),
            window: 0,
            qkv_stride: 3 * dim,
            y_stride,
            by_axis: 1,
            unseen,
            by_reach: 0,
            places: 0,
            softcap: 0.0,
        };
        let buffers = [self.qkv, y];
        self.out.push(
            "attention in windows",
            Op::EncodeAttention,
            &[NO_WEIGHT],
            &buffers,
            params.words(),
        );
    }

    /// Copies the rows that are picked.
    fn pick(&mut self, n: u32, x: BufferRef, y: BufferRef) {
        let params = p::Pool {
            n,
            kind: 3,
            normalise: 0,
            x_stride: n,
            y_stride: n,
            group: 1,
        };
        self.out
            .push("queries", Op::Pool, &[], &[x, y], params.words());
    }
}

/// The program of the second or third part ([`super::granite`]) for so many rows.
pub(super) fn compile(
    spec: &VisionSpec,
    windows: &Windows,
    checkpoint: &dyn Checkpoint,
    rows: u32,
) -> Result<Program, Error> {
    let among = spec.family == VisionFamily::Granite4Queries;
    let (dim, count) = (spec.dim, windows.projectors.len() as u32);
    let (queries, patches) = (windows.queries.pow(2), windows.patches.pow(2));
    let outputs = if among {
        rows
    } else {
        rows / (queries + patches) * queries
    };
    let mut buffers = Buffers::default();
    let class = Class::ScratchPrompt;
    let tokens = buffers.add("tokens", Class::Tables, 4 * u64::from(rows));
    let features = 4 * u64::from(rows) * u64::from(count * dim);
    let features = buffers.add("features", class, features).buffer;
    let mut add = |name: &str, rows: u32, width: u32| {
        buffers.add(name, class, 4 * u64::from(rows) * u64::from(width))
    };
    let all = count * dim;
    let read = add("prompt.read", rows, all);
    let qkv = add("prompt.qkv", rows, 3 * dim);
    let found = add("prompt.found", rows, if among { dim } else { 2 * all });
    let result = add("prompt.result", outputs, spec.feature_values());
    let mut taker = taker(spec, checkpoint);
    let nothing = taker.constant("nothing", vec![0.0; all as usize], Usage::Lookup);
    let names = ProjectorNames::of(checkpoint);
    let prefixes = windows.projectors.iter().map(|one| prefix(checkpoint, one));
    let prefixes: Vec<String> = prefixes.collect();
    let embed = p::Embed {
        n: 1,
        k: all,
        scale: 1.0,
        x_stride: all,
    };
    let pass = if among {
        let mut own = Vec::new();
        for before in &prefixes {
            let first = format!("{before}{}", names.first_norm);
            let norm = taker.norm_of("norm of queries", &first, dim, 0.0)?;
            own.push((norm, attention(&mut taker, before, &names.among)?));
        }
        let mut e = Emitter {
            spec,
            qkv,
            out: Commands::new(&taker.collector.list),
        };
        let from = [tokens, read];
        e.out
            .push("states", Op::Embed, &[nothing], &from, embed.words());
        for (number, (norm, attention)) in (0..).zip(&own) {
            let x = (at(read, number * dim), all);
            e.norm(*norm, x);
            e.attend(attention, x, 0, (found, dim));
            e.linear("output of queries", &attention.o, (found, dim), (qkv, dim));
            e.add((qkv, dim), x);
            e.norm(attention.norm, x);
        }
        e.pick(all, read, result);
        e.out.pass(PassKind::Embed, (rows, outputs), (all, result))
    } else {
        let picked = add("prompt.picked", outputs, 2 * all);
        let middle = add("prompt.middle", outputs, dim);
        let up = add("prompt.up", outputs, spec.ffn);
        let mut own = Vec::new();
        for before in &prefixes {
            let named = |part: &str| format!("{before}{part}");
            let attention = attention(&mut taker, before, &names.across)?;
            let up = taker.linear("up", &[(named(names.up), spec.ffn)], dim)?;
            let down = taker.linear("down", &[(named(names.down), dim)], spec.ffn)?;
            let last = taker.norm_of("last norm", &named(names.last_norm), dim, 0.0)?;
            let out = [(named(names.out), spec.width)];
            let out = taker.linear("projection", &out, dim)?;
            own.push((attention, up, down, last, out));
        }
        let mut e = Emitter {
            spec,
            qkv,
            out: Commands::new(&taker.collector.list),
        };
        let from = [tokens, read];
        e.out
            .push("states", Op::Embed, &[nothing], &from, embed.words());
        // What queries find, and the queries after it.
        for (number, (attention, ..)) in (0..).zip(&own) {
            let x = (at(read, number * dim), all);
            e.attend(attention, x, queries, (at(found, number * dim), 2 * all));
        }
        let copy = p::Multiply {
            n: all,
            x_stride: all,
            y_stride: 2 * all,
        };
        let from = [read, at(found, all)];
        e.out
            .push("queries", Op::Multiply, &[NO_WEIGHT], &from, copy.words());
        e.pick(2 * all, found, picked);
        // The first part comes last: a pass ends where its result begins.
        for number in (1..count).chain([0]) {
            let (attention, wide, down, last, out) = &own[number as usize];
            let part = |first: u32| (at(picked, first + number * dim), 2 * all);
            let x = (middle, dim);
            e.linear("output of queries", &attention.o, part(0), x);
            e.add(part(all), x);
            e.norm(attention.norm, x);
            e.linear("up", wide, x, (up, spec.ffn));
            let act = p::Act {
                n: spec.ffn,
                act: 2,
                a: 0.0,
                b: 0.0,
                c: 0.0,
                d: 0.0,
                y_stride: spec.ffn,
            };
            e.out.push("activation", Op::Act, &[], &[up], act.words());
            e.linear("down", down, (up, spec.ffn), part(0));
            e.add(part(0), x);
            e.norm(*last, x);
            let to = (at(result, number * spec.width), spec.feature_values());
            e.linear("projection", out, x, to);
        }
        let width = spec.feature_values();
        e.out
            .pass(PassKind::Embed, (rows, outputs), (width, result))
    };
    Ok(one_pass(
        taker.collector.list,
        buffers.into_list(),
        (tokens, features),
        pass,
    ))
}
