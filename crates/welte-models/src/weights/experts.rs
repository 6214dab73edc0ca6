//! The weights of mixtures of experts.

use super::{Beside, Collector, OutputPart};
use crate::names::{self, Names, TransposedExperts, bias, weight};
use crate::{Error, Experts, ModelSpec, SharedExpert};
use welte_table::{Format, Part, Source, Usage, WeightId, WeightSpec};

/// The weights of a layer's experts. Each matrix contains all experts. Without gates `gate_up` is up alone.
pub(crate) struct ExpertWeights {
    /// To the width in which the experts compute, and back.
    pub(crate) latent: Option<[WeightId; 2]>,
    pub(crate) router: WeightId,
    pub(crate) router_bias: Vec<OutputPart>,
    /// Of the choice.
    pub(crate) choice_bias: Option<WeightId>,
    pub(crate) gate_up: WeightId,
    pub(crate) gate_up_bias: Option<WeightId>,
    pub(crate) down: WeightId,
    pub(crate) down_bias: Option<WeightId>,
    /// Of the sum.
    pub(crate) sum_bias: Vec<OutputPart>,
    pub(crate) beside: Option<Beside>,
    pub(crate) shared: Option<SharedWeights>,
}

/// The weights of the expert that every token uses.
pub(crate) struct SharedWeights {
    pub(crate) gate_up: Vec<OutputPart>,
    pub(crate) down: WeightId,
    /// The row that scores its gate.
    pub(crate) gate: Option<WeightId>,
}

impl Collector<'_> {
    /// The experts of a layer. Each expert's up rows follow its gate rows.
    pub(super) fn experts(
        &mut self,
        label: &dyn Fn(&str) -> String,
        names: &Names,
        layer: u32,
        spec: &ModelSpec,
        e: Experts,
    ) -> Result<ExpertWeights, Error> {
        let (dim, biases) = (spec.dim, spec.biases);
        let router = self.matrix(
            &label("router"),
            Usage::Matrix,
            &weight(names.router, layer),
            e.count,
            dim,
        )?;
        let [gate, up, down] = &names::experts(self.checkpoint, names, layer);
        let router_bias = [(biases.router, bias(names.router, layer), e.count)];
        let pair = [(gate.as_str(), e.ffn), (up, e.ffn)];
        let pair = &pair[usize::from(!spec.gated)..];
        let width = e.latent.unwrap_or(dim);
        let one = [(down.as_str(), width)];
        let mut vectors = |what: &str, vectors: &[(&str, u32)]| {
            if biases.experts {
                self.stacked_biases(&label(what), layer, vectors, e.count)
                    .map(Some)
            } else {
                Ok(None)
            }
        };
        let gate_up_bias = vectors("experts' gate and up bias", pair)?;
        let down_bias = vectors("experts' down bias", &one)?;
        let fused = names
            .fused_experts
            .map(|name| name.replace("{}", &layer.to_string()));
        let fused = Some(fused).filter(|names| self.has(&names[0]));
        let natural = [width, e.ffn].map(|k| Some(k as usize));
        let transposed = match (&fused, names.transposed_experts) {
            (Some(fused), TransposedExperts::Published) => {
                [fused.each_ref().map(|name| self.columns(name)) != natural; 2]
            }
            (Some(_), TransposedExperts::Down) => [false, true],
            _ => [false; 2],
        };
        let shared = match e.shared {
            Some(shared) => Some(self.shared_expert(label, names, layer, spec, shared)?),
            None => None,
        };
        let latent = match e.latent {
            Some(width) => {
                let [down, up] = names.expert_latent.map(|name| weight(name, layer));
                let (to, back) = (label("experts' latent"), label("experts' latent back"));
                Some([
                    self.matrix(&to, Usage::Matrix, &down, width, dim)?,
                    self.matrix(&back, Usage::Matrix, &up, dim, width)?,
                ])
            }
            None => None,
        };
        Ok(ExpertWeights {
            latent,
            router,
            router_bias: self.biases(&label("router bias"), &router_bias)?,
            choice_bias: if e.choice_bias {
                let name = names.choice_bias.replace("{}", &layer.to_string());
                Some(self.vector(&label("bias of the choice"), &[(name, e.count)], 0.0)?)
            } else {
                None
            },
            gate_up: match &fused {
                Some([name, _]) => {
                    let n = pair.len() as u32 * e.ffn;
                    let what = label("experts' gate and up");
                    self.fused(&what, name, transposed[0], (n, width), e.count)?
                }
                None => {
                    self.stacked(&label("experts' gate and up"), layer, pair, width, e.count)?
                }
            },
            gate_up_bias,
            down: match &fused {
                Some([_, name]) => {
                    let what = label("experts' down");
                    self.fused(&what, name, transposed[1], (width, e.ffn), e.count)?
                }
                None => self.stacked(&label("experts' down"), layer, &one, e.ffn, e.count)?,
            },
            down_bias,
            sum_bias: {
                let name = names.expert_sum_bias.replace("{}", &layer.to_string());
                let bias = [(biases.experts_sum, name, dim)];
                self.biases(&label("experts' bias"), &bias)?
            },
            beside: if e.beside {
                Some(self.beside(label, layer, spec, e)?)
            } else {
                None
            },
            shared,
        })
    }

    /// The matrices of all experts in one tensor, each of `n` rows of `k`.
    fn fused(
        &mut self,
        label: &str,
        tensor: &str,
        transposed: bool,
        (n, k): (u32, u32),
        count: u32,
    ) -> Result<WeightId, Error> {
        if !transposed {
            return self.matrix(label, Usage::Matrix, tensor, n * count, k);
        }
        let runs: Vec<(u32, u32)> = (0..count).map(|expert| (expert * k, k)).collect();
        self.transposed(label, tensor, k * count, &runs, n)
    }

    /// The expert that every token uses. Gate and up may be one tensor.
    pub(super) fn shared_expert(
        &mut self,
        label: &dyn Fn(&str) -> String,
        names: &Names,
        layer: u32,
        spec: &ModelSpec,
        shared: SharedExpert,
    ) -> Result<SharedWeights, Error> {
        let dim = spec.dim;
        let [gate, up, down] = names.shared_expert.map(|name| weight(name, layer));
        let pair = if !spec.gated {
            vec![(up, shared.ffn)]
        } else if self.has(&gate) {
            vec![(gate, shared.ffn), (up, shared.ffn)]
        } else {
            vec![(weight(names.gate_up, layer), 2 * shared.ffn)]
        };
        let score = weight(names.shared_gate, layer);
        let what = label("shared expert's down");
        Ok(SharedWeights {
            gate_up: self.joined(&label("shared expert's gate and up"), &pair, dim)?,
            down: self.matrix(&what, Usage::Matrix, &down, dim, shared.ffn)?,
            gate: if shared.gated {
                let what = label("shared expert's score");
                Some(self.matrix(&what, Usage::Matrix, &score, 1, dim)?)
            } else {
                None
            },
        })
    }

    /// The biases of all experts, each expert's rows of the tensors one after another.
    pub(super) fn stacked_biases(
        &mut self,
        label: &str,
        layer: u32,
        vectors: &[(&str, u32)],
        experts: u32,
    ) -> Result<WeightId, Error> {
        let mut tensors = Vec::new();
        for (template, k) in vectors {
            tensors.push(self.tensor(&bias(template, layer), experts, *k)?.name);
        }
        let parts = (0..experts).flat_map(|expert| {
            tensors.iter().map(move |tensor| Part {
                tensor: tensor.clone(),
                first_row: expert,
                rows: 1,
            })
        });
        let parts = parts.collect();
        Ok(self.push(WeightSpec {
            name: label.into(),
            format: Format::F32,
            n: 1,
            k: vectors.iter().map(|v| v.1).sum::<u32>() * experts,
            usage: Usage::Vector,
            add: 0.0,
            source: Source::Parts(parts),
        }))
    }

    /// The matrices of all experts, from one tensor for all experts or one per expert.
    pub(super) fn stacked(
        &mut self,
        label: &str,
        layer: u32,
        matrices: &[(&str, u32)],
        k: u32,
        experts: u32,
    ) -> Result<WeightId, Error> {
        let mut parts = Vec::new();
        let mut stored = None;
        for expert in 0..experts {
            for (template, rows) in matrices {
                let own = template.contains("[]");
                let (all, first_row) = if own {
                    (*rows, 0)
                } else {
                    (rows * experts, rows * expert)
                };
                let name = weight(&template.replace("[]", &expert.to_string()), layer);
                let info = self.tensor(&name, all, k)?;
                let format = *stored.get_or_insert(info.format);
                if format != info.format {
                    let problem = format!(
                        "is {}, its neighbours are {}: experts of mixed formats are not supported",
                        info.format.name(),
                        format.name()
                    );
                    return Err(self.fault(&name, problem));
                }
                parts.push(Part {
                    tensor: info.name,
                    first_row,
                    rows: *rows,
                });
            }
        }
        let n = matrices.iter().map(|m| m.1).sum::<u32>() * experts;
        Ok(self.push(WeightSpec {
            name: label.into(),
            format: stored.unwrap_or(Format::F32),
            n,
            k,
            usage: Usage::Matrix,
            add: 0.0,
            source: Source::Parts(parts),
        }))
    }
}
