//! A small mixture of experts. The experts' logits are looked up by token, so that every device has the same ones, to the
//! bit, and tests know who is chosen.

use super::{Builder, Made, Numbers, fill_cost};
use std::collections::BTreeMap;
use welte_formats::Metadata;
use welte_table::*;

/// The shape of a made mixture.
#[derive(Clone, Debug)]
pub struct Mixture {
    pub seed: u64,
    pub format: Format,
    pub dim: u32,
    pub hidden: u32,
    pub experts: u32,
    pub used: u32,
    pub renormalise: u32,
    pub act: u32,
    /// Only the CPU has them yet.
    pub bias: bool,
    pub vocab: u32,
    pub rows: u32,
}

impl Mixture {
    pub fn small(seed: u64) -> Mixture {
        Mixture {
            seed,
            format: Format::F32,
            dim: 64,
            hidden: 48,
            experts: 6,
            used: 2,
            renormalise: 1,
            act: 0,
            bias: false,
            vocab: 31,
            rows: 40,
        }
    }

    /// Anything that experts may be.
    pub fn ugly(seed: u64) -> Mixture {
        let n = &mut Numbers(seed);
        let experts = n.pick(&[1, 3, 8, 33, 130]);
        Mixture {
            dim: n.pick(&[1, 17, 72, 260]),
            hidden: n.pick(&[1, 30, 67]),
            experts,
            used: n.pick(&[1, 2, 5, 8]).min(experts),
            renormalise: n.pick(&[0, 1]),
            act: n.pick(&[0, 1, 2]),
            vocab: n.pick(&[2, 31]),
            rows: n.pick(&[1, 3, 16, 67]),
            ..Mixture::small(seed)
        }
    }

    /// The experts' logits of a token. The second expert is chosen by every token; the last one, where there are more than
    /// are used, by none. Some are equal.
    fn logits(&self, numbers: &mut Numbers) -> Vec<f32> {
        let logit = |expert: u32| {
            let some = numbers.below(24) as f32 / 8.0;
            match expert {
                1 => some + 4.0,
                e if e + 1 == self.experts => some - 4.0,
                _ => some,
            }
        };
        (0..self.experts).map(logit).collect()
    }
}

/// Embedding, route, experts, head: every command of a mixture, in rows that are further apart than they are wide.
pub fn make_mixture(c: &Mixture) -> (Program, Made) {
    let checkpoint = Made {
        metadata: Metadata::new(),
        tensors: Vec::new(),
        bytes: BTreeMap::new(),
    };
    let mut b = Builder {
        config: super::Config::small(c.seed),
        numbers: Numbers(c.seed ^ 77),
        checkpoint,
        weights: Vec::new(),
        buffers: Vec::new(),
    };
    let kv_layout = KvLayout {
        format: Format::F16,
        layers: 1,
        kv_heads: 1,
        head_dim: 2,
        page: 16,
        pages: 40,
        sequences: 1,
        context: 640,
    };
    let tokens = b.buffer("tokens", Class::Tables, 4 * (u64::from(c.rows) + 5));
    b.buffer("kv", Class::Kv, kv_layout.bytes().unwrap());
    let mut sized = |name: &str, width: u32| {
        let bytes = 4 * u64::from(c.rows) * u64::from(width);
        b.buffer(name, Class::ScratchPrefill, bytes)
    };
    let (xs, rs, cs, gs) = (
        c.dim + 3,
        c.experts + 2,
        2 * c.used + 1,
        c.used * c.hidden + 5,
    );
    let (x, y, router) = (sized("x", xs), sized("y", xs), sized("router", rs));
    let (choice, gated) = (sized("choice", cs), sized("gated", gs));
    let (last, logits) = (sized("last", c.dim), sized("logits", c.vocab));
    let embed = b.weight("embed", Format::F32, c.vocab, c.dim, Usage::Lookup, 0.0);
    let table = b.weight(
        "router",
        Format::F32,
        c.vocab,
        c.experts,
        Usage::Lookup,
        0.0,
    );
    let mut numbers = Numbers(c.seed ^ 3);
    let values: Vec<f32> = (0..c.vocab).flat_map(|_| c.logits(&mut numbers)).collect();
    let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    b.checkpoint.bytes.insert("router".into(), bytes);
    let all = 2 * c.hidden * c.experts;
    let gate_up = b.weight("gate_up", c.format, all, c.dim, Usage::Matrix, 0.0);
    let all = c.dim * c.experts;
    let down = b.weight("down", c.format, all, c.hidden, Usage::Matrix, 0.0);
    let (mut gate_up_bias, mut down_bias) = (NO_WEIGHT, NO_WEIGHT);
    if c.bias {
        let all = 2 * c.hidden * c.experts;
        // Some reach beyond where the clamped activation ends.
        let wide = 40.0 * if c.act == 3 { 1.0 } else { 0.02 };
        gate_up_bias = b.weight("gate_up_bias", Format::F32, 1, all, Usage::Vector, 0.0);
        let bytes = b.checkpoint.bytes.get_mut("gate_up_bias").unwrap();
        for value in bytes.chunks_exact_mut(4) {
            let number = f32::from_le_bytes(value.try_into().unwrap()) * wide;
            value.copy_from_slice(&number.to_le_bytes());
        }
        let all = c.dim * c.experts;
        down_bias = b.weight("down_bias", Format::F32, 1, all, Usage::Vector, 0.0);
    }
    let head = b.weight("head", Format::F32, c.vocab, c.dim, Usage::Matrix, 0.0);
    let lookup = |n: u32, k: u32, weight: u32, to: BufferRef, x_stride: u32| {
        let p = params::Embed {
            n,
            k,
            scale: 1.0,
            x_stride,
        };
        b.command(Op::Embed, &[weight], &[tokens, to], p.words())
    };
    let route = params::Route {
        experts: c.experts,
        used: c.used,
        renormalise: c.renormalise,
        scale: 1.25,
        x_stride: rs,
        y_stride: cs,
    };
    let act_mul = params::ExpertsActMul {
        n: c.hidden,
        k: c.dim,
        experts: c.experts,
        used: c.used,
        act: c.act,
        x_stride: xs,
        choice_stride: cs,
        y_stride: gs,
    };
    let add = params::ExpertsAdd {
        n: c.dim,
        k: c.hidden,
        experts: c.experts,
        used: c.used,
        x_stride: gs,
        choice_stride: cs,
        y_stride: xs,
    };
    let body = [
        lookup(c.vocab, c.dim, embed, x, xs),
        lookup(c.vocab, c.dim, embed, y, xs),
        lookup(c.vocab, c.experts, table, router, rs),
        b.command(Op::Route, &[], &[router, choice], route.words()),
        b.command(
            Op::ExpertsActMul,
            &[gate_up, gate_up_bias],
            &[x, choice, gated],
            act_mul.words(),
        ),
        b.command(
            Op::ExpertsAdd,
            &[down, down_bias],
            &[gated, choice, y],
            add.words(),
        ),
    ];
    let end = |from: BufferRef, x_stride: u32| {
        let p = params::Matmul {
            n: c.vocab,
            k: c.dim,
            x_stride,
            y_stride: c.vocab,
        };
        b.command(Op::Matmul, &[head], &[from, logits], p.words())
    };
    let table = |shape: Shape| {
        let mut commands = body.to_vec();
        match shape {
            Shape::Prefill(_) => {
                let p = params::CopyLast {
                    n: c.dim,
                    x_stride: xs,
                    y_stride: c.dim,
                };
                commands.push(b.command(Op::CopyLast, &[], &[y, last], p.words()));
                commands.push(end(last, c.dim));
            }
            _ => commands.push(end(y, xs)),
        }
        if shape == Shape::Decode {
            let p = params::Sample {
                n: c.vocab,
                logits_stride: c.vocab,
            };
            commands.push(b.command(Op::Sample, &[], &[logits, tokens], p.words()));
        }
        let labels = commands.iter().map(|c| c.op.name().to_string()).collect();
        Table {
            shape,
            commands,
            labels,
        }
    };
    let tables = vec![
        table(Shape::Decode),
        table(Shape::Prefill(c.rows)),
        table(Shape::Batch(c.rows.min(16))),
    ];
    let mut program = Program {
        weights: b.weights.clone(),
        buffers: b.buffers.clone(),
        kv: kv_layout,
        vocab: c.vocab,
        tokens: tokens.buffer,
        tables,
    };
    fill_cost(&mut program);
    (program, b.checkpoint)
}
