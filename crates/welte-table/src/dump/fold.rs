//! Folding: neighbouring layers that do the same are shown once.

use crate::{Command, NO_WEIGHT, Op, Table};

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

/// Cuts a table into stretches: neighbouring layers (by label, `layer N …`) become one if they differ in nothing but
/// the layer's number and which weights they use.
pub fn fold(table: &Table) -> Vec<Fold> {
    let mut folds: Vec<Fold> = Vec::new();
    let mut at = 0;
    while at < table.commands.len() {
        let layer = layer_of(table, at);
        let mut end = at + 1;
        while layer.is_some() && end < table.commands.len() && layer_of(table, end) == layer {
            end += 1;
        }
        let len = end - at;
        match folds.last_mut() {
            Some(f)
                if layer.is_some()
                    && layer_of(table, f.first).is_some()
                    && alike(table, f.first, f.len, at, len) =>
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

/// The layer that a command's label names.
pub(crate) fn layer_of(table: &Table, i: usize) -> Option<u32> {
    table
        .labels
        .get(i)?
        .strip_prefix("layer ")?
        .split(' ')
        .next()?
        .parse()
        .ok()
}

fn alike(table: &Table, a: usize, a_len: usize, b: usize, b_len: usize) -> bool {
    a_len == b_len
        && (0..a_len).all(|i| neutral(&table.commands[a + i]) == neutral(&table.commands[b + i]))
}

/// The command without what sets one layer apart from the next.
fn neutral(c: &Command) -> Command {
    let mut c = *c;
    for w in c.weights.iter_mut().filter(|w| **w != NO_WEIGHT) {
        *w = 0;
    }
    if matches!(c.op, Op::KvAppend | Op::Attention | Op::RopeAppend) {
        c.params[0] = 0; // `layer` is the first parameter of these.
    }
    c
}
