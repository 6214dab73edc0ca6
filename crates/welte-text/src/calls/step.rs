//! What a character does to a block of calls.

/// Effect of a character on a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The block goes on.
    More,
    /// The block ends with this character.
    Done,
}

/// The error is what was expected instead of the character.
pub(super) type Taken = Result<Step, String>;
