//! The weights of attention over latent keys and values.

use super::{Collector, OutputPart, Rows};
use crate::names::{bias, weight};
use crate::{Error, Indexer, Latent, ModelSpec};
use welte_formats::checkpoint::Dialect;
use welte_table::{Format, Part, Source, Usage, WeightId, WeightSpec};

/// The weights of one layer, apart from its output. The projection of the layer's input yields the queries or their latent,
/// then the rotated part of the key, then the latent of keys and values.
pub(crate) struct LatentWeights {
    pub(crate) inputs: Vec<OutputPart>,
    /// The norm of the queries' latent, and the matrix that makes queries of it.
    pub(crate) queries: Option<(WeightId, WeightId)>,
    /// The norm of the latent of keys and values.
    pub(crate) norm: WeightId,
    /// For each head, from the plain part of a query to the latent.
    pub(crate) absorb: WeightId,
    /// For each head, from the latent to values.
    pub(crate) values: WeightId,
    /// Of the indexer, if the layer chooses positions.
    pub(crate) index: Option<IndexWeights>,
}

/// The weights of an indexer. `inputs` yield its key and a weight of each head after the latent.
pub(crate) struct IndexWeights {
    /// From the queries' latent to its queries.
    pub(crate) queries: WeightId,
    /// Weight and bias of the norm of its key.
    pub(crate) norm: [WeightId; 2],
}

/// The tensors' names, without `.weight`.
pub(crate) struct Names {
    pub(crate) query: &'static str,
    pub(crate) query_down: &'static str,
    pub(crate) query_norm: &'static str,
    pub(crate) query_up: &'static str,
    pub(crate) down: &'static str,
    pub(crate) norm: &'static str,
    /// For each head, rows that make keys of the latent, then rows that make values.
    pub(crate) up: &'static str,
    /// The same in two tensors, that of keys transposed. GGUF only.
    pub(crate) split_up: [&'static str; 2],
    pub(crate) index_query: &'static str,
    pub(crate) index_key: &'static str,
    pub(crate) index_norm: &'static str,
    pub(crate) index_gates: &'static str,
}

pub(crate) const GGUF: Names = Names {
    query: "blk.{}.attn_q",
    query_down: "blk.{}.attn_q_a",
    query_norm: "blk.{}.attn_q_a_norm",
    query_up: "blk.{}.attn_q_b",
    down: "blk.{}.attn_kv_a_mqa",
    norm: "blk.{}.attn_kv_a_norm",
    up: "blk.{}.attn_kv_b",
    split_up: ["blk.{}.attn_k_b", "blk.{}.attn_v_b"],
    index_query: "blk.{}.indexer.attn_q_b",
    index_key: "blk.{}.indexer.attn_k",
    index_norm: "blk.{}.indexer.k_norm",
    index_gates: "blk.{}.indexer.proj",
};

pub(crate) const HUGGING_FACE: Names = Names {
    query: "model.layers.{}.self_attn.q_proj",
    query_down: "model.layers.{}.self_attn.q_a_proj",
    query_norm: "model.layers.{}.self_attn.q_a_layernorm",
    query_up: "model.layers.{}.self_attn.q_b_proj",
    down: "model.layers.{}.self_attn.kv_a_proj_with_mqa",
    norm: "model.layers.{}.self_attn.kv_a_layernorm",
    up: "model.layers.{}.self_attn.kv_b_proj",
    split_up: [""; 2],
    index_query: "model.layers.{}.self_attn.indexer.wq_b",
    index_key: "model.layers.{}.self_attn.indexer.wk",
    index_norm: "model.layers.{}.self_attn.indexer.k_norm",
    index_gates: "model.layers.{}.self_attn.indexer.weights_proj",
};

/// Collects the weights of a layer.
pub(crate) fn collect(
    c: &mut Collector<'_>,
    spec: &ModelSpec,
    l: Latent,
    layer: u32,
) -> Result<LatentWeights, Error> {
    let names = match c.checkpoint.dialect() {
        Dialect::Gguf => GGUF,
        Dialect::HuggingFace => HUGGING_FACE,
    };
    let label = |what: &str| format!("layer {layer} {what}");
    let w = |template: &str| weight(template, layer);
    let (dim, heads) = (spec.dim, spec.heads);
    let all = heads * l.query();
    let first = match l.query_rank {
        Some(rank) => Rows::all(w(names.query_down), rank),
        None => Rows::all(w(names.query), all),
    };
    let down = |first: u32, rows: u32| Rows {
        tensor: w(names.down),
        of: l.width(),
        first,
        rows,
    };
    let mut rows = vec![first, down(l.rank, l.rope), down(0, l.rank)];
    let chooses = |i: &&Indexer| i.chooses.get(layer as usize) == Some(&true);
    let indexer = spec.indexer.as_ref().filter(chooses).zip(l.query_rank);
    if let Some((indexer, _)) = indexer {
        rows.push(Rows::all(w(names.index_key), indexer.head_dim));
        rows.push(Rows::all(w(names.index_gates), indexer.heads));
    }
    let inputs = c.joined_rows(&label("queries and latent"), &rows, dim)?;
    let queries = match l.query_rank {
        Some(rank) => {
            let norm = [(w(names.query_norm), rank)];
            let (what, up) = (label("queries from latent"), w(names.query_up));
            Some((
                c.vector(&label("norm of the queries' latent"), &norm, 0.0)?,
                c.matrix(&what, Usage::Matrix, &up, all, rank)?,
            ))
        }
        None => None,
    };
    let index = match indexer {
        Some((indexer, rank)) => {
            let (what, up) = (label("indexer's queries"), w(names.index_query));
            let norm = label("norm of the indexer's key");
            let width = indexer.head_dim;
            let [weight, bias] = [w(names.index_norm), bias(names.index_norm, layer)];
            Some(IndexWeights {
                queries: c.matrix(&what, Usage::Matrix, &up, indexer.heads * width, rank)?,
                norm: [
                    c.vector(&norm, &[(weight, width)], 0.0)?,
                    c.vector(&format!("{norm} bias"), &[(bias, width)], 0.0)?,
                ],
            })
        }
        None => None,
    };
    let norm = [(w(names.norm), l.rank)];
    let norm = c.vector(&label("norm of the latent"), &norm, 0.0)?;
    let [keys, values] = names.split_up.map(w);
    let what = [label("keys from latent"), label("values from latent")];
    let (absorb, values) = if c.has(&keys) {
        (
            c.matrix(&what[0], Usage::Matrix, &keys, heads * l.rank, l.plain)?,
            c.matrix(&what[1], Usage::Matrix, &values, heads * l.value, l.rank)?,
        )
    } else {
        let (up, each) = (w(names.up), l.plain + l.value);
        let of_keys: Vec<_> = (0..heads).map(|h| (h * each, l.plain)).collect();
        let of_values: Vec<_> = (0..heads).map(|h| (h * each + l.plain, l.value)).collect();
        (
            c.transposed(&what[0], &up, heads * each, &of_keys, l.rank)?,
            c.rows(&what[1], &up, heads * each, &of_values, l.rank)?,
        )
    };
    Ok(LatentWeights {
        inputs,
        queries,
        norm,
        absorb,
        values,
        index,
    })
}

impl Collector<'_> {
    /// Runs of rows (first row, rows) of a tensor of `n` rows of `k`, as one matrix.
    fn rows(
        &mut self,
        label: &str,
        tensor: &str,
        n: u32,
        runs: &[(u32, u32)],
        k: u32,
    ) -> Result<WeightId, Error> {
        let info = self.tensor(tensor, n, k)?;
        Ok(self.push(WeightSpec {
            name: label.into(),
            format: info.format,
            n: runs.iter().map(|run| run.1).sum(),
            k,
            usage: Usage::Matrix,
            add: 0.0,
            source: Source::Parts(parts(&info.name, runs)),
        }))
    }

    /// Runs of rows of a tensor of `n` rows of `k`: each is a transposed matrix. Block formats become F16, because
    /// an element of a block would move to another block.
    pub(super) fn transposed(
        &mut self,
        label: &str,
        tensor: &str,
        n: u32,
        runs: &[(u32, u32)],
        k: u32,
    ) -> Result<WeightId, Error> {
        let info = self.tensor(tensor, n, k)?;
        Ok(self.push(WeightSpec {
            name: label.into(),
            format: if info.format.is_quantised() {
                Format::F16
            } else {
                info.format
            },
            n: runs.len() as u32 * k,
            k: runs.first().map_or(0, |run| run.1),
            usage: Usage::Matrix,
            add: 0.0,
            source: Source::Transposed(parts(&info.name, runs)),
        }))
    }
}

fn parts(tensor: &str, runs: &[(u32, u32)]) -> Vec<Part> {
    let part = |&(first_row, rows): &(u32, u32)| Part {
        tensor: tensor.into(),
        first_row,
        rows,
    };
    runs.iter().map(part).collect()
}
