//! Attention: flash decoding for generated rows, flash attention for prompt rows, and a plain kernel for all other shapes.

use super::gemm::for_rows;
use super::kv::{Kv, KvShape};
use super::need::MemoryNeed;
use super::wide_attention::Wide;
use crate::arithmetic::Arithmetic;
use crate::launch::{ByRows, Launch, Listed, Node, Unit, args};
use crate::lower::Lowering;
use crate::mirror::{Layout, mirrored};
use crate::{Error, GpuInfo};
use welte_table::{Command, Format, Program, params};

/// Positions per tile of flash decoding.
const TILE: u32 = 16;
/// Flash decoding: warps per block and tiles in flight per warp. The first pair that fits shared memory is used.
const RINGS: [(u32, u32); 4] = [(8, 2), (4, 2), (2, 2), (1, 2)];
/// The pairs for programs with several slots: small blocks, of which several share a multiprocessor.
const RINGS_BATCHED: [(u32, u32); 4] = [(4, 3), (4, 2), (2, 2), (1, 2)];
/// Flash decoding: warps per multiprocessor, as many as registers allow.
const WARPS_PER_SM: u32 = 8;
/// Bytes of shared memory that the system reserves per block.
const SYSTEM_SHARED: u32 = 1024;
/// The fewest tiles per split, with one slot, with several and with many: splits of many rows fill the GPU even if they are long.
const LEAST_TILES: u32 = 8;
const LEAST_TILES_BATCHED: u32 = 16;
const LEAST_TILES_MANY: u32 = 64;
/// From this number of slots on, splits have at least `LEAST_TILES_MANY`. The rows of a step do not matter: they would decide the order
/// of sums.
const MANY_SLOTS: u32 = 32;
/// The most splits per context.
const MOST_SPLITS: u32 = 128;
const MOST_SPLITS_BATCHED: u32 = 16;
/// Wide heads: the fewest steps per split, with one slot and with several.
const LEAST_STEPS: u32 = 1;
const LEAST_STEPS_BATCHED: u32 = 4;
/// Wide heads: one block merges the splits of a job, so the more heads it has, the fewer splits.
const WIDE_SPLITS: u32 = 512;
/// Flash decoding: rows of a launch (`MOST_ROWS` of `attention.cu`).
const MOST_ROWS: u32 = 512;
/// Flash decoding: heads per block.
const HEADS: u32 = 8;
/// Positions per step of flash attention: `STEP` of `attention_prefill.cu`.
const STEP: u32 = 64;
/// Flash attention: warps per block, of 16 rows each. With many rows, or where keys and values must be widened first, more
/// warps share that work.
const PREFILL_WARPS: u32 = 4;
const PREFILL_WARPS_MANY: u32 = 8;
/// From this number of rows on, `PREFILL_WARPS_MANY` is used.
const MANY_ROWS: u32 = 1536;
/// Threads per block of the plain kernel.
const PLAIN_THREADS: u32 = 128;

mirrored! {
    /// `AttentionArgs` of `attention.cuh`.
    struct Args = "AttentionArgs" {
        step: u64,
        q: u64,
        y: u64,
        kv: Kv,
        partials: u64,
        counters: u64,
        sinks: u64,
        heads: u32,
        q_stride: u32,
        y_stride: u32,
        scale: f32,
        window: u32,
        softcap: f32,
        single: u32,
        splits: u32,
        rows: u32,
        first: u32,
        most: u32,
        causal: u32,
        positions: u32,
        chunked: u32,
    }
}

/// The structs that the kernels check.
pub(crate) const MIRRORS: &[Layout] = &[Args::LAYOUT];

/// The kernel for a command.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Decode,
    Prefill,
    Wide(Wide),
    Plain,
}

fn kind(kv: &KvShape, p: &params::Attention, arithmetic: Arithmetic, room: u32) -> Kind {
    let fits = kv.head_dim.is_multiple_of(8) && kv.head_dim <= 256;
    let tiles = fits && kv.page.is_multiple_of(TILE);
    let wide = match arithmetic {
        Arithmetic::Prompt => Wide::prompt(kv, room),
        _ => Wide::decode(kv, p.heads / p.kv_heads.max(1), arithmetic, room),
    };
    match (tiles, arithmetic) {
        (true, Arithmetic::Generated | Arithmetic::Batched) => Kind::Decode,
        (true, Arithmetic::Prompt) if prefill_shared(kv, PREFILL_WARPS) <= room => Kind::Prefill,
        _ => wide.map_or(Kind::Plain, Kind::Wide),
    }
}

/// How flash decoding divides its work. It decides the order of sums, so it does not depend on the number of rows.
#[derive(Clone)]
struct Division {
    unit: Unit,
    function: &'static str,
    warps: u32,
    /// Bytes of shared memory per block.
    shared: u32,
    /// Jobs per split of a row: groups of heads that share keys.
    jobs: u32,
    /// Blocks that fit on a multiprocessor.
    resident: u32,
    /// The most splits of a context.
    splits: u32,
}

impl Division {
    /// As many splits as fill the GPU, and no more than the context has tiles for. `None` if another kernel is used.
    fn of(
        kv: &KvShape,
        p: &params::Attention,
        arithmetic: Arithmetic,
        slots: u32,
        gpu: &GpuInfo,
    ) -> Option<Division> {
        let group = p.heads / p.kv_heads.max(1);
        let kind = kind(kv, p, arithmetic, gpu.shared_per_block);
        let batched = arithmetic == Arithmetic::Batched;
        let mut division = match kind {
            _ if arithmetic == Arithmetic::Prompt => return None,
            Kind::Decode => {
                let (rings, least, most) = if batched {
                    (&RINGS_BATCHED, least_tiles(slots), MOST_SPLITS_BATCHED)
                } else {
                    (&RINGS, LEAST_TILES, MOST_SPLITS)
                };
                let ring = ring(kv, rings, gpu.shared_per_block);
                Division {
                    unit: decode_unit(kv, group, ring, least),
                    function: "attention",
                    warps: ring.0,
                    shared: decode_shared(kv, ring),
                    jobs: p.kv_heads.saturating_mul(group.div_ceil(HEADS)).max(1),
                    resident: WARPS_PER_SM / ring.0,
                    splits: kv.context.div_ceil(least * TILE).min(most),
                }
            }
            Kind::Wide(wide) => {
                let least = if batched {
                    LEAST_STEPS_BATCHED
                } else {
                    LEAST_STEPS
                };
                let most = (WIDE_SPLITS / wide.heads()).min(MOST_SPLITS / 2);
                Division {
                    unit: wide_unit(kv, group, wide, least),
                    function: "attention_wide",
                    warps: wide.warps,
                    shared: wide.shared(kv),
                    jobs: p
                        .kv_heads
                        .saturating_mul(group.div_ceil(wide.heads()))
                        .max(1),
                    resident: WARPS_PER_SM / wide.warps,
                    splits: kv.context.div_ceil(least * wide.step).min(most),
                }
            }
            Kind::Prefill | Kind::Plain => return None,
        };
        let room = gpu.shared_per_sm / (division.shared + SYSTEM_SHARED);
        division.resident = division.resident.min(room).max(1);
        let filling = gpu.sms * division.resident / division.jobs;
        division.splits = filling.clamp(1, division.splits.max(1));
        Some(division)
    }
}

/// The fewest tiles of a split in decode passes, by the number of slots.
fn least_tiles(slots: u32) -> u32 {
    if slots >= MANY_SLOTS {
        LEAST_TILES_MANY
    } else {
        LEAST_TILES_BATCHED
    }
}

/// The kernels of a command.
pub(crate) fn lower(cx: &Lowering<'_>, command: &Command, rows: u32) -> Result<Vec<Node>, Error> {
    let p = params::Attention::of(&command.params);
    let kv = shape(cx.program, command)?;
    let a = arguments(cx, command, &p, rows);
    let launch = |least, most, launch| Node::ForRows {
        least,
        most,
        nodes: vec![Node::Kernel(launch)],
    };
    if let Some(division) = Division::of(&kv, &p, cx.arithmetic, cx.program.slots, cx.gpu) {
        let launch = |first| Node::Kernel(decode(&division, first, &a, cx.arithmetic, cx.gpu));
        let more = (MOST_ROWS..rows).step_by(MOST_ROWS as usize);
        let more = more.map(|first| for_rows(first + 1, rows, vec![launch(first)]));
        return Ok([launch(0)].into_iter().chain(more).collect());
    }
    Ok(
        match kind(&kv, &p, cx.arithmetic, cx.gpu.shared_per_block) {
            Kind::Prefill => {
                let some = prefill(&kv, &p, rows.min(MANY_ROWS - 1), &a, cx.gpu);
                let mut list = vec![launch(0, MANY_ROWS - 1, some)];
                if rows >= MANY_ROWS {
                    list.push(launch(MANY_ROWS, rows, prefill(&kv, &p, rows, &a, cx.gpu)));
                }
                list
            }
            Kind::Wide(wide) => vec![Node::Kernel(wide_prefill(&kv, &p, wide, rows, &a))],
            Kind::Decode | Kind::Plain => vec![Node::Kernel(plain(&kv, &a))],
        },
    )
}

/// The kernel of a command whose rows all see the same positions.
pub(crate) fn lower_cross(
    cx: &Lowering<'_>,
    command: &Command,
    rows: u32,
) -> Result<Vec<Node>, Error> {
    let p = params::CrossAttention::of(&command.params);
    let alike = params::Attention {
        layer: p.layer,
        heads: p.heads,
        kv_heads: p.kv_heads,
        head_dim: p.head_dim,
        scale: p.scale,
        window: 0,
        softcap: 0.0,
        q_stride: p.q_stride,
        y_stride: p.y_stride,
        causal: 0,
        chunked: 0,
    };
    let a = Args {
        positions: p.positions,
        ..arguments(cx, command, &alike, rows)
    };
    let kv = shape(cx.program, command)?;
    Ok(vec![Node::Kernel(plain(&kv, &a))])
}

/// What every kernel of attention is told.
fn arguments(cx: &Lowering<'_>, command: &Command, p: &params::Attention, rows: u32) -> Args {
    let [q, _, y, _] = command.buffers;
    Args {
        step: cx.step,
        q: cx.buffer(q),
        y: cx.buffer(y),
        kv: Kv::of_command(cx, command, p.layer),
        partials: cx.places.scratch,
        counters: cx.places.counters,
        sinks: cx.vector(command.weights[0]),
        heads: p.heads,
        q_stride: p.q_stride,
        y_stride: p.y_stride,
        scale: p.scale,
        window: p.window,
        softcap: p.softcap,
        single: u32::from(rows == 1),
        splits: 0,
        rows,
        first: 0,
        most: rows,
        causal: p.causal,
        positions: 0,
        chunked: p.chunked,
    }
}

fn shape(program: &Program, command: &Command) -> Result<KvShape, Error> {
    let shape = KvShape::of(program, command);
    shape.ok_or_else(|| Error::Program("attention without a cache".to_string()))
}

fn decode(
    division: &Division,
    first: u32,
    a: &Args,
    arithmetic: Arithmetic,
    gpu: &GpuInfo,
) -> Launch {
    let most = (a.rows - first).min(MOST_ROWS);
    let jobs = (division.splits * division.jobs).saturating_mul(most);
    let all = gpu.sms * division.resident;
    // With few blocks a step of one row of Llama-8B in BF16 takes a fifth longer. The likely reason: blocks of the next product start
    // early, and share some multiprocessors while others are idle. Blocks without a job prevent that.
    let least = if arithmetic == Arithmetic::Batched {
        all
    } else {
        1
    };
    let values = Args {
        splits: division.splits,
        first,
        most,
        ..*a
    };
    Launch {
        unit: division.unit.clone(),
        function: division.function,
        grid: [jobs.clamp(least, all), 1, 1],
        by_rows: ByRows::Fixed,
        block: division.warps * 32,
        shared: division.shared,
        args: args(&values),
    }
}

fn wide_prefill(kv: &KvShape, p: &params::Attention, wide: Wide, rows: u32, a: &Args) -> Launch {
    let per = wide.rows();
    Launch {
        unit: wide_prefill_unit(kv, wide),
        function: "attention_wide_prefill",
        grid: [p.heads, rows.div_ceil(per), 1],
        by_rows: ByRows::Axis { axis: 1, per },
        block: wide.warps * 32,
        shared: wide.shared(kv),
        args: args(a),
    }
}

fn prefill(kv: &KvShape, p: &params::Attention, rows: u32, a: &Args, gpu: &GpuInfo) -> Launch {
    let warps = prefill_warps(kv, rows, gpu.shared_per_block);
    let per = warps * 16;
    Launch {
        unit: prefill_unit(kv, warps),
        function: "attention_prefill",
        grid: [p.heads, rows.div_ceil(per), 1],
        by_rows: ByRows::Axis { axis: 1, per },
        block: warps * 32,
        shared: prefill_shared(kv, warps),
        args: args(a),
    }
}

fn plain(kv: &KvShape, a: &Args) -> Launch {
    Launch {
        unit: plain_unit(kv),
        function: "attention_plain",
        grid: [a.rows, a.heads, 1],
        by_rows: ByRows::Axis { axis: 0, per: 1 },
        block: PLAIN_THREADS,
        shared: 0,
        args: args(a),
    }
}

fn plain_unit(kv: &KvShape) -> Unit {
    Unit {
        file: "attention_plain.cu",
        generated: String::new(),
        defines: kv.defines(),
    }
}

fn prefill_warps(kv: &KvShape, rows: u32, room: u32) -> u32 {
    let many = kv.format == Format::Q8_0 || rows >= MANY_ROWS;
    if many && prefill_shared(kv, PREFILL_WARPS_MANY) <= room {
        PREFILL_WARPS_MANY
    } else {
        PREFILL_WARPS
    }
}

fn prefill_unit(kv: &KvShape, warps: u32) -> Unit {
    let mut defines = kv.defines();
    defines.push(("WARPS", warps.to_string()));
    defines.push(("TILES", "1".to_string()));
    Unit {
        file: "attention_prefill.cu",
        generated: String::new(),
        defines,
    }
}

/// Shared memory: queries, and two buffers of keys and values in f16; for Q8_0 one buffer and the encoded values. Aligned to
/// 1024 bytes.
fn prefill_shared(kv: &KvShape, warps: u32) -> u32 {
    let row = kv.head_dim.next_multiple_of(64) * 2;
    let queries = warps * 16 * row + 1024;
    match kv.format {
        Format::Q8_0 => queries + 2 * STEP * (row + kv.head_dim / 32 * 34),
        _ => queries + 4 * STEP * row,
    }
}

fn wide_unit(kv: &KvShape, group: u32, wide: Wide, least_steps: u32) -> Unit {
    let more = [("EXACT", 1), ("GROUP", group), ("LEAST_TILES", least_steps)];
    wide.unit("attention_wide.cu", kv, &more)
}

fn wide_prefill_unit(kv: &KvShape, wide: Wide) -> Unit {
    wide.unit("attention_wide_prefill.cu", kv, &[("EXACT", 0)])
}

fn decode_unit(kv: &KvShape, group: u32, ring: (u32, u32), least_tiles: u32) -> Unit {
    let (warps, stages) = ring;
    let mut defines = kv.defines();
    for (name, value) in [
        ("GROUP", group),
        ("WARPS", warps),
        ("STAGES", stages),
        ("LEAST_TILES", least_tiles),
    ] {
        defines.push((name, value.to_string()));
    }
    Unit {
        file: "attention.cu",
        generated: String::new(),
        defines,
    }
}

fn ring(kv: &KvShape, rings: &[(u32, u32); 4], room: u32) -> (u32, u32) {
    let fits = |ring: &&(u32, u32)| decode_shared(kv, **ring) <= room;
    *rings.iter().find(fits).unwrap_or(&rings[3])
}

/// Shared memory: first the warps' rings, then their results, then the merge of the splits, all in the same place.
fn decode_shared(kv: &KvShape, (warps, stages): (u32, u32)) -> u32 {
    let wide = kv.head_dim.next_multiple_of(64);
    let part = match kv.format {
        Format::Q8_0 => TILE * (kv.head_dim / 32 * 34),
        _ => TILE * wide * 2,
    };
    let results = warps * HEADS * (wide + 4) * 4;
    let merge = HEADS * (MOST_SPLITS + 4) * 4 + warps * 32 * 16;
    (warps * stages * 2 * part).max(results).max(merge)
}

/// Private scratch of a command: the splits' partial results.
pub(crate) fn scratch(need: &MemoryNeed<'_>, command: &Command) -> u64 {
    let p = params::Attention::of(&command.params);
    let splits = division(need, command).map_or(0, |division| division.splits);
    let heads = u64::from(need.rows) * u64::from(p.heads) * u64::from(splits);
    heads * (u64::from(p.head_dim) + 2) * 4
}

/// Bytes that are zero between commands: counts of finished splits.
pub(crate) fn counters(need: &MemoryNeed<'_>, command: &Command) -> u64 {
    let jobs = division(need, command).map_or(0, |division| division.jobs);
    u64::from(need.rows) * u64::from(jobs) * 4
}

/// The division of a command that flash decoding computes.
fn division(need: &MemoryNeed<'_>, command: &Command) -> Option<Division> {
    let kv = shape(need.program, command).ok()?;
    let p = params::Attention::of(&command.params);
    Division::of(&kv, &p, need.arithmetic, need.program.slots, need.gpu)
}

/// The units that tests compile.
pub(crate) fn catalogue() -> Vec<Listed> {
    // Shared memory of a block of an H200.
    const ROOM: u32 = 227 << 10;
    let layout = |head_dim, format| KvShape {
        format,
        head_dim,
        page: 64,
        context: 64,
    };
    let (f16, q8) = (Format::F16, Format::Q8_0);
    let mut list = vec![Listed {
        unit: plain_unit(&layout(100, f16)),
        hot: false,
    }];
    for (head_dim, format, group) in [
        (128, f16, 4),
        (128, q8, 4),
        (64, f16, 4),
        (64, q8, 4),
        (128, f16, 2),
        (80, f16, 1),
        (96, f16, 1),
        (256, f16, 2),
    ] {
        let kv = layout(head_dim, format);
        list.push(Listed {
            unit: prefill_unit(&kv, prefill_warps(&kv, 512, ROOM)),
            hot: false,
        });
        for (rings, least_tiles) in [
            (&RINGS, LEAST_TILES),
            (&RINGS_BATCHED, LEAST_TILES_BATCHED),
            (&RINGS_BATCHED, LEAST_TILES_MANY),
        ] {
            let ring = ring(&kv, rings, ROOM);
            list.push(Listed {
                unit: decode_unit(&kv, group, ring, least_tiles),
                hot: head_dim <= 128,
            });
        }
    }
    for (head_dim, format, group) in [(576, f16, 20), (576, f16, 128), (512, q8, 8)] {
        let kv = layout(head_dim, format);
        // With little shared memory there is no kernel for prompts.
        for room in [ROOM, 163 << 10, 99 << 10] {
            let one = Wide::decode(&kv, group, Arithmetic::Generated, room);
            let one = one.map(|wide| (wide_unit(&kv, group, wide, LEAST_STEPS), true));
            let several = Wide::decode(&kv, group, Arithmetic::Batched, room);
            let several =
                several.map(|wide| (wide_unit(&kv, group, wide, LEAST_STEPS_BATCHED), group <= 8));
            let prompt = Wide::prompt(&kv, room).map(|wide| (wide_prefill_unit(&kv, wide), false));
            let all = [one, several, prompt].into_iter().flatten();
            list.extend(all.map(|(unit, hot)| Listed { unit, hot }));
        }
    }
    list
}
