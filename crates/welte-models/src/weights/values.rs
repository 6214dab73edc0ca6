//! Values that are narrower than keys. Caches keep both in heads of one size, so values are spread before they are stored: the last
//! elements first, then the others, then zeros. The result of attention is put together in the same way backwards.

use super::{Collector, OutputPart, Rows};
use crate::names::{Names, weight};
use crate::{Error, ModelSpec};
use welte_table::{Format, Source, Usage, WeightId, WeightSpec};

/// The most elements of a value that come first.
pub(crate) const SWAPPED: u32 = 32;

/// What values need beside the projections of queries and keys.
pub(crate) struct ValueWeights {
    pub(crate) project: Vec<OutputPart>,
    /// For each head of keys and values, from a value to what the cache keeps.
    pub(crate) spread: WeightId,
    /// For each head of queries, the elements of its result that go last again.
    pub(crate) gather: WeightId,
}

/// The rows of queries and keys; widths of queries, keys and values are given.
pub(super) fn queries_and_keys(
    c: &Collector<'_>,
    names: &Names,
    layer: u32,
    [q, k, v]: [u32; 3],
) -> Vec<Rows> {
    let w = |template: &str| weight(template, layer);
    if c.has(&w(names.qkv)) {
        return vec![Rows {
            tensor: w(names.qkv),
            of: q + k + v,
            first: 0,
            rows: q + k,
        }];
    }
    vec![Rows::all(w(names.q), q), Rows::all(w(names.k), k)]
}

pub(super) fn collect(
    c: &mut Collector<'_>,
    spec: &ModelSpec,
    names: &Names,
    layer: u32,
) -> Result<ValueWeights, Error> {
    let shape = spec.shape(layer as usize);
    let value = spec.value_dim.unwrap_or(shape.head_dim);
    let (kv, rows) = (shape.kv_heads, shape.kv_heads * value);
    let w = |template: &str| weight(template, layer);
    let label = |what: &str| format!("layer {layer} {what}");
    let before = (shape.heads + kv) * shape.head_dim;
    let project = if c.has(&w(names.qkv)) {
        Rows {
            tensor: w(names.qkv),
            of: before + rows,
            first: before,
            rows,
        }
    } else {
        Rows::all(w(names.v), rows)
    };
    let swapped = value.min(SWAPPED);
    let from = |row: u32| match row {
        row if row < swapped => Some(value - swapped + row),
        row => Some(row - swapped).filter(|_| row < value),
    };
    let spread = (0..shape.head_dim).flat_map(|row| {
        let one = move |k| {
            if from(row) == Some(k) {
                spec.value_scale
            } else {
                0.0
            }
        };
        (0..value).map(one)
    });
    let spread: Vec<f32> = spread.collect();
    let gather = (0..swapped * swapped).map(|i| if i % (swapped + 1) == 0 { 1.0 } else { 0.0 });
    let gather: Vec<f32> = gather.collect();
    Ok(ValueWeights {
        project: c.joined_rows(&label("values"), &[project], spec.dim)?,
        spread: c.heads("spread of values", spread, kv, value),
        gather: c.heads("order of results", gather, shape.heads, swapped),
    })
}

impl Collector<'_> {
    /// One matrix for each of `heads` heads, all the same. Layers share it.
    fn heads(&mut self, name: &str, matrix: Vec<f32>, heads: u32, k: u32) -> WeightId {
        let name = format!("{name} of {heads} heads");
        if let Some(known) = self.list.iter().position(|weight| weight.name == name) {
            return known as WeightId;
        }
        self.push(WeightSpec {
            name,
            format: Format::F32,
            n: heads * (matrix.len() as u32 / k.max(1)),
            k,
            usage: Usage::Matrix,
            add: 0.0,
            source: Source::Constant(matrix.repeat(heads as usize)),
        })
    }
}
