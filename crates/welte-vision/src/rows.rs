//! The rows that an encoder reads: the patches of a tile, in the encoder's order.
//!
//! The patches of one feature are neighbours, line by line, so that merging them needs no search. Features of one window are
//! neighbours, too, and so are those of a part of a feature.

use crate::{Processor, Tile, Values};

/// The rows of a tile.
#[derive(Clone, Debug, PartialEq)]
pub struct Rows {
    /// The patches' values, one patch after the other.
    pub values: Vec<f32>,
    /// The patch's window, line and column.
    pub places: Vec<[u32; 3]>,
    /// The number that each group of patches has among the features of its tile, which go line by line.
    pub features: Vec<u32>,
}

impl Processor {
    /// Values of a patch.
    pub fn width(&self) -> u32 {
        3 * self.values.frames() * self.patch * self.patch
    }

    /// The rows of a tile.
    pub fn rows(&self, tile: &Tile) -> Rows {
        let merge = self.neighbours;
        let side = self.patch * merge;
        let (lines, columns) = (tile.pixels.height / side, tile.pixels.width / side);
        let mut order: Vec<[u32; 3]> = (0..lines * columns)
            .map(|i| {
                let (line, column) = (i / columns, i % columns);
                let window = self.window.map_or(0, |window| {
                    line / window * columns.div_ceil(window) + column / window
                });
                [window, line, column]
            })
            .collect();
        order.sort();
        let count = (lines * columns * merge * merge) as usize;
        let mut rows = Rows {
            values: Vec::with_capacity(count * self.width() as usize),
            places: Vec::with_capacity(count),
            features: Vec::with_capacity(order.len()),
        };
        for [window, line, column] in order {
            rows.features.push(line * columns + column);
            let part = self.part.unwrap_or(merge);
            let (parts, own) = ((merge / part).pow(2), part * part);
            for number in 0..parts * own {
                let (nth, inner) = (number / own, number % own);
                let of_part = [nth / (merge / part), nth % (merge / part)];
                let inner = [inner / part, inner % part];
                let [y, x] = [0, 1].map(|axis| of_part[axis] * part + inner[axis]);
                let place = [line * merge + y, column * merge + x];
                let window = match self.part {
                    Some(_) => (line * columns + column) * parts + nth,
                    None => window,
                };
                rows.places.push([window, place[0], place[1]]);
                self.patch(tile, place, &mut rows.values);
            }
        }
        rows
    }

    /// Appends the values of the patch in this line and column.
    fn patch(&self, tile: &Tile, [line, column]: [u32; 2], values: &mut Vec<f32>) {
        let (patch, width) = (self.patch as usize, tile.pixels.width as usize);
        let (top, left) = (line as usize * patch, column as usize * patch);
        let value = |frame: usize, y: usize, x: usize, colour: usize| {
            let byte = tile.frame(frame).bytes[3 * ((top + y) * width + left + x) + colour];
            (f32::from(byte) / 255.0 - self.mean[colour]) / self.deviation[colour]
        };
        let mut plane = |frame: usize, colour: usize| {
            for y in 0..patch {
                values.extend((0..patch).map(|x| value(frame, y, x, colour)));
            }
        };
        let frames = self.values.frames() as usize;
        match self.values {
            Values::Planes { .. } => {
                (0..3).for_each(|colour| (0..frames).for_each(|frame| plane(frame, colour)));
            }
            Values::Frames { .. } => {
                (0..frames).for_each(|frame| (0..3).for_each(|colour| plane(frame, colour)));
            }
            Values::Pixels => {
                for y in 0..patch {
                    for x in 0..patch {
                        values.extend((0..3).map(|colour| value(0, y, x, colour)));
                    }
                }
            }
        }
    }
}
