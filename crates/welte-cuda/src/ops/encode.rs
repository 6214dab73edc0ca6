//! Encoders: attention over whole texts without a cache, convolutions and learned positions.

use crate::Error;
use crate::launch::{ByRows, Launch, Listed, Node, Unit, args};
use crate::lower::Lowering;
use crate::mirror::{Layout, mirrored};
use welte_table::{Command, Op, Program, Row, params};

/// Threads per block: `THREADS` of `encode.cu` and `encode_tiles.cu`.
const THREADS: u32 = 128;
/// Rows of a tile: `ROWS` of `encode_tiles.cu`.
const TILE_ROWS: usize = 64;
/// Rows per block of tiles, in a step of many short texts. Where there are more tiles than blocks, a block takes several.
const ROWS_PER_BLOCK: u32 = 16;
/// Words of a `TextTile` (`encode.cuh`).
const TILE_WORDS: usize = 3;

mirrored! {
    /// `EncodeArgs` of `encode.cuh`.
    struct EncodeArgs = "EncodeArgs" {
        step: u64,
        tiles: u64,
        qkv: u64,
        y: u64,
        heads: u32,
        kv_heads: u32,
        window: u32,
        qkv_stride: u32,
        y_stride: u32,
        scale: f32,
        unseen: u32,
        by_reach: u32,
        places: u32,
        softcap: f32,
        absent: u64,
        slopes: u64,
    }
}

mirrored! {
    /// `PositionArgs` of `encode.cu`.
    struct PositionArgs = "PositionArgs" {
        step: u64,
        x: u64,
        positions: u64,
        types: u64,
        k: u32,
        period: u32,
        offset: u32,
        x_stride: u32,
    }
}

mirrored! {
    /// `EncodeConvArgs` of `encode.cu`.
    struct EncodeConvArgs = "EncodeConvArgs" {
        step: u64,
        x: u64,
        y: u64,
        kernel: u64,
        bias: u64,
        n: u32,
        taps: u32,
        before: u32,
        x_stride: u32,
        y_stride: u32,
        pad: u32,
    }
}

/// The structs that the kernels check.
pub(crate) const MIRRORS: &[Layout] = &[
    EncodeArgs::LAYOUT,
    PositionArgs::LAYOUT,
    EncodeConvArgs::LAYOUT,
];

/// The kernels of a command.
pub(crate) fn lower(cx: &Lowering<'_>, command: &Command, rows: u32) -> Result<Vec<Node>, Error> {
    let launch = match command.op {
        Op::EncodeAttention => attention(cx, command, rows),
        Op::EncodeConv => convolution(cx, command, rows),
        _ => positions(cx, command, rows),
    };
    Ok(vec![Node::Kernel(launch)])
}

fn attention(cx: &Lowering<'_>, command: &Command, rows: u32) -> Launch {
    let p = params::EncodeAttention::of(&command.params);
    let [qkv, y, ..] = command.buffers;
    let args = args(&EncodeArgs {
        step: cx.step,
        tiles: cx.places.text_tiles[usize::from(p.by_axis > 0)],
        qkv: cx.buffer(qkv),
        y: cx.buffer(y),
        heads: p.heads,
        kv_heads: p.kv_heads,
        window: p.window,
        qkv_stride: p.qkv_stride,
        y_stride: p.y_stride,
        scale: p.scale,
        unseen: p.unseen,
        by_reach: p.by_reach,
        places: p.places,
        softcap: p.softcap,
        absent: cx.vector(command.weights[0]),
        slopes: cx.vector(command.weights[1]),
    });
    let shared = tiles_shared(p.head_dim);
    if !p.head_dim.is_multiple_of(8) || p.head_dim > 256 || shared > cx.gpu.shared_per_block {
        return Launch {
            unit: unit(Some(p.head_dim)),
            function: "encode_attention",
            grid: [rows, p.heads, 1],
            by_rows: ByRows::Axis { axis: 0, per: 1 },
            block: THREADS,
            shared: 0,
            args,
        };
    }
    let aligned = p.qkv_stride.is_multiple_of(4) && qkv.offset.is_multiple_of(16);
    Launch {
        unit: tiles_unit(p.head_dim, aligned, p.places > 0),
        function: "encode_attention_tiles",
        grid: [rows.div_ceil(ROWS_PER_BLOCK), p.heads, 1],
        by_rows: ByRows::Axis {
            axis: 0,
            per: ROWS_PER_BLOCK,
        },
        block: THREADS,
        shared,
        args,
    }
}

fn convolution(cx: &Lowering<'_>, command: &Command, rows: u32) -> Launch {
    let p = params::EncodeConv::of(&command.params);
    let [x, y, ..] = command.buffers;
    Launch {
        unit: unit(None),
        function: "encode_conv",
        grid: [rows, p.n.div_ceil(THREADS), 1],
        by_rows: ByRows::Axis { axis: 0, per: 1 },
        block: THREADS,
        shared: 0,
        args: args(&EncodeConvArgs {
            step: cx.step,
            x: cx.buffer(x),
            y: cx.buffer(y),
            kernel: cx.vector(command.weights[0]),
            bias: cx.vector(command.weights[1]),
            n: p.n,
            taps: p.taps,
            before: p.before,
            x_stride: p.x_stride,
            y_stride: p.y_stride,
            pad: 0,
        }),
    }
}

fn positions(cx: &Lowering<'_>, command: &Command, rows: u32) -> Launch {
    let p = params::AddPosition::of(&command.params);
    Launch {
        unit: unit(None),
        function: "add_position",
        grid: [rows, p.k.div_ceil(THREADS), 1],
        by_rows: ByRows::Axis { axis: 0, per: 1 },
        block: THREADS,
        shared: 0,
        args: args(&PositionArgs {
            step: cx.step,
            x: cx.buffer(command.buffers[0]),
            positions: cx.vector(command.weights[0]),
            types: cx.vector(command.weights[1]),
            k: p.k,
            period: p.period,
            offset: p.offset,
            x_stride: p.x_stride,
        }),
    }
}

/// The lists of tiles that the commands of a program read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TileLists {
    /// Words of a `TextTiles` (`encode.cuh`) for the most rows; 0 if no command reads one.
    words: usize,
    /// Whether some attend within windows: there is a second list.
    windows: bool,
}

impl TileLists {
    pub(crate) fn of(program: &Program) -> TileLists {
        let commands = program.passes.iter().flat_map(|pass| &pass.commands);
        let by_axis = commands.filter(|command| command.op == Op::EncodeAttention);
        let by_axis = by_axis.map(|command| params::EncodeAttention::of(&command.params).by_axis);
        let most = by_axis.max();
        TileLists {
            // Every row may be a text of its own.
            words: most.map_or(0, |_| 1 + TILE_WORDS * program.most_rows() as usize),
            windows: most.is_some_and(|most| most > 0),
        }
    }

    /// Words of all lists.
    pub(crate) fn words(&self) -> usize {
        self.words * (1 + usize::from(self.windows))
    }

    /// The addresses of both lists in a block.
    pub(crate) fn at(&self, start: u64) -> [u64; 2] {
        [start, start + 4 * self.words as u64]
    }

    /// Cuts the texts of a step into tiles: the words of all lists.
    pub(crate) fn cut(&self, rows: &[Row], words: &mut Vec<u32>) {
        words.clear();
        cut_texts(rows, words, |a, b| a.slot == b.slot);
        if self.windows {
            words.resize(self.words, 0);
            cut_texts(rows, words, |a, b| {
                a.slot == b.slot && a.axes[0] == b.axes[0]
            });
        }
    }
}

/// Appends the words of `TextTiles`. Neighbouring rows that belong together are a text.
fn cut_texts(rows: &[Row], words: &mut Vec<u32>, together: impl Fn(&Row, &Row) -> bool) {
    let count = words.len();
    words.push(0);
    let mut first = 0;
    for text in rows.chunk_by(together) {
        let end = first + text.len();
        for row in (first..end).step_by(TILE_ROWS) {
            words.extend([row, first, end].map(|word| word as u32));
            words[count] += 1;
        }
        first = end;
    }
}

/// The unit of attention over heads of this size, or of positions.
fn unit(head_dim: Option<u32>) -> Unit {
    let define = |dim: u32| ("HEAD_DIM", dim.to_string());
    Unit {
        file: "encode.cu",
        generated: String::new(),
        defines: head_dim.map(define).into_iter().collect(),
    }
}

fn tiles_unit(head_dim: u32, aligned: bool, places: bool) -> Unit {
    Unit {
        file: "encode_tiles.cu",
        generated: String::new(),
        defines: vec![
            ("HEAD_DIM", head_dim.to_string()),
            ("ALIGNED", u32::from(aligned).to_string()),
            ("PLACES", u32::from(places).to_string()),
        ],
    }
}

/// Shared memory: queries, keys and values of a tile in f16.
fn tiles_shared(head_dim: u32) -> u32 {
    3 * TILE_ROWS as u32 * head_dim.next_multiple_of(64) * 2
}

/// The units that tests compile.
pub(crate) fn catalogue() -> Vec<Listed> {
    let tiles = [
        (32, true, false),
        (64, true, false),
        (64, false, false),
        (64, true, true),
        (72, true, false),
        (128, true, false),
        (256, true, false),
    ];
    [None, Some(17), Some(320)]
        .map(unit)
        .into_iter()
        .chain(tiles.map(|(head_dim, aligned, places)| tiles_unit(head_dim, aligned, places)))
        .map(|unit| Listed { unit, hot: false })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_where_they_begin_and_every_64_rows() {
        let mut rows = Vec::new();
        for (slot, length) in [(3, 1), (0, 64), (1, 130), (3, 2)] {
            rows.extend((0..length).map(|position| Row::new(0, position, slot)));
        }
        let mut words = vec![7; 5];
        let mut lists = TileLists {
            words: 40,
            windows: false,
        };
        lists.cut(&rows, &mut words);
        let (count, tiles) = words.split_first().unwrap();
        let tiles: Vec<[u32; 3]> = tiles.as_chunks().0.to_vec();
        assert_eq!(*count as usize, tiles.len());
        assert_eq!(
            tiles,
            [
                [0, 0, 1],
                [1, 1, 65],
                [65, 65, 195],
                [129, 65, 195],
                [193, 65, 195],
                [195, 195, 197]
            ]
        );
        // Windows end where the first axis changes.
        for (at, row) in rows.iter_mut().enumerate() {
            row.axes[0] = u32::from((100..102).contains(&at));
        }
        lists.windows = true;
        let whole = words.clone();
        lists.cut(&rows, &mut words);
        assert_eq!(words[..whole.len()], whole);
        assert!(words[whole.len()..40].iter().all(|word| *word == 0));
        assert_eq!(lists.at(100), [100, 260]);
        let (count, tiles) = words[40..].split_first().unwrap();
        let tiles: Vec<[u32; 3]> = tiles.as_chunks().0.to_vec();
        assert_eq!(*count, 7);
        assert_eq!(
            tiles[2..],
            [
                [65, 65, 100],
                [100, 100, 102],
                [102, 102, 195],
                [166, 102, 195],
                [195, 195, 197]
            ]
        );
    }
}
