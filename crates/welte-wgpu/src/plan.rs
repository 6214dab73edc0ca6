//! Everything that a program and a context of it allocate, known before anything is.

use crate::gpu::{COMMAND_BYTES, Gpu};
use crate::kernels::{self, MOST_EXPERTS};
use crate::layout::{Stored, together};
use crate::needs::{most_launches, power_bytes, prepared, rounded_weights, scratch};
use welte_device::{HostScratch, HostSlot, MaskBoard};
use welte_table::{CacheKind, Class, Command, MemoryPlan, Op, Pass, PassKind, Program, params};

/// Steps of a chain that may be in flight.
pub(crate) const IN_FLIGHT: usize = 3;
/// Words of the step state before its rows.
pub(crate) const STATE_HEAD: usize = 4;
/// Words of a row: `ROW` of `common.wgsl`.
pub(crate) const ROW_WORDS: usize = 8;

/// Where buffers lie, and the sizes of what a context has besides.
pub(crate) struct Sizes {
    /// By buffer: its place in the arena; `None` for a cache or a bank of adapters.
    pub(crate) places: Vec<Option<u64>>,
    /// By buffer: bytes of a cache or a bank, whole words.
    pub(crate) caches: Vec<u64>,
    pub(crate) arena: u64,
    /// Where a page on its way from one place to another lies in the arena, and its room.
    pub(crate) passage: u64,
    /// Where intermediates of one command lie in the arena.
    pub(crate) scratch: u64,
    /// By cache: where its page lists begin, in words.
    pub(crate) lists: Vec<u32>,
    pub(crate) pages: u64,
    /// Rows that products of several rows read, as `prepare.wgsl` leaves them.
    pub(crate) prepared: u64,
    pub(crate) state: u64,
    /// Where the histories of all slots begin in the step state, in words.
    pub(crate) histories: u32,
    /// By pass: bytes of the commands' parameters.
    pub(crate) commands: Vec<u64>,
    /// What is read back at once.
    pub(crate) staging: u64,
    /// A step's tokens.
    pub(crate) tokens: u64,
    /// Settings of sampling on the GPU.
    pub(crate) settings: u64,
    /// What choices on the host take.
    pub(crate) samplers: u64,
}

impl Sizes {
    pub(crate) fn of(program: &Program, gpu: &Gpu) -> Sizes {
        let (binding, matrices) = (gpu.binding, gpu.cooperative.is_some());
        let mut places = Vec::new();
        let mut caches = Vec::new();
        let mut arena = 0u64;
        for (id, spec) in program.buffers.iter().enumerate() {
            let apart = spec.class == Class::Adapters
                || program.caches.iter().any(|c| c.buffer == id as u32);
            places.push((!apart).then_some(arena));
            caches.push(if apart { words(spec.bytes) } else { 0 });
            if !apart {
                arena = arena.saturating_add(aligned(spec.bytes));
            }
        }
        let passage = arena;
        let runs = program.caches.iter().filter_map(|c| {
            let runs = c.page_runs(program.page, 0)?;
            Some(aligned(runs.bytes))
        });
        arena += runs.max().unwrap_or(0).max(COMMAND_BYTES);
        let scratch_at = arena;
        let used = program.passes.iter().flat_map(|pass| {
            let decodes = pass.kind == PassKind::Decode;
            let commands = pass.commands.iter().enumerate();
            commands.map(move |(i, c)| scratch(program, c, decodes, pass.rows_at(i), matrices))
        });
        arena = arena.saturating_add(aligned(used.max().unwrap_or(0)));
        let prepared_rows = program.passes.iter().flat_map(|pass| {
            let from = match pass.kind {
                PassKind::Decode => 0,
                _ => pass.outputs_from().unwrap_or(pass.commands.len()),
            };
            let commands = pass.commands.iter().enumerate();
            commands.map(move |(i, c)| prepared(c, gpu, i >= from, pass.rows_at(i)))
        });
        let mut lists = Vec::new();
        let mut pages = 0;
        for cache in &program.caches {
            lists.push(pages);
            pages += cache.entries(program) * program.slots;
        }
        let rows = program.most_rows() as usize;
        let launches = |command: &Command| {
            let weight = command.weights[0];
            let pieces = match program.weights.get(weight as usize) {
                Some(spec) => Stored::of(spec, together(program, weight), binding)
                    .pieces
                    .len(),
                None => 1,
            };
            most_launches(command.op, pieces)
        };
        let commands = program.passes.iter().map(|pass| {
            let launches = pass.commands.iter().map(launches);
            launches.sum::<usize>() as u64 * COMMAND_BYTES
        });
        let results = program.passes.iter();
        let results = results.map(|pass| 4 * u64::from(pass.outputs) * u64::from(pass.width));
        let slots = program.slots as usize;
        let (vocab, context) = (program.vocab as usize, program.context as usize);
        let on_host = slots * HostSlot::bytes(vocab, context)
            + HostScratch::bytes(vocab, context)
            + MaskBoard::words(slots, vocab) * 4;
        Sizes {
            places,
            caches,
            arena,
            passage,
            scratch: scratch_at,
            lists,
            pages: 4 * u64::from(pages).max(4),
            prepared: prepared_rows.max().unwrap_or(0).max(COMMAND_BYTES),
            state: 4 * (STATE_HEAD + (ROW_WORDS + 1) * rows + slots * (context + 2)) as u64,
            histories: (STATE_HEAD + (ROW_WORDS + 1) * rows) as u32,
            commands: commands.collect(),
            staging: results.max().unwrap_or(0).max(1 << 18),
            tokens: 4 * u64::from(program.passes.first().map_or(1, |pass| pass.rows)).max(4),
            settings: 4 * u64::from(kernels::SETTINGS) * slots as u64,
            samplers: on_host as u64,
        }
    }

    /// What a context allocates besides the program's buffers, by name.
    pub(crate) fn entries(&self, program: &Program) -> [(&'static str, Class, u64); 7] {
        let given: u64 = program.buffers.iter().map(|b| b.bytes).sum();
        let taken = self.arena + self.caches.iter().sum::<u64>();
        let commands: u64 = self.commands.iter().sum();
        let reading = self.staging + self.tokens * IN_FLIGHT as u64;
        [
            ("alignment", Class::Tables, taken.saturating_sub(given)),
            ("prepared rows", Class::Tables, self.prepared),
            ("page lists", Class::Tables, self.pages),
            ("step state", Class::Tables, self.state),
            ("commands", Class::Tables, commands),
            ("results on the host", Class::Tables, reading),
            ("samplers", Class::Tables, self.samplers + self.settings),
        ]
    }
}

/// Everything that a program takes.
pub(crate) fn memory(program: &Program, gpu: &Gpu) -> MemoryPlan {
    let bytes: Vec<u64> = (0..program.weights.len())
        .map(|id| {
            let together = together(program, id as u32);
            Stored::of(&program.weights[id], together, gpu.binding).bytes()
        })
        .collect();
    let mut plan = MemoryPlan::of(program, &|_| 0);
    let rounded = rounded_weights(program, gpu);
    plan.entries[0].bytes = bytes.iter().sum::<u64>() + power_bytes(program, &rounded);
    for (name, class, bytes) in Sizes::of(program, gpu).entries(program) {
        plan.add(name, class, bytes);
    }
    plan
}

/// What the program needs that the GPU lacks, in words.
pub(crate) fn missing(program: &Program, gpu: &Gpu) -> Option<String> {
    let human = welte_table::human;
    if program.passes.iter().any(Pass::is_middle) {
        return Some("the middle of a pass by itself".to_string());
    }
    let mut commands = program.passes.iter().flat_map(|pass| &pass.commands);
    if commands.any(|c| c.op == Op::Exchange) {
        return Some("ranks".to_string());
    }
    let banks = program
        .buffers
        .iter()
        .filter(|b| b.class == Class::Adapters);
    if let Some(bank) = banks
        .max_by_key(|b| b.bytes)
        .filter(|b| b.bytes > gpu.binding)
    {
        return Some(format!(
            "'{}' of {}; this GPU binds at most {} (fewer --max-adapters or a lower --max-rank need less)",
            bank.name,
            human(bank.bytes),
            human(gpu.binding)
        ));
    }
    let sizes = Sizes::of(program, gpu);
    let largest = sizes.arena.max(sizes.prepared);
    if largest > gpu.binding {
        return Some(format!(
            "intermediates of {}; this GPU binds at most {} (fewer prompt rows need less)",
            human(largest),
            human(gpu.binding)
        ));
    }
    let most = gpu.device.limits().max_buffer_size;
    for cache in &program.caches {
        let bytes = sizes.caches[cache.buffer as usize];
        let layers = u64::from(cache.layers().max(1));
        if bytes > most || bytes / layers > gpu.binding.saturating_sub(COMMAND_BYTES) {
            return Some(format!(
                "the cache '{}' of {}; this GPU has buffers of at most {} and binds {} (a shorter context needs less)",
                cache.name,
                human(bytes),
                human(most),
                human(gpu.binding)
            ));
        }
        if let CacheKind::Attention { head_dim, .. } = cache.kind
            && head_dim > 1024
        {
            return Some(format!(
                "attention heads of {head_dim} elements; at most 1024"
            ));
        }
    }
    let commands = program.passes.iter().flat_map(|pass| &pass.commands);
    for command in commands {
        let experts = match command.op {
            Op::Route => params::Route::of(&command.params).experts,
            _ => 0,
        };
        if experts > MOST_EXPERTS {
            return Some(format!("{experts} experts; at most {MOST_EXPERTS}"));
        }
    }
    for (id, spec) in program.weights.iter().enumerate() {
        let stored = Stored::of(spec, together(program, id as u32), gpu.binding);
        let largest = stored.pieces.iter().map(|p| u64::from(p.rows) * stored.row);
        if largest.max().unwrap_or(0) > gpu.binding {
            return Some(format!(
                "'{}' in pieces of at most {}",
                spec.name,
                human(gpu.binding)
            ));
        }
    }
    None
}

/// Kernels may see a cache as words of 16 bytes.
fn words(bytes: u64) -> u64 {
    bytes.next_multiple_of(16).max(16)
}

fn aligned(bytes: u64) -> u64 {
    bytes.next_multiple_of(COMMAND_BYTES)
}
