//! The oracle: every op as plainly as it can be said, in f32, over the same program, buffers and KV layout. It is slow
//! and it allocates; the tests hold the kernels against it.

use crate::memory::Block;
use crate::ops::erf;
use welte_formats::quant;
use welte_table::{BufferRef, Command, NO_WEIGHT, Op, Program, Row, Table, WeightId, params};

/// What changes from step to step.
pub(crate) struct Step<'a> {
    pub(crate) rows: &'a [Row],
    pub(crate) slot: usize,
    pub(crate) pages: &'a [u32],
    pub(crate) pages_per_sequence: usize,
}

/// Runs the first `commands` commands of a table; `sample` is left to the caller.
pub(crate) fn run<'w>(
    program: &Program,
    table: &Table,
    commands: usize,
    weights: &dyn Fn(WeightId) -> Option<&'w [f32]>,
    buffers: &mut [Block],
    step: &Step<'_>,
) {
    let single_from = table.single_row_from().unwrap_or(usize::MAX);
    for (index, command) in table.commands[..commands].iter().enumerate() {
        let live = if index >= single_from {
            1
        } else {
            step.rows.len()
        };
        Interpreter {
            program,
            command,
            weights,
            buffers,
            step,
            live,
        }
        .run();
    }
}

struct Interpreter<'a, 'w> {
    program: &'a Program,
    command: &'a Command,
    weights: &'a dyn Fn(WeightId) -> Option<&'w [f32]>,
    buffers: &'a mut [Block],
    step: &'a Step<'a>,
    live: usize,
}

impl<'w> Interpreter<'_, 'w> {
    /// The values of the command's weight `role`, if it has it.
    fn weight(&self, role: usize) -> Option<&'w [f32]> {
        let id = self.command.weights[role];
        if id == NO_WEIGHT {
            None
        } else {
            (self.weights)(id)
        }
    }

    /// `width` values of a row.
    fn read(&self, at: BufferRef, stride: u32, row: usize, width: usize) -> Vec<f32> {
        let start = at.offset as usize / 4 + row * stride as usize;
        self.buffers[at.buffer as usize].as_f32()[start..start + width].to_vec()
    }

    fn write(&mut self, at: BufferRef, stride: u32, row: usize, values: &[f32]) {
        let start = at.offset as usize / 4 + row * stride as usize;
        self.buffers[at.buffer as usize].as_mut_f32()[start..start + values.len()]
            .copy_from_slice(values);
    }

    /// Where keys (`part` 0) or values (1) of a head lie in the KV buffer.
    fn kv_range(
        &self,
        layer: u32,
        part: usize,
        head: usize,
        row: Row,
        position: usize,
    ) -> std::ops::Range<usize> {
        let kv = &self.program.kv;
        let page_of_sequence =
            row.sequence as usize * self.step.pages_per_sequence + position / kv.page as usize;
        let page = self.step.pages[page_of_sequence] as usize;
        let mut index = layer as usize;
        index = index * 2 + part;
        index = index * kv.pages as usize + page;
        index = index * kv.kv_heads as usize + head;
        index = index * kv.page as usize + position % kv.page as usize;
        let bytes = kv.format.bytes(kv.head_dim as usize).unwrap_or(0);
        index * bytes..(index + 1) * bytes
    }

    fn store(
        &mut self,
        kv: BufferRef,
        layer: u32,
        part: usize,
        head: usize,
        row: Row,
        values: &[f32],
    ) {
        let range = self.kv_range(layer, part, head, row, row.position as usize);
        quant::encode(
            self.program.kv.format,
            values,
            &mut self.buffers[kv.buffer as usize].as_mut_slice()[range],
        );
    }

    fn fetch(
        &self,
        kv: BufferRef,
        layer: u32,
        part: usize,
        head: usize,
        row: Row,
        position: usize,
    ) -> Vec<f32> {
        let range = self.kv_range(layer, part, head, row, position);
        let mut values = vec![0.0; self.program.kv.head_dim as usize];
        quant::decode(
            self.program.kv.format,
            &self.buffers[kv.buffer as usize].as_slice()[range],
            &mut values,
        );
        values
    }

    fn run(mut self) {
        for row in 0..self.live {
            self.run_row(row);
        }
        // All rows are appended before the first attends: a phase of its own in the table.
    }

    fn run_row(&mut self, row: usize) {
        let [a, b, c, _] = self.command.buffers;
        let words = &self.command.params;
        match self.command.op {
            Op::Embed => {
                let p = params::Embed::of(words);
                let slot = self.step.slot + row;
                let token = self.buffers[a.buffer as usize].as_f32()[slot].to_bits() as usize;
                let table = self.weight(0).unwrap_or(&[]);
                let k = p.k as usize;
                let x: Vec<f32> = table[token * k..(token + 1) * k]
                    .iter()
                    .map(|v| v * p.scale)
                    .collect();
                self.write(b, p.x_stride, row, &x);
            }
            Op::Norm => {
                let p = params::Norm::of(words);
                let x = self.read(a, p.x_stride, row, (p.dim * p.groups) as usize);
                let y: Vec<f32> = x
                    .chunks(p.dim as usize)
                    .flat_map(|x| norm(x, self.weight(0), p.eps))
                    .collect();
                self.write(b, p.y_stride, row, &y);
            }
            Op::Matmul => {
                let p = params::Matmul::of(words);
                let x = self.read(a, p.x_stride, row, p.k as usize);
                self.write(b, p.y_stride, row, &multiply(self.weight(0), &x));
            }
            Op::MatmulAdd => {
                let p = params::MatmulAdd::of(words);
                let x = self.read(a, p.x_stride, row, p.k as usize);
                let y = self.read(b, p.y_stride, row, p.n as usize);
                self.write(b, p.y_stride, row, &add(&y, &multiply(self.weight(0), &x)));
            }
            Op::NormMatmul => {
                let p = params::NormMatmul::of(words);
                let x = norm(
                    &self.read(a, p.x_stride, row, p.k as usize),
                    self.weight(1),
                    p.eps,
                );
                self.write(b, p.y_stride, row, &multiply(self.weight(0), &x));
            }
            Op::NormMatmulActMul => {
                let p = params::NormMatmulActMul::of(words);
                let x = norm(
                    &self.read(a, p.x_stride, row, p.k as usize),
                    self.weight(1),
                    p.eps,
                );
                self.write(
                    b,
                    p.y_stride,
                    row,
                    &act_mul(p.act, &multiply(self.weight(0), &x)),
                );
            }
            Op::ActMul => {
                let p = params::ActMul::of(words);
                let x = self.read(a, p.x_stride, row, 2 * p.n as usize);
                self.write(b, p.y_stride, row, &act_mul(p.act, &x));
            }
            Op::Bias => {
                let p = params::Bias::of(words);
                let y = self.read(a, p.y_stride, row, p.n as usize);
                self.write(a, p.y_stride, row, &add(&y, self.weight(0).unwrap_or(&[])));
            }
            Op::Add => {
                let p = params::Add::of(words);
                let x = self.read(a, p.x_stride, row, p.n as usize);
                let y = self.read(b, p.y_stride, row, p.n as usize);
                self.write(b, p.y_stride, row, &add(&y, &x));
            }
            Op::Scale => {
                let p = params::Scale::of(words);
                let scale = |y: &f32| {
                    let y = y * p.scale;
                    if p.cap == 0.0 {
                        y
                    } else {
                        p.cap * (y / p.cap).tanh()
                    }
                };
                let y: Vec<f32> = self
                    .read(a, p.y_stride, row, p.n as usize)
                    .iter()
                    .map(scale)
                    .collect();
                self.write(a, p.y_stride, row, &y);
            }
            Op::Rope => {
                let p = params::Rope::of(words);
                let mut y = self.read(a, p.y_stride, row, (p.heads * p.head_dim) as usize);
                for head in y.chunks_mut(p.head_dim as usize) {
                    self.rope(&mut head[..p.rot as usize], row, p.interleaved, p.magnitude);
                }
                self.write(a, p.y_stride, row, &y);
            }
            Op::KvAppend => {
                let p = params::KvAppend::of(words);
                let dim = p.head_dim as usize;
                let k = self.read(a, p.k_stride, row, p.kv_heads as usize * dim);
                let v = self.read(b, p.v_stride, row, p.kv_heads as usize * dim);
                for head in 0..p.kv_heads as usize {
                    self.store(
                        c,
                        p.layer,
                        0,
                        head,
                        self.step.rows[row],
                        &k[head * dim..(head + 1) * dim],
                    );
                    self.store(
                        c,
                        p.layer,
                        1,
                        head,
                        self.step.rows[row],
                        &v[head * dim..(head + 1) * dim],
                    );
                }
            }
            Op::RopeAppend => {
                let p = params::RopeAppend::of(words);
                let (heads, kv_heads, dim) =
                    (p.heads as usize, p.kv_heads as usize, p.head_dim as usize);
                let mut qkv = self.read(a, p.qkv_stride, row, (heads + 2 * kv_heads) * dim);
                for (index, head) in qkv.chunks_mut(dim).take(heads + kv_heads).enumerate() {
                    let role = if index < heads { 1 } else { 2 };
                    if let Some(weight) = self.weight(role) {
                        head.copy_from_slice(&norm(head, Some(weight), p.eps));
                    }
                    self.rope(&mut head[..p.rot as usize], row, p.interleaved, p.magnitude);
                }
                self.write(a, p.qkv_stride, row, &qkv);
                for head in 0..kv_heads {
                    let k = (heads + head) * dim;
                    let v = (heads + kv_heads + head) * dim;
                    self.store(b, p.layer, 0, head, self.step.rows[row], &qkv[k..k + dim]);
                    self.store(b, p.layer, 1, head, self.step.rows[row], &qkv[v..v + dim]);
                }
            }
            Op::Attention => {
                let p = params::Attention::of(words);
                let q = self.read(a, p.q_stride, row, (p.heads * p.head_dim) as usize);
                let mut y = Vec::new();
                for (head, q) in q.chunks(p.head_dim as usize).enumerate() {
                    y.extend(self.attend(b, &p, row, head, q));
                }
                self.write(c, p.y_stride, row, &y);
            }
            Op::CopyLast => {
                let p = params::CopyLast::of(words);
                if row + 1 == self.live {
                    let x = self.read(a, p.x_stride, row, p.n as usize);
                    self.write(b, p.y_stride, 0, &x);
                }
            }
            Op::Route => {
                let p = params::Route::of(words);
                let x = self.read(a, p.x_stride, row, p.experts as usize);
                let choice = route(&x, p.used as usize, p.renormalise != 0, p.scale);
                self.write(b, p.y_stride, row, &choice);
            }
            Op::ExpertsActMul => {
                let p = params::ExpertsActMul::of(words);
                let x = self.read(a, p.x_stride, row, p.k as usize);
                let choice = self.read(b, p.choice_stride, row, 2 * p.used as usize);
                let each = 2 * p.n as usize * p.k as usize;
                let mut y = Vec::new();
                for id in &choice[..p.used as usize] {
                    let id = id.to_bits() as usize;
                    let gate_up = multiply(self.expert(0, id, each), &x);
                    let gate_up = biased(gate_up, self.expert(1, id, 2 * p.n as usize));
                    y.extend(act_mul(p.act, &gate_up));
                }
                self.write(c, p.y_stride, row, &y);
            }
            Op::ExpertsAdd => {
                let p = params::ExpertsAdd::of(words);
                let (k, used) = (p.k as usize, p.used as usize);
                let x = self.read(a, p.x_stride, row, used * k);
                let choice = self.read(b, p.choice_stride, row, 2 * used);
                let mut y = self.read(c, p.y_stride, row, p.n as usize);
                let (ids, shares) = choice.split_at(used);
                for ((id, share), x) in ids.iter().zip(shares).zip(x.chunks(k)) {
                    let (id, n) = (id.to_bits() as usize, p.n as usize);
                    let part = multiply(self.expert(0, id, n * k), x);
                    let part = biased(part, self.expert(1, id, n));
                    y.iter_mut().zip(part).for_each(|(y, v)| *y += share * v);
                }
                self.write(c, p.y_stride, row, &y);
            }
            Op::Sample => {}
        }
    }

    /// One expert's part of the command's weight `role`.
    fn expert(&self, role: usize, id: usize, values: usize) -> Option<&'w [f32]> {
        self.weight(role)?.get(id * values..(id + 1) * values)
    }

    fn rope(&self, y: &mut [f32], row: usize, interleaved: u32, magnitude: f32) {
        let half = y.len() / 2;
        let freqs = self.weight(0).unwrap_or(&[]);
        for (i, freq) in freqs.iter().enumerate().take(half) {
            let (first, second) = if interleaved != 0 {
                (2 * i, 2 * i + 1)
            } else {
                (i, i + half)
            };
            let angle = self.step.rows[row].position as f32 * freq;
            let (cos, sin) = (angle.cos() * magnitude, angle.sin() * magnitude);
            let (a, b) = (y[first], y[second]);
            y[first] = a * cos - b * sin;
            y[second] = a * sin + b * cos;
        }
    }

    /// Softmax over all positions that the row may see, then the weighted sum of the values.
    fn attend(
        &self,
        kv: BufferRef,
        p: &params::Attention,
        row: usize,
        head: usize,
        q: &[f32],
    ) -> Vec<f32> {
        let at = self.step.rows[row];
        let kv_head = head / (p.heads / p.kv_heads) as usize;
        let end = at.position as usize + 1;
        let first = if p.window == 0 {
            0
        } else {
            end.saturating_sub(p.window as usize)
        };
        let scores: Vec<f32> = (first..end)
            .map(|position| {
                let k = self.fetch(kv, p.layer, 0, kv_head, at, position);
                let score = dot(q, &k) * p.scale;
                if p.softcap == 0.0 {
                    score
                } else {
                    p.softcap * (score / p.softcap).tanh()
                }
            })
            .collect();
        let sink = self
            .weight(0)
            .map_or(f32::NEG_INFINITY, |sinks| sinks[head]);
        let largest = scores.iter().copied().fold(sink, f32::max);
        let weights: Vec<f32> = scores.iter().map(|s| (s - largest).exp()).collect();
        let sum = weights.iter().sum::<f32>() + (sink - largest).exp();
        let mut y = vec![0.0; q.len()];
        for (position, weight) in (first..end).zip(weights) {
            let v = self.fetch(kv, p.layer, 1, kv_head, at, position);
            y.iter_mut()
                .zip(v)
                .for_each(|(y, v)| *y += weight / sum * v);
        }
        y
    }
}

fn norm(x: &[f32], weight: Option<&[f32]>, eps: f32) -> Vec<f32> {
    let mean = x.iter().map(|v| v * v).sum::<f32>() / x.len() as f32;
    let scale = 1.0 / (mean + eps).sqrt();
    x.iter()
        .enumerate()
        .map(|(i, v)| v * scale * weight.map_or(1.0, |w| w[i]))
        .collect()
}

/// The numbers of the best experts, then their weights.
fn route(logits: &[f32], used: usize, renormalise: bool, scale: f32) -> Vec<f32> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exps: Vec<f32> = logits.iter().map(|x| (x - largest).exp()).collect();
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    order.truncate(used);
    let sum: f32 = match renormalise {
        true => order.iter().map(|&i| exps[i]).sum(),
        false => exps.iter().sum(),
    };
    let ids = order.iter().map(|&i| f32::from_bits(i as u32));
    let shares = order.iter().map(|&i| exps[i] / sum * scale);
    ids.chain(shares).collect()
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn multiply(matrix: Option<&[f32]>, x: &[f32]) -> Vec<f32> {
    matrix
        .unwrap_or(&[])
        .chunks(x.len())
        .map(|row| dot(row, x))
        .collect()
}

fn add(a: &[f32], b: &[f32]) -> Vec<f32> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

fn biased(values: Vec<f32>, bias: Option<&[f32]>) -> Vec<f32> {
    match bias {
        Some(bias) => add(&values, bias),
        None => values,
    }
}

fn activate(act: u32, x: f32) -> f32 {
    match act {
        0 => x / (1.0 + (-x).exp()),
        1 => 0.5 * x * (1.0 + (0.797_884_6 * (x + 0.044_715 * x * x * x)).tanh()),
        _ => 0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2)),
    }
}

fn act_mul(act: u32, x: &[f32]) -> Vec<f32> {
    let (gate, up) = x.split_at(x.len() / 2);
    gate.iter()
        .zip(up)
        .map(|(&g, &u)| match act {
            3 => {
                let g = g.min(7.0);
                g / (1.0 + (-1.702 * g).exp()) * (u.clamp(-7.0, 7.0) + 1.0)
            }
            _ => activate(act, g) * u,
        })
        .collect()
}
