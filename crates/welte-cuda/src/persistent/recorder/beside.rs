//! Experts beside a dense part (Gemma 4): `x += norm(norm(dense) + norm(experts))`. The router and the experts read the hidden vector, each
//! with a norm of its own. So the router comes first, and the choice as soon as its logits are there: then the experts' weights stream
//! while the dense part is computed.

use super::add_normed::{AddNormed, Norm, rescaled};
use super::{InputNorm, PendingNorm, Product, Recorder};
use welte_table::{BufferRef, Command, Op, Pass, params};

/// The width by which the dense part's vector is told apart from the experts', which the table has in the same buffer. A block without
/// rows of the router may still read the one when others write the other.
const DENSE_WIDTH: u32 = u32::MAX;

/// Where the commands are in the pass.
pub(super) struct Beside {
    gate_up: usize,
    down: usize,
    router: usize,
    route: usize,
    chosen: usize,
    sum: AddNormed,
}

/// The commands of a pass, one after the other.
struct Reader<'a> {
    pass: &'a Pass,
    next: usize,
}

impl<'a> Reader<'a> {
    /// The next command and its index, if it is of this kind.
    fn take(&mut self, op: Op) -> Option<(usize, &'a Command)> {
        let index = self.next;
        let command = self.pass.commands.get(index).filter(|c| c.op == op)?;
        self.next += 1;
        Some((index, command))
    }

    /// A norm of whole rows from one place to another.
    fn norm(&mut self, from: BufferRef, to: BufferRef) -> Option<Norm> {
        let (_, command) = self.take(Op::Norm)?;
        let p = params::Norm::of(&command.params);
        let fits = p.groups == 1 && command.buffers[..2] == [from, to];
        fits.then_some(Norm {
            weight: command.weights[0],
            eps: p.eps,
            dim: p.dim,
        })
    }
}

/// The dense part that begins at `index`, with the experts beside it.
pub(super) fn experts_beside(pass: &Pass, index: usize) -> Option<Beside> {
    let mut reader = Reader { pass, next: index };
    let (gate_up, up) = reader.take(Op::NormMatmulActMul)?;
    let (down, dense) = reader.take(Op::Matmul)?;
    let (x, dense_at) = (up.buffers[0], dense.buffers[1]);
    let first = reader.norm(dense_at, dense_at)?;
    let normed = pass.commands.get(reader.next)?.buffers[1];
    reader.norm(x, normed)?;
    let (router, logits) = reader.take(Op::Matmul)?;
    reader.take(Op::Scale);
    let (route, choice) = reader.take(Op::Route)?;
    reader.norm(x, normed)?;
    let (_, clear) = reader.take(Op::Scale)?;
    let (chosen, experts_up) = reader.take(Op::ExpertsActMul)?;
    let (_, experts_down) = reader.take(Op::ExpertsAdd)?;
    let mixed = experts_down.buffers[2];
    let second = reader.norm(mixed, mixed)?;
    let (_, join) = reader.take(Op::Add)?;
    let whole = reader.norm(dense_at, dense_at)?;
    let (_, sum) = reader.take(Op::Add)?;
    let (rescale, next) = rescaled(pass, reader.next, x, whole.dim);
    let in_order = dense.buffers[0] == up.buffers[1]
        && logits.buffers[0] == normed
        && choice.buffers[0] == logits.buffers[1]
        && clear.buffers[0] == mixed
        && params::Scale::of(&clear.params).scale == 0.0
        && experts_up.buffers[0] == normed
        && experts_down.buffers[0] == experts_up.buffers[2]
        && join.buffers[..2] == [mixed, dense_at]
        && sum.buffers[..2] == [dense_at, x]
        && [first.dim, second.dim] == [whole.dim; 2]
        && [
            params::Add::of(&join.params).n,
            params::Add::of(&sum.params).n,
        ] == [whole.dim; 2];
    in_order.then_some(Beside {
        gate_up,
        down,
        router,
        route,
        chosen,
        sum: AddNormed {
            part: dense_at,
            beside: Some((mixed, [first, second])),
            to: x,
            norm: whole,
            scale: 1.0,
            rescale,
            next,
        },
    })
}

impl Recorder<'_> {
    pub(super) fn beside(&mut self, part: &Beside) -> Result<(), String> {
        let commands = &self.pass.commands;
        self.take_norm(&commands[part.router - 1]);
        let router = self.plain_product(&commands[part.router]);
        self.product(part.router, &router)?;
        let gate_up = Product {
            stride: DENSE_WIDTH,
            ..self.gate_up(&commands[part.gate_up])
        };
        self.product(part.gate_up, &gate_up)?;
        self.route(part.route, &commands[part.route])?;
        let down = self.plain_product(&commands[part.down]);
        self.product(part.down, &down)?;
        self.take_norm(&commands[part.route + 1]);
        self.experts(part.chosen, &commands[part.chosen], false)?;
        self.experts(part.chosen + 1, &commands[part.chosen + 1], true)?;
        self.add_normed(part.chosen + 2, &part.sum)
    }

    /// Leaves a norm to the products that read its result.
    fn take_norm(&mut self, command: &Command) {
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
