//! Low-rank parts of products.

use crate::Error;
use crate::launch::{ByRows, Launch, Listed, Node, Unit, args};
use crate::lower::Lowering;
use crate::mirror::{Layout, mirrored};
use welte_table::{Bank, BufferRef, Command, Op, params};

/// Threads per block.
const THREADS: u32 = 256;
/// Values of h per block of `adapt_down`, and rows for which there is a block (`RANKS` and `SHARE` of `adapters.cu`).
const RANKS: u32 = 4;
const SHARE: u32 = 4;
/// From this number of rows on a block has several tiles: finding its rows costs more than one.
const MANY_ROWS: u32 = 512;
/// Tiles of `adapt_down` and stretches of `adapt_up` that a block has then.
const TILES: u32 = 4;
/// Values of h per block of `adapt_experts_down`.
const EXPERT_RANKS: u32 = 8;

mirrored! {
    /// `AdapterArgs` of `adapters.cu`.
    #[derive(Default)]
    struct AdapterArgs = "AdapterArgs" {
        step: u64,
        rows: u64,
        outputs: u64,
        slots: u64,
        bank: u64,
        x: u64,
        y: u64,
        part_of: u64,
        tokens: u64,
        place_bytes: u64,
        a_at: u64,
        b_at: u64,
        n: u32,
        k: u32,
        parts: u32,
        rank: u32,
        x_stride: u32,
        y_stride: u32,
        single: u32,
        wide: u32,
        scale: f32,
        choice_stride: u32,
        choice: u64,
        used: u32,
        experts: u32,
        each: u32,
        pad: u32,
    }
}

/// The structs that the kernels check.
pub(crate) const MIRRORS: &[Layout] = &[AdapterArgs::LAYOUT];

/// The kernel of a command.
pub(crate) fn lower(cx: &Lowering<'_>, command: &Command, rows: u32) -> Result<Vec<Node>, Error> {
    let missing = || Error::Program("a command lacks its bank".to_string());
    let bank = Bank::of(command).ok_or_else(missing)?;
    let adapters = cx.program.adapters.as_ref().ok_or_else(missing)?;
    let whole = |buffer| BufferRef { buffer, offset: 0 };
    let of_experts = matches!(command.op, Op::AdaptExpertsDown | Op::AdaptExpertsUp);
    let [first, mut second, mut third, fourth] = command.buffers;
    let mut choice = 0;
    if of_experts {
        choice = cx.buffer(second);
        (second, third) = (third, fourth);
    }
    let common = AdapterArgs {
        step: cx.step,
        rows: cx.places.step,
        outputs: if cx.step == cx.places.step {
            0
        } else {
            cx.places.outputs
        },
        slots: cx.buffer(whole(adapters.slots)),
        bank: cx.buffer(second),
        x: cx.buffer(first),
        y: cx.buffer(third),
        place_bytes: bank.place_bytes().ok_or_else(missing)?,
        a_at: bank.head_bytes(),
        b_at: bank.b_at(0),
        n: bank.n,
        k: bank.k,
        parts: bank.parts,
        rank: bank.rank,
        single: u32::from(rows == 1),
        choice,
        experts: bank.experts,
        ..AdapterArgs::default()
    };
    let aligned =
        |stride: u32, at: BufferRef| stride.is_multiple_of(4) && at.offset.is_multiple_of(16);
    // B begins at a multiple of 16 bytes if A does not end elsewhere.
    let wide_up = |stride: u32| {
        let whole = bank.rank.is_multiple_of(8) && bank.b_at(0).is_multiple_of(16);
        u32::from(whole && aligned(stride, first))
    };
    let wide_down = |stride: u32| u32::from(bank.k.is_multiple_of(8) && aligned(stride, first));
    let parts = || cx.vector(command.weights[0]);
    let sets = |tile: u32| bank.parts * bank.rank.div_ceil(tile);
    let stretches = bank.n.div_ceil(THREADS);
    let each = if rows >= MANY_ROWS { TILES } else { 1 };
    let (function, per, blocks, a) = match command.op {
        Op::AdaptDown => {
            let p = params::AdaptDown::of(&command.params);
            let a = AdapterArgs {
                x_stride: p.x_stride,
                y_stride: p.h_stride,
                wide: wide_down(p.x_stride),
                ..common
            };
            ("adapt_down", SHARE, [sets(RANKS).div_ceil(each), 1], a)
        }
        Op::AdaptLookup => {
            let p = params::AdaptLookup::of(&command.params);
            let a = AdapterArgs {
                x: 0,
                tokens: common.x,
                y_stride: p.h_stride,
                scale: p.scale,
                ..common
            };
            ("adapt_lookup", 1, [1, 1], a)
        }
        Op::AdaptUp => {
            let p = params::AdaptUp::of(&command.params);
            let a = AdapterArgs {
                part_of: parts(),
                x_stride: p.h_stride,
                y_stride: p.y_stride,
                wide: wide_up(p.h_stride),
                ..common
            };
            ("adapt_up", SHARE, [stretches.div_ceil(each), 1], a)
        }
        Op::AdaptExpertsDown => {
            let p = params::AdaptExpertsDown::of(&command.params);
            let a = AdapterArgs {
                x_stride: p.x_stride,
                y_stride: p.h_stride,
                choice_stride: p.choice_stride,
                used: p.used,
                each: p.own,
                wide: wide_down(p.x_stride),
                ..common
            };
            ("adapt_experts_down", 1, [p.used * sets(EXPERT_RANKS), 1], a)
        }
        Op::AdaptExpertsUp => {
            let p = params::AdaptExpertsUp::of(&command.params);
            let own = u32::from(p.sum == 0);
            let a = AdapterArgs {
                part_of: parts(),
                x_stride: p.h_stride,
                y_stride: p.y_stride,
                choice_stride: p.choice_stride,
                used: p.used,
                each: own,
                wide: wide_up(p.h_stride),
                ..common
            };
            let experts = if own == 1 { p.used } else { 1 };
            ("adapt_experts_up", 1, [stretches, experts], a)
        }
        _ => return Err(missing()),
    };
    Ok(vec![Node::Kernel(Launch {
        unit: unit(),
        function,
        grid: [rows.max(1).div_ceil(per), blocks[0], blocks[1]],
        by_rows: ByRows::Axis { axis: 0, per },
        block: THREADS,
        shared: 0,
        args: args(&a),
    })])
}

fn unit() -> Unit {
    Unit {
        file: "adapters.cu",
        generated: String::new(),
        defines: Vec::new(),
    }
}

/// The units that tests compile.
pub(crate) fn catalogue() -> Vec<Listed> {
    vec![Listed {
        unit: unit(),
        hot: true,
    }]
}
