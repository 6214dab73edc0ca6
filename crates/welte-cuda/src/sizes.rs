//! Sizes of the device's allocations besides weights and the program's buffers.

use crate::arithmetic::Arithmetic;
use crate::ops::adapters::TeamLists;
use crate::ops::encode::TileLists;
use crate::ops::exchange::Inbox;
use crate::ops::need::MemoryNeed;
use crate::{GpuInfo, ops};
use welte_table::{CacheSpec, Class, Pass, PassKind, Program};

/// Bytes of `Step` (`common.cuh`) before its rows.
pub(crate) const STEP_HEAD: usize = 32;
/// Bytes of a `Row`: token, position, slot, reach, three axes, feature.
pub(crate) const ROW_BYTES: usize = 32;
/// Bytes of a `RowState`.
pub(crate) const STATE_BYTES: usize = 16;

/// The `RowState` of a row that may make `left` tokens. Rows number theirs in turn, after `serial`.
pub(crate) fn state_of(serial: u32, row: u32, left: u32) -> [u32; 4] {
    [serial.wrapping_add(1 + row), left, 0, 0]
}

/// Bytes of each block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    scratch: u64,
    counters: u64,
    /// The `Step` of output rows with the numbers of chosen rows; of the decode pass, the order of its rows and a `RowState` for each;
    /// then the `Step` of input rows.
    pub(crate) step: u64,
    /// Offsets of the second, third and fourth part.
    pub(crate) order: u64,
    pub(crate) states: u64,
    pub(crate) step_rows: u64,
    /// Tiles of an encoder's texts (`ops::encode`).
    text_tiles: u64,
    /// Teams of rows with adapters (`ops::adapters`).
    teams: u64,
    page_tables: u64,
    samplers: u64,
    /// Of a rank: its inbox and what belongs to it.
    pub(crate) inbox: Inbox,
    persistent: [u64; 2],
    /// The most bytes of a step's output.
    pub(crate) outputs: u64,
}

impl Sizes {
    /// `decode`: the arithmetic of decode passes. `float8`: whether FP8 weights are multiplied with activations in FP8. `persistent`: bytes of
    /// the persistent kernels, for chains and for steps of several rows. `inbox`: of a rank.
    pub(crate) fn of(
        program: &Program,
        gpu: &GpuInfo,
        decode: Arithmetic,
        float8: bool,
        persistent: [u64; 2],
        inbox: Inbox,
    ) -> Sizes {
        let (mut scratch, mut counters) = (0, 0);
        for pass in &program.passes {
            let any = Arithmetic::of(pass.kind, decode);
            let few = ops::few_rows(pass, decode);
            for (index, command) in pass.commands.iter().enumerate() {
                let all = [(1, any), (ops::rows_of(pass, index), any)];
                for (rows, arithmetic) in few.iter().copied().chain(all) {
                    #[rustfmt::skip]
                    let need = MemoryNeed { program, gpu, arithmetic, rows, float8 };
                    scratch = ops::scratch(&need, command).max(scratch);
                    counters = ops::counters(&need, command).max(counters);
                }
            }
        }
        let most = |f: fn(&Pass) -> u64| program.passes.iter().map(f).max();
        let chosen = 4 * most(|pass| pass.outputs.into()).unwrap_or(0);
        let order = (STEP_HEAD as u64 + chosen).next_multiple_of(16);
        let decode = program.pass(PassKind::Decode).map(|at| &program.passes[at]);
        let decode_rows = decode.map_or(0, |pass| pass.rows.into());
        let states = (order + 4 * decode_rows).next_multiple_of(16);
        let step_rows = (states + STATE_BYTES as u64 * decode_rows).next_multiple_of(16);
        let rows = u64::from(program.most_rows()) * ROW_BYTES as u64;
        let entries = |cache: &CacheSpec| u64::from(cache.entries(program));
        let entries: u64 = program.caches.iter().map(entries).sum();
        Sizes {
            scratch,
            counters,
            step: step_rows + STEP_HEAD as u64 + rows,
            order,
            states,
            step_rows,
            text_tiles: 4 * TileLists::of(program).words() as u64,
            teams: 4 * TeamLists::of(program).words() as u64,
            page_tables: 4 * entries * u64::from(program.slots),
            samplers: ops::sample::region_bytes(program) * u64::from(program.slots),
            inbox,
            persistent,
            outputs: 4 * most(|pass| u64::from(pass.outputs) * u64::from(pass.width)).unwrap_or(0),
        }
    }

    /// Everything that a context allocates on the GPU.
    pub(crate) fn context_bytes(&self, program: &Program) -> u64 {
        let own = program.buffers.iter().map(|b| b.bytes);
        let extra = self.entries().map(|(_, _, bytes)| bytes);
        own.chain(extra).fold(0, u64::saturating_add)
    }

    /// Name, class and bytes of each block.
    pub(crate) fn entries(&self) -> [(&'static str, Class, u64); 10] {
        let [one, several] = self.persistent;
        [
            ("scratch of one command", Class::ScratchPrompt, self.scratch),
            ("counters", Class::Tables, self.counters),
            ("step state", Class::Tables, self.step),
            ("tiles of texts", Class::Tables, self.text_tiles),
            ("teams of adapters", Class::Tables, self.teams),
            ("page tables", Class::Tables, self.page_tables),
            ("sampling state", Class::Tables, self.samplers),
            (
                "exchange between ranks",
                Class::Tables,
                self.inbox.layout()[2],
            ),
            ("persistent replay", Class::Tables, one),
            ("persistent replay of rows", Class::Tables, several),
        ]
    }
}
