//! When each word is said: some heads of cross attention look at the sound of the token that comes next. Their weights are
//! smoothed, and the path through them that rises with time gives every token its place.

use super::machine::Machine;
use super::options::TICK;
use super::parts::Parts;
use super::transcript::{Segment, Word};
use crate::Error;
use std::ops::Range;

/// Values whose median smooths a weight.
const MEDIAN: usize = 7;
/// Languages that are written without spaces.
const SPACELESS: [&str; 6] = ["zh", "ja", "th", "lo", "my", "yue"];
/// Punctuation that belongs to the word after it, and to the word before it.
const OPENING: &str = "\"'“¿([{-";
const CLOSING: &str = "\"'.。,，!！?？:：”)]}、";
/// Sentences end with these.
const ENDS: &str = ".。!！?？";
/// No word is longer than this many times the median.
const LONGEST: f64 = 2.0;
/// The longest median, in seconds.
const MOST_MEDIAN: f64 = 0.7;

impl Parts {
    /// Gives the segments of the first slot's window their words. `prompt` is what comes before a text; the window begins at `from`
    /// seconds and has `frames` frames of sound.
    pub(super) fn add_words(
        &self,
        machine: &mut Machine,
        prompt: &[u32],
        language: &str,
        segments: &mut [Segment],
        (from, frames): (f64, usize),
    ) -> Result<(), Error> {
        let end = self.tokens.end;
        let is_text = |token: &u32| *token < end;
        let texts = segments
            .iter()
            .flat_map(|segment| segment.tokens.iter().zip(&segment.logprobs));
        let (text, logprobs): (Vec<u32>, Vec<f32>) =
            texts.filter(|(token, _)| is_text(token)).unzip();
        let mut tokens = prompt.to_vec();
        tokens.push(self.tokens.no_timestamps);
        tokens.extend_from_slice(&text);
        tokens.push(end);
        if text.is_empty() || tokens.len() > self.spec.tokens as usize {
            return Ok(());
        }
        let places = (frames / 2).clamp(1, self.spec.positions as usize);
        let weights = machine.look(&tokens, &self.alignment_heads, places)?;
        let matrix = smoothed(weights, tokens.len(), places);
        // The row of the last mark predicts the first token of the text.
        let rows = &matrix[prompt.len() * places..(tokens.len() - 1) * places];
        let starts = path(rows, text.len() + 1, places);
        let groups = self.groups(&text, language);
        let mut words: Vec<Word> = spans(&groups, &starts)
            .map(|(own, [start, end])| Word {
                word: self.tokenizer.decode(&text[own.clone()]),
                start: start as f64 * TICK,
                end: end as f64 * TICK,
                probability: logprobs[own.clone()].iter().map(|v| v.exp()).sum::<f32>()
                    / own.len() as f32,
            })
            .collect();
        shorten(&mut words);
        // Each segment has the words that begin among its tokens.
        let count = |segment: &Segment| segment.tokens.iter().filter(|t| is_text(t)).count();
        let mut counts: Vec<usize> = segments.iter().map(count).collect();
        let mut segment = 0;
        for (word, group) in words.into_iter().zip(groups) {
            while segment + 1 < counts.len() && counts[segment] == 0 {
                segment += 1;
            }
            counts[segment] = counts[segment].saturating_sub(group);
            segments[segment].words.push(Word {
                start: from + word.start,
                end: from + word.end,
                ..word
            });
        }
        for segment in segments {
            join_punctuation(&mut segment.words);
        }
        Ok(())
    }

    /// How many tokens each word has.
    fn groups(&self, text: &[u32], language: &str) -> Vec<usize> {
        let spaceless = SPACELESS.contains(&language);
        let mut groups: Vec<usize> = Vec::new();
        // A letter may have several tokens.
        let (mut open, mut begun) = (Vec::new(), 0);
        for (at, token) in text.iter().enumerate() {
            open.extend_from_slice(self.tokenizer.token_bytes(*token));
            let last = at + 1 == text.len();
            let Some(piece) = std::str::from_utf8(&open).ok().or(last.then_some("")) else {
                continue;
            };
            let mark = piece.trim();
            let alone = mark.chars().count() == 1 && mark.chars().all(|c| c.is_ascii_punctuation());
            let begins = spaceless || piece.starts_with(' ') || alone || groups.is_empty();
            let count = at + 1 - begun;
            match groups.last_mut() {
                Some(group) if !begins => *group += count,
                _ => groups.push(count),
            }
            (open, begun) = (Vec::new(), at + 1);
        }
        groups
    }
}

/// The tokens of groups, and where each group begins and ends. `starts` has the place of each token, and of the end.
fn spans(groups: &[usize], starts: &[usize]) -> impl Iterator<Item = (Range<usize>, [usize; 2])> {
    groups.iter().scan(0, |at, group| {
        let own = *at..*at + group;
        *at = own.end;
        Some((own.clone(), [starts[own.start], starts[own.end]]))
    })
}

/// Weights of several heads, `[head][token][place]`, as one matrix: each place relative to its mean over the tokens, smoothed.
fn smoothed(mut weights: Vec<f32>, tokens: usize, places: usize) -> Vec<f32> {
    let heads = weights.len() / (tokens * places);
    let mut matrix = vec![0.0; tokens * places];
    for head in weights.chunks_exact_mut(tokens * places) {
        for place in 0..places {
            let column = |head: &[f32], token: usize| head[token * places + place];
            let mean = (0..tokens).map(|token| column(head, token)).sum::<f32>() / tokens as f32;
            let squares = (0..tokens).map(|token| (column(head, token) - mean).powi(2));
            let spread = (squares.sum::<f32>() / tokens as f32).sqrt().max(1e-10);
            (0..tokens).for_each(|token| {
                let value = &mut head[token * places + place];
                *value = (*value - mean) / spread;
            });
        }
        for (row, sums) in head
            .chunks_exact(places)
            .zip(matrix.chunks_exact_mut(places))
        {
            for (place, sum) in sums.iter_mut().enumerate() {
                *sum += median(row, place) / heads as f32;
            }
        }
    }
    matrix
}

/// The median of a value and its neighbours, which are mirrored at the ends.
fn median(row: &[f32], at: usize) -> f32 {
    let (half, last) = ((MEDIAN / 2) as isize, row.len() as isize - 1);
    if last < half {
        return row[at];
    }
    let mut near = [0.0; MEDIAN];
    for (i, value) in near.iter_mut().enumerate() {
        let place = (at as isize + i as isize - half).abs();
        let place = if place > last {
            2 * last - place
        } else {
            place
        };
        *value = row[place as usize];
    }
    near.sort_unstable_by(f32::total_cmp);
    near[MEDIAN / 2]
}

/// Where each row begins on the path of the largest sum that goes from the first row and place to the last ones.
fn path(matrix: &[f32], rows: usize, places: usize) -> Vec<usize> {
    // Steps: 0 both, 1 the row before, 2 the place before.
    let mut steps = vec![0u8; rows * places];
    let mut before = vec![f32::INFINITY; places + 1];
    before[0] = 0.0;
    for row in 0..rows {
        let mut now = vec![f32::INFINITY; places + 1];
        for place in 0..places {
            let (both, above, left) = (before[place], before[place + 1], now[place]);
            let (cost, step) = if both < above && both < left {
                (both, 0)
            } else if above < both && above < left {
                (above, 1)
            } else {
                (left, 2)
            };
            now[place + 1] = cost - matrix[row * places + place];
            steps[row * places + place] = step;
        }
        before = now;
    }
    let mut starts = vec![0; rows];
    let (mut row, mut place) = (rows - 1, places - 1);
    loop {
        starts[row] = place;
        match steps[row * places + place] {
            _ if row == 0 && place == 0 => return starts,
            0 if row > 0 && place > 0 => (row, place) = (row - 1, place - 1),
            1 if row > 0 => row -= 1,
            _ if place > 0 => place -= 1,
            _ => row -= 1,
        }
    }
}

/// Cuts words that last too long: they have silence in them.
fn shorten(words: &mut [Word]) {
    let lengths = words.iter().map(|word| word.end - word.start);
    let mut lengths: Vec<f64> = lengths.filter(|length| *length > 0.0).collect();
    lengths.sort_unstable_by(f64::total_cmp);
    let Some(median) = lengths.get(lengths.len() / 2) else {
        return;
    };
    let most = LONGEST * median.min(MOST_MEDIAN);
    let ends = |word: &Word| word.word.trim().chars().all(|c| ENDS.contains(c));
    for at in 0..words.len() {
        if words[at].end - words[at].start <= most {
            continue;
        }
        if ends(&words[at]) {
            words[at].end = words[at].start + most;
        } else if at == 0 || ends(&words[at - 1]) {
            words[at].start = words[at].end - most;
        }
    }
}

/// Punctuation becomes a part of the word that it stands at.
fn join_punctuation(words: &mut Vec<Word>) {
    let is = |word: &Word, kind: &str| {
        let text = word.word.trim();
        !text.is_empty() && text.chars().all(|c| kind.contains(c))
    };
    let mut at = words.len();
    while at > 1 {
        at -= 1;
        // An opening mark has a space before it.
        if words[at - 1].word.starts_with(' ') && is(&words[at - 1], OPENING) {
            let mark = words.remove(at - 1).word;
            words[at - 1].word.insert_str(0, &mark);
        }
    }
    let mut at = 1;
    while at < words.len() {
        if !words[at - 1].word.ends_with(' ')
            && !words[at].word.starts_with(' ')
            && is(&words[at], CLOSING)
        {
            let mark = words.remove(at).word;
            words[at - 1].word.push_str(&mark);
        } else {
            at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_rises_with_time() {
        let mut matrix = vec![-1.0; 3 * 10];
        for (row, places) in [(0, 0..3), (1, 3..8), (2, 8..10)] {
            places.for_each(|place| matrix[row * 10 + place] = 1.0);
        }
        assert_eq!(path(&matrix, 3, 10), [0, 3, 8]);
        assert_eq!(path(&[1.0; 4], 4, 1), [0; 4]);
        assert_eq!(path(&[1.0; 4], 1, 4), [0]);
    }

    #[test]
    fn words_end_where_the_next_one_begins() {
        let found: Vec<_> = spans(&[2, 1], &[0, 3, 5, 9]).collect();
        assert_eq!(found, [(0..2, [0, 5]), (2..3, [5, 9])]);
    }

    #[test]
    fn medians_leave_outliers_out() {
        let row = [0.0, 0.0, 9.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0];
        assert_eq!(
            [median(&row, 2), median(&row, 9), median(&row[..3], 2)],
            [0.0, 1.0, 9.0]
        );
    }

    #[test]
    fn punctuation_joins_its_word() {
        let word = |(at, text): (usize, &str)| Word {
            word: text.to_string(),
            start: at as f64,
            end: at as f64 + 1.0,
            probability: 1.0,
        };
        let texts = [" (", "so", ",", " it", "'s", "?", " \"", "Yes", "!", "\""];
        let mut words: Vec<Word> = texts.into_iter().enumerate().map(word).collect();
        join_punctuation(&mut words);
        let joined: Vec<&str> = words.iter().map(|word| word.word.as_str()).collect();
        assert_eq!(joined, [" (so,", " it", "'s?", " \"Yes!\""]);
    }
}
