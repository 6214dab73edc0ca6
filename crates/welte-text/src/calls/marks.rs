//! Finding marks in text that arrives character by character.

/// Separates text from marks.
#[derive(Clone, Debug, Default)]
pub(super) struct Until {
    /// The beginning of a mark, so far.
    pending: String,
}

impl Until {
    /// Takes a character. Text that is in no mark is appended to `free`. Returns the number of the mark that is complete.
    pub(super) fn step(&mut self, c: char, marks: &[&str], free: &mut String) -> Option<usize> {
        self.pending.push(c);
        while !self.pending.is_empty() {
            if let Some(found) = marks.iter().position(|mark| *mark == self.pending) {
                self.pending.clear();
                return Some(found);
            }
            if marks.iter().any(|mark| mark.starts_with(&self.pending)) {
                return None;
            }
            free.push(self.pending.remove(0));
        }
        None
    }

    /// Whether no mark has begun.
    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// The beginning of a mark that will not be completed.
    pub(super) fn rest(&mut self) -> String {
        std::mem::take(&mut self.pending)
    }
}

/// Matches one of several marks after optional white space.
#[derive(Clone, Debug, Default)]
pub(super) struct Expect {
    pending: String,
}

impl Expect {
    /// Takes a character. Returns the number of the mark that is complete, or the text that matches none.
    pub(super) fn step(&mut self, c: char, marks: &[&str]) -> Result<Option<usize>, String> {
        if self.pending.is_empty() && c.is_whitespace() {
            return Ok(None);
        }
        self.pending.push(c);
        if let Some(found) = marks.iter().position(|mark| *mark == self.pending) {
            self.pending.clear();
            return Ok(Some(found));
        }
        if marks.iter().any(|mark| mark.starts_with(&self.pending)) {
            return Ok(None);
        }
        Err(self.rest())
    }

    /// The beginning of a mark that will not be completed.
    pub(super) fn rest(&mut self) -> String {
        std::mem::take(&mut self.pending)
    }
}

/// The marks in words, for a problem.
pub(super) fn one_of(marks: &[&str]) -> String {
    marks
        .iter()
        .map(|mark| format!("'{mark}'"))
        .collect::<Vec<_>>()
        .join(" or ")
}
