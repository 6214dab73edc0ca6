//! Media of a request: what an encoder has made of an image, and where it lies in the prompt.

use super::medium::{FARTHEST, Medium, MediumAt, wrong};
use crate::{Error, Model, Request};
use std::ops::Range;
use std::sync::Arc;

/// A medium of a sequence.
pub(crate) struct Placed {
    /// The positions of its rows.
    pub(crate) rows: Range<usize>,
    pub(crate) medium: Arc<Medium>,
    /// Its number among the keys of the prefix cache. The feature buffer has media by it, too.
    pub(crate) number: u32,
    /// What coordinates are ahead of positions after the medium, and before it.
    pub(crate) shift: (i32, i32),
    /// Where its features lie, while they are in the feature buffer for this sequence.
    pub(crate) features: Option<u32>,
}

impl Placed {
    /// The media of a request, one after the other.
    pub(crate) fn all(request: &Request) -> Vec<Placed> {
        let mut shift = 0;
        let placed = |at: &MediumAt| {
            let (before, rows) = (shift, at.medium.rows());
            shift += at.medium.advance as i32 - rows as i32;
            Placed {
                rows: at.at..at.at + rows,
                medium: at.medium.clone(),
                number: 0,
                shift: (before, shift),
                features: None,
            }
        };
        request.media.iter().map(placed).collect()
    }

    /// The coordinates of a row of the prompt that belongs to the medium.
    pub(crate) fn axes(&self, at: usize) -> [u32; 3] {
        let first = (self.rows.start as u32).saturating_add_signed(self.shift.0);
        let own = self.medium.axes[at - self.rows.start];
        own.map(|axis| first.saturating_add(axis))
    }
}

/// Spans of a prompt that attend both ways: those of the request, and those of its media.
pub(crate) fn both_ways(request: &Request) -> Vec<Range<usize>> {
    let media = request.media.iter().filter(|at| at.medium.both_ways);
    let mut media = media.map(|at| at.at..at.at + at.medium.rows()).peekable();
    if media.peek().is_none() {
        // They must be in order.
        return request.both_ways.clone();
    }
    let mut spans: Vec<Range<usize>> = request.both_ways.iter().cloned().chain(media).collect();
    spans.sort_by_key(|span| span.start);
    spans
}

/// Refuses media that do not lie in the prompt, or that the model has no room for.
pub(crate) fn check(model: &Model, request: &Request) -> Result<(), Error> {
    let Some(last) = request.media.last() else {
        return Ok(());
    };
    let (width, room) = (model.feature_width(), model.feature_room());
    if room == 0 {
        return Err(wrong(format!(
            "{} was loaded without room for any; load it with `features`",
            model.origin()
        )));
    }
    if request.options.prompt_logprobs.is_some() {
        return Err(wrong("they cannot be combined with prompt_logprobs".into()));
    }
    let follow = |pair: &[MediumAt]| {
        let end = pair[0].at.checked_add(pair[0].medium.rows());
        end.is_some_and(|end| end <= pair[1].at)
    };
    let end = last.at.checked_add(last.medium.rows());
    let inside = end.is_some_and(|end| end <= request.prompt.len());
    if !inside || !request.media.windows(2).all(follow) {
        let problem = "they must lie in the prompt, one after the other";
        return Err(wrong(problem.into()));
    }
    let advances = request.media.iter().map(|at| u64::from(at.medium.advance));
    if advances.sum::<u64>() >= u64::from(FARTHEST) {
        return Err(wrong("together their coordinates are too large".into()));
    }
    for span in &request.both_ways {
        let within = |at: &&MediumAt| at.at < span.end && at.at + at.medium.rows() > span.start;
        let rows: usize = request
            .media
            .iter()
            .filter(within)
            .map(|at| at.medium.rows())
            .sum();
        if rows > room {
            return Err(wrong(format!(
                "those of the span at {} have {rows} rows; the model was loaded with room for {room}",
                span.start
            )));
        }
    }
    for MediumAt { at, medium } in &request.media {
        let (own, rows) = (medium.width(), medium.rows());
        if own != width {
            return Err(wrong(format!(
                "the one at {at} has {own} values a row; the model reads {width}"
            )));
        }
        if rows > room {
            return Err(wrong(format!(
                "the one at {at} has {rows} rows; the model was loaded with room for {room}"
            )));
        }
    }
    Ok(())
}
