//! What the device allocates besides the program's weights and buffers, known before anything is allocated.

use crate::lower::{logits, missing, pages_per_sequence, sample_command};
use crate::{Error, GpuInfo, ops};
use welte_table::{Class, Format, Program, Row, Shape};

/// Bytes of the step state before its rows.
pub(crate) const STEP_HEAD: usize = 32;

fn refuse(problem: impl Into<String>) -> Error {
    Error::Program(problem.into())
}

/// What must hold of a program before anything is allocated for it.
pub(crate) fn check(program: &Program) -> Result<(), Error> {
    welte_table::verify(program).map_err(Error::Program)?;
    if let Some(what) = missing(program) {
        return Err(refuse(format!("it has no kernel for {what}")));
    }
    let kv = &program.kv;
    if !matches!(kv.format, Format::F16 | Format::Q8_0) {
        return Err(refuse(format!(
            "a KV cache in {} is not supported; use F16 or Q8_0",
            kv.format.name()
        )));
    }
    let caches: Vec<_> = program
        .buffers
        .iter()
        .filter(|b| b.class == Class::Kv)
        .collect();
    let [cache] = caches[..] else {
        return Err(refuse("it must have one KV buffer"));
    };
    match kv.bytes() {
        None => {
            return Err(refuse(format!(
                "heads of {} elements are no whole number of {} blocks; use an F16 KV cache",
                kv.head_dim,
                kv.format.name()
            )));
        }
        Some(needed) if needed > cache.bytes => {
            return Err(refuse(format!(
                "its KV buffer of {} bytes is too small for its layout",
                cache.bytes
            )));
        }
        Some(_) => {}
    }
    if kv.page == 0 || kv.context == 0 || kv.sequences == 0 {
        return Err(refuse("the KV cache has no pages, sequences or context"));
    }
    let needed = u64::from(pages_per_sequence(program)) * u64::from(kv.sequences);
    if needed > u64::from(kv.pages) {
        return Err(refuse(format!(
            "{} KV pages; {needed} are needed for every sequence",
            kv.pages
        )));
    }
    let tokens = program.buffers.get(program.tokens as usize);
    if tokens.is_none_or(|b| b.bytes < 8) {
        return Err(refuse("the conveyor must hold 2 tokens"));
    }
    Ok(())
}

/// Sizes of what the device needs besides the program's weights and buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) scratch: u64,
    pub(crate) counters: u64,
    pub(crate) step: u64,
    pub(crate) pages: u64,
    pub(crate) sampler: u64,
    /// What the persistent kernel needs, and what that for several rows does.
    pub(crate) persistent: [u64; 2],
    /// The most rows of any table.
    pub(crate) rows: u32,
    /// The most rows of logits that a step gives.
    pub(crate) logits_rows: u32,
}

impl Sizes {
    /// `persistent`: what the persistent kernels need.
    pub(crate) fn of(program: &Program, gpu: &GpuInfo, persistent: [u64; 2]) -> Sizes {
        let most = |f: fn(&Shape) -> u32| program.tables.iter().map(|t| f(&t.shape)).max();
        let rows = most(|s| s.rows()).unwrap_or(1).max(1);
        let batch = |s: &Shape| if let Shape::Batch(n) = s { *n } else { 1 };
        let (mut scratch, mut counters) = (0, 0);
        for table in &program.tables {
            let extra = logits(table)
                .ok()
                .map(|at| (sample_command(program, at), 1));
            let own = table
                .commands
                .iter()
                .enumerate()
                .map(|(index, command)| (*command, table.rows_at(index)));
            for (command, rows) in own.chain(extra) {
                scratch = ops::scratch(program, &command, rows, gpu).max(scratch);
                counters = ops::counters(program, &command, rows, gpu).max(counters);
            }
        }
        Sizes {
            scratch,
            counters,
            step: (STEP_HEAD + rows as usize * size_of::<Row>()) as u64,
            pages: u64::from(pages_per_sequence(program)) * u64::from(program.kv.sequences) * 4,
            sampler: ops::sample::region_bytes(program),
            persistent,
            rows,
            logits_rows: most(batch).unwrap_or(1),
        }
    }

    /// Everything that a session allocates on the GPU.
    pub(crate) fn session_bytes(&self, program: &Program) -> u64 {
        let own = program.buffers.iter().map(|b| b.bytes);
        let extra = self.entries().map(|(_, _, bytes)| bytes);
        own.chain(extra).fold(0, u64::saturating_add)
    }

    /// Name, class and bytes of each block.
    pub(crate) fn entries(&self) -> [(&'static str, Class, u64); 7] {
        let prompt = if self.rows > 1 {
            Class::ScratchPrefill
        } else {
            Class::ScratchDecode
        };
        [
            ("scratch of one command", prompt, self.scratch),
            ("counters", Class::Tables, self.counters),
            ("step state", Class::Tables, self.step),
            ("page table", Class::Tables, self.pages),
            ("sampling state", Class::Tables, self.sampler),
            ("persistent replay", Class::Tables, self.persistent[0]),
            (
                "persistent replay of rows",
                Class::Tables,
                self.persistent[1],
            ),
        ]
    }
}
