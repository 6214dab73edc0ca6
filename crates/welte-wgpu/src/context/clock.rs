//! The GPU's own clock, for profiles: a time before and after each command.

use crate::gpu::Gpu;
use welte_device::Error;
use wgpu::{
    Buffer, BufferUsages, CommandEncoder, ComputePassTimestampWrites, Features, QuerySet,
    QuerySetDescriptor, QueryType,
};

/// Bytes of a time.
const TIME: u64 = 8;

pub(super) struct Clock {
    times: QuerySet,
    /// The times of a step, on the GPU and for the host.
    resolved: Buffer,
    read: Buffer,
}

impl Clock {
    /// A clock for a number of commands. `None` if the GPU has none, or too small a one.
    pub(super) fn new(gpu: &Gpu, commands: usize) -> Result<Option<Clock>, Error> {
        let count = 2 * commands as u32;
        let has = gpu.device.features().contains(Features::TIMESTAMP_QUERY);
        if !has || count == 0 || count > wgpu::QUERY_SET_MAX_QUERIES {
            return Ok(None);
        }
        let bytes = TIME * u64::from(count);
        let resolves = BufferUsages::QUERY_RESOLVE | BufferUsages::COPY_SRC;
        let reads = BufferUsages::MAP_READ | BufferUsages::COPY_DST;
        Ok(Some(Clock {
            times: gpu.device.create_query_set(&QuerySetDescriptor {
                label: None,
                ty: QueryType::Timestamp,
                count,
            }),
            resolved: gpu.buffer("times", bytes, resolves)?,
            read: gpu.buffer("times on the host", bytes, reads)?,
        }))
    }

    /// What measures the nth command.
    pub(super) fn of(&self, nth: usize) -> ComputePassTimestampWrites<'_> {
        let first = 2 * nth as u32;
        ComputePassTimestampWrites {
            query_set: &self.times,
            beginning_of_pass_write_index: Some(first),
            end_of_pass_write_index: Some(first + 1),
        }
    }

    /// Submits a number of commands. Begin and end of each, in nanoseconds from the first begin on.
    pub(super) fn submit(
        &self,
        gpu: &Gpu,
        mut encoder: CommandEncoder,
        commands: usize,
    ) -> Result<Vec<(u64, u64)>, Error> {
        let bytes = 2 * TIME * commands as u64;
        encoder.resolve_query_set(&self.times, 0..2 * commands as u32, &self.resolved, 0);
        encoder.copy_buffer_to_buffer(&self.resolved, 0, &self.read, 0, bytes);
        let index = gpu.submit(encoder);
        let period = f64::from(gpu.queue.get_timestamp_period());
        gpu.mapped(&self.read, bytes, index, |bytes| {
            let (words, _) = bytes.as_chunks::<8>();
            let first = words.first().map_or(0, |word| u64::from_ne_bytes(*word));
            let since = |word: &[u8; 8]| {
                let ticks = u64::from_ne_bytes(*word).saturating_sub(first);
                (ticks as f64 * period) as u64
            };
            let pairs = words.as_chunks::<2>().0.iter();
            pairs
                .map(|[begin, end]| (since(begin), since(end)))
                .collect()
        })
    }
}
