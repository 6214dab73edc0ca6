//! Experts. In prompts on cooperative matrices rows are grouped by expert, so that they share the reads of its matrix; otherwise each row
//! is computed by itself.

use super::{Lowering, Run, Task, prepare_run};
use crate::gpu::binding;
use crate::kernels::WORKGROUP;
use crate::kernels::cooperative::{
    Factors, Tile, experts_end, experts_group, round_rows, rounded_words,
};
use crate::kernels::geometry::Vectors;
use crate::kernels::products::Product;
use crate::launch::Place;
use crate::needs::Grouped;
use welte_table::{Command, Op, params};

impl Lowering<'_> {
    /// The launches of a command of experts that computes each row by itself. Vectors of several rows are prepared before.
    pub(super) fn experts(&self, task: Task<'_>, pieces: usize, runs: &mut Vec<Run>) {
        let command = task.command;
        let (n, k, used, each) = match command.op {
            Op::ExpertsActMul => {
                let p = params::ExpertsActMul::of(&command.params);
                (p.n, p.k, p.used, p.matrices() * p.n)
            }
            _ => {
                let p = params::ExpertsAdd::of(&command.params);
                (p.n, p.k, p.used, p.n)
            }
        };
        let paired = command.op == Op::ExpertsActMul;
        let product = Product {
            paired,
            ..self.product_of(command, k)
        };
        let several = task.decodes && product.geometry.single && task.rows > 1;
        if several {
            let x_stride = experts_stride(command);
            let words = product.prepared_words();
            let norm = rounding(k, if paired { 1 } else { used }, x_stride, words);
            let groups = norm.groups;
            runs.push(Run {
                least: 2,
                ..prepare_run(product, false, groups, self.place(task, 0), norm.words())
            });
        }
        for piece in 0..pieces {
            let mut place = self.place(task, piece);
            (place.first, place.count) = (place.first / each, place.count / each);
            let shape = |prepared: bool| {
                let vectors = Vectors::of_experts(prepared);
                let sized = product.sized_for(vectors);
                let groups = n.div_ceil(sized.outputs(vectors));
                if paired {
                    (product.of_pairs(prepared), [groups, used], 1)
                } else {
                    (product.of_experts(used, prepared), [groups, 1], 1)
                }
            };
            let (kernel, grid, rows) = shape(false);
            runs.push(Run {
                piece,
                several: several.then(|| shape(true)),
                rows,
                prepared: several.then_some(binding::PAGES),
                ..Run::new(kernel, grid, place, command.params)
            });
        }
    }

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
        let norm = rounding(grouped.k, grouped.inputs, experts_stride(command), stride);
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

/// Words from the vectors of a row to those of the next.
fn experts_stride(command: &Command) -> u32 {
    match command.op {
        Op::ExpertsActMul => params::ExpertsActMul::of(&command.params).x_stride,
        _ => params::ExpertsAdd::of(&command.params).x_stride,
    }
}

/// The parameters of what rounds `groups` vectors of a row to `words` each.
fn rounding(dim: u32, groups: u32, x_stride: u32, words: u32) -> params::Norm {
    params::Norm {
        dim,
        groups,
        eps: 0.0,
        x_stride,
        y_stride: words,
    }
}

fn words(of: &[u32]) -> [u32; 16] {
    let mut words = [0; 16];
    words[..of.len()].copy_from_slice(of);
    words
}
