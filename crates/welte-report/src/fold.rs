//! Folding: neighbouring layers that do the same are shown once.

use welte_table::{Command, NO_WEIGHT, Op, Pass};

/// A stretch of commands that is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fold {
    /// Its first command.
    pub first: usize,
    /// Commands in one turn.
    pub len: usize,
    /// Turns.
    pub times: usize,
}

/// Cuts a pass into stretches: neighbouring layers (by label, `layer N …`) become one if they differ in nothing but
/// the layer's number and which weights they use.
pub fn fold(pass: &Pass) -> Vec<Fold> {
    let mut folds: Vec<Fold> = Vec::new();
    let mut at = 0;
    while at < pass.commands.len() {
        let layer = pass.layer_of(at);
        let mut end = at + 1;
        while layer.is_some() && end < pass.commands.len() && pass.layer_of(end) == layer {
            end += 1;
        }
        let len = end - at;
        match folds.last_mut() {
            Some(f)
                if layer.is_some()
                    && pass.layer_of(f.first).is_some()
                    && alike(pass, f.first, f.len, at, len) =>
            {
                f.times += 1;
            }
            _ => folds.push(Fold {
                first: at,
                len,
                times: 1,
            }),
        }
        at = end;
    }
    folds
}

fn alike(pass: &Pass, a: usize, a_len: usize, b: usize, b_len: usize) -> bool {
    a_len == b_len
        && (0..a_len).all(|i| neutral(&pass.commands[a + i]) == neutral(&pass.commands[b + i]))
}

/// The command without what sets one layer apart from the next.
fn neutral(c: &Command) -> Command {
    let mut c = *c;
    for w in c.weights.iter_mut().filter(|w| **w != NO_WEIGHT) {
        *w = 0;
    }
    if matches!(
        c.op,
        Op::KvAppend | Op::Attention | Op::RopeAppend | Op::ShortConv
    ) {
        c.params[0] = 0; // `layer` is the first parameter of these.
    }
    c
}
