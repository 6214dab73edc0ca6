//! What an encoder has made of an image.

use crate::Error;
use crate::cache::sha256;
use std::sync::Arc;

/// Coordinates of media are smaller, also those of all media of a prompt together.
pub(super) const FARTHEST: u32 = 1 << 26;

/// What an encoder has made of a medium, an image say: vectors that a model reads in place of tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Medium {
    width: usize,
    features: Vec<f32>,
    pub(super) axes: Vec<[u32; 3]>,
    pub(super) advance: u32,
    pub(super) both_ways: bool,
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
        if most.max(advance) >= FARTHEST {
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

pub(super) fn wrong(problem: String) -> Error {
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
