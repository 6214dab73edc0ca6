//! Attention over a cache, and the choice of the positions that it sees.

use crate::math::dot;
use crate::ops::Execution;
use std::collections::HashMap;
use welte_formats::quant;
use welte_table::{Op, params};

/// Keys and values by slot, part and head, then by position. Each is decoded once in a command, which does not change them.
#[derive(Default)]
struct Cached(HashMap<(u32, usize, usize), Vec<Decoded>>);
type Decoded = Option<Box<[f32]>>;

impl Execution<'_> {
    pub(crate) fn attention(&mut self, live: usize) {
        let a = self.command.buffers[0];
        let c = self.command.buffers[self.command.op.reads().len()];
        let p = match self.command.op {
            Op::CrossAttention => {
                let c = params::CrossAttention::of(&self.command.params);
                params::Attention {
                    layer: c.layer,
                    heads: c.heads,
                    kv_heads: c.kv_heads,
                    head_dim: c.head_dim,
                    scale: c.scale,
                    window: 0,
                    softcap: 0.0,
                    q_stride: c.q_stride,
                    y_stride: c.y_stride,
                    causal: 0,
                    chunked: 0,
                }
            }
            Op::SparseAttention => params::SparseAttention::of(&self.command.params).dense(),
            _ => params::Attention::of(&self.command.params),
        };
        let mut cached = Cached::default();
        for row in 0..live {
            let q = self.read(a, p.q_stride, row, p.heads * p.head_dim);
            let heads = q.chunks(p.head_dim as usize).enumerate();
            let seen = self.seen(&p, row);
            let y: Vec<f32> = heads
                .flat_map(|(head, q)| self.attend(&p, row, head, q, &seen, &mut cached))
                .collect();
            self.write(c, p.y_stride, row, &y);
        }
    }

    /// The positions that a row attends to.
    fn seen(&self, p: &params::Attention, row: usize) -> Vec<usize> {
        let at = &self.rows[row];
        let end = match self.command.op {
            Op::CrossAttention => {
                params::CrossAttention::of(&self.command.params).positions as usize
            }
            Op::SparseAttention => return self.chosen(row),
            _ if p.causal > 0 => at.position as usize + 1,
            _ => at.reach as usize + 1,
        };
        let first = match p.window {
            0 => 0,
            window if p.chunked > 0 => (at.position - at.position % window) as usize,
            window => (at.position as usize + 1).saturating_sub(window as usize),
        };
        (first..end).collect()
    }

    /// The keys (`part` 0) or values (1) of one head at a position of the row's sequence.
    fn fetch<'c>(
        &self,
        layer: u32,
        part: usize,
        head: usize,
        row: usize,
        position: usize,
        cached: &'c mut Cached,
    ) -> &'c [f32] {
        let slot = self.rows[row].slot;
        let known = cached.0.entry((slot, part, head)).or_default();
        if known.len() <= position {
            known.resize(position + 1, None);
        }
        known[position].get_or_insert_with(|| {
            let (cache, format, head_dim) = self.attention_cache();
            let at = self.head_at(layer, part, head, row, position);
            let mut values = vec![0.0; head_dim].into_boxed_slice();
            let bytes = &self.memory.buffers[cache.buffer as usize][at];
            quant::decode(format, bytes, &mut values);
            values
        })
    }

    /// Softmax over the positions that the row sees, then the weighted sum of their values.
    fn attend(
        &self,
        p: &params::Attention,
        row: usize,
        head: usize,
        q: &[f32],
        seen: &[usize],
        cached: &mut Cached,
    ) -> Vec<f32> {
        let kv_head = head / (p.heads / p.kv_heads) as usize;
        let score = |position: usize| {
            let k = self.fetch(p.layer, 0, kv_head, row, position, cached);
            let score = dot(q, k) * p.scale;
            if p.softcap == 0.0 {
                score
            } else {
                p.softcap * (score / p.softcap).tanh()
            }
        };
        let scores: Vec<f32> = seen.iter().copied().map(score).collect();
        let sink = self.weight(0).map_or(f32::NEG_INFINITY, |s| s[head]);
        let largest = scores.iter().copied().fold(sink, f32::max);
        let weights: Vec<f32> = scores.iter().map(|s| (s - largest).exp()).collect();
        let sum = weights.iter().sum::<f32>() + (sink - largest).exp();
        let mut y = vec![0.0; q.len()];
        for (&position, weight) in seen.iter().zip(weights) {
            let v = self.fetch(p.layer, 1, kv_head, row, position, cached);
            y.iter_mut()
                .zip(v)
                .for_each(|(y, v)| *y += weight / sum * v);
        }
        y
    }

    /// Writes the numbers of each row's best positions.
    pub(crate) fn choose_positions(&mut self, live: usize) {
        let p = params::ChoosePositions::of(&self.command.params);
        let [q, _, gates, y] = self.command.buffers;
        let mut cached = Cached::default();
        for row in 0..live {
            let queries = self.read(q, p.q_stride, row, p.heads * p.head_dim);
            let gates = self.read(gates, p.gates_stride, row, p.heads);
            let seen = self.rows[row].reach as usize + 1;
            let mut best: Vec<usize> = (0..seen).collect();
            if seen > p.used as usize {
                let heads = || queries.chunks(p.head_dim as usize).zip(&gates);
                let score = |position: usize| {
                    let halves = [0, 1].map(|part| {
                        let half = self.fetch(p.layer, part, 0, row, position, &mut cached);
                        half.to_vec()
                    });
                    let key = halves.concat();
                    heads().fold(0.0, |sum, (q, gate)| sum + gate * dot(q, &key).max(0.0))
                };
                let scores: Vec<f32> = (0..seen).map(score).collect();
                // The sort is stable.
                best.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
                best.truncate(p.used as usize);
                best.sort_unstable();
            }
            best.resize(p.used as usize, 0);
            let words: Vec<f32> = best.iter().map(|at| f32::from_bits(*at as u32)).collect();
            self.write(y, p.y_stride, row, &words);
        }
    }

    /// The positions that were chosen for a row.
    fn chosen(&self, row: usize) -> Vec<usize> {
        let p = params::SparseAttention::of(&self.command.params);
        let seen = self.rows[row].reach as usize + 1;
        if seen <= p.used as usize {
            return (0..seen).collect();
        }
        let words = self.read(self.command.buffers[2], p.chosen_stride, row, p.used);
        words.iter().map(|word| word.to_bits() as usize).collect()
    }
}
