//! Experts beside a dense part (Gemma 4): `x += norm(norm(dense) + norm(experts))`. The router and the experts read the hidden vector, each
//! with a norm of its own. So the router comes first, and the choice as soon as its logits are there: then the experts' weights stream
//! while the dense part is computed.

use super::add_normed::{AddNormed, Norm};
use super::state::{InputNorm, PendingNorm, Product, Recorder};
use welte_table::{Found, Run, params, step};

/// The width by which the dense part's vector is told apart from the experts', which the table has in the same buffer. A block without
/// rows of the router may still read the one when others write the other.
const DENSE_WIDTH: u32 = u32::MAX;

/// The dense part and the experts beside it.
pub(super) const BESIDE: Run = Run {
    steps: &[
        step!(NormMatmulActMul [_, _] [x, up] {}),
        step!(Matmul [_] [up, dense] {}),
        step!(Norm [dense_norm] [dense, dense] { groups = 1, dim, eps: dense_eps }),
        step!(Norm [_] [x, normed] { groups = 1 }),
        step!(Matmul [_] [normed, logits] {}),
        step!(optional Scale [] [_] {}),
        step!(Route [_, _] [logits, _] {}),
        step!(Norm [_] [x, normed] { groups = 1 }),
        step!(Scale [] [mixed] { scale = 0 }),
        step!(ExpertsActMul [_, _] [normed, _, experts] {}),
        step!(ExpertsAdd [_, _] [experts, _, mixed] {}),
        step!(Norm [mixed_norm] [mixed, mixed] { groups = 1, dim, eps: mixed_eps }),
        step!(Add [] [mixed, dense] { n: dim }),
        step!(Norm [norm] [dense, dense] { groups = 1, dim, eps }),
        step!(Add [] [dense, x] { n: dim }),
        step!(optional Scale [] [x] { n: dim, scale: rescale, cap = 0 }),
    ],
    relate: |_| Some(()),
};

impl Recorder<'_> {
    pub(super) fn beside(&mut self, found: &Found) -> Result<(), String> {
        let at = |step: usize| found.commands[step].unwrap_or_default();
        let [gate_up, down, router, route, chosen] = [0, 1, 4, 6, 9].map(at);
        let commands = &self.pass.commands;
        self.take_norm(at(3));
        let product = self.plain_product(&commands[router]);
        self.product(router, &product)?;
        let product = Product {
            stride: DENSE_WIDTH,
            ..self.gate_up(&commands[gate_up])
        };
        self.product(gate_up, &product)?;
        self.route(route, &commands[route])?;
        let product = self.plain_product(&commands[down]);
        self.product(down, &product)?;
        self.take_norm(at(7));
        self.experts(chosen, &commands[chosen], false)?;
        self.experts(chosen + 1, &commands[chosen + 1], true)?;
        let bound = &found.bound;
        let norm = |weight, eps| Norm::of(bound, weight, eps);
        let norms = norm("dense_norm", "dense_eps").zip(norm("mixed_norm", "mixed_eps"));
        let sum = AddNormed::of(found, "dense", "x").ok_or("experts beside nothing")?;
        let beside = bound.place("mixed").zip(norms.map(|(a, b)| [a, b]));
        self.add_normed(at(11), &AddNormed { beside, ..sum })
    }

    /// Leaves a norm to the products that read its result.
    fn take_norm(&mut self, index: usize) {
        let command = &self.pass.commands[index];
        self.norm = Some(PendingNorm {
            output: command.buffers[1],
            input: command.buffers[0],
            norm: InputNorm {
                weight: command.weights[0],
                eps: params::Norm::of(&command.params).eps,
                grouped: false,
            },
        });
    }
}
