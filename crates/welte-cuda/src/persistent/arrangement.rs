//! How the work of an instruction is divided: a product within a block, attention among blocks.

use super::{SLOTS, TUNABLE_EXTRA_SLOTS, WARPS};
use crate::layout;
use welte_table::{Format, params};

/// Units of a row that a lane multiplies at most. Its share of the input stays in registers, and these are the registers
/// that there are: blocks of 32 elements, or runs of 8 floats.
const MAX_BLOCKS_PER_LANE: u32 = 10;
const MAX_EIGHTS_PER_LANE: u32 = 14;
/// Bytes of a slot of the ring, for block formats and for float formats. A longer row takes a slot of its own size.
/// Two slots of floats in flight are about what the memory needs.
const SLOT_BYTES: u32 = 24 << 10;
const FLOAT_SLOT_BYTES: u32 = 20 << 10;
/// A tile of a step's BF16 lines may be larger than a slot otherwise is, up to this.
const MAX_TILE_BYTES: u32 = 32 << 10;
/// Lines of such a tile (`persistent/rows_tensor.cuh`).
pub(super) const TENSOR_LINES: u32 = 4;
/// The longest BF16 rows for tensor cores: a lane's share of the input stays in registers.
const MAX_TENSOR_K: u32 = 16_384;
/// A slot takes at most this fraction (one part in N) of a block's shared memory, so that the ring has several.
const MIN_SLOTS_AND_REST: u32 = 9;
/// Bytes that are in flight to a block before tuning, or two slots where those are more.
const BYTES_IN_FLIGHT: u32 = 48 << 10;
/// Lines of a tile (`persistent/tile.cuh`).
pub(super) const TILE: u32 = 8;
/// The longest context that is not split, if each warp has a tile of its own.
pub(super) const MAX_UNSPLIT: u32 = 128;
/// Elements of a split's keys, while there are blocks for as many splits. The load of the queries waits behind that of the
/// keys, so splits are short.
pub(super) const SPLIT_ELEMENTS: u32 = 4096;
/// The most splits of a context: a lane adds up two.
const MAX_SPLITS: u32 = 64;
/// Elements of the output that a job of attention computes at most, where each warp has a tile of its own: its queries times the head size.
const MAX_JOB_ELEMENTS: u32 = 1024;
/// Dimensions of a tile that a warp has at most: of models with heads of one size, and of others.
const MAX_WARP_DIMS: u32 = 256;
const FEW_WARP_DIMS: u32 = 128;
/// Positions of a tile (`TILE_POSITIONS` of `persistent/attend.cuh`).
const TILE_POSITIONS: u32 = 16;

/// Bytes of a row over all planes.
pub(super) fn row_bytes(format: Format, k: u32) -> u32 {
    let planes = layout::planes(format).iter();
    planes.map(|plane| plane.stride(k) as u32).sum()
}

/// The size that a slot may have: the format's, or less on a GPU with little shared memory.
pub(super) fn slot_limit(format: Format, shared_per_block: u32) -> u32 {
    let usual = if format.rounds_activations() {
        SLOT_BYTES
    } else {
        FLOAT_SLOT_BYTES
    };
    usual.min(shared_per_block / MIN_SLOTS_AND_REST)
}

/// Slots in flight before tuning. Half of all slots is the most: tuning adds a few, and a slot's barrier must not be used
/// again before its copies have arrived.
pub(super) fn slots_in_flight(slot_bytes: u32) -> u8 {
    const MOST: u32 = SLOTS / 2;
    const { assert!(MOST + TUNABLE_EXTRA_SLOTS < SLOTS) };
    (BYTES_IN_FLIGHT / slot_bytes.max(1)).clamp(2, MOST) as u8
}

/// Bytes of a warp's slice of the input, of one row or of two (`SLICE_BYTES` of `persistent/tile.cuh`).
pub(super) fn staged_bytes(units: u32, unit: u32) -> u32 {
    (units.next_multiple_of(4) * unit + 63) / 128 * 128 + 64
}

/// Rows (of each set) of a slot, and slots that are multiplied together: the lines of a tile, unless these have more bytes
/// than `bytes_at_once`.
pub(super) fn tiles(line: u32, sets: u32, slot: u32, bytes_at_once: u32) -> (u32, u32) {
    let fitting = |bytes: u32| {
        let lines = [2 * TILE, TILE, 4, 2].into_iter();
        lines.filter(move |lines| lines * line <= bytes).max()
    };
    let lines = fitting(slot).unwrap_or(1).max(sets);
    let all = fitting(bytes_at_once).unwrap_or(1).min(TILE);
    (lines / sets, (all / lines).max(1))
}

/// How a BF16 product is divided (`Pieces` of `persistent/partition.cuh`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunks {
    /// Chunks of a row.
    pub(super) count: u32,
    /// Bytes of a chunk.
    pub(super) bytes: u32,
    /// Bytes of a staged piece: a warp's part of a chunk of the input.
    pub(super) staged: u32,
}

impl Chunks {
    /// `None`: lanes multiply the rows (`LaneMultiplier`). A tile has four lines of one chunk, two of two, or one of four: those that fit a slot.
    pub(super) fn of(format: Format, k: u32) -> Option<Chunks> {
        if format != Format::BF16 || k > MAX_TENSOR_K {
            return None;
        }
        let count = match FLOAT_SLOT_BYTES / (2 * k).max(1) {
            0 | 1 => 4,
            2 | 3 => 2,
            _ => 1,
        };
        let units = (k / 8).div_ceil(count);
        Some(Chunks {
            count,
            bytes: units * 16,
            staged: units.div_ceil(WARPS) * 32,
        })
    }

    /// Rows (of each set) of a slot for a block's `share` rows: whole tiles of `tile` lines of `line` bytes where they fit.
    pub(super) fn rows(
        line: u32,
        tile: u32,
        sets: u32,
        share: u32,
        slot: u32,
        outputs: u32,
    ) -> u32 {
        let fit = slot / line.max(1);
        let lines = match fit / tile {
            0 if tile * line <= MAX_TILE_BYTES => tile,
            0 => fit,
            tiles => tiles * tile,
        };
        let needed = (sets * share).next_multiple_of(tile);
        (lines.min(needed) / sets).clamp(1, outputs / sets)
    }
}

/// The shape of a product as one block sees it (`persistent/partition.cuh`).
#[derive(Clone, Copy, Debug)]
pub(super) struct ProductShape {
    /// Elements of a row.
    k: u32,
    /// Units of a row: runs of neighbouring elements that one lane takes.
    pub(super) units: u32,
    /// Rows of the block.
    pub(super) share: u32,
    /// Matrices whose rows come in pairs.
    pub(super) sets: u32,
    /// Rows (of each set) that fit a slot and can be published together.
    pub(super) fit: u32,
    /// Units that a lane can hold.
    pub(super) max_rounds: u32,
}

impl ProductShape {
    /// Of a matrix with rows of `k` elements, `bytes` long over all sets. The error names the rows, where they are no whole
    /// number of units.
    pub(super) fn new(
        format: Format,
        k: u32,
        share: u32,
        sets: u32,
        fit: u32,
    ) -> Result<ProductShape, String> {
        let (unit, max_rounds) = if format.rounds_activations() {
            (32, MAX_BLOCKS_PER_LANE)
        } else {
            (8, MAX_EIGHTS_PER_LANE)
        };
        if !k.is_multiple_of(unit) {
            return Err(format!("rows of {k} elements"));
        }
        Ok(ProductShape {
            k,
            units: k / unit,
            share,
            sets,
            fit,
            max_rounds,
        })
    }

    /// Lanes that share a row's slice and rows of a slot: those with the least work for a warp. The error names rows that are too long.
    pub(super) fn arrange(&self) -> Result<(u32, u32), String> {
        let slots = (1..=self.fit.min(self.share.max(1))).rev();
        let all = slots.flat_map(|rows| [2, 4, 8, 16, 32].map(|lanes| (lanes, rows)));
        // Two lanes only where four would have one unit each: with longer rows two have more bank conflicts.
        let fitting = all.filter(|(lanes, _)| {
            self.rounds(*lanes) <= self.max_rounds && (*lanes > 2 || self.rounds(4) == 1)
        });
        let best = fitting.min_by_key(|(lanes, rows)| self.work(*lanes, *rows));
        best.ok_or_else(|| format!("rows of {} elements", self.k))
    }

    fn rounds(&self, lanes: u32) -> u32 {
        self.units.div_ceil(WARPS).div_ceil(lanes)
    }

    /// A warp's work on a block's rows, in tenths of a round. A pass over rows ends with a sum over lanes; a slot costs a wait
    /// and a release.
    fn work(&self, lanes: u32, rows: u32) -> u32 {
        let at_once = 32 / lanes;
        let pass = 10 * self.rounds(lanes) + 4;
        let slot = |rows: u32, lines: u32| {
            if rows == 0 {
                0
            } else {
                lines.div_ceil(at_once) * pass + 10
            }
        };
        let (full, rest) = (self.share / rows, self.share % rows);
        // With two sets, a slot that is not full takes as long as a full one.
        let last = if self.sets == 1 {
            rest
        } else {
            self.sets * rows
        };
        full * slot(rows, self.sets * rows) + slot(rest, last)
    }
}

/// How attention is divided into jobs.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttentionJobs {
    /// Queries of a job, and jobs that share a head of keys.
    pub(super) queries: u32,
    pub(super) query_groups: u32,
    /// Warps that share a tile.
    pub(super) team: u32,
    /// The most splits of a context.
    pub(super) splits: u32,
    /// The longest context that is not split: what all warps can have in flight before the queries arrive.
    pub(super) max_unsplit: u32,
    /// Positions of a split, while there are blocks for as many splits.
    pub(super) split_positions: u32,
    /// Bytes of a job's scratchpad (`Scratchpad` of `persistent/attend.cuh`).
    pub(super) scratchpad: u32,
}

impl AttentionJobs {
    pub(super) fn of(
        a: &params::Attention,
        rot: u32,
        blocks: u32,
        several_sizes: bool,
    ) -> Result<AttentionJobs, String> {
        let dims = if several_sizes {
            FEW_WARP_DIMS
        } else {
            MAX_WARP_DIMS
        };
        // A warp has whole runs of 64 dimensions.
        let fits = |team: &u32| {
            a.head_dim <= dims * team && (*team == 1 || a.head_dim.is_multiple_of(64 * team))
        };
        let whole = a.heads.is_multiple_of(a.kv_heads.max(1))
            && a.head_dim.is_multiple_of(16)
            && a.head_dim >= 16;
        let team = [1, 2, 4].into_iter().find(fits).filter(|_| whole);
        let team = team.ok_or_else(|| format!("heads of {} elements", a.head_dim))?;
        if !rot.is_multiple_of(4) || rot > a.head_dim {
            return Err(format!("a rope of {rot} elements"));
        }
        let group = a.heads / a.kv_heads.max(1);
        let most = (MAX_JOB_ELEMENTS * team / a.head_dim).clamp(1, 8);
        let query_groups = group.div_ceil(most);
        let queries = group.div_ceil(query_groups);
        // Fewer groups may do once their size is rounded up.
        let query_groups = group.div_ceil(queries);
        let splits = (blocks / (a.kv_heads * query_groups)).clamp(1, MAX_SPLITS);
        let scratchpad = queries * (a.head_dim * 4 + 16)
            + 2 * (a.head_dim * 2 + a.head_dim / 32 * 2).next_multiple_of(16)
            + WARPS / team * queries * (a.head_dim + 4) * 4
            + queries * 2 * WARPS * 4
            + if team > 1 { 2 * WARPS * 32 * 16 } else { 0 };
        Ok(AttentionJobs {
            queries,
            query_groups,
            team,
            splits,
            max_unsplit: MAX_UNSPLIT / team,
            split_positions: (SPLIT_ELEMENTS / a.head_dim).max(TILE_POSITIONS),
            scratchpad,
        })
    }
}
