//! Low-rank parts of products.

use crate::math::dot;
use crate::ops::Execution;
use welte_device::SlotAdapter;
use welte_formats::quant;
use welte_table::{Bank, BufferRef, Format, params};

/// What one adapter adds to one tensor.
struct Set {
    /// `rank` rows of A.
    a: Vec<f32>,
    rank: usize,
    scale: f32,
}

impl Execution<'_> {
    /// The adapter of the slot of an input row, or of an output row after rows were chosen.
    fn adapter(&self, row: usize) -> Option<SlotAdapter> {
        let row = if self.on_outputs {
            self.outputs[row] as usize
        } else {
            row
        };
        self.adapters[self.rows[row].slot as usize]
    }

    fn bank(&self) -> Bank {
        Bank::of(self.command).expect("verified: the command has a bank")
    }

    /// F16 values of an adapter's place, from a byte on.
    fn halves(&self, bank: BufferRef, adapter: SlotAdapter, at: u64, count: usize) -> Vec<f32> {
        let bytes = self.place(bank, adapter);
        let mut values = vec![0.0; count];
        quant::decode(Format::F16, &bytes[at as usize..][..2 * count], &mut values);
        values
    }

    fn place(&self, bank: BufferRef, adapter: SlotAdapter) -> &[u8] {
        let bytes = self.bank().place_bytes().unwrap_or(0) as usize;
        &self.memory.buffers[bank.buffer as usize][adapter.place as usize * bytes..][..bytes]
    }

    /// The rank and scale of a set.
    fn head(&self, bank: BufferRef, adapter: SlotAdapter, set: usize) -> (usize, f32) {
        let (words, _) = self.place(bank, adapter).as_chunks::<4>();
        let rank = u32::from_ne_bytes(words[2 * set]) as usize;
        (rank, f32::from_ne_bytes(words[2 * set + 1]) * adapter.scale)
    }

    fn set(&self, bank: BufferRef, adapter: SlotAdapter, set: usize) -> Set {
        let shape = self.bank();
        let (rank, scale) = self.head(bank, adapter, set);
        let at = shape.head_bytes() + set as u64 * shape.a_bytes();
        Set {
            a: self.halves(bank, adapter, at, rank * shape.k as usize),
            rank,
            scale,
        }
    }

    /// The low-rank values of all parts of an expert's matrix.
    fn down(&self, bank: BufferRef, row: usize, expert: usize, x: &[f32]) -> Vec<f32> {
        let shape = self.bank();
        let (parts, rank) = (shape.parts as usize, shape.rank as usize);
        let mut h = vec![0.0; parts * rank];
        let Some(adapter) = self.adapter(row) else {
            return h;
        };
        for (part, h) in h.chunks_mut(rank).enumerate() {
            let set = self.set(bank, adapter, expert * parts + part);
            for (h, a) in h.iter_mut().zip(set.a.chunks(shape.k as usize)) {
                *h = set.scale * dot(a, x);
            }
            debug_assert!(set.rank <= rank);
        }
        h
    }

    /// Adds `factor * B h` of an expert to `y`.
    fn up(
        &self,
        bank: BufferRef,
        row: usize,
        expert: usize,
        h: &[f32],
        factor: f32,
        y: &mut [f32],
    ) {
        let shape = self.bank();
        let (parts, rank) = (shape.parts as usize, shape.rank as usize);
        let Some(adapter) = self.adapter(row) else {
            return;
        };
        let at = shape.b_at(expert as u32);
        let b = self.halves(bank, adapter, at, shape.n as usize * rank);
        for (i, (y, b)) in y.iter_mut().zip(b.chunks(rank)).enumerate() {
            let part = self.weight(0).map_or(0, |parts| parts[i] as usize);
            let (own, _) = self.head(bank, adapter, expert * parts + part);
            if own > 0 {
                *y += factor * dot(&b[..own], &h[part * rank..][..own]);
            }
        }
    }

    pub(crate) fn adapt_down(&mut self, row: usize) {
        let [x, bank, h, _] = self.command.buffers;
        let p = params::AdaptDown::of(&self.command.params);
        let x = self.read(x, p.x_stride, row, p.k);
        let values = self.down(bank, row, 0, &x);
        self.write(h, p.h_stride, row, &values);
    }

    pub(crate) fn adapt_lookup(&mut self, row: usize) {
        let [tokens, bank, h, _] = self.command.buffers;
        let p = params::AdaptLookup::of(&self.command.params);
        let mut values = vec![0.0; p.rank as usize];
        let reads_token = self.rows[row].input.feature().is_none();
        if let Some(adapter) = self.adapter(row).filter(|_| reads_token) {
            let token = self.read(tokens, 1, row, 1)[0].to_bits();
            let (rank, scale) = self.head(bank, adapter, 0);
            let at = self.bank().head_bytes() + 2 * u64::from(token) * u64::from(p.rank);
            let a = self.halves(bank, adapter, at, rank);
            let pairs = values.iter_mut().zip(a);
            pairs.for_each(|(value, a)| *value = scale * p.scale * a);
        }
        self.write(h, p.h_stride, row, &values);
    }

    pub(crate) fn adapt_up(&mut self, row: usize) {
        let [h, bank, y, _] = self.command.buffers;
        let p = params::AdaptUp::of(&self.command.params);
        let h = self.read(h, p.h_stride, row, p.parts * p.rank);
        let mut values = self.read(y, p.y_stride, row, p.n);
        self.up(bank, row, 0, &h, 1.0, &mut values);
        self.write(y, p.y_stride, row, &values);
    }

    pub(crate) fn adapt_experts_down(&mut self, row: usize) {
        let [x, choice, bank, h] = self.command.buffers;
        let p = params::AdaptExpertsDown::of(&self.command.params);
        let width = if p.own == 1 { p.used * p.k } else { p.k };
        let x = self.read(x, p.x_stride, row, width);
        let choice = self.read(choice, p.choice_stride, row, p.used);
        let mut values = Vec::new();
        for (which, id) in choice.iter().enumerate() {
            let from = if p.own == 1 { which * p.k as usize } else { 0 };
            let x = &x[from..][..p.k as usize];
            values.extend(self.down(bank, row, id.to_bits() as usize, x));
        }
        self.write(h, p.h_stride, row, &values);
    }

    pub(crate) fn adapt_experts_up(&mut self, row: usize) {
        let [h, choice, bank, y] = self.command.buffers;
        let p = params::AdaptExpertsUp::of(&self.command.params);
        let (used, n) = (p.used as usize, p.n as usize);
        let low = (p.parts * p.rank) as usize;
        let h = self.read(h, p.h_stride, row, p.used * p.parts * p.rank);
        let choice = self.read(choice, p.choice_stride, row, 2 * p.used);
        let width = if p.sum == 1 { p.n } else { p.used * p.n };
        let mut values = self.read(y, p.y_stride, row, width);
        for (which, h) in h.chunks(low).enumerate() {
            let (from, factor) = match p.sum {
                1 => (0, choice[used + which]),
                _ => (which * n, 1.0),
            };
            let expert = choice[which].to_bits() as usize;
            self.up(bank, row, expert, h, factor, &mut values[from..from + n]);
        }
        self.write(y, p.y_stride, row, &values);
    }
}
