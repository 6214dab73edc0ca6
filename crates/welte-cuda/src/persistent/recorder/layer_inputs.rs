//! What each layer of Gemma 4 adds to its input: an embedding of the token per layer, mixed with a projection of its first hidden vector
//! (`kernels/persistent/embed.cuh`), and the gate that multiplies it (`product.cuh`).

use super::super::instruction::Instruction;
use super::super::variants::{self, Variant};
use super::shared::SIGMOID;
use super::state::{Product, Recorder};
use welte_table::{BufferRef, Command, NO_WEIGHT, Op, Run, accesses, params, step};

/// The inputs of all layers: embedding, projection, its norm, sum and factor.
const LAYER_INPUTS: Run = Run {
    steps: &[
        step!(Embed [_] [_, inputs] { k: all }),
        step!(Matmul [_] [_, context] { n: all }),
        step!(Norm [norm] [context, context] { dim, groups }),
        step!(Add [] [context, inputs] { n: all }),
        step!(Scale [] [inputs] { n: all }),
    ],
    relate: |b| {
        let normed = b.word("dim")?.checked_mul(b.word("groups")?);
        (normed == b.word("all") && b.weight("norm") != NO_WEIGHT).then_some(())
    },
};

impl Recorder<'_> {
    /// Records the inputs of all layers, if the embedding at `index` begins them.
    pub(super) fn layer_inputs(&mut self, index: usize) -> Result<bool, String> {
        let Some(found) = LAYER_INPUTS.at(&self.pass.commands, index) else {
            return Ok(false);
        };
        let [embed, projection, norm, _, scale] = &self.pass.commands[index..found.end] else {
            return Ok(false);
        };
        let e = params::Embed::of(&embed.params);
        let n = params::Norm::of(&norm.params);
        let s = params::Scale::of(&scale.params);
        let (inputs, context) = (embed.buffers[1], projection.buffers[1]);
        if !n.dim.is_multiple_of(32) || s.cap != 0.0 {
            return Err(format!("inputs of {} elements per layer", n.dim));
        }
        if self.budget.is_step {
            return Err("inputs per layer in steps of several rows".to_string());
        }
        let product = self.plain_product(projection);
        self.product(index + 1, &product)?;
        let (read, write) = (self.read(context)?, self.write(inputs)?);
        let table = embed.weights[0];
        let constants = variants::LayerInputs {
            n: e.n,
            k: e.k,
            scale: e.scale,
            width: n.dim,
            eps: n.eps,
            factor: s.scale,
        };
        let format = self.cx.format(table);
        let instruction = self.instruction(Variant::LayerInputs(format, constants));
        let instruction = Instruction {
            weight: table.into(),
            ..instruction.with([norm.weights[0], NO_WEIGHT])
        };
        self.push_unshared(index, instruction.reading(read).writing(write));
        self.next = found.end;
        Ok(true)
    }

    /// The product at `index`. If a gate follows whose result the next product alone reads, it also multiplies the layer's inputs, and the
    /// next product reads its result.
    pub(super) fn product_with_gate(&mut self, index: usize) -> Result<Product, String> {
        let commands = &self.pass.commands;
        let product = self.plain_product(&commands[index]);
        let Some([gate, next, rest @ ..]) = commands.get(index + 1..) else {
            return Ok(product);
        };
        let p = params::Gate::of(&gate.params);
        let to = gate.buffers[1];
        let is_gate = gate.op == Op::Gate
            && gate.buffers[0] == product.output
            && (p.n, p.gates) == (product.n, product.n)
            && p.act < SIGMOID;
        if !is_gate || next.op != Op::Matmul || next.buffers[0] != to {
            return Ok(product);
        }
        let reads = |command: &Command| accesses(command).iter().any(|access| access.at == to);
        if params::Matmul::of(&next.params).k != product.n || rest.iter().any(reads) {
            return Err("a gate whose result several commands read".to_string());
        }
        self.next = index + 2;
        self.gated = Some((to, product.output));
        Ok(Product {
            act: p.act,
            inputs: Some(to),
            ..product
        })
    }

    /// Where the results are that the table has at `at`.
    pub(super) fn ungated(&self, at: BufferRef) -> BufferRef {
        let gated = self.gated.filter(|(to, _)| *to == at);
        gated.map_or(at, |(_, from)| from)
    }
}
