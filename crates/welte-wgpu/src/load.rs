//! Weights on the GPU.

use crate::gpu::{COMMAND_BYTES, Gpu, binding};
use crate::kernels::cooperative;
use crate::launch::{of_matrix, plane};
use crate::layout::{RowRange, Stored, together};
use crate::needs::{power_bytes, powers_of, rounded_weights};
use std::collections::VecDeque;
use std::sync::Arc;
use welte_device::{Error, Progress};
use welte_formats::{Checkpoint, WeightRows};
use welte_table::{Program, WeightSpec};
use wgpu::{
    Buffer, BufferUsages, CommandEncoder, CommandEncoderDescriptor, ComputePassDescriptor,
    SubmissionIndex,
};

/// Bytes that are written before a submission. The driver holds those of all that are in flight in memory of its own.
const AT_ONCE: u64 = 32 << 20;

/// Submissions in flight before the oldest is waited for.
const MOST_FLYING: usize = 4;

/// A weight: a buffer for each of its pieces.
pub(crate) struct Weight {
    pub(crate) pieces: Vec<(RowRange, Buffer)>,
    /// By piece, for products on cooperative matrices: the power of two of each row.
    pub(crate) powers: Vec<Buffer>,
}

/// A program's weights on a GPU; contexts share them.
pub(crate) struct Weights {
    pub(crate) gpu: Arc<Gpu>,
    pub(crate) program: Arc<Program>,
    pub(crate) weights: Vec<Weight>,
    pub(crate) bytes: u64,
}

impl Weights {
    pub(crate) fn load(
        gpu: Arc<Gpu>,
        program: Arc<Program>,
        checkpoint: &dyn Checkpoint,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Weights, Error> {
        let stored: Vec<Stored> = (0..)
            .zip(&program.weights)
            .map(|(id, spec)| Stored::of(spec, together(&program, id), gpu.binding))
            .collect();
        let rounded = rounded_weights(&program, &gpu);
        let total = stored.iter().map(Stored::bytes).sum::<u64>() + power_bytes(&program, &rounded);
        let mut upload = Upload {
            gpu: &gpu,
            checkpoint,
            waiting: 0,
            flying: VecDeque::with_capacity(MOST_FLYING + 1),
            done: 0,
            total,
            progress,
        };
        (upload.progress)(Progress::Weights { done: 0, total });
        let mut weights = Vec::with_capacity(stored.len());
        for (spec, stored) in program.weights.iter().zip(&stored) {
            weights.push(upload.weight(spec, stored)?);
        }
        for id in &rounded {
            let spec = &program.weights[*id as usize];
            let weight = &mut weights[*id as usize];
            weight.powers = upload.powers(spec, &weight.pieces)?;
        }
        upload.finish()?;
        Ok(Weights {
            weights,
            bytes: total,
            gpu,
            program,
        })
    }
}

struct Upload<'a> {
    gpu: &'a Gpu,
    checkpoint: &'a dyn Checkpoint,
    /// Bytes that were written since the last submission.
    waiting: u64,
    /// The oldest first.
    flying: VecDeque<SubmissionIndex>,
    done: u64,
    total: u64,
    progress: &'a mut dyn FnMut(Progress),
}

impl Upload<'_> {
    fn weight(&mut self, spec: &WeightSpec, stored: &Stored) -> Result<Weight, Error> {
        let rows = WeightRows {
            spec,
            checkpoint: self.checkpoint,
        };
        let mut pieces = Vec::new();
        for piece in &stored.pieces {
            let bytes = u64::from(piece.rows) * stored.row;
            let usage = BufferUsages::STORAGE | BufferUsages::COPY_DST;
            let buffer = self.gpu.buffer(&spec.name, bytes.max(16), usage)?;
            pieces.push((*piece, buffer));
        }
        match &stored.layout {
            None => {
                let values = rows.values()?;
                let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_ne_bytes()).collect();
                self.write(&pieces[0].1, 0, &bytes)?;
            }
            Some(layout) => {
                for (piece, buffer) in &pieces {
                    let (k, row) = (spec.k as usize, stored.row as usize);
                    let most = (AT_ONCE as usize / row).max(1);
                    let last = (piece.first + piece.rows) as usize;
                    let mut first = piece.first as usize;
                    while first < last {
                        let count = most.min(last - first);
                        let mut out = vec![0; count * row];
                        let encoded = rows.encoded(first, count)?;
                        let width = spec.format.bytes(k).unwrap_or(1);
                        let encoded = encoded.iter().flat_map(|part| part.chunks_exact(width));
                        for (from, to) in encoded.zip(out.chunks_exact_mut(row)) {
                            layout.store(spec.format, k, from, to);
                        }
                        let at = (first - piece.first as usize) * row;
                        self.write(buffer, at as u64, &out)?;
                        first += count;
                    }
                }
            }
        }
        Ok(Weight {
            pieces,
            powers: Vec::new(),
        })
    }

    /// The powers of two that bring a matrix's rows into the range of F16, for each of its pieces.
    fn powers(
        &mut self,
        spec: &WeightSpec,
        pieces: &[(RowRange, Buffer)],
    ) -> Result<Vec<Buffer>, Error> {
        let gpu = self.gpu;
        let pipeline = gpu.pipeline(&cooperative::row_powers(spec.format))?;
        let mut encoder = self.encoder();
        let mut all = Vec::new();
        for (piece, weights) in pieces {
            let powers = gpu.buffer(&spec.name, powers_of(piece.rows), BufferUsages::STORAGE)?;
            let usage = BufferUsages::UNIFORM | BufferUsages::COPY_DST;
            let command = gpu.buffer("a command", COMMAND_BYTES, usage)?;
            let parameters = of_matrix(piece.rows, spec.k);
            gpu.queue.write_buffer(&command, 0, &parameters);
            let bind = gpu.bind(&[
                (binding::MEM, powers.as_entire_binding()),
                (binding::COMMAND, command.as_entire_binding()),
                (binding::WEIGHTS, weights.as_entire_binding()),
                (binding::WEIGHT4, weights.as_entire_binding()),
            ]);
            let mut pass = encoder.begin_compute_pass(&ComputePassDescriptor::default());
            pass.set_pipeline(&pipeline);
            pass.set_bind_group(0, &bind, &[]);
            let [x, y] = plane(piece.rows);
            pass.dispatch_workgroups(x, y, 1);
            drop(pass);
            all.push(powers);
        }
        self.submit(encoder)?;
        self.advance(powers_of(spec.n));
        Ok(all)
    }

    fn write(&mut self, buffer: &Buffer, at: u64, bytes: &[u8]) -> Result<(), Error> {
        self.gpu.queue.write_buffer(buffer, at, bytes);
        let bytes = bytes.len() as u64;
        self.waiting += bytes;
        if self.waiting >= AT_ONCE {
            self.submit(self.encoder())?;
        }
        self.advance(bytes);
        Ok(())
    }

    fn advance(&mut self, bytes: u64) {
        self.done += bytes;
        let (done, total) = (self.done, self.total);
        (self.progress)(Progress::Weights { done, total });
    }

    fn encoder(&self) -> CommandEncoder {
        let descriptor = CommandEncoderDescriptor::default();
        self.gpu.device.create_command_encoder(&descriptor)
    }

    /// Submits what was recorded, after what was written. Waits only if enough is in flight.
    fn submit(&mut self, encoder: CommandEncoder) -> Result<(), Error> {
        self.waiting = 0;
        self.flying.push_back(self.gpu.submit(encoder));
        if self.flying.len() > MOST_FLYING {
            self.wait()
        } else {
            Ok(())
        }
    }

    /// Waits for the oldest submission.
    fn wait(&mut self) -> Result<(), Error> {
        match self.flying.pop_front() {
            Some(index) => self.gpu.wait(index),
            None => self.gpu.check(),
        }
    }

    fn finish(mut self) -> Result<(), Error> {
        self.submit(self.encoder())?;
        while !self.flying.is_empty() {
            self.wait()?;
        }
        Ok(())
    }
}
