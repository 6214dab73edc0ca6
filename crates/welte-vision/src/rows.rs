//! The rows that an encoder reads: the patches of a tile, in the encoder's order.
//!
//! The patches of one feature are neighbours, line by line, so that merging them needs no search. Features of one window are
//! neighbours, too.

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
        let frames = match self.values {
            Values::Planes { frames } => frames,
            Values::Pixels => 1,
        };
        3 * frames * self.patch * self.patch
    }

    /// The rows of a tile.
    pub fn rows(&self, tile: &Tile) -> Rows {
        let side = self.side();
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
        let count = (lines * columns * self.merge * self.merge) as usize;
        let mut rows = Rows {
            values: Vec::with_capacity(count * self.width() as usize),
            places: Vec::with_capacity(count),
            features: Vec::with_capacity(order.len()),
        };
        for [window, line, column] in order {
            rows.features.push(line * columns + column);
            for y in 0..self.merge {
                for x in 0..self.merge {
                    let place = [line * self.merge + y, column * self.merge + x];
                    rows.places.push([window, place[0], place[1]]);
                    self.patch(tile, place, &mut rows.values);
                }
            }
        }
        rows
    }

    /// Appends the values of the patch in this line and column.
    fn patch(&self, tile: &Tile, [line, column]: [u32; 2], values: &mut Vec<f32>) {
        let (patch, width) = (self.patch as usize, tile.pixels.width as usize);
        let (top, left) = (line as usize * patch, column as usize * patch);
        let bytes = &tile.pixels.bytes;
        let value = |y: usize, x: usize, colour: usize| {
            let byte = bytes[3 * ((top + y) * width + left + x) + colour];
            (f32::from(byte) / 255.0 - self.mean[colour]) / self.deviation[colour]
        };
        match self.values {
            Values::Planes { frames } => {
                for colour in 0..3 {
                    for _ in 0..frames {
                        for y in 0..patch {
                            values.extend((0..patch).map(|x| value(y, x, colour)));
                        }
                    }
                }
            }
            Values::Pixels => {
                for y in 0..patch {
                    for x in 0..patch {
                        values.extend((0..3).map(|colour| value(y, x, colour)));
                    }
                }
            }
        }
    }
}
