//! What stands in the prompt for a picture.

use crate::{Marks, Prepared};

/// A part of what stands in the prompt for a picture.
#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    /// Text in which control tokens count as such.
    Text(String),
    /// Rows that read features.
    Features {
        /// The first feature.
        first: usize,
        /// The axes of each row (time, height, width), counted from the axis at which the piece begins. Models without
        /// multimodal rotary positions have the row's number three times.
        axes: Vec<[u32; 3]>,
        /// Where the axes of what follows begin, counted in the same way: the number of rows, unless the model has multimodal
        /// rotary positions.
        advance: u32,
        /// True if the rows attend to each other in both directions.
        both_ways: bool,
    },
}

impl Prepared {
    /// What stands in the prompt for the picture.
    pub fn layout(&self) -> Vec<Piece> {
        let text = |text: &str| Piece::Text(text.to_string());
        let plain = |first: usize, count: u32| Piece::Features {
            first,
            axes: (0..count).map(|i| [i; 3]).collect(),
            advance: count,
            both_ways: false,
        };
        let [rows, columns] = self.features.first().copied().unwrap_or_default();
        match self.marks {
            Marks::Tiles => self.tiles(),
            Marks::Grid => self.grid(),
            Marks::Canvas => {
                let between = vec![String::new(); self.features.len() - 1];
                let texts = ["<img>".into()].into_iter().chain(between);
                self.interleave(texts.chain(["</img>".into()]), false)
            }
            Marks::Lined if self.lines.is_empty() => vec![plain(0, rows * columns)],
            Marks::Lined => {
                let mut first = 0;
                let line = |line: &Vec<Option<u32>>| {
                    let piece = plain(first, line.len() as u32);
                    first += line.len();
                    piece
                };
                self.lines.iter().map(line).collect()
            }
            Marks::Slices { .. } => self.slices(),
            Marks::Between {
                around, both_ways, ..
            } => self.between(around, both_ways),
            Marks::Axes(_) => vec![self.in_axes()],
            Marks::Lines => (0..rows)
                .flat_map(|row| {
                    let end = if row + 1 == rows {
                        "[IMG_END]"
                    } else {
                        "[IMG_BREAK]"
                    };
                    [plain((row * columns) as usize, columns), text(end)]
                })
                .collect(),
        }
    }

    /// All features in one piece, with times, lines and columns.
    fn in_axes(&self) -> Piece {
        let times = self.times.iter().copied().chain(std::iter::repeat(0));
        let tiles = self.features.iter().zip(times);
        let tile = |(&[rows, columns], time): (&[u32; 2], u32)| {
            (0..rows * columns).map(move |i| [time, i / columns, i % columns])
        };
        let axes: Vec<[u32; 3]> = tiles.flat_map(tile).collect();
        let last = axes.iter().flatten().max();
        Piece::Features {
            first: 0,
            advance: last.map_or(0, |last| last + 1),
            axes,
            both_ways: false,
        }
    }

    fn grid(&self) -> Vec<Piece> {
        let [rows, columns] = self.grid;
        let before = |number: u32| {
            let start = if number == 0 { "<|image_start|>" } else { "" };
            if number < rows * columns {
                let (row, column) = (number / columns + 1, number % columns + 1);
                format!("{start}<|img_row_{row}_col_{column}|>")
            } else if rows > 0 {
                format!("{start}<|img_thumbnail|>")
            } else {
                start.to_string()
            }
        };
        let texts = (0..self.features.len() as u32).map(before);
        self.interleave(texts.chain(["<|image_end|>".into()]), false)
    }

    /// Texts, and between two of them the features of a tile.
    fn interleave(&self, texts: impl IntoIterator<Item = String>, both_ways: bool) -> Vec<Piece> {
        let mut first = 0;
        let tiles = self.features.iter().map(|[rows, columns]| {
            let count = rows * columns;
            first += count as usize;
            Some(Piece::Features {
                first: first - count as usize,
                axes: (0..count).map(|i| [i; 3]).collect(),
                advance: count,
                both_ways,
            })
        });
        let text = |text: String| (!text.is_empty()).then_some(Piece::Text(text));
        let texts = texts.into_iter().map(text);
        let pairs = texts.zip(tiles.chain([None]));
        pairs
            .flat_map(|(text, tile)| [text, tile])
            .flatten()
            .collect()
    }

    fn between(&self, [before, after]: [&str; 2], both_ways: bool) -> Vec<Piece> {
        // Only Gemma 3 has several tiles.
        let crops = self.features.len() - 1;
        let (first, last) = if crops == 0 {
            (before.to_string(), after.to_string())
        } else {
            (
                format!("Here is the original image {before}"),
                after.to_string(),
            )
        };
        let next = |crop: usize| match crop {
            0 => format!("{after} and here are some crops to help you see better {before}"),
            _ => format!("{after} {before}"),
        };
        let texts = [first].into_iter().chain((0..crops).map(next));
        self.interleave(texts.chain([last]), both_ways)
    }

    fn slices(&self) -> Vec<Piece> {
        let slices = self.features.len() - 1;
        let columns = self.grid[1] as usize;
        let next = |slice: usize| match slice {
            0 => "</image><slice>",
            slice if slice.is_multiple_of(columns) => "</slice>\n<slice>",
            _ => "</slice><slice>",
        };
        let last = if slices == 0 { "</image>" } else { "</slice>" };
        let texts = ["<image>"].into_iter().chain((0..slices).map(next));
        self.interleave(texts.chain([last]).map(String::from), false)
    }

    fn tiles(&self) -> Vec<Piece> {
        const AROUND: &str = "<fake_token_around_image>";
        let (count, columns) = (self.features.len() as u32, self.grid[1]);
        let before = |number: u32| {
            let begins = number > 0 && number.is_multiple_of(columns);
            let line = if begins { "\n" } else { "" };
            if number + 1 < count {
                let (row, column) = (number / columns + 1, number % columns + 1);
                format!("{line}{AROUND}<row_{row}_col_{column}>")
            } else {
                let gap = if number > 0 { "\n" } else { "" };
                format!("{line}{gap}{AROUND}<global-img>")
            }
        };
        let texts = (0..count).map(before);
        self.interleave(texts.chain([AROUND.to_string()]), false)
    }
}
