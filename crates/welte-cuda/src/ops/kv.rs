//! Paged caches as kernels see them.

use crate::lower::Lowering;
use crate::mirror::mirrored;
use welte_table::{CacheKind, Command, Format, Program};

mirrored! {
    /// A paged attention cache (`kv.cuh`).
    #[derive(Default)]
    pub(crate) struct Kv = "Kv" {
        start: u64,
        pages: u64,
        total: u32,
        entries: u32,
        layer: u32,
        heads: u32,
    }
}

impl Kv {
    /// A layer of a cache of the program.
    pub(crate) fn of(cx: &Lowering<'_>, cache: usize, layer: u32) -> Kv {
        let Some(spec) = cx.program.caches.get(cache) else {
            return Kv::default();
        };
        let heads = match spec.kind {
            CacheKind::Attention { kv_heads, .. } => kv_heads,
            CacheKind::Recurrent { .. } => 0,
        };
        let address = |of: &[u64], index: usize| of.get(index).copied().unwrap_or(0);
        Kv {
            start: address(&cx.places.buffers, spec.buffer as usize),
            pages: address(&cx.places.page_tables, cache),
            total: spec.pages,
            entries: spec.entries(cx.program),
            layer,
            heads,
        }
    }

    /// A layer of the cache that a command reads or writes.
    pub(crate) fn of_command(cx: &Lowering<'_>, command: &Command, layer: u32) -> Kv {
        index(cx.program, command).map_or_else(Kv::default, |cache| Kv::of(cx, cache, layer))
    }
}

/// The index of the cache that a command reads or writes.
pub(crate) fn index(program: &Program, command: &Command) -> Option<usize> {
    let buffer = command.buffers.get(command.op.cache_operand()?)?.buffer;
    let mut caches = program.caches.iter();
    caches.position(|cache| cache.buffer == buffer)
}

/// The properties of an attention cache that kernels are specialised for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KvShape {
    pub(crate) format: Format,
    pub(crate) head_dim: u32,
    /// Positions per page.
    pub(crate) page: u32,
    /// The most positions of a sequence.
    pub(crate) context: u32,
}

impl KvShape {
    /// The cache of a command; `None` if it has no attention cache.
    pub(crate) fn of(program: &Program, command: &Command) -> Option<KvShape> {
        match program.cache_of(command)?.kind {
            CacheKind::Attention {
                format, head_dim, ..
            } => Some(KvShape {
                format,
                head_dim,
                page: program.page,
                context: program.context,
            }),
            CacheKind::Recurrent { .. } => None,
        }
    }

    /// The macros of `kv.cuh`.
    pub(crate) fn defines(&self) -> Vec<(&'static str, String)> {
        vec![
            ("HEAD_DIM", self.head_dim.to_string()),
            ("PAGE", self.page.to_string()),
            ("KV_Q8", u32::from(self.format == Format::Q8_0).to_string()),
        ]
    }
}
