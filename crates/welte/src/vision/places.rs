//! The learned vectors of places, which the rows of an encoder read after their patches.

use crate::Error;
use welte_formats::Checkpoint;
use welte_models::{Places as Kind, VisionSpec};

/// The vectors of all places of a model.
pub(super) struct Places {
    /// Line by line, then that of the class.
    table: Vec<f32>,
    /// Floats of a vector; 0: positions are rotary.
    dim: usize,
    /// Places of a line, and lines.
    side: usize,
    kind: Kind,
    /// Values that the keys of queries get of their place; 0: there are no queries.
    of_keys: usize,
}

/// How a line of places is resized to the patches of a tile, if it is.
fn resized(kind: Kind, side: usize, count: u32) -> Option<Vec<Mean>> {
    match kind {
        Kind::None | Kind::Fixed | Kind::Sums => None,
        Kind::Areas => Some(weights(side, count)),
        Kind::Corners => Some(between_corners(side, count)),
        Kind::Middles => Some(between_middles(side, count)),
        Kind::Cubic => Some(cubic(side, count)),
        Kind::CubicAreas => Some(cubic_areas(side, count)),
        Kind::Buckets => Some(buckets(side, count)),
    }
}

/// What a new value is made of: old ones with their weights.
type Mean = Vec<(usize, f32)>;

/// The vectors for a tile.
pub(super) struct OnTile<'a> {
    places: &'a Places,
    /// What each line, and each column, is made of.
    weights: [Option<Vec<Mean>>; 2],
}

impl Places {
    pub(super) fn of(spec: &VisionSpec, checkpoint: &dyn Checkpoint) -> Result<Places, Error> {
        Ok(Places {
            table: welte_models::learned_positions(spec, checkpoint)?,
            dim: match spec.positions {
                0 => 0,
                _ => spec.dim as usize,
            },
            side: (spec.image / spec.patch) as usize,
            kind: spec.places(),
            of_keys: spec.query_values() as usize,
        })
    }

    /// The vector of the class.
    pub(super) fn class(&self) -> &[f32] {
        &self.table[self.table.len() - self.dim..]
    }

    /// What the key of a patch adds for queries: sines, then cosines, of the column, then of the line. Empty without queries.
    pub(super) fn of_key<'a>(&self, line: u32, column: u32, own: &'a mut Vec<f32>) -> &'a [f32] {
        own.clear();
        let quarter = self.of_keys / 4;
        for place in [column, line] {
            let angle = |i: usize| {
                let power = -(i as f64) / quarter as f64;
                f64::from(place) * 10000f64.powf(power)
            };
            own.extend((0..quarter).map(|i| angle(i).sin() as f32));
            own.extend((0..quarter).map(|i| angle(i).cos() as f32));
        }
        own
    }

    /// For a tile whose patches are in these windows, lines and columns.
    pub(super) fn on(&self, patches: &[[u32; 3]]) -> OnTile<'_> {
        let count = |axis: usize| patches.iter().map(|p| p[axis] + 1).max().unwrap_or(1);
        OnTile {
            places: self,
            weights: [1, 2].map(|axis| resized(self.kind, self.side, count(axis))),
        }
    }
}

/// What each of `count` new values is made of: `side` old ones, resized linearly, without gaps when there are fewer.
fn weights(side: usize, count: u32) -> Vec<Mean> {
    let scale = side as f32 / count as f32;
    let support = scale.max(1.0);
    let each = |new: u32| {
        let center = (new as f32 + 0.5) * scale - 0.5;
        let weight = |old: usize| (1.0 - (old as f32 - center).abs() / support).max(0.0);
        let own = (0..side)
            .map(|old| (old, weight(old)))
            .filter(|own| own.1 > 0.0);
        let own: Mean = own.collect();
        let sum: f32 = own.iter().map(|own| own.1).sum();
        own.into_iter()
            .map(|(old, weight)| (old, weight / sum))
            .collect()
    };
    (0..count).map(each).collect()
}

/// What each of `count` new values is made of: the two neighbours of its place between the first and the last old value.
fn between_corners(side: usize, count: u32) -> Vec<Mean> {
    let step = match count {
        0 | 1 => 0.0,
        _ => (side - 1) as f32 / (count - 1) as f32,
    };
    let each = |new: u32| {
        let place = new as f32 * step;
        let low = (place as usize).min(side - 1);
        let high = (low + 1).min(side - 1);
        let weight = place - low as f32;
        vec![(low, 1.0 - weight), (high, weight)]
    };
    (0..count).map(each).collect()
}

/// What each of `count` new values is made of: the two neighbours of the middle of its part of the old values.
fn between_middles(side: usize, count: u32) -> Vec<Mean> {
    let scale = side as f32 / count as f32;
    let each = |new: u32| {
        let place = ((new as f32 + 0.5) * scale - 0.5).max(0.0);
        let low = (place as usize).min(side - 1);
        let high = (low + 1).min(side - 1);
        let weight = place - low as f32;
        vec![(low, 1.0 - weight), (high, weight)]
    };
    (0..count).map(each).collect()
}

impl OnTile<'_> {
    /// The vector of a patch.
    pub(super) fn read(&self, line: u32, column: u32, vector: &mut Vec<f32>) {
        let Places {
            table,
            dim,
            side,
            kind,
            ..
        } = self.places;
        let at = |line: usize, column: usize| &table[(line * side + column) * dim..][..*dim];
        vector.clear();
        if *kind == Kind::Sums {
            let own = at(0, column as usize).iter().zip(at(1, line as usize));
            vector.extend(own.map(|(column, line)| column + line));
            return;
        }
        let [Some(lines), Some(columns)] = &self.weights else {
            vector.extend_from_slice(at(line as usize, column as usize));
            return;
        };
        vector.resize(*dim, 0.0);
        for (line, of_line) in &lines[line as usize] {
            for (column, of_column) in &columns[column as usize] {
                let weight = of_line * of_column;
                let values = vector.iter_mut().zip(at(*line, *column));
                values.for_each(|(sum, value)| *sum += weight * value);
            }
        }
    }
}

/// What each of `count` new values is made of: four neighbours of the middle of its part, by torch's cubic convolution. Beyond the ends
/// stands the last old value.
fn cubic(side: usize, count: u32) -> Vec<Mean> {
    const A: f32 = -0.75;
    let near = |x: f32| ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0;
    let far = |x: f32| ((A * x - 5.0 * A) * x + 8.0 * A) * x - 4.0 * A;
    let scale = side as f32 / count as f32;
    let each = |new: u32| {
        let place = (new as f32 + 0.5) * scale - 0.5;
        let (low, t) = (place.floor() as i64, place - place.floor());
        let taps = [far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t)];
        let old = |tap: usize| (low - 1 + tap as i64).clamp(0, side as i64 - 1) as usize;
        (0..4).map(|tap| (old(tap), taps[tap])).collect()
    };
    (0..count).map(each).collect()
}

/// What each of `count` new values is made of: old ones by a cubic curve, without gaps when there are fewer, as pillow resizes.
fn cubic_areas(side: usize, count: u32) -> Vec<Mean> {
    const A: f32 = -0.5;
    let scale = side as f32 / count as f32;
    let stretch = scale.max(1.0);
    let curve = |x: f32| match x.abs() {
        x if x < 1.0 => ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0,
        x if x < 2.0 => (((x - 5.0) * x + 8.0) * x - 4.0) * A,
        _ => 0.0,
    };
    let each = |new: u32| {
        let center = (new as f32 + 0.5) * scale;
        let first = (center - 2.0 * stretch + 0.5).max(0.0) as usize;
        let end = ((center + 2.0 * stretch + 0.5) as usize).min(side);
        let own = (first..end).map(|old| (old, curve((old as f32 + 0.5 - center) / stretch)));
        let own: Mean = own.collect();
        let sum: f32 = own.iter().map(|own| own.1).sum();
        let own = own.into_iter();
        own.map(|(old, weight)| (old, weight / sum)).collect()
    };
    if count as usize == side {
        return (0..side).map(|old| vec![(old, 1.0)]).collect();
    }
    (0..count).map(each).collect()
}

/// The old value in whose part each of `count` new ones begins. Both are fractions in float32, as torch has them.
fn buckets(side: usize, count: u32) -> Vec<Mean> {
    let fraction = |part: usize, of: usize| (part as f64 * (1.0 / of as f64)) as f32;
    let each = |new: u32| {
        let place = fraction(new as usize, count as usize);
        let old = (1..side).take_while(|old| fraction(*old, side) <= place);
        vec![(old.count(), 1.0)]
    };
    (0..count).map(each).collect()
}

#[cfg(test)]
mod tests {
    use super::{between_corners, between_middles, weights};
    use super::{buckets, cubic};

    #[test]
    fn corners_stay() {
        let all = between_corners(3, 5);
        assert_eq!(all[0], [(0, 1.0), (1, 0.0)]);
        assert_eq!(all[1], [(0, 0.5), (1, 0.5)]);
        assert_eq!(all[4], [(2, 1.0), (2, 0.0)]);
        assert_eq!(between_corners(3, 1), [[(0, 1.0), (1, 0.0)]]);
    }

    #[test]
    fn middles_are_between_their_neighbours() {
        assert_eq!(between_middles(2, 4)[0], [(0, 1.0), (1, 0.0)]);
        assert_eq!(between_middles(2, 4)[1], [(0, 0.75), (1, 0.25)]);
        assert_eq!(between_middles(2, 4)[3], [(1, 0.75), (1, 0.25)]);
        assert_eq!(between_middles(4, 2)[0], [(0, 0.5), (1, 0.5)]);
    }

    #[test]
    fn cubic_curves_go_through_old_places() {
        assert_eq!(cubic(3, 3)[1], [(0, 0.0), (1, 1.0), (2, 0.0), (2, 0.0)]);
        let twice = cubic(4, 8);
        let own: Vec<f32> = twice[3].iter().map(|own| own.1).collect();
        assert_eq!(own, [-0.10546875, 0.87890625, 0.26171875, -0.03515625]);
        assert_eq!(twice[0].iter().map(|own| own.0).max(), Some(1));
    }

    #[test]
    fn patches_begin_in_buckets() {
        let olds = |side, count| -> Vec<usize> {
            let all = buckets(side, count);
            all.iter().map(|own| own[0].0).collect()
        };
        assert_eq!(olds(4, 4), [0, 1, 2, 3]);
        assert_eq!(olds(70, 35), (0..35).map(|i| 2 * i).collect::<Vec<_>>());
        assert_eq!(olds(3, 7), [0, 0, 0, 1, 1, 2, 2]);
    }

    #[test]
    fn resized_places_are_means_of_old_ones() {
        assert_eq!(weights(3, 3), [[(0, 1.0)], [(1, 1.0)], [(2, 1.0)]]);
        for (side, count) in [(4, 2), (2, 5), (5, 3)] {
            for own in weights(side, count) {
                let sum: f32 = own.iter().map(|own| own.1).sum();
                assert!((sum - 1.0).abs() < 1e-6 && own.len() <= side);
            }
        }
        assert_eq!(weights(2, 4)[1], [(0, 0.75), (1, 0.25)]);
    }
}
