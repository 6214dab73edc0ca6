//! Streams of hidden states beside each other. A part of a layer reads a sum of them and adds its output to each of them, by gates that
//! follow from all of them.

use super::{Emitter, HyperSet, SIGMOID, at};
use crate::weights::HyperWeights;
use welte_table::{BufferRef, NO_WEIGHT, Op, params as p};

impl Emitter<'_> {
    /// All streams are the embedding.
    pub(super) fn begin_hyper(&mut self) {
        if let Some((buffers, streams, dim)) = self.hyper() {
            self.copy_to_streams("streams", buffers.all, streams, dim);
        }
    }

    /// x = sum of sigmoid(gate) * stream, where the gates are products of the norm of all streams.
    pub(super) fn gather(&mut self, weights: Option<&HyperWeights>) {
        let (Some(weights), Some((buffers, streams, dim))) = (weights, self.hyper()) else {
            return;
        };
        let width = streams * dim;
        let n = weights.scales.len() as u32 * streams;
        let norm = p::Norm {
            dim: width,
            groups: 1,
            eps: self.spec.eps,
            x_stride: width,
            y_stride: width,
        };
        let both = [buffers.all, buffers.mixed];
        let ones = [weights.ones];
        self.out
            .push("norm of streams", Op::Norm, &ones, &both, norm.words());
        let params = p::Matmul {
            n,
            k: width,
            x_stride: width,
            y_stride: 2 * streams,
        };
        let operands = [buffers.mixed, buffers.gates];
        let matrix = [weights.matrix];
        self.out.push(
            "gates of streams",
            Op::Matmul,
            &matrix,
            &operands,
            params.words(),
        );
        for (part, scale) in (0..).zip(&weights.scales) {
            let params = p::Scale {
                n: streams,
                scale: *scale,
                cap: 0.0,
                y_stride: 2 * streams,
            };
            let place = [at(buffers.gates, part * streams)];
            let what = "gates' scale";
            self.out.push(what, Op::Scale, &[], &place, params.words());
        }
        let params = p::Bias {
            n,
            y_stride: 2 * streams,
        };
        let (base, place) = ([weights.base], [buffers.gates]);
        self.out
            .push("gates' base", Op::Bias, &base, &place, params.words());
        let params = p::Multiply {
            n: width,
            x_stride: width,
            y_stride: width,
        };
        let what = "copy of streams";
        self.out
            .push(what, Op::Multiply, &[NO_WEIGHT], &both, params.words());
        self.gate_streams("gated streams", buffers.gates);
        let (mixed, x) = (buffers.mixed, self.set.x);
        self.copy("first stream", mixed, width, x, dim, NO_WEIGHT);
        for stream in 1..streams {
            let params = p::Add {
                n: dim,
                x_stride: width,
                y_stride: dim,
            };
            let operands = [at(mixed, stream * dim), x];
            let what = "sum of streams";
            self.out.push(what, Op::Add, &[], &operands, params.words());
        }
    }

    /// x = 0, once a part has read it: its output is added to the streams.
    pub(super) fn apart(&mut self) {
        if let Some((_, _, dim)) = self.hyper() {
            self.clear("no output yet", self.set.x, dim);
        }
    }

    /// Each stream += magnitude * sigmoid(gate) * x.
    pub(super) fn scatter(&mut self) {
        let (Some((buffers, streams, dim)), Some(hyper)) = (self.hyper(), self.spec.hyper) else {
            return;
        };
        let width = streams * dim;
        self.scale_stream("output's magnitude", hyper.magnitude);
        self.copy_to_streams("output", buffers.mixed, streams, dim);
        self.gate_streams("gated output", at(buffers.gates, streams));
        let params = p::Add {
            n: width,
            x_stride: width,
            y_stride: width,
        };
        let operands = [buffers.mixed, buffers.all];
        let what = "output to streams";
        self.out.push(what, Op::Add, &[], &operands, params.words());
    }

    /// mixed *= sigmoid(gates), a gate for each stream.
    fn gate_streams(&mut self, what: &str, gates: BufferRef) {
        let Some((buffers, streams, dim)) = self.hyper() else {
            return;
        };
        let params = p::Gate {
            n: streams * dim,
            gates: streams,
            act: SIGMOID,
            x_stride: 2 * streams,
            y_stride: streams * dim,
        };
        let operands = [gates, buffers.mixed];
        self.out
            .push(what, Op::Gate, &[], &operands, params.words());
    }

    /// Copies x to each of the streams.
    fn copy_to_streams(&mut self, what: &str, y: BufferRef, streams: u32, dim: u32) {
        for stream in 0..streams {
            let place = at(y, stream * dim);
            self.copy(what, self.set.x, dim, place, streams * dim, NO_WEIGHT);
        }
    }

    /// The buffers, the number of streams and their width.
    fn hyper(&self) -> Option<(HyperSet, u32, u32)> {
        let hyper = self.spec.hyper?;
        Some((self.set.hyper?, hyper.streams, self.spec.dim))
    }
}
