//! Rows: what a step computes, one position of one sequence each.

/// What a row reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// The embedding of a token.
    Token(u32),
    /// A vector that an encoder has computed, by its number.
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

    /// The token that it reads; 0 for a feature.
    pub const fn token(&self) -> u32 {
        self.input.token()
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
