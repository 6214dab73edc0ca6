//! Low-rank parts of products.

use crate::Error;
use crate::launch::{ByRows, Launch, Listed, Node, Unit, args};
use crate::lower::Lowering;
use crate::mirror::{Layout, mirrored};
use welte_device::SlotAdapter;
use welte_table::{Bank, BufferRef, Command, Op, Program, Row, params};

/// Threads per block.
const THREADS: u32 = 256;
/// Values of h per block of `adapt_down` (`RANKS` of `adapters.cu`).
const RANKS: u32 = 4;
/// Rows per block. Blocks take the teams in turn.
const SHARE: u32 = 4;
/// Rows of a team (`TEAM` there).
const TEAM: usize = 8;
/// From this number of rows on a block has several tiles.
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
        teams: u64,
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

/// Words of a `Team` of `adapters.cu`: a place (`NO_PLACE`: none), the number of rows, the rows, their scales.
const TEAM_WORDS: usize = 2 + 2 * TEAM;
const NO_PLACE: u32 = u32::MAX;

/// The teams of a step's rows, then those of its output rows (`Teams` of `adapters.cu`). Programs without adapters have none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TeamLists {
    /// Words of the first list and of both.
    rows: usize,
    all: usize,
}

impl TeamLists {
    pub(crate) fn of(program: &Program) -> TeamLists {
        let adapted = || program.passes.iter().filter(|pass| pass.adapted);
        // Each row may be a team of its own.
        let words = |most: Option<u32>| most.map_or(0, |most| 2 + TEAM_WORDS * most as usize);
        let rows = words(adapted().map(|pass| pass.rows).max());
        let outputs = words(adapted().map(|pass| pass.outputs).max());
        TeamLists {
            rows,
            all: rows + outputs,
        }
    }

    /// Words of both lists.
    pub(crate) fn words(self) -> usize {
        self.all
    }

    /// The addresses of both lists in a block.
    pub(crate) fn at(self, start: u64) -> [u64; 2] {
        [start, start + 4 * self.rows as u64]
    }

    /// Cuts the rows of a step, and its output rows by their numbers, into teams: the words of both lists.
    pub(crate) fn cut(
        self,
        (rows, outputs): (&[Row], &[u32]),
        adapters: &[Option<SlotAdapter>],
        words: &mut Vec<u32>,
    ) {
        let of = |row: &Row| adapters.get(row.slot as usize).copied().flatten();
        words.clear();
        cut_teams(rows.iter().map(of), words);
        if outputs.is_empty() {
            return;
        }
        words.resize(self.rows, 0);
        let chosen = outputs.iter().filter_map(|nth| rows.get(*nth as usize));
        cut_teams(chosen.map(of), words);
    }
}

/// Appends the words of `Teams`. A row joins the last team with its adapter, unless that is full.
fn cut_teams(adapters: impl Iterator<Item = Option<SlotAdapter>>, words: &mut Vec<u32>) {
    let head = words.len();
    words.extend([0, 0]);
    for (row, adapter) in (0..).zip(adapters) {
        let (place, scale) = adapter.map_or((NO_PLACE, 0.0), |a| (a.place, a.scale));
        let teams = words[head + 2..].chunks_exact_mut(TEAM_WORDS);
        let team = teams.rev().find(|team| team[0] == place);
        let team = match team.filter(|team| team[1] < TEAM as u32) {
            Some(team) => team,
            None => {
                let at = words.len();
                words.resize(at + TEAM_WORDS, 0);
                words[head] += 1;
                words[at] = place;
                &mut words[at..]
            }
        };
        let nth = team[1] as usize;
        team[1] += 1;
        team[2 + nth] = row;
        team[2 + TEAM + nth] = f32::to_bits(scale);
    }
}

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
    let of_outputs = cx.step != cx.places.step;
    let common = AdapterArgs {
        step: cx.step,
        rows: cx.places.step,
        outputs: if of_outputs { cx.places.outputs } else { 0 },
        slots: cx.buffer(whole(adapters.slots)),
        teams: cx.places.teams[usize::from(of_outputs)],
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

#[cfg(test)]
mod tests {
    use super::*;

    const SOME: [Option<SlotAdapter>; 3] = [
        Some(SlotAdapter {
            place: 5,
            scale: 0.5,
        }),
        None,
        Some(SlotAdapter {
            place: 2,
            scale: 2.0,
        }),
    ];

    /// Place, rows and scales of each team.
    fn teams(words: &[u32]) -> Vec<(u32, Vec<u32>, Vec<f32>)> {
        let team = |words: &[u32]| {
            let count = words[1] as usize;
            let scales = words[2 + TEAM..][..count]
                .iter()
                .map(|w| f32::from_bits(*w));
            (words[0], words[2..][..count].to_vec(), scales.collect())
        };
        let (head, words) = words.split_at(2);
        let words = words.chunks_exact(TEAM_WORDS);
        words.take(head[0] as usize).map(team).collect()
    }

    #[test]
    fn rows_with_the_same_adapter_are_teams_of_at_most_eight() {
        let slots = [0, 2, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 2];
        let rows: Vec<Row> = slots.iter().map(|slot| Row::new(1, 0, *slot)).collect();
        let lists = TeamLists {
            rows: 2 + TEAM_WORDS * rows.len(),
            all: 4 + TEAM_WORDS * (rows.len() + 2),
        };
        let mut words = Vec::new();
        lists.cut((&rows, &[12, 3]), &SOME, &mut words);
        let expected = vec![
            (5, vec![0, 2, 5, 6, 7, 8, 9, 10], vec![0.5; 8]),
            (2, vec![1, 4, 12], vec![2.0; 3]),
            (NO_PLACE, vec![3], vec![0.0]),
            (5, vec![11], vec![0.5]),
        ];
        assert_eq!(teams(&words), expected);
        let outputs = (lists.at(0)[1] / 4) as usize;
        let expected = vec![(2, vec![0], vec![2.0]), (NO_PLACE, vec![1], vec![0.0])];
        assert_eq!(teams(&words[outputs..]), expected);
        assert!(words.len() <= lists.words());
    }
}
