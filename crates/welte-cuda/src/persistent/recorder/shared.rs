//! Shared experts: a dense feed-forward part beside the chosen experts. The table has it after them; its first products are recorded
//! right after the router, so that their weights are streamed while the choice is awaited. They read the hidden vector before the
//! experts' sum changes it.

use super::super::variants::Output;
use super::state::{ACTIVATIONS, Product, Recorder, SharedExpert};
use welte_table::{BufferId, BufferRef, Command, Op, Pass, Run, params, step};

/// The activation of gates (`kernels/basic.cu`).
pub(super) const SIGMOID: u32 = 4;

/// Where the result of its gate and up is. The table has it where the chosen experts' results are, which are needed at the same time here.
const RESULT: BufferRef = BufferRef {
    buffer: BufferId::MAX - 1,
    offset: 0,
};

/// The choice, the chosen experts, and a shared expert with a gate.
const GATED: Run = Run {
    steps: &[
        step!(Route [_, _] [_, _] {}),
        step!(ExpertsActMul [_, _] [normed, _, _] {}),
        step!(ExpertsAdd [_, _] [_, _, to] {}),
        step!(Matmul [_] [normed, pair] { n: both }),
        step!(ActMul [] [pair, h] { n, act }),
        step!(optional Matmul [_] [normed, score] { n = 1 }),
        step!(optional Gate [] [score, h] { gates = 1, act = SIGMOID }),
        step!(MatmulAdd [_] [h, to] {}),
    ],
    relate: |b| (b.word("both") == b.word("n")?.checked_mul(2)).then_some(()),
};

/// The same without a gate.
const UNGATED: Run = Run {
    steps: &[
        step!(Route [_, _] [_, _] {}),
        step!(ExpertsActMul [_, _] [normed, _, _] {}),
        step!(ExpertsAdd [_, _] [_, _, to] {}),
        step!(Matmul [_] [normed, h] { n }),
        step!(Act [] [h] { n, act }),
        step!(optional Matmul [_] [normed, score] { n = 1 }),
        step!(optional Gate [] [score, h] { gates = 1, act = SIGMOID }),
        step!(MatmulAdd [_] [h, to] {}),
    ],
    relate: |b| ACTIVATIONS.contains(&b.word("act")?).then_some(()),
};

/// The shared expert after the choice and the chosen experts of `route`.
fn shared_expert(pass: &Pass, route: usize) -> Option<SharedExpert> {
    let gated = GATED.at(&pass.commands, route);
    let is_gated = gated.is_some();
    let found = gated.or_else(|| UNGATED.at(&pass.commands, route))?;
    let [gate_up, score, gate, down] = [3, 5, 6, 7].map(|step| found.commands[step]);
    (score.is_some() == gate.is_some()).then_some(SharedExpert {
        gate_up: gate_up?,
        gated: is_gated,
        act: found.bound.word("act")?,
        n: found.bound.word("n")?,
        score,
        down: down?,
    })
}

/// Whether a product has one result, and the gate multiplies a vector by its sigmoid.
fn scores(score: &Command, gate: &Command) -> bool {
    let one = score.op == Op::Matmul && params::Matmul::of(&score.params).n == 1;
    let p = params::Gate::of(&gate.params);
    let gates = gate.op == Op::Gate && gate.buffers[0] == score.buffers[1];
    one && gates && p.gates == 1 && p.act == SIGMOID
}

/// Whether the command makes the score of a shared expert. Only one block has a row of it.
pub(super) fn is_score(pass: &Pass, index: usize) -> bool {
    let pair = pass.commands.get(index..index + 2);
    pair.is_some_and(|pair| scores(&pair[0], &pair[1]))
}

/// Rows of a shared expert's gate, if the command is its product with gate and up.
pub(super) fn gate_rows(pass: &Pass, index: usize) -> Option<u32> {
    let expert = shared_expert(pass, index.checked_sub(3)?)?;
    expert.gated.then_some(expert.n)
}

impl Recorder<'_> {
    /// Records the part of a shared expert that does not depend on the choice that `route` makes.
    pub(super) fn begin_shared_expert(&mut self, route: usize) -> Result<(), String> {
        let Some(expert) = shared_expert(self.pass, route) else {
            return Ok(());
        };
        let commands = &self.pass.commands;
        self.widths.insert(RESULT.buffer, expert.n.into());
        let gate_up = Product {
            output: RESULT,
            kind: if expert.gated {
                Output::ActMul
            } else {
                Output::Act
            },
            act: expert.act,
            n: expert.n,
            ..self.plain_product(&commands[expert.gate_up])
        };
        self.product(expert.gate_up, &gate_up)?;
        if let Some(score) = expert.score {
            let product = self.plain_product(&commands[score]);
            self.product(score, &product)?;
        }
        self.shared = Some(expert);
        Ok(())
    }

    /// Whether a command is recorded already, as the first part of a shared expert.
    pub(super) fn is_begun(&self, index: usize) -> bool {
        let shared = self.shared;
        shared.is_some_and(|expert| (expert.gate_up..expert.down).contains(&index))
    }

    /// The input of a command that is a shared expert's last product, and where its score is.
    pub(super) fn shared_result(&self, index: usize) -> Option<(BufferRef, Option<BufferRef>)> {
        let expert = self.shared.filter(|expert| expert.down == index)?;
        let output = |command: usize| self.pass.commands[command].buffers[1];
        Some((RESULT, expert.score.map(output)))
    }
}
