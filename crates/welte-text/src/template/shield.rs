//! Keeps the texts of a conversation from spelling marks of a prompt.
//!
//! A control token that is spelt in a message must not begin a turn. So every mark has a key character, and before a
//! template is rendered, these characters are covered in all texts that come from outside: each is replaced by another one
//! that stands for it, from the private areas of Unicode. Whatever the template does with a text, a mark in the output has
//! its key character from the template itself. Afterwards the characters are uncovered, and their places are remembered for
//! the tokenizer.
//!
//! Some templates look for texts of their own in messages: `</think>` in an answer, `/no_think` in a question. Comparisons
//! and searches therefore see uncovered texts ([`open`](super::open)). The marks of reasoning and calls stay uncovered in
//! the content of the assistant, which wrote them.

use super::rendered::Rendered;
use crate::calls::Format;
use serde_json::{Map, Value as Json};
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;

/// The private areas of Unicode outside the first plane.
const AREAS: [Range<u32>; 2] = [0x10_0000..0x10_fffe, 0xf_0000..0xf_fffe];

thread_local! {
    /// The covers of the rendering on this thread.
    static COVERS: RefCell<Covers> = RefCell::default();
}

/// The covered characters: the one at `i` is replaced by the character number `base + i`.
#[derive(Clone, Debug, Default)]
struct Covers {
    base: u32,
    letters: Vec<char>,
}

impl Covers {
    fn cover(&self, c: char) -> char {
        let at = self.letters.binary_search(&c);
        at.ok()
            .and_then(|at| char::from_u32(self.base + at as u32))
            .unwrap_or(c)
    }

    fn uncover(&self, c: char) -> Option<char> {
        let at = (c as u32).checked_sub(self.base)?;
        self.letters.get(at as usize).copied()
    }
}

/// The character that a covered one stands for.
pub(crate) fn uncovered(c: char) -> Option<char> {
    COVERS.with_borrow(|covers| covers.uncover(c))
}

/// A text without covers. `None` if it has none.
pub(super) fn opened(text: &str) -> Option<String> {
    COVERS.with_borrow(|covers| {
        let is_covered = |c: char| covers.uncover(c).is_some();
        let open = |c: char| covers.uncover(c).unwrap_or(c);
        text.contains(is_covered)
            .then(|| text.chars().map(open).collect())
    })
}

/// Applies a function that looks at single characters. What it makes of a covered text is covered.
pub(super) fn through(text: &str, function: impl Fn(&str) -> String) -> String {
    match opened(text) {
        Some(open) => {
            COVERS.with_borrow(|covers| function(&open).chars().map(|c| covers.cover(c)).collect())
        }
        None => function(text),
    }
}

/// Finds marks in texts. Node 0 is the root.
#[derive(Debug, Default)]
struct Marks {
    next: HashMap<(usize, char), usize>,
    /// Whether a mark ends at a node.
    ends: Vec<bool>,
}

impl Marks {
    fn new(marks: &[String]) -> Marks {
        let mut all = Marks {
            next: HashMap::new(),
            ends: vec![false],
        };
        for mark in marks {
            let mut node = 0;
            for c in mark.chars() {
                let new = all.ends.len();
                node = *all.next.entry((node, c)).or_insert(new);
                if node == new {
                    all.ends.push(false);
                }
            }
            all.ends[node] = true;
        }
        all
    }

    /// The places of marks in a text.
    fn places(&self, text: &str) -> Vec<Range<usize>> {
        let mut places = Vec::new();
        for (start, _) in text.char_indices() {
            let mut node = 0;
            for (at, c) in text[start..].char_indices() {
                let Some(next) = self.next.get(&(node, c)) else {
                    break;
                };
                node = *next;
                if self.ends[node] {
                    places.push(start..start + at + c.len_utf8());
                }
            }
        }
        places
    }
}

/// What a shield knows about a template and a vocabulary.
#[derive(Debug, Default)]
pub(super) struct Shield {
    marks: Marks,
    /// A character of every mark.
    keys: HashSet<char>,
    /// All characters of marks, in ascending order.
    letters: Vec<char>,
    /// The marks without the signs at both ends, apart from words that the template uses.
    words: HashSet<String>,
    /// Marks that the assistant's content may have.
    own: Vec<String>,
    /// Private characters in the template.
    private: BTreeSet<u32>,
}

/// Where a text stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The content of an assistant's message.
    Answer,
    /// A definition of a tool or a call.
    Tool,
    Other,
}

impl Shield {
    /// `literals` and `names` are those of the template.
    pub(super) fn new(
        source: &str,
        marks: &[String],
        literals: &HashSet<String>,
        names: &HashSet<String>,
    ) -> Shield {
        let letters: BTreeSet<char> = marks.iter().flat_map(|mark| mark.chars()).collect();
        let keys: HashSet<char> = marks.iter().filter_map(|mark| key(mark)).collect();
        let used =
            |word: &&str| !word.is_empty() && !literals.contains(*word) && !names.contains(*word);
        let words = marks.iter().map(|mark| core(mark)).filter(used);
        let has_key = |text: &String| text.contains(|c| keys.contains(&c));
        let tree = Marks::new(marks);
        let own = Format::of_template(source).own_marks();
        let mut private = BTreeSet::new();
        note_private(source, &mut private);
        Shield {
            words: words.map(str::to_owned).collect(),
            own: own.into_iter().filter(has_key).collect(),
            marks: tree,
            keys,
            letters: letters.into_iter().collect(),
            private,
        }
    }

    /// Covers the messages and the variables of a rendering. `None` if they have every private character.
    pub(super) fn cover(
        &self,
        messages: &[Json],
        variables: &mut Map<String, Json>,
    ) -> Option<Vec<Json>> {
        let mut used = self.private.clone();
        messages
            .iter()
            .for_each(|message| note_all(message, &mut used));
        variables
            .values()
            .for_each(|value| note_all(value, &mut used));
        let covers = Covers {
            base: free_base(&used, self.letters.len() as u32)?,
            letters: self.letters.clone(),
        };
        let messages = messages
            .iter()
            .map(|message| self.message(message, &covers));
        let messages = messages.collect();
        for (name, value) in variables.iter_mut() {
            let place = match name.as_str() {
                "tools" => Place::Tool,
                _ => Place::Other,
            };
            *value = self.value(value, place, &covers);
        }
        COVERS.set(covers);
        Some(messages)
    }

    /// Adds text of the assistant to a prompt. It may have marks of reasoning and calls, and no others.
    pub(super) fn push_answer(&self, rendered: &mut Rendered, text: &str) {
        let start = rendered.text.len();
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let mark = self.own.iter().find(|mark| rest.starts_with(mark.as_str()));
            if mark.is_none() {
                rendered.covered.push(start + text.len() - rest.len());
            }
            rest = &rest[mark.map_or(c.len_utf8(), |mark| mark.len())..];
        }
        rendered.text.push_str(text);
    }

    fn message(&self, message: &Json, covers: &Covers) -> Json {
        let Json::Object(fields) = message else {
            return self.value(message, Place::Other, covers);
        };
        let answer = fields.get("role").and_then(Json::as_str) == Some("assistant");
        let field = |(name, value): (&String, &Json)| {
            let place = match name.as_str() {
                "content" if answer => Place::Answer,
                "tool_calls" | "function_call" | "name" => Place::Tool,
                _ => Place::Other,
            };
            (
                self.text(name, Place::Other, covers),
                self.value(value, place, covers),
            )
        };
        Json::Object(fields.iter().map(field).collect())
    }

    fn value(&self, value: &Json, place: Place, covers: &Covers) -> Json {
        match value {
            Json::String(text) => self.text(text, place, covers).into(),
            Json::Array(items) => {
                let items = items.iter().map(|item| self.value(item, place, covers));
                items.collect()
            }
            Json::Object(fields) => {
                let field = |(name, value): (&String, &Json)| {
                    (
                        self.text(name, place, covers),
                        self.value(value, place, covers),
                    )
                };
                Json::Object(fields.iter().map(field).collect())
            }
            other => other.clone(),
        }
    }

    fn text(&self, text: &str, place: Place, covers: &Covers) -> String {
        let has_key = text.contains(|c| self.keys.contains(&c));
        // `'<' + name + '>'` could be a mark.
        let is_word = place == Place::Tool && self.words.contains(core(text));
        if !has_key && !is_word {
            return text.to_owned();
        }
        let open = self.open_ranges(text, place);
        let mut open = open.iter().peekable();
        let mut first_letter = is_word;
        let cover = |(at, c): (usize, char)| {
            while open.next_if(|range| range.end <= at).is_some() {}
            let is_open = open.peek().is_some_and(|range| range.contains(&at));
            let word = c.is_alphanumeric() && std::mem::take(&mut first_letter);
            if word || (self.keys.contains(&c) && !is_open) {
                covers.cover(c)
            } else {
                c
            }
        };
        text.char_indices().map(cover).collect()
    }

    /// The parts of a text that stay uncovered, in order.
    fn open_ranges(&self, text: &str, place: Place) -> Vec<Range<usize>> {
        let own: &[String] = match place {
            Place::Answer => &self.own,
            _ => &[],
        };
        let of = |part: &String| {
            let length = part.len();
            text.match_indices(part.as_str())
                .map(|(at, _)| at..at + length)
                .collect::<Vec<_>>()
        };
        let mut open = merged(own.iter().flat_map(of).collect());
        if open.is_empty() {
            return open;
        }
        // Other marks that overlap them are covered.
        let mut foreign = self.marks.places(text);
        foreign.retain(|mark| {
            let at = open.partition_point(|range| range.end < mark.end);
            open.get(at).is_none_or(|range| mark.start < range.start)
        });
        let foreign = merged(foreign);
        let touched = |range: &Range<usize>| {
            let at = foreign.partition_point(|mark| mark.end <= range.start);
            foreign.get(at).is_some_and(|mark| mark.start < range.end)
        };
        open.retain(|range| !touched(range));
        open
    }
}

/// The ranges in order. Those that overlap are joined.
fn merged(mut ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    ranges.sort_unstable_by_key(|range| (range.start, range.end));
    let mut all: Vec<Range<usize>> = Vec::new();
    for range in ranges {
        match all.last_mut() {
            Some(last) if range.start < last.end => last.end = last.end.max(range.end),
            _ => all.push(range),
        }
    }
    all
}

/// Uncovers what a template has printed. Returns the text and the places of the characters that were covered.
pub(super) fn uncover(text: String) -> (String, Vec<usize>) {
    COVERS.with_borrow_mut(|covers| {
        let covers = std::mem::take(covers);
        let mut places = Vec::new();
        if covers.letters.is_empty() || !text.chars().any(|c| covers.uncover(c).is_some()) {
            return (text, places);
        }
        let mut open = String::with_capacity(text.len());
        for c in text.chars() {
            match covers.uncover(c) {
                Some(c) => {
                    places.push(open.len());
                    open.push(c);
                }
                None => open.push(c),
            }
        }
        (open, places)
    })
}

/// The key character of a mark: its first sign, or its first character if it has none.
fn key(mark: &str) -> Option<char> {
    let sign = |c: &char| !c.is_alphanumeric() && !c.is_whitespace() && *c != '_';
    mark.chars().find(sign).or_else(|| mark.chars().next())
}

/// A text without the signs at both ends.
fn core(text: &str) -> &str {
    text.trim_matches(|c: char| !c.is_alphanumeric())
}

fn note_private(text: &str, used: &mut BTreeSet<u32>) {
    let private = text.chars().map(u32::from).filter(|c| *c >= AREAS[1].start);
    used.extend(private);
}

fn note_all(value: &Json, used: &mut BTreeSet<u32>) {
    match value {
        Json::String(text) => note_private(text, used),
        Json::Array(items) => items.iter().for_each(|item| note_all(item, used)),
        Json::Object(fields) => {
            for (name, value) in fields {
                note_private(name, used);
                note_all(value, used);
            }
        }
        _ => {}
    }
}

/// The first of as many private characters in a row that are not in use.
fn free_base(used: &BTreeSet<u32>, count: u32) -> Option<u32> {
    AREAS.into_iter().find_map(|area| {
        let mut base = area.start;
        for &c in used.range(area.clone()) {
            if c - base >= count {
                break;
            }
            base = c + 1;
        }
        (base + count <= area.end).then_some(base)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ranges_that_overlap_are_joined() {
        let all = merged(vec![7..9, 0..3, 2..5, 5..6, 3..4, 8..8]);
        assert_eq!(all, [0..5, 5..6, 7..9]);
        assert!(merged(Vec::new()).is_empty());
    }

    /// Private characters that a conversation has, at any depth, are not used as covers.
    #[test]
    fn private_characters_in_use_are_left_alone() {
        let mut used = BTreeSet::new();
        let value = json!(["\u{f0000}a", { "\u{f0002}": ["b\u{100000}", 1] }, "\u{e000}"]);
        note_all(&value, &mut used);
        assert_eq!(used, BTreeSet::from([0xf_0000, 0xf_0002, 0x10_0000]));
        assert_eq!(free_base(&used, 1), Some(0x10_0001));
        assert_eq!(free_base(&BTreeSet::new(), 1), Some(0x10_0000));
        used.extend([0x10_0003, 0x10_0006]);
        // The gaps are 1 and 2, 4 and 5.
        assert_eq!(free_base(&used, 2), Some(0x10_0001));
        assert_eq!(free_base(&used, 3), Some(0x10_0007));
        used.extend(AREAS[0].clone().skip(1));
        assert_eq!(free_base(&used, 1), Some(0xf_0001));
        assert_eq!(free_base(&used, 2), Some(0xf_0003));
        let all = AREAS[1].len() as u32;
        assert_eq!(free_base(&used, all - 3), Some(0xf_0003));
        assert_eq!(free_base(&used, all - 2), None);
    }

    #[test]
    fn the_key_of_a_mark_is_its_first_sign() {
        for (mark, sign, inner) in [
            ("<|im_end|>", Some('<'), "im_end"),
            ("a_b|", Some('|'), "a_b"),
            ("ab", Some('a'), "ab"),
            (" _", Some(' '), ""),
            ("", None, ""),
        ] {
            assert_eq!((key(mark), core(mark)), (sign, inner), "{mark}");
        }
    }
}
