//! Phases: how many chunks of work each has, and how a chunk runs.
#![allow(unsafe_code)]

use crate::ops::adapt::{AdaptDown, AdaptLookup, AdaptUp};
use crate::ops::altup::{AltUp, Cutoff, MatchSquares, Multiply};
use crate::ops::attention::Attention;
use crate::ops::basic::{
    self, Act, ActMul, Add, Bias, Embed, Gate, LayerNorm, Norm, PositionScale, Scale, Spread,
};
use crate::ops::choose_positions::ChoosePositions;
use crate::ops::encode_attention::EncodeAttention;
use crate::ops::encode_conv::EncodeConv;
use crate::ops::exchange::Exchange;
use crate::ops::experts::{Combine, ExpertsMatmul, Groups, PrepareEntries, Route};
use crate::ops::gated_delta::GatedDelta;
use crate::ops::heads::HeadsMatmul;
use crate::ops::mamba2::Mamba2;
use crate::ops::matmul::{Matmul, Prepare, prepared_by_each};
use crate::ops::output_rows::{Pool, SelectRows};
use crate::ops::positions::{AddFeature, AddPosition};
use crate::ops::rope::{KvAppend, Rope, RopeAppend, RopeTable};
use crate::ops::sample::Sample;
use crate::ops::short_conv::ShortConv;
use crate::ops::{FloatRows, State, ThreadMemory};

/// Chunks of a merge: it is little work.
const MERGE_CHUNKS: usize = 4;

/// A pass as phases.
pub(crate) struct LoweredPass {
    pub(crate) phases: Vec<LoweredPhase>,
    /// The output rows, which are adjacent.
    pub(crate) result: FloatRows,
    /// Floats of an output row.
    pub(crate) width: usize,
}

/// A phase with the command that it came from.
pub(crate) struct LoweredPhase {
    pub(crate) command: u32,
    /// It runs over output rows instead of input rows.
    pub(crate) on_outputs: bool,
    pub(crate) phase: Phase,
}

/// Work whose chunks may run at the same time.
pub(crate) enum Phase {
    Angles(RopeTable),
    Embed(Embed),
    Norm(Norm),
    LayerNorm(LayerNorm),
    HeadsMatmul(HeadsMatmul),
    PositionScale(PositionScale),
    Act(Act),
    Prepare(Prepare),
    Matmul(Matmul),
    Bias(Bias),
    Rope(Rope),
    KvAppend(KvAppend),
    RopeAppend(RopeAppend),
    Attention(Attention),
    /// Merges the partial results of the attention phase before it, if that was split.
    Merge(Attention),
    /// Scores of a single row, for the phase after it.
    ScorePositions(ChoosePositions),
    ChoosePositions(ChoosePositions),
    EncodeAttention(EncodeAttention),
    EncodeConv(EncodeConv),
    AddPosition(AddPosition),
    AddFeature(AddFeature),
    ShortConv(ShortConv),
    GatedDelta(GatedDelta),
    Mamba2(Mamba2),
    ActMul(ActMul),
    Gate(Gate),
    Multiply(Multiply),
    Spread(Spread),
    Cutoff(Cutoff),
    MatchSquares(MatchSquares),
    AltUp(AltUp),
    Add(Add),
    Scale(Scale),
    SelectRows(SelectRows),
    Pool(Pool),
    Route(Route),
    /// Groups entries by the experts that this place names.
    Group(Groups, FloatRows),
    PrepareEntries(PrepareEntries),
    ExpertsMatmul(ExpertsMatmul),
    Combine(Combine),
    AdaptDown(AdaptDown),
    AdaptLookup(AdaptLookup),
    AdaptUp(AdaptUp),
    Exchange(Exchange),
    Scan(Sample),
    Choose(Sample),
}

impl LoweredPhase {
    /// The rows that it runs over.
    pub(crate) fn rows(&self, input_rows: usize, output_rows: usize) -> usize {
        if self.on_outputs {
            output_rows
        } else {
            input_rows
        }
    }

    /// How many chunks it has; none without rows.
    pub(crate) fn chunks(&self, state: &State, input_rows: usize, output_rows: usize) -> usize {
        match self.rows(input_rows, output_rows) {
            0 => 0,
            rows => self.phase.chunks(state, rows),
        }
    }

    /// Runs one chunk.
    ///
    /// # Safety
    /// As [`Phase::run`].
    pub(crate) unsafe fn run(
        &self,
        state: &State,
        input_rows: usize,
        output_rows: usize,
        chunk: usize,
        thread: ThreadMemory,
    ) {
        let rows = self.rows(input_rows, output_rows);
        // SAFETY: promised by the caller.
        unsafe { self.phase.run(state, rows, chunk, thread) }
    }
}

impl Phase {
    /// How many chunks it has for `rows` rows.
    fn chunks(&self, state: &State, rows: usize) -> usize {
        match self {
            Phase::Prepare(_) if prepared_by_each(rows) => 0,
            Phase::Matmul(p) => p.chunks(rows),
            Phase::RopeAppend(p) => rows * p.chunks_per_row(rows),
            Phase::Attention(p) => match p.items(state, rows) {
                Some(items) => items + state.generated * p.kv_heads,
                None => p.kv_heads * p.shared_splits(state, rows).unwrap_or(rows),
            },
            Phase::Merge(p) => match p.shared_splits(state, rows) {
                Some(_) => p.kv_heads.min(MERGE_CHUNKS),
                None => 0,
            },
            Phase::ScorePositions(p) => p.shared_blocks(state, rows),
            Phase::ChoosePositions(_) => rows,
            Phase::EncodeAttention(p) => p.items(rows),
            Phase::ShortConv(p) => p.chunks(),
            Phase::HeadsMatmul(p) => p.chunks(rows),
            Phase::GatedDelta(p) => p.chunks(),
            Phase::Mamba2(p) => p.chunks(),
            Phase::ExpertsMatmul(p) => p.chunks(rows),
            Phase::AdaptDown(p) => p.chunks(rows),
            Phase::AdaptUp(p) => p.chunks(rows),
            Phase::Group(..) | Phase::Exchange(_) => 1,
            Phase::Scan(p) => p.chunks(state, rows),
            Phase::Choose(_) => state.lanes.len().min(rows),
            _ => rows.div_ceil(basic::rows_of_chunk(rows)),
        }
    }

    /// Runs one chunk.
    ///
    /// # Safety
    /// See `ops`; the memory is this thread's own.
    unsafe fn run(&self, state: &State, rows: usize, chunk: usize, thread: ThreadMemory) {
        let scratch = thread.scratch;
        let each = basic::rows_of_chunk(rows);
        let some = chunk * each..rows.min((chunk + 1) * each);
        // SAFETY: the promise of `ops` holds for each of them alike.
        unsafe {
            match self {
                Phase::Angles(p) => some.for_each(|row| p.run(state, row)),
                Phase::Embed(p) => some.for_each(|row| p.run(state, row)),
                Phase::Norm(p) => some.for_each(|row| p.run(row)),
                Phase::LayerNorm(p) => some.for_each(|row| p.run(row)),
                Phase::HeadsMatmul(p) => p.run(rows, chunk, scratch),
                Phase::PositionScale(p) => some.for_each(|row| p.run(state, row)),
                Phase::Act(p) => some.for_each(|row| p.run(row)),
                Phase::Prepare(p) => some.for_each(|row| p.run(row, scratch)),
                Phase::Bias(p) => some.for_each(|row| p.run(row)),
                Phase::Rope(p) => some.for_each(|row| p.run(row)),
                Phase::KvAppend(p) => some.for_each(|row| p.run(state, row)),
                Phase::ScorePositions(p) => p.score_block(state, chunk),
                Phase::ChoosePositions(p) => p.run(state, rows, chunk, scratch),
                Phase::EncodeAttention(p) => p.item(state, rows, chunk, scratch),
                Phase::EncodeConv(p) => some.for_each(|row| p.run(state, rows, row)),
                Phase::AddPosition(p) => some.for_each(|row| p.run(state, row)),
                Phase::AddFeature(p) => some.for_each(|row| p.run(state, row)),
                Phase::ShortConv(p) => p.run(state, rows, chunk),
                Phase::GatedDelta(p) => p.run(state, rows, chunk, scratch),
                Phase::Mamba2(p) => p.run(state, rows, chunk),
                Phase::ActMul(p) => some.for_each(|row| p.run(row)),
                Phase::Gate(p) => some.for_each(|row| p.run(row)),
                Phase::Multiply(p) => some.for_each(|row| p.run(row)),
                Phase::Spread(p) => some.for_each(|row| p.run(row)),
                Phase::Cutoff(p) => some.for_each(|row| p.run(row)),
                Phase::MatchSquares(p) => some.for_each(|row| p.run(row)),
                Phase::AltUp(p) => some.for_each(|row| p.run(row)),
                Phase::Add(p) => some.for_each(|row| p.run(row)),
                Phase::Scale(p) => some.for_each(|row| p.run(row)),
                Phase::SelectRows(p) => some.for_each(|output| p.run(state, output)),
                Phase::Pool(p) => some.for_each(|output| p.run(state, output)),
                Phase::Route(p) => some.for_each(|row| p.run(row)),
                Phase::Group(p, choice) => p.fill(*choice, rows),
                Phase::PrepareEntries(p) => some.for_each(|row| p.run(row)),
                Phase::ExpertsMatmul(p) => p.run(rows, chunk, scratch),
                Phase::Combine(p) => some.for_each(|row| p.run(row)),
                Phase::Matmul(p) => p.run(state, rows, chunk, thread),
                Phase::RopeAppend(p) => p.run(state, rows, chunk),
                Phase::Attention(p) if let Some(items) = p.items(state, rows) => {
                    // Items come first, since most of them are more work than a generated row.
                    match chunk.checked_sub(items) {
                        None => p.item(state, rows, chunk, scratch),
                        Some(rest) => p.whole(state, rest / p.kv_heads, rest % p.kv_heads, scratch),
                    }
                }
                Phase::Attention(p) if p.shared_splits(state, rows).is_some() => {
                    p.split(state, chunk % p.kv_heads, chunk / p.kv_heads, scratch);
                }
                Phase::Attention(p) => {
                    p.whole(state, chunk / p.kv_heads, chunk % p.kv_heads, scratch)
                }
                Phase::Merge(p) => {
                    let chunks = p.kv_heads.min(MERGE_CHUNKS);
                    (chunk..p.kv_heads)
                        .step_by(chunks)
                        .for_each(|head| p.merge(state, head));
                }
                Phase::AdaptDown(p) => p.run(state, chunk),
                Phase::AdaptLookup(p) => some.for_each(|row| p.run(state, row)),
                Phase::AdaptUp(p) => p.run(state, chunk),
                Phase::Exchange(p) => p.run(rows),
                Phase::Scan(p) => p.scan(state, chunk),
                Phase::Choose(p) => p.choose(state, rows, chunk),
            }
        }
    }
}
