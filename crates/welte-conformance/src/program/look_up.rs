//! A program whose every token a test knows.

use super::{Builder, Made, Place, pass};
use welte_table::*;

/// A program that looks the logits of the next token up by the last one, and its checkpoint. Every device computes the
/// same bits, and a test knows every token. It has no cache.
pub fn look_up(table: &[Vec<f32>], slots: u32, context: u32) -> (Program, Made) {
    let mut b = Builder::default();
    let vocab = table.len() as u32;
    let rows = slots.max(8);
    let tokens = b.buffer("tokens", Class::Tables, 4 * u64::from(rows));
    let x = b.place("x", rows, vocab, 3);
    let logits = b.place("logits", rows, vocab, 0);
    let values = table.concat();
    let usage = Usage::Lookup;
    let weight = b.weight_of("table", Format::F32, (vocab, vocab), usage, 0.0, &values);
    let embed = |to: Place| {
        let p = params::Embed {
            n: vocab,
            k: vocab,
            scale: 1.0,
            x_stride: to.stride,
        };
        b.command(Op::Embed, &[weight], &[tokens, to.at], p.words())
    };
    let sample = params::Sample {
        n: vocab,
        logits_stride: vocab,
    };
    let select = params::SelectRows {
        n: vocab,
        x_stride: x.stride,
        y_stride: vocab,
    };
    let decode = vec![
        embed(logits),
        b.command(Op::Sample, &[], &[logits.at, tokens], sample.words()),
    ];
    let prompt = vec![
        embed(x),
        b.command(Op::SelectRows, &[], &[x.at, logits.at], select.words()),
    ];
    let passes = vec![
        pass(PassKind::Decode, slots, slots, vocab, logits.at, decode),
        pass(PassKind::Prompt, rows, rows, vocab, logits.at, prompt),
    ];
    let mut program = Program {
        weights: b.weights,
        buffers: b.buffers,
        caches: Vec::new(),
        vocab,
        context,
        page: 16,
        slots,
        tokens: tokens.buffer,
        features: welte_table::NO_BUFFER,
        adapters: None,
        block: None,
        passes,
    };
    cost::fill(&mut program);
    (program, b.checkpoint)
}
