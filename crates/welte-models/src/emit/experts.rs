//! Mixtures of experts: the router, the chosen experts and the shared one.

use super::{Emitter, NO_ACT, SIGMOID, UP_ALONE, at};
use crate::weights::{ExpertWeights, Layer, SharedWeights};
use crate::{Act, Experts, SharedExpert};
use welte_table::{BufferRef, ModelPart, NO_WEIGHT, Op, WeightId, params as p};

impl Emitter<'_> {
    /// x += sum over the chosen experts of share * down(act(gate(norm(x))) * up(norm(x))), and the shared expert's output. The sum may be
    /// normed before it is added.
    pub(super) fn experts(
        &mut self,
        index: usize,
        layer: &Layer,
        weights: &ExpertWeights,
        e: Experts,
    ) {
        let (spec, set) = (self.spec, self.set);
        let limits = spec.limits(index);
        if let Some(beside) = &weights.beside {
            return self.experts_beside(index, layer, weights, beside, e);
        }
        // Where sums are normed, the stream is.
        let normed = if spec.pre_norm { set.norm } else { set.x };
        if let Some(norm) = layer.ffn_norm {
            self.norm("experts' norm", norm, set.x, normed);
        }
        self.apart();
        self.router(weights, e, normed, 1.0, NO_WEIGHT);
        let input = match set.scaled {
            Some(scaled) => self.scaled_input(weights, e, scaled),
            None => normed,
        };
        self.out.part = ModelPart::Experts;
        let post = layer.post_ffn_norm.zip(set.mixed);
        if let Some((_, mixed)) = post {
            self.clear("no experts yet", mixed, spec.dim);
        }
        let y = post.map_or(set.x, |(_, mixed)| mixed);
        match (weights.latent, set.latent_expert) {
            (Some([to, back]), Some([narrow, sum])) => {
                let width = e.latent.unwrap_or(spec.dim);
                let params = p::Matmul {
                    n: width,
                    k: spec.dim,
                    x_stride: spec.dim,
                    y_stride: width,
                };
                let buffers = [normed, narrow];
                self.out.push(
                    "experts' latent",
                    Op::Matmul,
                    &[to],
                    &buffers,
                    params.words(),
                );
                self.clear("no experts yet", sum, width);
                self.chosen_experts(weights, e, limits.experts, (narrow, sum));
                self.add_to_stream("experts' latent back", (back, &[], None), sum, width);
            }
            _ => self.chosen_experts(weights, e, limits.experts, (input, y)),
        }
        self.out.part = ModelPart::SharedExpert;
        if let (Some(weights), Some(shared)) = (&weights.shared, e.shared) {
            self.shared_expert(weights, shared, limits.plain, (normed, y));
        }
        self.biases("experts' bias", &weights.sum_bias, y, spec.dim);
        let sums = self.encoder().is_some_and(|e| e.norms_sums);
        if let Some(norm) = layer.post_ffn_norm.filter(|_| sums) {
            self.norm("experts' output norm", norm, y, y);
        }
        if let Some((norm, mixed)) = post {
            self.norm("experts' output norm", norm, mixed, mixed);
            self.add("experts' sum", mixed, set.x);
        }
    }

    /// y = 0
    pub(super) fn clear(&mut self, what: &str, y: BufferRef, n: u32) {
        let zero = p::Scale {
            n,
            scale: 0.0,
            cap: 0.0,
            y_stride: n,
        };
        self.out.push(what, Op::Scale, &[], &[y], zero.words());
    }

    /// Chooses experts by the router's product with the normed row `x`, times `scale`. The choice's shares are multiplied by
    /// the experts' `scales`, if given.
    pub(super) fn router(
        &mut self,
        weights: &ExpertWeights,
        e: Experts,
        x: BufferRef,
        scale: f32,
        scales: WeightId,
    ) {
        let (dim, set) = (self.spec.dim, self.set);
        let Some(router) = set.router else {
            return;
        };
        self.out.part = ModelPart::Router;
        let params = p::Matmul {
            n: e.count,
            k: dim,
            x_stride: dim,
            y_stride: e.count,
        };
        let buffers = [x, router];
        let matrix = [weights.router];
        self.out
            .push("router", Op::Matmul, &matrix, &buffers, params.words());
        self.biases("router bias", &weights.router_bias, router, e.count);
        if scale != 1.0 {
            let params = p::Scale {
                n: e.count,
                scale,
                cap: 0.0,
                y_stride: e.count,
            };
            self.out
                .push("router scale", Op::Scale, &[], &[router], params.words());
        }
        self.route(weights, e, scales);
    }

    /// Chooses experts by the router's product.
    fn route(&mut self, weights: &ExpertWeights, e: Experts, scales: WeightId) {
        let (Some(router), Some(choice)) = (self.set.router, self.set.choice) else {
            return;
        };
        let params = p::Route {
            experts: e.count,
            used: e.used,
            renormalise: e.renormalise.into(),
            scale: e.scale,
            x_stride: e.count,
            y_stride: 2 * e.used,
            scoring: e.scoring as u32,
            groups: e.groups.map_or(1, |g| g.count),
            used_groups: e.groups.map_or(1, |g| g.used),
            group_top: e.groups.map_or(1, |g| g.top),
            margin: e.margin,
        };
        let buffers = [router, choice];
        let vectors = [weights.choice_bias.unwrap_or(NO_WEIGHT), scales];
        self.out
            .push("route", Op::Route, &vectors, &buffers, params.words());
    }

    /// scaled = the normed row times the share of its one expert, whose share is 1 from then on.
    fn scaled_input(
        &mut self,
        weights: &ExpertWeights,
        e: Experts,
        scaled: BufferRef,
    ) -> BufferRef {
        let (n, set) = (self.spec.dim, self.set);
        let copy = p::Multiply {
            n,
            x_stride: n,
            y_stride: n,
        };
        let buffers = [set.norm, scaled];
        let what = "experts' input";
        self.out
            .push(what, Op::Multiply, &[], &buffers, copy.words());
        if let Some(choice) = set.choice {
            let share = p::Gate {
                n,
                gates: 1,
                act: NO_ACT,
                x_stride: 2 * e.used,
                y_stride: n,
            };
            let buffers = [at(choice, e.used), scaled];
            let what = "experts' input by share";
            self.out.push(what, Op::Gate, &[], &buffers, share.words());
        }
        let whole = Experts {
            renormalise: true,
            scale: 1.0,
            ..e
        };
        self.route(weights, whole, NO_WEIGHT);
        scaled
    }

    /// y += the chosen experts' outputs for x.
    pub(super) fn chosen_experts(
        &mut self,
        weights: &ExpertWeights,
        e: Experts,
        limit: Option<f32>,
        (x, y): (BufferRef, BufferRef),
    ) {
        let (width, set) = (e.latent.unwrap_or(self.spec.dim), self.set);
        let Some(choice) = set.choice else {
            return;
        };
        let apart = set.expert_gate_up.filter(|_| limit.is_some());
        // The op has one activation without a gate, which is squared ReLU. Others follow it.
        let later = !self.spec.gated && self.spec.act != Act::Relu2;
        let (act, each) = match apart {
            Some(_) => (NO_ACT, 2 * e.ffn),
            None if later => (UP_ALONE, e.ffn),
            None => (self.spec.act.word(), e.ffn),
        };
        let params = p::ExpertsActMul {
            n: e.ffn,
            k: width,
            experts: e.count,
            used: e.used,
            act,
            x_stride: width,
            choice_stride: 2 * e.used,
            y_stride: e.used * each,
        };
        self.out.push(
            "experts' gate and up",
            Op::ExpertsActMul,
            &[weights.gate_up, weights.gate_up_bias.unwrap_or(NO_WEIGHT)],
            &[x, choice, apart.unwrap_or(set.h)],
            params.words(),
        );
        if let Some(apart) = apart {
            self.limited_experts(e, limit, apart);
        } else if later {
            self.activation("experts' activation", e.used * e.ffn, [0.0; 4]);
        }
        let params = p::ExpertsAdd {
            n: width,
            k: e.ffn,
            experts: e.count,
            used: e.used,
            x_stride: e.used * e.ffn,
            choice_stride: 2 * e.used,
            y_stride: width,
        };
        self.out.push(
            "experts' down",
            Op::ExpertsAdd,
            &[weights.down, weights.down_bias.unwrap_or(NO_WEIGHT)],
            &[set.h, choice, y],
            params.words(),
        );
    }

    /// The activations of the chosen experts, whose gate and up are in a buffer of their own.
    fn limited_experts(&mut self, e: Experts, limit: Option<f32>, gate_up: BufferRef) {
        let stride = e.used * 2 * e.ffn;
        for chosen in 0..e.used {
            let gate_up = at(gate_up, chosen * 2 * e.ffn);
            self.limit(limit, gate_up, e.ffn, stride);
            let act = p::ActMul {
                n: e.ffn,
                act: self.spec.act.word(),
                x_stride: stride,
                y_stride: e.used * e.ffn,
            };
            let buffers = [gate_up, at(self.set.h, chosen * e.ffn)];
            let what = "experts' activation";
            self.out.push(what, Op::ActMul, &[], &buffers, act.words());
        }
    }

    /// y += down(act(gate(normed)) * up(normed)), scaled by sigmoid(score(normed)) if the expert is gated.
    fn shared_expert(
        &mut self,
        weights: &SharedWeights,
        e: SharedExpert,
        limit: Option<f32>,
        (normed, y): (BufferRef, BufferRef),
    ) {
        let (spec, set) = (self.spec, self.set);
        let dim = spec.dim;
        let matmul = |n: u32, y_stride: u32| p::Matmul {
            n,
            k: dim,
            x_stride: dim,
            y_stride,
        };
        let (gate_up, stride) = match set.gate_up.filter(|_| spec.gated) {
            Some(gate_up) => (gate_up, 2 * e.ffn),
            None => (set.h, e.ffn),
        };
        for piece in &weights.gate_up {
            let params = matmul(piece.n, stride);
            let buffers = [normed, at(gate_up, piece.at)];
            let what = "shared expert's gate and up";
            self.out
                .push(what, Op::Matmul, &[piece.weight], &buffers, params.words());
        }
        let what = "shared expert's activation";
        if spec.gated {
            self.limit(limit, gate_up, e.ffn, stride);
            let params = p::ActMul {
                n: e.ffn,
                act: spec.act.word(),
                x_stride: stride,
                y_stride: e.ffn,
            };
            let buffers = [gate_up, set.h];
            self.out
                .push(what, Op::ActMul, &[], &buffers, params.words());
        } else {
            self.activation(what, e.ffn, [0.0; 4]);
        }
        if let (Some(score), Some(to)) = (weights.gate, set.shared_gate) {
            let params = matmul(1, 1).words();
            let what = "shared expert's score";
            self.out
                .push(what, Op::Matmul, &[score], &[normed, to], params);
            let params = p::Gate {
                n: e.ffn,
                gates: 1,
                act: SIGMOID,
                x_stride: 1,
                y_stride: e.ffn,
            };
            let what = "shared expert's gate";
            self.out
                .push(what, Op::Gate, &[], &[to, set.h], params.words());
        }
        let scale = spec.experts.map_or(1.0, |e| e.shared_scale);
        self.multiply("shared expert", set.h, e.ffn, &[(0, e.ffn, scale)]);
        let params = p::Matmul {
            n: dim,
            k: e.ffn,
            x_stride: e.ffn,
            y_stride: dim,
        };
        let (what, buffers) = ("shared expert's down", [set.h, set.sum]);
        self.out
            .push(what, Op::Matmul, &[weights.down], &buffers, params.words());
        self.add("shared expert's down sum", set.sum, y);
    }
}
