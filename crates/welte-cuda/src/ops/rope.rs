//! Rope, KV append, and both fused with the q and k norms. Angles are computed in the kernel: a table of cosines would grow with
//! the context, and a head needs only a few sines per lane.

use crate::launch::{ByRows, Launch, Listed, Node, Unit, args};
use crate::lower::Lowering;
use crate::mirror::mirrored;
use crate::{Error, GpuInfo};
use welte_table::{Command, Format, KvLayout, Op, Program, params};

/// Heads per block: `WARPS` of `rope.cu`.
const WARPS: u32 = 4;

mirrored! {
    /// The paged KV cache (`kv.cuh`).
    #[derive(Default)]
    pub(crate) struct Kv = "Kv" {
        start: u64,
        pages: u64,
        total: u32,
        per_sequence: u32,
        layer: u32,
        heads: u32,
    }
}

impl Kv {
    pub(crate) fn of(cx: &Lowering<'_>, layer: u32) -> Kv {
        Kv {
            start: cx.kv,
            pages: cx.pages,
            total: cx.program.kv.pages,
            per_sequence: cx.pages_per_sequence,
            layer,
            heads: cx.program.kv.kv_heads,
        }
    }
}

/// The macros of `kv.cuh`.
pub(crate) fn kv_defines(head_dim: u32, page: u32, format: Format) -> Vec<(&'static str, String)> {
    vec![
        ("HEAD_DIM", head_dim.to_string()),
        ("PAGE", page.to_string()),
        ("KV_Q8", u32::from(format == Format::Q8_0).to_string()),
    ]
}

/// Refuses heads that do not match the cache.
pub(crate) fn check_kv(kv: &KvLayout, heads: u32, head_dim: u32, layer: u32) -> Result<(), Error> {
    let fits = kv.head_bytes().is_some() && matches!(kv.format, Format::F16 | Format::Q8_0);
    if heads == kv.kv_heads && head_dim == kv.head_dim && layer < kv.layers && fits && kv.page > 0 {
        return Ok(());
    }
    Err(Error::Program(format!(
        "layer {layer} with {heads} kv heads of {head_dim} does not fit its KV layout"
    )))
}

/// `RopeArgs` of `rope.cu`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Args {
    step: u64,
    x: u64,
    v: u64,
    freqs: u64,
    q_norm: u64,
    k_norm: u64,
    kv: Kv,
    heads: u32,
    rot: u32,
    interleaved: u32,
    magnitude: f32,
    eps: f32,
    x_stride: u32,
    v_stride: u32,
    single: u32,
}

/// The kernels of a command.
pub(crate) fn lower(cx: &Lowering<'_>, command: &Command, rows: u32) -> Result<Vec<Node>, Error> {
    let kv = &cx.program.kv;
    let [first, second, ..] = command.buffers;
    let a = Args {
        step: cx.step,
        x: cx.buffer(first),
        freqs: cx.vector(command.weights[0]),
        single: u32::from(rows == 1),
        ..Args::default()
    };
    let words = &command.params;
    let (function, head_dim, warps, a) = match command.op {
        Op::Rope => {
            let p = params::Rope::of(words);
            let a = Args {
                heads: p.heads,
                rot: p.rot,
                interleaved: p.interleaved,
                magnitude: p.magnitude,
                x_stride: p.y_stride,
                ..a
            };
            ("rope", p.head_dim, p.heads, a)
        }
        Op::KvAppend => {
            let p = params::KvAppend::of(words);
            check_kv(kv, p.kv_heads, p.head_dim, p.layer)?;
            let a = Args {
                v: cx.buffer(second),
                kv: Kv::of(cx, p.layer),
                x_stride: p.k_stride,
                v_stride: p.v_stride,
                ..a
            };
            ("kv_append", p.head_dim, 2 * p.kv_heads, a)
        }
        Op::RopeAppend => {
            let p = params::RopeAppend::of(words);
            check_kv(kv, p.kv_heads, p.head_dim, p.layer)?;
            let a = Args {
                q_norm: cx.vector(command.weights[1]),
                k_norm: cx.vector(command.weights[2]),
                kv: Kv::of(cx, p.layer),
                heads: p.heads,
                rot: p.rot,
                interleaved: p.interleaved,
                magnitude: p.magnitude,
                eps: p.eps,
                x_stride: p.qkv_stride,
                ..a
            };
            ("rope_append", p.head_dim, p.heads + 2 * p.kv_heads, a)
        }
        op => return Err(Error::Program(format!("{} is no rope", op.name()))),
    };
    Ok(vec![Node::Kernel(Launch {
        unit: unit(head_dim, kv.page, kv.format),
        function,
        grid: [rows, warps.div_ceil(WARPS), 1],
        by_rows: ByRows::Axis { axis: 0, per: 1 },
        block: WARPS * 32,
        shared: 0,
        args: args(&a),
    })])
}

fn unit(head_dim: u32, page: u32, format: Format) -> Unit {
    // Heads that are rotated but not stored may have any size. The cache's macros are then unused.
    let whole = head_dim.is_multiple_of(32);
    let format = if whole { format } else { Format::F16 };
    Unit {
        file: "rope.cu",
        generated: String::new(),
        defines: kv_defines(head_dim, page.max(1), format),
    }
}

/// Private scratch of a command.
pub(crate) fn scratch(_program: &Program, _command: &Command, _rows: u32, _gpu: &GpuInfo) -> u64 {
    0
}

/// Bytes that are zero between commands.
pub(crate) fn counters(_program: &Program, _command: &Command, _rows: u32, _gpu: &GpuInfo) -> u64 {
    0
}

/// The units that tests compile.
pub(crate) fn catalogue() -> Vec<Listed> {
    [
        (128, Format::F16),
        (128, Format::Q8_0),
        (64, Format::F16),
        (80, Format::F16),
    ]
    .into_iter()
    .map(|(head_dim, format)| Listed {
        unit: unit(head_dim, 64, format),
        hot: true,
    })
    .collect()
}
