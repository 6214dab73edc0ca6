//! Adds the tensors of synthetic models.

use super::fill::Fill;
use super::{Recipe, Synthetic};
use welte_table::Format;

/// A model in the making.
pub(super) struct Layout<'a> {
    pub(super) made: &'a mut Synthetic,
    pub(super) recipe: Recipe,
}

impl Layout<'_> {
    /// `stack` matrices of `n` rows of `k` as one tensor. Mixed recipes give `important` ones more bits.
    pub(super) fn stacked(
        &mut self,
        name: impl Into<String>,
        stack: usize,
        [n, k]: [usize; 2],
        important: bool,
    ) {
        let format = self.recipe.format(important, stack > 1, k);
        let name = name.into();
        self.made
            .add(name, format, stack, stack * n, k, Fill::Matrix);
    }

    /// A matrix of `n` rows of `k`.
    pub(super) fn matrix(&mut self, name: impl Into<String>, size: [usize; 2], important: bool) {
        self.stacked(name, 1, size, important);
    }

    /// A small matrix, which keeps its precision.
    pub(super) fn precise(&mut self, name: impl Into<String>, [n, k]: [usize; 2]) {
        let name = name.into();
        self.made.add(name, Format::F32, 1, n, k, Fill::Matrix);
    }

    /// Factors around one.
    pub(super) fn norm(&mut self, name: impl Into<String>, k: usize) {
        self.norms(name, [1, k]);
    }

    /// The factors of `n` norms.
    pub(super) fn norms(&mut self, name: impl Into<String>, [n, k]: [usize; 2]) {
        let name = name.into();
        self.made.add(name, Format::F32, 1, n, k, Fill::Norm);
    }

    /// Factors of normed keys, where attention has no factor of its own.
    pub(super) fn key_norm(&mut self, name: impl Into<String>, k: usize) {
        let name = name.into();
        self.made.add(name, Format::F32, 1, 1, k, Fill::KeyNorm);
    }

    /// Small values around zero.
    pub(super) fn bias(&mut self, name: impl Into<String>, k: usize) {
        let name = name.into();
        self.made.add(name, Format::F32, 1, 1, k, Fill::Bias);
    }

    /// One given value in each of `n` rows.
    pub(super) fn column(&mut self, name: impl Into<String>, values: Vec<f32>) {
        let (name, n) = (name.into(), values.len());
        self.made
            .add(name, Format::F32, 1, n, 1, Fill::Column(values));
    }
}
