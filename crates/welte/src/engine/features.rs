//! The feature buffer of a context: which media lie where, and for whom.

use super::media::Placed;
use super::sequence::Sequence;
use welte_device::{Context, Error};
use welte_table::{BufferId, Program};

/// Bytes that go to the device at a time.
const STAGING: usize = 1 << 20;

/// A medium in the buffer.
#[derive(Clone, Copy, Debug)]
struct Lent {
    number: u32,
    first: u32,
    rows: u32,
    /// Sequences that have rows of it to compute.
    users: u32,
}

/// Lends places in the feature buffer. A medium is there while a running sequence computes its rows, once for all of them.
#[derive(Debug)]
pub(crate) struct Features {
    buffer: BufferId,
    /// Features that the buffer has room for.
    room: u32,
    /// In the order of their places.
    lent: Vec<Lent>,
    /// A sequence waits for room, so those after it take none.
    contended: bool,
    /// Bytes on their way to the device.
    staging: Vec<u8>,
}

impl Features {
    pub(crate) fn new(program: &Program) -> Features {
        let room = program.feature_count();
        Features {
            buffer: program.features,
            room,
            lent: Vec::with_capacity(room as usize),
            contended: false,
            staging: Vec::with_capacity(
                STAGING.min(4 * room as usize * program.feature_width() as usize),
            ),
        }
    }

    /// A new step is planned: the first sequence that lacks room comes first.
    pub(crate) fn begin(&mut self) {
        self.contended = false;
    }

    /// Of the next `count` rows of a sequence, those that can be computed now: up to a medium that finds no room.
    fn ready(
        &mut self,
        context: &mut dyn Context,
        sequence: &mut Sequence,
        count: usize,
    ) -> Result<usize, Error> {
        let first = sequence.computed;
        let next = sequence.media.iter_mut();
        let next = next.filter(|m| m.rows.end > first && m.rows.start < first + count);
        for placed in next {
            if placed.features.is_none() && !self.lend(context, placed)? {
                self.contended = true;
                return Ok(placed.rows.start.saturating_sub(first));
            }
        }
        Ok(count)
    }

    /// The same without cutting a span whose rows attend to each other.
    pub(crate) fn whole(
        &mut self,
        context: &mut dyn Context,
        sequence: &mut Sequence,
        count: usize,
    ) -> Result<usize, Error> {
        let ready = self.ready(context, sequence, count)?;
        let whole = sequence.whole_spans(ready);
        let end = sequence.computed + whole;
        if whole < ready || ready < count && sequence.end_of_span(end).is_some() {
            // A span that is not computed holds no room which others wait for.
            self.give_back(sequence, end);
        }
        Ok(whole)
    }

    /// Takes back the media that begin at a row or later: what needs them cannot be computed yet.
    fn give_back(&mut self, sequence: &mut Sequence, from: usize) {
        self.take_back(sequence, |placed| placed.rows.start >= from);
    }

    /// Puts a medium into the buffer. False if there is no room.
    fn lend(&mut self, context: &mut dyn Context, placed: &mut Placed) -> Result<bool, Error> {
        let same = |lent: &&mut Lent| lent.number == placed.number;
        if let Some(lent) = self.lent.iter_mut().find(same) {
            lent.users += 1;
            placed.features = Some(lent.first);
            return Ok(true);
        }
        let rows = placed.medium.rows() as u32;
        let Some((at, first)) = self.gap(rows).filter(|_| !self.contended) else {
            return Ok(false);
        };
        let mut byte = 4 * placed.medium.width() as u64 * u64::from(first);
        for values in placed.medium.features().chunks(STAGING / 4) {
            self.staging.clear();
            let bytes = values.iter().flat_map(|value| value.to_ne_bytes());
            self.staging.extend(bytes);
            context.write_bytes(self.buffer, byte, &self.staging)?;
            byte += self.staging.len() as u64;
        }
        let lent = Lent {
            number: placed.number,
            first,
            rows,
            users: 1,
        };
        self.lent.insert(at, lent);
        placed.features = Some(first);
        Ok(true)
    }

    /// The first gap of `rows` features: before which medium, and where it begins.
    fn gap(&self, rows: u32) -> Option<(usize, u32)> {
        let mut begins = 0;
        for (at, lent) in self.lent.iter().enumerate() {
            if lent.first - begins >= rows {
                return Some((at, begins));
            }
            begins = lent.first + lent.rows;
        }
        (self.room - begins >= rows).then_some((self.lent.len(), begins))
    }

    /// Takes back the media of which a sequence has computed all rows.
    pub(crate) fn settle(&mut self, sequence: &mut Sequence) {
        let computed = sequence.computed;
        self.take_back(sequence, |placed| placed.rows.end <= computed);
    }

    /// Takes back all media of a sequence.
    pub(crate) fn release(&mut self, sequence: &mut Sequence) {
        self.take_back(sequence, |_| true);
    }

    fn take_back(&mut self, sequence: &mut Sequence, done: impl Fn(&Placed) -> bool) {
        for placed in sequence.media.iter_mut().filter(|placed| done(placed)) {
            let Some(first) = placed.features.take() else {
                continue;
            };
            if let Some(at) = self.lent.iter().position(|lent| lent.first == first) {
                self.lent[at].users -= 1;
                if self.lent[at].users == 0 {
                    self.lent.remove(at);
                }
            }
        }
    }
}
