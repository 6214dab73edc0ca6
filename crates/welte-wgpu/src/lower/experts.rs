//! Experts of prompts on cooperative matrices: rows are grouped by expert, so that they share the reads of its matrix.

use super::{Lowering, Run, Task};
use crate::kernels::WORKGROUP;
use crate::kernels::cooperative::{
    Factors, Tile, experts_end, experts_group, round_rows, rounded_words,
};
use crate::launch::Place;
use crate::needs::Grouped;
use welte_table::{Op, params};

impl Lowering<'_> {
    /// The launches of a command of experts. None where each row is computed alone.
    pub(super) fn grouped(&self, task: Task<'_>) -> Option<[Run; 4]> {
        let command = task.command;
        let on = self.cooperative(task)?;
        let grouped = Grouped::of(command)?;
        let place = self.place(task, 0);
        let whole = self.weights.weights[command.weights[0] as usize]
            .pieces
            .len()
            == 1;
        let aligned = place.operands.iter().all(|word| word.is_multiple_of(4));
        if !whole || !aligned {
            return None;
        }
        let [x, choice, y, _] = place.operands;
        let parts = grouped.parts(task.rows);
        let [list, tiles, rounded, outputs, _] = parts.map(|at| place.scratch + at as u32);
        let activates = command.op == Op::ExpertsActMul;
        let tile = Tile::of_experts(on);
        // Launches over all rows at once.
        let whole = |kernel, grid, place, params| Run {
            rows: task.rows,
            ..Run::new(kernel, grid, place, params)
        };
        let with = |operands| Place { operands, ..place };
        let group = whole(
            experts_group(tile),
            [1, 1],
            with([choice, 0, list, tiles]),
            words(&[grouped.experts, grouped.used, grouped.choice_stride]),
        );
        let stride = rounded_words(grouped.k);
        let x_stride = if activates {
            params::ExpertsActMul::of(&command.params).x_stride
        } else {
            params::ExpertsAdd::of(&command.params).x_stride
        };
        let norm = params::Norm {
            dim: grouped.k,
            groups: grouped.inputs,
            eps: 0.0,
            x_stride,
            y_stride: stride,
        };
        let round = Run::new(
            round_rows(command.format, grouped.k, false, true),
            [grouped.inputs, 1],
            with([x, rounded, 0, 0]),
            norm.words(),
        );
        let factors = Factors {
            format: command.format,
            k: grouped.k,
            aligned: true,
            adds: false,
            grouped: true,
        };
        let most_tiles = (task.rows * grouped.used).div_ceil(tile.rows()) + grouped.experts;
        let across = grouped.each.div_ceil(tile.outputs());
        let product = Run {
            rounded: true,
            ..whole(
                tile.kernel(on, factors),
                [across, most_tiles],
                Place {
                    first: 0,
                    count: grouped.each,
                    splits: grouped.used / grouped.inputs,
                    ..with([rounded, outputs, list, tiles])
                },
                words(&[grouped.each, grouped.k, stride, grouped.each]),
            )
        };
        let (width, end) = if activates {
            let p = params::ExpertsActMul::of(&command.params);
            let end = [p.n, p.used, p.act, p.choice_stride, p.y_stride];
            (p.n / 4 * p.used, words(&end))
        } else {
            let p = params::ExpertsAdd::of(&command.params);
            let end = [p.n, p.used, p.choice_stride, p.y_stride];
            (p.n / 4, words(&end))
        };
        let end = Run::new(
            experts_end(activates),
            [width.div_ceil(WORKGROUP), 1],
            with([outputs, choice, y, 0]),
            end,
        );
        Some([group, round, product, end])
    }
}

fn words(of: &[u32]) -> [u32; 16] {
    let mut words = [0; 16];
    words[..of.len()].copy_from_slice(of);
    words
}
