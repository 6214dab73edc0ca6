//! The ops, one row after the other.

use crate::math::{
    act, act_mul, add, biased, cutoff, dot, gate_value, layer_norm, mean_square, multiply, norm,
    route, scaled, sigmoid, silu, softplus, squashed, unit,
};
use std::ops::Range;
use std::sync::atomic::Ordering;
use welte_device::{Error, Seat, SlotAdapter};
use welte_formats::quant;
use welte_table::{
    BufferRef, CacheKind, CacheSpec, Command, Format, NO_WEIGHT, Op, Program, Row, Sections, params,
};

/// The memory that commands read and write.
pub(crate) struct Memory {
    /// By buffer id.
    pub(crate) buffers: Vec<Vec<u8>>,
    /// By cache: the page of `[slot][entry]`.
    pub(crate) pages: Vec<Vec<u32>>,
}

/// One command in a step.
pub(crate) struct Execution<'a> {
    pub(crate) program: &'a Program,
    /// By weight id.
    pub(crate) weights: &'a [Vec<f32>],
    pub(crate) memory: &'a mut Memory,
    pub(crate) command: &'a Command,
    /// The input rows of the step.
    pub(crate) rows: &'a [Row],
    /// Which input rows were chosen as output rows.
    pub(crate) outputs: &'a [u32],
    /// The command runs on them.
    pub(crate) on_outputs: bool,
    /// By slot.
    pub(crate) adapters: &'a [Option<SlotAdapter>],
}

impl<'a> Execution<'a> {
    /// Runs the command over its first `live` rows: input rows, or output rows after they were chosen. Sampling is left
    /// to the caller.
    pub(crate) fn run(&mut self, live: usize) {
        match self.command.op {
            Op::SelectRows => self.select_rows(),
            Op::Pool => self.pool(),
            Op::Sample | Op::Exchange => {}
            Op::Attention | Op::CrossAttention | Op::SparseAttention => self.attention(live),
            Op::ChoosePositions => self.choose_positions(live),
            _ => (0..live).for_each(|row| self.run_row(row)),
        }
    }

    /// Gives the other ranks this rank's parts, and takes theirs.
    pub(crate) fn exchange(&mut self, seat: Option<&Seat>, live: usize) -> Result<(), Error> {
        let p = params::Exchange::of(&self.command.params);
        let seat = seat.filter(|seat| (seat.rank(), seat.ranks()) == (p.rank, p.ranks));
        let seat =
            seat.ok_or_else(|| Error::request("the context is not of the program's rank"))?;
        let [part, whole, ..] = self.command.buffers;
        let width = p.deal().width() as usize;
        let own = p.part(p.rank).len() * p.vectors as usize;
        let rows = (0..live).map(|row| self.read(part, p.part_stride, row, own as u32));
        let given: Vec<f32> = rows.flatten().collect();
        let mut all = vec![0.0; live * p.vectors as usize * width];
        let mut put = |rank: u32, values: &mut dyn Iterator<Item = f32>| {
            let part = p.part(rank);
            for vector in all.chunks_mut(width) {
                let place = &mut vector[part.start as usize..part.end as usize];
                place
                    .iter_mut()
                    .zip(&mut *values)
                    .for_each(|(place, value)| *place = value);
            }
        };
        put(p.rank, &mut given.iter().copied());
        seat.exchange(
            |outbox| {
                let words = outbox.iter().zip(&given);
                words.for_each(|(word, value)| word.store(value.to_bits(), Ordering::Relaxed));
            },
            |rank, inbox| {
                put(
                    rank,
                    &mut inbox
                        .iter()
                        .map(|word| f32::from_bits(word.load(Ordering::Relaxed))),
                )
            },
        )?;
        for (row, values) in all.chunks(p.vectors as usize * width).enumerate() {
            self.write(whole, p.y_stride, row, values);
        }
        Ok(())
    }

    fn run_row(&mut self, row: usize) {
        let [a, b, c, _] = self.command.buffers;
        let words = &self.command.params;
        match self.command.op {
            Op::Embed => {
                let p = params::Embed::of(words);
                let feature = self.rows[row].input.feature();
                let feature = feature.filter(|_| self.program.takes_features(self.command));
                let x: Vec<f32> = if let Some(feature) = feature {
                    self.feature(feature, 0, p.k)
                } else {
                    let token = self.read(a, 1, row, 1)[0].to_bits() as usize;
                    let x = &self.matrix()[token * p.k as usize..][..p.k as usize];
                    x.iter().map(|v| v * p.scale).collect()
                };
                self.write(b, p.x_stride, row, &x);
            }
            Op::Norm => {
                let p = params::Norm::of(words);
                let x = self.read(a, p.x_stride, row, p.dim * p.groups);
                let groups = x.chunks(p.dim as usize);
                let y: Vec<f32> = groups
                    .flat_map(|x| norm(x, self.weight(0), p.eps))
                    .collect();
                self.write(b, p.y_stride, row, &y);
            }
            Op::LayerNorm => {
                let p = params::LayerNorm::of(words);
                let x = self.read(a, p.x_stride, row, p.dim * p.groups);
                let groups = x.chunks(p.dim as usize);
                let (weight, bias) = (self.matrix(), self.weight(1));
                let y: Vec<f32> = groups
                    .flat_map(|x| layer_norm(x, weight, bias, p.eps))
                    .collect();
                self.write(b, p.y_stride, row, &y);
            }
            Op::HeadsMatmul => {
                let p = params::HeadsMatmul::of(words);
                let (n, k) = (p.n as usize, p.k as usize);
                for (head, matrix) in self.matrix().chunks(n * k).enumerate() {
                    let place = |at: BufferRef, distance: u32| BufferRef {
                        offset: at.offset + 4 * distance * head as u32,
                        ..at
                    };
                    let x = self.read(place(a, p.x_head), p.x_stride, row, p.k + p.tail);
                    let (x, kept) = x.split_at(k);
                    let mut y = kept.to_vec();
                    y.extend(multiply(matrix, x));
                    self.write(place(b, p.y_head), p.y_stride, row, &y);
                }
            }
            Op::AdaptDown => self.adapt_down(row),
            Op::AdaptLookup => self.adapt_lookup(row),
            Op::AdaptUp => self.adapt_up(row),
            Op::AdaptExpertsDown => self.adapt_experts_down(row),
            Op::AdaptExpertsUp => self.adapt_experts_up(row),
            Op::PositionScale => {
                let p = params::PositionScale::of(words);
                let whole = self.rows[row].position.saturating_add(p.ahead) / p.original;
                let factor = 1.0 + p.beta * (1.0 + whole as f32).ln();
                let y = self.read(a, p.y_stride, row, p.n);
                let y: Vec<f32> = y.iter().map(|v| v * factor).collect();
                self.write(a, p.y_stride, row, &y);
            }
            Op::Act => {
                let p = params::Act::of(words);
                let y = self.read(a, p.y_stride, row, p.n);
                let constants = [p.a, p.b, p.c, p.d];
                let y: Vec<f32> = y.iter().map(|v| act(p.act, *v, constants)).collect();
                self.write(a, p.y_stride, row, &y);
            }
            Op::Matmul => {
                let p = params::Matmul::of(words);
                let x = self.read(a, p.x_stride, row, p.k);
                self.write(b, p.y_stride, row, &multiply(self.matrix(), &x));
            }
            Op::MatmulAdd => {
                let p = params::MatmulAdd::of(words);
                let x = self.read(a, p.x_stride, row, p.k);
                let y = self.read(b, p.y_stride, row, p.n);
                let y = add(&y, &multiply(self.matrix(), &x));
                self.write(b, p.y_stride, row, &y);
            }
            Op::NormMatmul => {
                let p = params::NormMatmul::of(words);
                let x = self.read(a, p.x_stride, row, p.k);
                let x = norm(&x, self.weight(1), p.eps);
                self.write(b, p.y_stride, row, &multiply(self.matrix(), &x));
            }
            Op::NormMatmulActMul => {
                let p = params::NormMatmulActMul::of(words);
                let x = self.read(a, p.x_stride, row, p.k);
                let x = norm(&x, self.weight(1), p.eps);
                let y = act_mul(p.act, &multiply(self.matrix(), &x));
                self.write(b, p.y_stride, row, &y);
            }
            Op::ActMul => {
                let p = params::ActMul::of(words);
                let x = self.read(a, p.x_stride, row, 2 * p.n);
                self.write(b, p.y_stride, row, &act_mul(p.act, &x));
            }
            Op::Bias => {
                let p = params::Bias::of(words);
                let y = self.read(a, p.y_stride, row, p.n);
                self.write(a, p.y_stride, row, &biased(y, self.weight(0)));
            }
            Op::Multiply => {
                let p = params::Multiply::of(words);
                let x = self.read(a, p.x_stride, row, p.n);
                let y = match self.weight(0) {
                    Some(weight) => x.iter().zip(weight).map(|(x, w)| x * w).collect(),
                    None => x,
                };
                self.write(b, p.y_stride, row, &y);
            }
            Op::Cutoff => {
                let p = params::Cutoff::of(words);
                let y = self.read(a, p.y_stride, row, p.n);
                self.write(a, p.y_stride, row, &cutoff(&y, p.deviations));
            }
            Op::MatchSquares => {
                let p = params::MatchSquares::of(words);
                let x = self.read(a, p.x_stride, row, p.dim);
                let mut y = self.read(b, p.y_stride, row, p.dim * p.groups);
                let target = mean_square(&x).sqrt();
                for y in y.chunks_mut(p.dim as usize) {
                    let factor = target / mean_square(y).max(1e-5).sqrt();
                    y.iter_mut().for_each(|v| *v *= factor);
                }
                self.write(b, p.y_stride, row, &y);
            }
            Op::AltUpPredict => {
                let p = params::AltUpPredict::of(words);
                let x = self.read(a, p.x_stride, row, p.streams);
                let y = self.read(b, p.y_stride, row, p.streams * p.dim);
                let c = multiply(self.matrix(), &squashed(&x, p.scale));
                let (dim, streams) = (p.dim as usize, p.streams as usize);
                let old: Vec<&[f32]> = y.chunks(dim).collect();
                let new = (0..streams * dim).map(|at| {
                    let (i, d) = (at / dim, at % dim);
                    let row = &c[i * streams..][..streams];
                    y[at] + row.iter().zip(&old).map(|(c, y)| c * y[d]).sum::<f32>()
                });
                let new: Vec<f32> = new.collect();
                self.write(b, p.y_stride, row, &new);
            }
            Op::AltUpCorrect => {
                let p = params::AltUpCorrect::of(words);
                let now = self.read(a, p.now_stride, row, p.dim);
                let x = self.read(b, p.x_stride, row, p.streams);
                let mut y = self.read(c, p.y_stride, row, p.streams * p.dim);
                let factors = multiply(self.matrix(), &squashed(&x, p.scale));
                let news: Vec<f32> = now.iter().zip(&y).map(|(now, y)| now - y).collect();
                for (y, c) in y.chunks_mut(p.dim as usize).zip(factors) {
                    y.iter_mut()
                        .zip(&news)
                        .for_each(|(y, e)| *y += (1.0 + c) * e);
                }
                self.write(c, p.y_stride, row, &y);
            }
            Op::Add => {
                let p = params::Add::of(words);
                let x = self.read(a, p.x_stride, row, p.n);
                let y = self.read(b, p.y_stride, row, p.n);
                self.write(b, p.y_stride, row, &add(&y, &x));
            }
            Op::Scale => {
                let p = params::Scale::of(words);
                let mut y = self.read(a, p.y_stride, row, p.n);
                for v in &mut y {
                    *v = if p.scale == 0.0 { 0.0 } else { *v * p.scale };
                    if p.cap != 0.0 {
                        *v = p.cap * (*v / p.cap).tanh();
                    }
                }
                self.write(a, p.y_stride, row, &y);
            }
            Op::Rope => {
                let p = params::Rope::of(words);
                let mut y = self.read(a, p.y_stride, row, p.heads * p.head_dim);
                for head in y.chunks_mut(p.head_dim as usize) {
                    let turned = &mut head[..p.rot as usize];
                    self.rope(turned, row, p.interleaved, p.magnitude, p.sections);
                }
                self.write(a, p.y_stride, row, &y);
            }
            Op::KvAppend => {
                let p = params::KvAppend::of(words);
                let k = self.read(a, p.k_stride, row, p.kv_heads * p.head_dim);
                let v = self.read(b, p.v_stride, row, p.kv_heads * p.head_dim);
                self.store_heads(p.layer, row, &k, &v);
            }
            Op::RopeAppend => self.rope_append(row),
            Op::EncodeAttention => {
                let p = params::EncodeAttention::of(words);
                let q = self.read(a, p.qkv_stride, row, p.heads * p.head_dim);
                let heads = q.chunks(p.head_dim as usize).enumerate();
                let y: Vec<f32> = heads
                    .flat_map(|(head, q)| self.attend_run(&p, row, head, q))
                    .collect();
                self.write(b, p.y_stride, row, &y);
            }
            Op::EncodeConv => {
                let p = params::EncodeConv::of(words);
                let y = self.convolve_run(&p, row);
                self.write(b, p.y_stride, row, &y);
            }
            Op::AddPosition => {
                let p = params::AddPosition::of(words);
                let (k, position) = (p.k as usize, self.rows[row].position);
                let mut x = self.read(a, p.x_stride, row, p.k);
                let entries = [p.offset + position % p.period, position / p.period];
                for (role, entry) in entries.into_iter().enumerate() {
                    if let Some(table) = self.weight(role) {
                        x = add(&x, &table[entry as usize * k..][..k]);
                    }
                }
                self.write(a, p.x_stride, row, &x);
            }
            Op::AddFeature => {
                let p = params::AddFeature::of(words);
                if let Some(feature) = self.rows[row].input.feature() {
                    let x = self.read(a, p.x_stride, row, p.n);
                    let x = add(&x, &self.feature(feature, p.part, p.n));
                    self.write(a, p.x_stride, row, &x);
                }
            }
            Op::Spread => {
                let p = params::Spread::of(words);
                let x = self.read(a, p.x_stride, row, p.k);
                let map = self.weight(0).unwrap_or(&[]);
                let place = |from: &f32| x.get(*from as usize).filter(|_| *from >= 0.0);
                let y = map
                    .iter()
                    .map(|from| place(from).copied().unwrap_or(f32::MIN));
                let y: Vec<f32> = y.collect();
                self.write(b, p.y_stride, row, &y);
            }
            Op::ShortConv => self.short_conv(row),
            Op::Gate => {
                let p = params::Gate::of(words);
                let gates = self.read(a, p.x_stride, row, p.gates);
                let mut y = self.read(b, p.y_stride, row, p.n);
                let each = (p.n / p.gates) as usize;
                for (y, gate) in y.chunks_mut(each).zip(gates) {
                    y.iter_mut().for_each(|y| *y *= gate_value(p.act, gate));
                }
                self.write(b, p.y_stride, row, &y);
            }
            Op::GatedDelta => self.gated_delta(row),
            Op::Mamba2 => self.mamba2(row),
            Op::Route => {
                let p = params::Route::of(words);
                let x = self.read(a, p.x_stride, row, p.experts);
                let choice = route(&x, &p, self.weight(0), self.weight(1));
                self.write(b, p.y_stride, row, &choice);
            }
            Op::ExpertsActMul => {
                let p = params::ExpertsActMul::of(words);
                let x = self.read(a, p.x_stride, row, p.k);
                let choice = self.read(b, p.choice_stride, row, 2 * p.used);
                let (ids, _) = choice.split_at(p.used as usize);
                let experts = ids.iter().map(|id| {
                    let (id, rows) = (id.to_bits() as usize, p.matrices() * p.n);
                    let gate_up = multiply(self.expert_matrix(id, rows, p.k), &x);
                    let gate_up = biased(gate_up, self.expert_bias(id, rows));
                    match p.matrices() {
                        _ if p.act >= 5 => gate_up,
                        1 => gate_up.iter().map(|v| act(p.act, *v, [0.0; 4])).collect(),
                        _ => act_mul(p.act, &gate_up),
                    }
                });
                let y = experts.collect::<Vec<_>>().concat();
                self.write(c, p.y_stride, row, &y);
            }
            Op::ExpertsAdd => {
                let p = params::ExpertsAdd::of(words);
                let x = self.read(a, p.x_stride, row, p.used * p.k);
                let choice = self.read(b, p.choice_stride, row, 2 * p.used);
                let (ids, shares) = choice.split_at(p.used as usize);
                let mut y = self.read(c, p.y_stride, row, p.n);
                for ((id, share), x) in ids.iter().zip(shares).zip(x.chunks(p.k as usize)) {
                    let id = id.to_bits() as usize;
                    let part = multiply(self.expert_matrix(id, p.n, p.k), x);
                    let part = biased(part, self.expert_bias(id, p.n));
                    y.iter_mut().zip(part).for_each(|(y, v)| *y += share * v);
                }
                self.write(c, p.y_stride, row, &y);
            }
            Op::SelectRows
            | Op::Pool
            | Op::Sample
            | Op::Exchange
            | Op::Attention
            | Op::CrossAttention
            | Op::ChoosePositions
            | Op::SparseAttention => {}
        }
    }

    fn select_rows(&mut self) {
        let [x, y, ..] = self.command.buffers;
        let p = params::SelectRows::of(&self.command.params);
        for (output, row) in self.outputs.iter().enumerate() {
            let values = self.read(x, p.x_stride, *row as usize, p.n);
            self.write(y, p.y_stride, output, &values);
        }
    }

    fn pool(&mut self) {
        let [x, y, ..] = self.command.buffers;
        let p = params::Pool::of(&self.command.params);
        for (output, chosen) in self.outputs.iter().enumerate() {
            let chosen = *chosen as usize;
            let slot = self.rows[chosen].slot;
            let rows: Vec<usize> = match p.group as usize {
                0 => (0..=chosen)
                    .filter(|row| self.rows[*row].slot == slot)
                    .collect(),
                group => (0..group)
                    .map(|i| (chosen + 1 + i).saturating_sub(group))
                    .collect(),
            };
            let rows = rows.into_iter();
            let pooled: Vec<Vec<f32>> =
                rows.map(|row| self.read(x, p.x_stride, row, p.n)).collect();
            let (first, last) = (&pooled[0], &pooled[pooled.len() - 1]);
            let values = match p.kind {
                0 => last.clone(),
                1 => {
                    let sum = pooled[1..]
                        .iter()
                        .fold(first.clone(), |sum, x| add(&sum, x));
                    sum.iter().map(|v| v / pooled.len() as f32).collect()
                }
                2 => first.clone(),
                3 => pooled.concat(),
                5 => pooled[1..].iter().fold(first.clone(), |most, x| {
                    let pairs = most.iter().zip(x);
                    pairs.map(|(a, b)| a.max(*b)).collect()
                }),
                _ => {
                    let each = 0..p.n as usize;
                    each.flat_map(|i| pooled.iter().map(move |row| row[i]))
                        .collect()
                }
            };
            let values = match p.normalise {
                0 => values,
                _ => unit(&values),
            };
            self.write(y, p.y_stride, output, &values);
        }
    }

    fn rope_append(&mut self, row: usize) {
        let p = params::RopeAppend::of(&self.command.params);
        let (heads, kv_heads) = (p.heads as usize, p.kv_heads as usize);
        let (dim, at) = (p.head_dim as usize, self.command.buffers[0]);
        let mut qkv = self.read(
            at,
            p.qkv_stride,
            row,
            (p.heads + 2 * p.kv_heads) * p.head_dim,
        );
        let rotated = qkv.chunks_mut(dim).take(heads + kv_heads);
        for (index, head) in rotated.enumerate() {
            let role = if index < heads { 1 } else { 2 };
            if let Some(weight) = self.weight(role) {
                head.copy_from_slice(&norm(head, Some(weight), p.eps));
            }
            let turned = &mut head[..p.rot as usize];
            self.rope(turned, row, p.interleaved, p.magnitude, p.sections);
        }
        self.write(at, p.qkv_stride, row, &qkv);
        let (k, v) = qkv[heads * dim..].split_at(kv_heads * dim);
        self.store_heads(p.layer, row, k, v);
    }

    /// Rotates the elements of one head.
    fn rope(&self, y: &mut [f32], row: usize, interleaved: u32, magnitude: f32, sections: u32) {
        let sections = Sections::of(sections);
        let half = y.len() / 2;
        let freqs = self.weight(0).unwrap_or(&[]);
        for (i, freq) in freqs.iter().enumerate().take(half) {
            let (first, second) = match interleaved {
                0 => (i, i + half),
                _ => (2 * i, 2 * i + 1),
            };
            let angle = self.rows[row].coordinate(sections, i) as f32 * freq;
            let (cos, sin) = (angle.cos() * magnitude, angle.sin() * magnitude);
            let (a, b) = (y[first], y[second]);
            y[first] = a * cos - b * sin;
            y[second] = a * sin + b * cos;
        }
    }

    /// Stores a row's keys and values at its position.
    fn store_heads(&mut self, layer: u32, row: usize, k: &[f32], v: &[f32]) {
        let (cache, format, head_dim) = self.attention_cache();
        let buffer = cache.buffer as usize;
        for (part, values) in [k, v].into_iter().enumerate() {
            for (head, values) in values.chunks(head_dim).enumerate() {
                let position = self.rows[row].position as usize;
                let at = self.head_at(layer, part, head, row, position);
                quant::encode(format, values, &mut self.memory.buffers[buffer][at]);
            }
        }
    }

    /// Softmax over the rows of the run that the row sees, then the weighted sum of their values.
    fn attend_run(
        &self,
        p: &params::EncodeAttention,
        row: usize,
        head: usize,
        q: &[f32],
    ) -> Vec<f32> {
        let (heads, kv_heads) = (p.heads as usize, p.kv_heads as usize);
        let (dim, kv_head) = (p.head_dim as usize, head / (heads / kv_heads));
        let own = &self.rows[row];
        let same = |other: &usize| {
            let other = &self.rows[*other];
            other.slot == own.slot && (p.by_axis == 0 || other.axes[0] == own.axes[0])
        };
        let first = (0..row).rev().take_while(same).last().unwrap_or(row);
        let last = (row..self.rows.len()).take_while(same).last();
        let last = last.unwrap_or(row);
        let last = if last - first < p.unseen as usize {
            last
        } else {
            last - p.unseen as usize
        };
        let (first, last) = match p.window as usize {
            0 => (first, last),
            window => (
                first.max(row.saturating_sub(window)),
                last.min(row + window),
            ),
        };
        let width = (p.heads + 2 * p.kv_heads) * p.head_dim;
        let all =
            |row: usize, width: u32| self.read(self.command.buffers[0], p.qkv_stride, row, width);
        let place = |row: usize| [1, 2].map(|axis| self.rows[row].axes[axis] as usize);
        let corner = place(first);
        let absent = self.weight(0);
        let sides = match absent {
            Some(_) => [p.places as usize; 2],
            None if p.places > 0 => [0, 1].map(|i| place(last)[i] - corner[i] + 1),
            None => [1; 2],
        };
        let reach = (own.reach - own.position) as usize;
        let last = if p.by_reach == 1 {
            last.min(row + reach)
        } else {
            last
        };
        // Each key with its place. A lacking row has none of its own.
        let rows = (first..=last).map(|row| (Some(row), place(row)));
        let mut keys: Vec<(Option<usize>, [usize; 2])> = rows.collect();
        if absent.is_some() {
            let places = (0..sides[0] * sides[1])
                .map(|i| [corner[0] + i / sides[1], corner[1] + i % sides[1]]);
            let find = |at: [usize; 2]| {
                (
                    keys.iter().find(|key| key.1 == at).and_then(|key| key.0),
                    at,
                )
            };
            keys = places.map(find).collect();
        }
        let part = |key: &(Option<usize>, [usize; 2]), at: usize| {
            let own = at * dim..(at + 1) * dim;
            match (key.0, absent) {
                (None, Some(absent)) => absent[own].to_vec(),
                (row, _) => all(row.unwrap_or(first), width)[own].to_vec(),
            }
        };
        let of_places = p.of_places() as usize;
        let distances = all(row, width + p.heads * p.of_places());
        let distances = &distances[width as usize + head * of_places..][..of_places];
        let near = |at: [usize; 2]| -> f32 {
            if of_places == 0 {
                return 0.0;
            }
            let tables = distances.chunks_exact(of_places / 2).enumerate();
            let each = tables.map(|(axis, table)| {
                let index = place(row)[axis] + sides[axis] - 1 - at[axis];
                resized(table, 2 * sides[axis] - 1, index)
            });
            each.sum()
        };
        let score = |key: &(Option<usize>, [usize; 2])| {
            let product = dot(q, &part(key, heads + kv_head)) * p.scale;
            let product = match p.softcap {
                0.0 => product,
                cap => cap * (product / cap).tanh(),
            };
            let slope = self.weight(1).map_or(0.0, |slopes| slopes[head]);
            let away = key.0.map_or(0, |key| key.abs_diff(row)) as f32;
            product + near(key.1) - slope * away
        };
        let scores: Vec<f32> = keys.iter().map(score).collect();
        let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weights: Vec<f32> = scores.iter().map(|s| (s - largest).exp()).collect();
        let sum: f32 = weights.iter().sum();
        let mut y = vec![0.0; dim];
        for (key, weight) in keys.iter().zip(weights) {
            let v = part(key, heads + kv_heads + kv_head);
            y.iter_mut()
                .zip(v)
                .for_each(|(y, v)| *y += weight / sum * v);
        }
        y
    }

    fn convolve_run(&self, p: &params::EncodeConv, row: usize) -> Vec<f32> {
        let (taps, kernel) = (p.taps as usize, self.matrix());
        let own = self.rows[row].slot;
        let mut y = match self.weight(1) {
            Some(bias) => bias.to_vec(),
            None => vec![0.0; p.n as usize],
        };
        for tap in 0..taps {
            let Some(other) = (row + tap).checked_sub(p.before as usize) else {
                continue;
            };
            let between = self.rows.get(row.min(other)..=row.max(other));
            if !between.is_some_and(|rows| rows.iter().all(|row| row.slot == own)) {
                continue;
            }
            let x = self.read(self.command.buffers[0], p.x_stride, other, p.n);
            for (channel, (y, x)) in y.iter_mut().zip(x).enumerate() {
                *y += kernel[channel * taps + tap] * x;
            }
        }
        y
    }

    fn short_conv(&mut self, row: usize) {
        let [x, y, state, _] = self.command.buffers;
        let p = params::ShortConv::of(&self.command.params);
        let (n, taps) = (p.n as usize, p.taps as usize);
        let at = self.state_at(p.layer, self.rows[row].slot);
        let state = state.buffer as usize;
        let mut inputs = floats(&self.memory.buffers[state][at.clone()]);
        // Inputs before position 0 are zero, whatever the page held before.
        let known = (self.rows[row].position as usize).min(taps - 1);
        inputs[..(taps - 1 - known) * n].fill(0.0);
        inputs.extend(self.read(x, p.x_stride, row, p.n));
        let (kernel, bias) = (self.matrix(), self.weight(1));
        let values: Vec<f32> = (0..n)
            .map(|channel| {
                let mut sum = bias.map_or(0.0, |bias| bias[channel]);
                for tap in 0..taps {
                    sum += kernel[channel * taps + tap] * inputs[tap * n + channel];
                }
                if p.act == 1 { silu(sum) } else { sum }
            })
            .collect();
        self.memory.buffers[state][at].copy_from_slice(&bytes(&inputs[n..]));
        self.write(y, p.y_stride, row, &values);
    }

    fn gated_delta(&mut self, row: usize) {
        let [x, gates, y, state] = self.command.buffers;
        let p = params::GatedDelta::of(&self.command.params);
        let (heads, key_heads) = (p.heads as usize, p.key_heads as usize);
        let (key_dim, value_dim) = (p.key_dim as usize, p.value_dim as usize);
        let at = self.state_at(p.layer, self.rows[row].slot);
        let state = state.buffer as usize;
        let mut matrices = floats(&self.memory.buffers[state][at.clone()]);
        // The state before position 0 is zero, whatever the page held before.
        if self.rows[row].position == 0 {
            matrices.fill(0.0);
        }
        let width = 2 * p.key_heads * p.key_dim + p.heads * p.value_dim;
        let x = self.read(x, p.x_stride, row, width);
        let (queries, rest) = x.split_at(key_heads * key_dim);
        let (keys, values) = rest.split_at(key_heads * key_dim);
        let decays = p.decays() as usize;
        let gates = self.read(gates, p.gates_stride, row, p.heads * (1 + p.decays()));
        let (b, a) = gates.split_at(heads);
        let (decay, dt_bias) = (self.matrix(), self.weight(1).unwrap_or(&[]));
        let mut answers = Vec::with_capacity(heads * value_dim);
        for (head, s) in matrices.chunks_mut(key_dim * value_dim).enumerate() {
            let key_head = match p.tiled {
                1 => head % key_heads,
                _ => head / (heads / key_heads),
            };
            let of = |all: &[f32]| scaled(&all[key_head * key_dim..][..key_dim], p.eps);
            let (k, q) = (of(keys), of(queries));
            let v = &values[head * value_dim..][..value_dim];
            let rows = s.chunks_mut(key_dim / decays * value_dim);
            for (at, rows) in (head * decays..).zip(rows) {
                let kept = (decay[head] * softplus(a[at] + dt_bias[at])).exp();
                rows.iter_mut().for_each(|s| *s *= kept);
            }
            let column = |s: &[f32], i: usize, by: &[f32]| -> f32 {
                let column = s.iter().skip(i).step_by(value_dim);
                column.zip(by).map(|(s, by)| s * by).sum()
            };
            for (i, value) in v.iter().enumerate() {
                let change = sigmoid(b[head]) * (value - column(s, i, &k));
                let cells = s.iter_mut().skip(i).step_by(value_dim);
                cells.zip(&k).for_each(|(s, k)| *s += k * change);
                answers.push(column(s, i, &q) / (key_dim as f32).sqrt());
            }
        }
        self.memory.buffers[state][at].copy_from_slice(&bytes(&matrices));
        self.write(y, p.y_stride, row, &answers);
    }

    fn mamba2(&mut self, row: usize) {
        let [x, dt, y, state] = self.command.buffers;
        let p = params::Mamba2::of(&self.command.params);
        let (heads, groups) = (p.heads as usize, p.groups as usize);
        let (key_dim, value_dim) = (p.key_dim as usize, p.value_dim as usize);
        let at = self.state_at(p.layer, self.rows[row].slot);
        let state = state.buffer as usize;
        let mut matrices = floats(&self.memory.buffers[state][at.clone()]);
        // The state before position 0 is zero, whatever the page held before.
        if self.rows[row].position == 0 {
            matrices.fill(0.0);
        }
        let width = p.heads * p.value_dim + 2 * p.groups * p.key_dim;
        let x = self.read(x, p.x_stride, row, width);
        let (inputs, rest) = x.split_at(heads * value_dim);
        let (keys, queries) = rest.split_at(groups * key_dim);
        let times = p.times() as usize;
        let dt = self.read(dt, p.dt_stride, row, p.heads * p.times());
        let [decay, dt_bias, skip] = [0, 1, 2].map(|role| self.weight(role).unwrap_or(&[]));
        let mut answers = Vec::with_capacity(heads * value_dim);
        for (head, s) in matrices.chunks_mut(key_dim * value_dim).enumerate() {
            let group = head / (heads / groups) * key_dim;
            let (k, q) = (&keys[group..][..key_dim], &queries[group..][..key_dim]);
            for (i, input) in inputs[head * value_dim..][..value_dim].iter().enumerate() {
                let at = head * times + i % times;
                let time = softplus(dt[at] + dt_bias[at]);
                let kept = (decay[head] * time).exp();
                let cells = s.iter_mut().enumerate().skip(i).step_by(value_dim);
                let products = cells.zip(k).zip(q).map(|(((cell, s), k), q)| {
                    let kept = match p.by_channel {
                        1 => (decay[head * key_dim * value_dim + cell] * time).exp(),
                        _ => kept,
                    };
                    *s = *s * kept + k * (time * input);
                    *s * q
                });
                answers.push(products.sum::<f32>() + skip[at] * input);
            }
        }
        self.memory.buffers[state][at].copy_from_slice(&bytes(&matrices));
        self.write(y, p.y_stride, row, &answers);
    }

    /// The values of the command's weight `role`, if it has that weight.
    pub(crate) fn weight(&self, role: usize) -> Option<&'a [f32]> {
        match self.command.weights[role] {
            NO_WEIGHT => None,
            id => Some(&self.weights[id as usize]),
        }
    }

    /// The values of the command's first weight.
    fn matrix(&self) -> &'a [f32] {
        self.weight(0).unwrap_or(&[])
    }

    fn expert_matrix(&self, id: usize, n: u32, k: u32) -> &'a [f32] {
        let values = n as usize * k as usize;
        &self.matrix()[id * values..][..values]
    }

    fn expert_bias(&self, id: usize, n: u32) -> Option<&'a [f32]> {
        Some(&self.weight(1)?[id * n as usize..][..n as usize])
    }

    /// A part of a feature, of `n` values.
    fn feature(&self, number: u32, part: u32, n: u32) -> Vec<f32> {
        let at = BufferRef {
            buffer: self.program.features,
            offset: 4 * part * n,
        };
        let stride = self.program.feature_width() as u32;
        self.read(at, stride, number as usize, n)
    }

    /// `width` values of a row.
    pub(crate) fn read(&self, at: BufferRef, stride: u32, row: usize, width: u32) -> Vec<f32> {
        let start = at.offset as usize + row * stride as usize * 4;
        floats(&self.memory.buffers[at.buffer as usize][start..][..width as usize * 4])
    }

    pub(crate) fn write(&mut self, at: BufferRef, stride: u32, row: usize, values: &[f32]) {
        let start = at.offset as usize + row * stride as usize * 4;
        let buffer = &mut self.memory.buffers[at.buffer as usize];
        buffer[start..][..values.len() * 4].copy_from_slice(&bytes(values));
    }

    /// The command's cache with its number.
    fn cache(&self) -> (usize, &'a CacheSpec) {
        let operand = self
            .command
            .op
            .cache_operand()
            .map(|i| self.command.buffers[i]);
        let caches = self.program.caches.iter().enumerate();
        caches
            .into_iter()
            .find(|(_, cache)| Some(cache.buffer) == operand.map(|at| at.buffer))
            .expect("verified: the command has a cache")
    }

    /// The command's attention cache with its format and the size of a head.
    pub(crate) fn attention_cache(&self) -> (&'a CacheSpec, Format, usize) {
        let (_, cache) = self.cache();
        match cache.kind {
            CacheKind::Attention {
                format, head_dim, ..
            } => (cache, format, head_dim as usize),
            CacheKind::Recurrent { .. } => unreachable!("verified: the cache is for attention"),
        }
    }

    /// The page of a slot's entry in the command's cache.
    fn page(&self, slot: u32, entry: usize) -> usize {
        let (number, cache) = self.cache();
        let entries = cache.entries(self.program) as usize;
        self.memory.pages[number][slot as usize * entries + entry] as usize
    }

    /// Where keys (`part` 0) or values (1) of a head lie in the cache's buffer.
    pub(crate) fn head_at(
        &self,
        layer: u32,
        part: usize,
        head: usize,
        row: usize,
        position: usize,
    ) -> Range<usize> {
        let (_, cache) = self.cache();
        let page_len = self.program.page as usize;
        let page = self.page(self.rows[row].slot, position / page_len);
        let kv_heads = match cache.kind {
            CacheKind::Attention { kv_heads, .. } => kv_heads as usize,
            CacheKind::Recurrent { .. } => 0,
        };
        let mut index = layer as usize * 2 + part;
        index = index * cache.pages as usize + page;
        index = index * kv_heads + head;
        index = index * page_len + position % page_len;
        let bytes = cache.head_bytes().unwrap_or(0) as usize;
        index * bytes..(index + 1) * bytes
    }

    /// Where a slot's state of one layer lies in the recurrent cache's buffer.
    fn state_at(&self, layer: u32, slot: u32) -> Range<usize> {
        let (_, cache) = self.cache();
        let floats = match cache.kind {
            CacheKind::Recurrent { floats, .. } => floats as usize,
            CacheKind::Attention { .. } => 0,
        };
        let index = layer as usize * cache.pages as usize + self.page(slot, 0);
        index * floats * 4..(index + 1) * floats * 4
    }
}

/// The floats that bytes hold.
pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    let (words, _) = bytes.as_chunks::<4>();
    words.iter().map(|word| f32::from_ne_bytes(*word)).collect()
}

/// The bytes of floats.
fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_ne_bytes()).collect()
}

/// A value of a table that is resized linearly to `count`: places are in the middle of equal parts.
fn resized(table: &[f32], count: usize, index: usize) -> f32 {
    let scale = table.len() as f32 / count as f32;
    let place = ((index as f32 + 0.5) * scale - 0.5).max(0.0);
    let low = (place as usize).min(table.len() - 1);
    let high = (low + 1).min(table.len() - 1);
    let part = place - low as f32;
    table[low] * (1.0 - part) + table[high] * part
}
