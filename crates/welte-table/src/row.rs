//! Rows: what a step computes, one position of one sequence each.

/// What a row reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// The embedding of a token.
    Token(u32),
    /// A vector of the feature buffer ([`Program::features`](crate::Program::features)), by its number.
    Feature(u32),
}

impl Input {
    /// The token; 0 for a feature.
    pub const fn token(self) -> u32 {
        match self {
            Input::Token(token) => token,
            Input::Feature(_) => 0,
        }
    }

    /// The number of the feature, if it is one.
    pub const fn feature(self) -> Option<u32> {
        match self {
            Input::Token(_) => None,
            Input::Feature(number) => Some(number),
        }
    }
}

/// One row in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// What it reads.
    pub input: Input,
    /// Its position: where its keys and values go.
    pub position: u32,
    /// The coordinates of multimodal rotary positions: time, height, width. Text has its position three times.
    pub axes: [u32; 3],
    /// The last position that it attends to: its own, or a later one of the same span.
    pub reach: u32,
    /// The slot of its sequence.
    pub slot: u32,
}

impl Row {
    /// A token of a text: it attends to nothing after itself.
    pub const fn new(token: u32, position: u32, slot: u32) -> Row {
        Row {
            input: Input::Token(token),
            position,
            axes: [position; 3],
            reach: position,
            slot,
        }
    }

    /// The same row with axes that differ from its position by `shift`, as those of text after an image do.
    pub const fn shifted(self, shift: i32) -> Row {
        let axes = [self.position.saturating_add_signed(shift); 3];
        Row { axes, ..self }
    }

    /// The row of a token of the same sequence, `steps` positions later. Its axes are as far from its position as this row's.
    pub const fn later(&self, token: u32, steps: u32) -> Row {
        let shift = self.axes[0].wrapping_sub(self.position) as i32;
        Row::new(token, self.position + steps, self.slot).shifted(shift)
    }

    /// The token that it reads; 0 for a feature.
    pub const fn token(&self) -> u32 {
        self.input.token()
    }

    /// True if it attends to nothing after itself and has one coordinate, as generated tokens and their embeddings do.
    pub fn is_linear(&self) -> bool {
        self.reach == self.position && self.axes == [self.axes[0]; 3]
    }

    /// True if it is a token of a text, as [`Row::new`] makes it.
    pub fn is_text(&self) -> bool {
        *self == Row::new(self.token(), self.position, self.slot)
    }
}

impl Default for Row {
    fn default() -> Row {
        Row::new(0, 0, 0)
    }
}

/// Which axis each pair of a rotated head follows: an op's parameter, packed into a word. 0: all follow the position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sections {
    /// Pairs of each axis: time, height, width. Together they are all pairs of a head.
    pub pairs: [u8; 3],
    /// Pairs take turns (time, height, width, time, …) as long as their axis has any left, and the rest is of time.
    /// Otherwise the pairs of an axis lie together.
    pub interleaved: bool,
}

impl Sections {
    /// The most elements for [`Sections::along`].
    pub const MOST_ALONG: u32 = 1020;

    /// For rows whose axes are all the same: angles of `rot` elements follow them and not the position.
    pub const fn along(rot: u32) -> Sections {
        let pairs = rot / 2;
        let second = pairs / 2;
        Sections {
            pairs: [(pairs - second) as u8, second as u8, 0],
            interleaved: false,
        }
    }

    /// As an op's parameter.
    pub const fn word(self) -> u32 {
        let [time, height, width] = self.pairs;
        u32::from_le_bytes([time, height, width, self.interleaved as u8])
    }

    /// Out of an op's parameter; `None` if there are no sections.
    pub const fn of(word: u32) -> Option<Sections> {
        let [time, height, width, interleaved] = word.to_le_bytes();
        if word == 0 {
            return None;
        }
        Some(Sections {
            pairs: [time, height, width],
            interleaved: interleaved != 0,
        })
    }

    /// The axis of a pair.
    pub fn axis(self, pair: usize) -> usize {
        let [time, height, _] = self.pairs.map(usize::from);
        if self.interleaved {
            let turn = pair % 3;
            let has_turn = turn > 0 && pair / 3 < usize::from(self.pairs[turn]);
            if has_turn { turn } else { 0 }
        } else if pair < time {
            0
        } else if pair < time + height {
            1
        } else {
            2
        }
    }
}

impl Row {
    /// What the angle of a pair is proportional to.
    pub fn coordinate(&self, sections: Option<Sections>, pair: usize) -> u32 {
        sections.map_or(self.position, |sections| self.axes[sections.axis(pair)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_follow_their_axes() {
        let axes = |pairs, interleaved| {
            let sections = Sections { pairs, interleaved };
            assert_eq!(Sections::of(sections.word()), Some(sections));
            let all = pairs.iter().map(|n| usize::from(*n)).sum();
            (0..all).map(|pair| sections.axis(pair)).collect::<Vec<_>>()
        };
        assert_eq!(axes([3, 2, 1], false), [0, 0, 0, 1, 1, 2]);
        assert_eq!(axes([4, 2, 2], true), [0, 1, 2, 0, 1, 2, 0, 0]);
        assert_eq!(axes([4, 2, 1], true), [0, 1, 2, 0, 1, 0, 0]);
        assert_eq!(Sections::of(0), None);
        let row = Row {
            axes: [7, 8, 9],
            ..Row::new(1, 5, 0)
        };
        assert_eq!(row.coordinate(None, 4), 5);
        let sections = Sections::of(axes_word());
        assert_eq!(
            [0, 1, 2].map(|pair| row.coordinate(sections, pair)),
            [7, 8, 9]
        );
        assert!(!row.is_text() && Row::new(1, 5, 0).is_text());
        assert!(!row.is_linear());
    }

    #[test]
    fn later_rows_keep_their_shift() {
        let row = Row::new(1, 5, 2).shifted(-3);
        assert!(row.is_linear() && !row.is_text());
        assert_eq!(row.later(9, 4), Row::new(9, 9, 2).shifted(-3));
        assert_eq!(Row::new(1, 5, 2).later(9, 4), Row::new(9, 9, 2));
        assert!(!Row { reach: 6, ..row }.is_linear());
    }

    fn axes_word() -> u32 {
        let (pairs, interleaved) = ([1, 1, 1], false);
        Sections { pairs, interleaved }.word()
    }
}
