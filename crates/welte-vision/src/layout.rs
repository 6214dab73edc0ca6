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
        let plain = |first: usize, count: u32, both_ways| Piece::Features {
            first,
            axes: (0..count).map(|i| [i; 3]).collect(),
            advance: count,
            both_ways,
        };
        let [rows, columns] = self.features.first().copied().unwrap_or_default();
        match self.marks {
            Marks::Tiles => self.tiles(),
            Marks::Grid => self.grid(),
            Marks::Canvas => {
                let (mut pieces, mut first) = (vec![text("<img>")], 0);
                for [rows, columns] in &self.features {
                    pieces.push(plain(first, rows * columns, false));
                    first += (rows * columns) as usize;
                }
                pieces.push(text("</img>"));
                pieces
            }
            Marks::Lined if self.lines.is_empty() => vec![plain(0, rows * columns, false)],
            Marks::Lined => {
                let mut first = 0;
                let line = |line: &Vec<Option<u32>>| {
                    let piece = plain(first, line.len() as u32, false);
                    first += line.len();
                    piece
                };
                self.lines.iter().map(line).collect()
            }
            Marks::Between {
                around, both_ways, ..
            } => {
                let [before, after] = around.map(|own| (!own.is_empty()).then(|| text(own)));
                let features = plain(0, rows * columns, both_ways);
                before.into_iter().chain([features]).chain(after).collect()
            }
            Marks::Axes(_) => vec![Piece::Features {
                first: 0,
                axes: (0..rows * columns)
                    .map(|i| [0, i / columns, i % columns])
                    .collect(),
                advance: rows.max(columns),
                both_ways: false,
            }],
            Marks::Lines => (0..rows)
                .flat_map(|row| {
                    let end = if row + 1 == rows {
                        "[IMG_END]"
                    } else {
                        "[IMG_BREAK]"
                    };
                    [plain((row * columns) as usize, columns, false), text(end)]
                })
                .collect(),
        }
    }

    fn grid(&self) -> Vec<Piece> {
        let [rows, columns] = self.grid;
        let (mut pieces, mut first) = (Vec::new(), 0);
        let mut before = "<|image_start|>".to_string();
        for (number, [lines, width]) in (0..).zip(&self.features) {
            let count = lines * width;
            if number < rows * columns {
                let (row, column) = (number / columns + 1, number % columns + 1);
                before.push_str(&format!("<|img_row_{row}_col_{column}|>"));
            } else if rows > 0 {
                before.push_str("<|img_thumbnail|>");
            }
            pieces.push(Piece::Text(std::mem::take(&mut before)));
            pieces.push(Piece::Features {
                first,
                axes: (0..count).map(|i| [i; 3]).collect(),
                advance: count,
                both_ways: false,
            });
            first += count as usize;
        }
        pieces.push(Piece::Text("<|image_end|>".to_string()));
        pieces
    }

    fn tiles(&self) -> Vec<Piece> {
        const AROUND: &str = "<fake_token_around_image>";
        let [_, columns] = self.grid;
        let (mut pieces, mut first, mut before) = (Vec::new(), 0, String::new());
        for (number, [lines, width]) in self.features.iter().enumerate() {
            let number = number as u32;
            let count = lines * width;
            if number + 1 == self.features.len() as u32 {
                if number > 0 {
                    before.push('\n');
                }
                before.push_str(&format!("{AROUND}<global-img>"));
            } else {
                let (row, column) = (number / columns + 1, number % columns + 1);
                before.push_str(&format!("{AROUND}<row_{row}_col_{column}>"));
            }
            pieces.push(Piece::Text(std::mem::take(&mut before)));
            pieces.push(Piece::Features {
                first,
                axes: (0..count).map(|i| [i; 3]).collect(),
                advance: count,
                both_ways: false,
            });
            first += count as usize;
            if columns > 0
                && (number + 1).is_multiple_of(columns)
                && number + 1 < self.features.len() as u32
            {
                before.push('\n');
            }
        }
        pieces.push(Piece::Text(AROUND.to_string()));
        pieces
    }
}
