//! Folding: neighbouring layers with the same commands are shown once.

use welte_table::{Command, NO_WEIGHT, Pass};

/// A stretch of commands, repeated one or more times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fold {
    /// Its first command.
    pub first: usize,
    /// Commands in one repetition.
    pub len: usize,
    /// Repetitions.
    pub times: usize,
}

/// Cuts a pass into stretches. Neighbouring layers become one stretch if they differ only in the layer's number and in
/// the weights they use.
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
            Some(last)
                if layer.is_some()
                    && pass.layer_of(last.first).is_some()
                    && same_commands(pass, last.first, last.len, at, len) =>
            {
                last.times += 1;
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

fn same_commands(pass: &Pass, a: usize, a_len: usize, b: usize, b_len: usize) -> bool {
    let command = |i: usize| without_layer(&pass.commands[i]);
    a_len == b_len && (0..a_len).all(|i| command(a + i) == command(b + i))
}

/// The command without its weights and its layer.
fn without_layer(command: &Command) -> Command {
    let mut command = Command {
        layer: None,
        ..*command
    };
    for weight in command.weights.iter_mut().filter(|w| **w != NO_WEIGHT) {
        *weight = 0;
    }
    let names = command.op.show_params(&command.params);
    if let Some(layer) = names.iter().position(|(name, _)| *name == "layer") {
        command.params[layer] = 0;
    }
    command
}
