//! Rope, KV append, and both fused with the q and k norms. Angles are computed in the kernel: a table of cosines would grow with
//! the context, and a head needs only a few sines per lane.

use super::kv::{Kv, KvShape};
use crate::Error;
use crate::launch::{ByRows, Launch, Listed, Node, Unit, args};
use crate::lower::Lowering;
use crate::mirror::{Layout, mirrored};
use welte_table::{Command, Format, Op, params};

/// Heads per block: `WARPS` of `rope.cu`.
const WARPS: u32 = 4;

mirrored! {
    /// `RopeArgs` of `rope.cu`.
    #[derive(Default)]
    struct Args = "RopeArgs" {
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
        sections: u32,
        pad: u32,
    }
}

/// The structs that the kernels check.
pub(crate) const MIRRORS: &[Layout] = &[Args::LAYOUT];

/// The kernels of a command.
pub(crate) fn lower(cx: &Lowering<'_>, command: &Command, rows: u32) -> Result<Vec<Node>, Error> {
    let kv = KvShape::of(cx.program, command);
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
                sections: p.sections,
                ..a
            };
            ("rope", p.head_dim, p.heads, a)
        }
        Op::KvAppend => {
            let p = params::KvAppend::of(words);
            let a = Args {
                v: cx.buffer(second),
                kv: Kv::of_command(cx, command, p.layer),
                x_stride: p.k_stride,
                v_stride: p.v_stride,
                ..a
            };
            ("kv_append", p.head_dim, 2 * p.kv_heads, a)
        }
        Op::RopeAppend => {
            let p = params::RopeAppend::of(words);
            let a = Args {
                q_norm: cx.vector(command.weights[1]),
                k_norm: cx.vector(command.weights[2]),
                kv: Kv::of_command(cx, command, p.layer),
                heads: p.heads,
                rot: p.rot,
                interleaved: p.interleaved,
                magnitude: p.magnitude,
                eps: p.eps,
                x_stride: p.qkv_stride,
                sections: p.sections,
                ..a
            };
            ("rope_append", p.head_dim, p.heads + 2 * p.kv_heads, a)
        }
        op => return Err(Error::Program(format!("{} is not a rope", op.name()))),
    };
    Ok(vec![Node::Kernel(Launch {
        // Heads that are rotated but not stored may have any size. The macros of the cache are then unused.
        unit: unit(kv.unwrap_or(KvShape {
            format: Format::F16,
            head_dim,
            page: 1,
            context: 0,
        })),
        function,
        grid: [rows, warps.div_ceil(WARPS), 1],
        by_rows: ByRows::Axis { axis: 0, per: 1 },
        block: WARPS * 32,
        shared: 0,
        args: args(&a),
    })])
}

fn unit(kv: KvShape) -> Unit {
    Unit {
        file: "rope.cu",
        generated: String::new(),
        defines: kv.defines(),
    }
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
        unit: unit(KvShape {
            format,
            head_dim,
            page: 64,
            context: 64,
        }),
        hot: true,
    })
    .collect()
}
