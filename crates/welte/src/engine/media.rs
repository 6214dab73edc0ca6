//! Media of a request: what an encoder has made of an image, and where it lies in the prompt.

use crate::cache::sha256;
use crate::{Error, Model, Request};
use std::ops::Range;
use std::sync::Arc;

/// What an encoder has made of a medium, an image say: vectors that a model reads in place of tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Medium {
    width: usize,
    features: Vec<f32>,
    axes: Vec<[u32; 3]>,
    advance: u32,
    both_ways: bool,
    /// Stands for the features.
    features_sum: [u8; 32],
    /// Stands for the whole medium.
    content: [u8; 32],
}

impl Medium {
    /// A medium of rows of `width` values: as many as the model's embeddings have. Its rows have the positions of tokens, and each
    /// attends to what is before it.
    ///
    /// ```
    /// let medium = welte::Medium::new(4, vec![0.5; 12])?;
    /// assert_eq!(medium.rows(), 3);
    /// # Ok::<(), welte::Error>(())
    /// ```
    pub fn new(width: usize, features: Vec<f32>) -> Result<Medium, Error> {
        if width == 0 || features.is_empty() || !features.len().is_multiple_of(width) {
            let values = features.len();
            return Err(wrong(format!("{values} values are not rows of {width}")));
        }
        if let Some(at) = features.iter().position(|value| !value.is_finite()) {
            let row = at / width;
            return Err(wrong(format!("row {row} has a value that is not finite")));
        }
        let rows = features.len() / width;
        let bytes: Vec<u8> = features.iter().flat_map(|v| v.to_le_bytes()).collect();
        let medium = Medium {
            width,
            axes: (0..rows as u32).map(|row| [row; 3]).collect(),
            advance: rows as u32,
            both_ways: false,
            features_sum: sha256([&bytes[..]]),
            content: [0; 32],
            features,
        };
        Ok(medium.sealed())
    }

    /// With coordinates of multimodal rotary positions, a time, height and width for each row: they count from the position at
    /// which the medium begins. What follows the medium goes on `advance` positions after that.
    pub fn with_axes(mut self, axes: Vec<[u32; 3]>, advance: u32) -> Result<Medium, Error> {
        let (have, rows) = (axes.len(), self.rows());
        if have != rows {
            return Err(wrong(format!("{have} coordinates for {rows} rows")));
        }
        let most = axes.iter().flatten().copied().max().unwrap_or(0);
        if most.max(advance) >= 1 << 26 {
            return Err(wrong(format!("a coordinate of {most} is too large")));
        }
        (self.axes, self.advance) = (axes, advance);
        Ok(self.sealed())
    }

    /// The same medium with rows that attend to each other both ways.
    pub fn attending_both_ways(mut self) -> Medium {
        self.both_ways = true;
        self.sealed()
    }

    /// Notes what the medium is. The prefix cache tells media apart by this.
    fn sealed(mut self) -> Medium {
        let numbers = |values: &[u32]| values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let form = [self.width as u32, self.advance, self.both_ways.into()];
        let form: Vec<u8> = numbers(&form);
        let axes: Vec<u8> = numbers(self.axes.as_flattened());
        self.content = sha256([&form[..], &axes, &self.features_sum]);
        self
    }

    /// Its rows: the positions that it takes.
    pub fn rows(&self) -> usize {
        self.features.len() / self.width
    }

    /// Values of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The vectors, row after row.
    pub fn features(&self) -> &[f32] {
        &self.features
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        4 * self.features.len() + 12 * self.axes.len()
    }

    pub(crate) fn content(&self) -> &[u8; 32] {
        &self.content
    }
}

/// A medium in a prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct MediumAt {
    /// The position of its first row. The prompt has a token in the place of each row: penalties see it, the model does not.
    pub at: usize,
    /// The medium.
    pub medium: Arc<Medium>,
}

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

fn wrong(problem: String) -> Error {
    Error::Media { problem }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_that_make_no_sense_are_refused() {
        for (width, values) in [(0, 4), (3, 0), (3, 4)] {
            let said = Medium::new(width, vec![0.0; values]).unwrap_err();
            assert!(said.to_string().contains("not rows of"), "{said}");
        }
        let said = Medium::new(2, vec![0.0, 1.0, f32::NAN, 1.0]).unwrap_err();
        assert!(said.to_string().contains("row 1"), "{said}");
        let medium = Medium::new(2, vec![0.0; 6]).unwrap();
        assert!(medium.clone().with_axes(vec![[0; 3]; 2], 1).is_err());
        assert!(medium.with_axes(vec![[0; 3]; 3], u32::MAX).is_err());
    }

    /// Everything that decides what a model reads is part of what a medium is.
    #[test]
    fn different_media_have_different_content() {
        let medium = |value| Medium::new(2, vec![1.0, value, 3.0, 4.0]).unwrap();
        let grid = |axes| medium(2.0).with_axes(vec![[0; 3], axes], 2).unwrap();
        let all = [
            medium(2.0),
            medium(2.5),
            Medium::new(4, vec![1.0, 2.0, 3.0, 4.0]).unwrap(),
            medium(2.0).attending_both_ways(),
            grid([0, 0, 1]),
            grid([0, 1, 0]),
            medium(2.0).with_axes(vec![[0; 3], [1; 3]], 3).unwrap(),
        ];
        for (i, one) in all.iter().enumerate() {
            for other in &all[..i] {
                assert_ne!(one.content(), other.content());
            }
        }
        assert_eq!(all[0].content(), medium(2.0).content());
    }
}
