//! What stands between the encoders of a chain: how the features of one become the rows of the next one.

use welte_models::{VisionFamily, VisionSpec, WindowProjector, Windows};

/// What the rows of an encoder read, without the vectors of places, and their axes; or its features.
#[derive(Default)]
pub(super) struct Stage {
    pub(super) values: Vec<f32>,
    pub(super) places: Vec<[u32; 3]>,
}

/// Lines and columns of places.
fn sides(places: &[[u32; 3]]) -> [u32; 2] {
    [1, 2].map(|axis| {
        places
            .iter()
            .map(|place| place[axis] + 1)
            .max()
            .unwrap_or(0)
    })
}

impl Stage {
    /// Each feature is a row.
    pub(super) fn alone(self, width: usize) -> Stage {
        Stage {
            places: vec![[0; 3]; self.values.len() / width],
            values: self.values,
        }
    }

    /// The squares of 3 x 3 features around every `step`-th one, as the kernel of a convolution wants them. Beyond the borders stand
    /// zeros.
    pub(super) fn squares(self, width: usize, step: u32) -> Stage {
        let [lines, columns] = sides(&self.places);
        let each = (0..lines.div_ceil(step))
            .flat_map(|line| (0..columns.div_ceil(step)).map(move |column| [0, line, column]));
        let places: Vec<[u32; 3]> = each.collect();
        let mut values = vec![0.0; places.len() * 9 * width];
        for ([_, line, column], own) in places.iter().zip(values.chunks_exact_mut(9 * width)) {
            for i in 0..9 {
                let at = |own: u32, i: u32, side: u32| {
                    let own = (own * step + i).checked_sub(1);
                    own.filter(|own| *own < side)
                };
                let (line, column) = (at(*line, i / 3, lines), at(*column, i % 3, columns));
                let (Some(line), Some(column)) = (line, column) else {
                    continue;
                };
                let feature = &self.values[(line * columns + column) as usize * width..][..width];
                let to = own[i as usize..].iter_mut().step_by(9);
                to.zip(feature).for_each(|(to, value)| *to = *value);
            }
        }
        Stage { values, places }
    }

    /// The queries of all windows: `learned` ones, to which each projector adds a mean of patches or one of them.
    pub(super) fn queries(&self, windows: &Windows, width: usize, learned: &[f32]) -> Stage {
        let [side, _] = sides(&self.places);
        let (count, own) = (side / windows.patches, windows.queries);
        let all = count * own;
        let dim = width / windows.projectors.len();
        let mut stage = Stage::default();
        for window in 0..count * count {
            let corner = [window / count * own, window % count * own];
            for (query, learned) in (0..own * own).zip(learned.chunks_exact(width)) {
                let at = [corner[0] + query / own, corner[1] + query % own];
                let parts = windows.projectors.iter().zip(learned.chunks_exact(dim));
                for (number, (one, learned)) in parts.enumerate() {
                    let [lines, columns] = [0, 1].map(|axis| match one {
                        WindowProjector {
                            offset: Some(offset),
                            ..
                        } => {
                            let patch = 2 * at[axis] + offset[axis];
                            patch..patch + 1
                        }
                        _ => at[axis] * side / all..((at[axis] + 1) * side).div_ceil(all),
                    });
                    let share = 1.0 / (lines.len() * columns.len()) as f32;
                    let mut sum = learned.to_vec();
                    for patch in lines.flat_map(|l| columns.clone().map(move |c| l * side + c)) {
                        let state = &self.values[patch as usize * width + number * dim..][..dim];
                        let sum = sum.iter_mut().zip(state);
                        sum.for_each(|(sum, value)| *sum += share * value);
                    }
                    stage.values.extend(sum);
                }
                stage.places.push([window, 0, 0]);
            }
        }
        stage
    }

    /// The patches of each window, to which a `learned` vector of their place in it is added, then the window's queries.
    pub(super) fn windows(
        &self,
        windows: &Windows,
        width: usize,
        learned: &[f32],
        queries: &[f32],
    ) -> Stage {
        let [side, _] = sides(&self.places);
        let (count, own) = (side / windows.patches, windows.patches);
        let each = windows.queries.pow(2) as usize;
        let mut stage = Stage::default();
        for (window, queries) in (0..count * count).zip(queries.chunks_exact(each * width)) {
            let corner = [window / count * own, window % count * own];
            for (place, learned) in (0..own * own).zip(learned.chunks_exact(width)) {
                let patch = (corner[0] + place / own) * side + corner[1] + place % own;
                let state = &self.values[patch as usize * width..][..width];
                let values = state.iter().zip(learned).map(|(a, b)| a + b);
                stage.values.extend(values);
            }
            stage.values.extend_from_slice(queries);
            let rows = (own * own) as usize + each;
            stage.places.extend(vec![[window, 0, 0]; rows]);
        }
        stage
    }
}

/// Features in the order of their numbers.
pub(super) fn in_order(values: &[f32], numbers: &[u32], width: usize) -> Vec<f32> {
    let mut all = vec![0.0; values.len()];
    for (number, feature) in numbers.iter().zip(values.chunks_exact(width)) {
        all[*number as usize * width..][..width].copy_from_slice(feature);
    }
    all
}

/// The numbers of a tile's features, line by line, in the order of windows.
pub(super) fn numbers_in_windows(windows: &Windows, features: u32) -> Vec<u32> {
    let (side, own) = (features.isqrt(), windows.queries);
    let count = side / own;
    let number = |at: u32| {
        let (window, query) = (at / (own * own), at % (own * own));
        let line = window / count * own + query / own;
        line * side + window % count * own + query % own
    };
    (0..features).map(number).collect()
}

/// The rows that yield features: the last patch of each group, the queries or the class.
pub(super) fn ends(spec: &VisionSpec, rows: u32, queries: u32) -> Vec<u32> {
    let group = spec.group();
    match &spec.windows {
        // Queries come last in their window.
        Some(windows) if spec.family == VisionFamily::Granite4 => {
            let (own, patches) = (windows.queries.pow(2), windows.patches.pow(2));
            let is_query = |row: &u32| row % (own + patches) >= patches;
            (0..rows).filter(is_query).collect()
        }
        _ if queries > 0 => (rows..rows + queries).collect(),
        // The class comes after the patches.
        _ if spec.is_of_class() => vec![rows],
        _ => (1..=rows / group).map(|i| i * group - 1).collect(),
    }
}
