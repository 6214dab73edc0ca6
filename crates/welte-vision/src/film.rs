//! How families show videos: which frames become a picture, and what stands between pictures.

use std::ops::Range;

/// How a family shows videos.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Film {
    /// Frames of a second; `None`: as many of a long video as of a short one.
    pub rate: Option<f64>,
    /// The most frames.
    pub most: u32,
    /// Frames that become one picture; 0: all of them.
    pub together: u32,
    /// What stands between pictures.
    pub words: Words,
    /// Control tokens before all pictures and words, and after them.
    pub around: Option<[&'static str; 2]>,
}

/// What stands between the pictures of a video.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Words {
    /// Nothing.
    None,
    /// Qwen3-VL: the time in seconds before each.
    Seconds,
    /// Gemma 4: minutes and seconds before each.
    Clock,
    /// SmolVLM: how many there are of how long a video, and minutes and seconds before each.
    Series,
    /// InternVL: the number before each.
    Numbers,
    /// GLM-4.1V: whole seconds after each.
    After,
    /// GLM-4.6V: the same with tenths.
    AfterInTenths,
}

/// A part of a video in a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scene {
    /// Text.
    Text(String),
    /// The picture of some frames, by their numbers.
    Frames(Range<usize>),
}

impl Film {
    /// Eight frames, one after the other.
    pub const PLAIN: Film = Film {
        rate: None,
        most: 8,
        together: 1,
        words: Words::None,
        around: None,
    };

    /// How many frames to take of a video of this length, of which at most `most` pictures may be made.
    pub fn frames(&self, seconds: f64, most: u32) -> u32 {
        let most = match self.together {
            0 => self.most,
            together => self.most.min(most.saturating_mul(together)),
        };
        let most = most.max(1);
        let wanted = match self.rate {
            Some(rate) => (seconds * rate).floor().clamp(1.0, f64::from(most)) as u32,
            None => most,
        };
        // Whole pictures.
        let together = if self.together == 0 { 2 } else { self.together };
        wanted.next_multiple_of(together).min(most)
    }

    /// What stands in the prompt for frames at these times, in seconds, of a video of this length.
    pub fn scenes(&self, times: &[f64], seconds: f64) -> Vec<Scene> {
        let count = times.len();
        let together = match self.together {
            0 => count.max(1),
            together => together as usize,
        };
        let mut scenes = Vec::new();
        let say = |scenes: &mut Vec<Scene>, text: String| scenes.push(Scene::Text(text));
        if self.words == Words::Series {
            let [frames, clock] = [in_words(count), hours(seconds)];
            let text = format!(
                "You are provided the following series of {frames} frames from a {clock} [H:MM:SS] video.\n"
            );
            say(&mut scenes, text);
        }
        for first in (0..count).step_by(together) {
            let last = (first + together).min(count);
            let time = times[first];
            let before = match self.words {
                Words::Seconds => {
                    let middle = (time + times[last - 1]) / 2.0;
                    format!("<{middle:.1} seconds>")
                }
                Words::Clock if first > 0 => format!(" {} ", minutes(time)),
                Words::Clock => format!("{} ", minutes(time)),
                Words::Series => format!("\nFrame from {}:", minutes(time)),
                Words::Numbers if first > 0 => format!("\nFrame{}: ", first / together + 1),
                Words::Numbers => "Frame1: ".into(),
                Words::None | Words::After | Words::AfterInTenths => String::new(),
            };
            if !before.is_empty() {
                say(&mut scenes, before);
            }
            scenes.push(Scene::Frames(first..last));
            match self.words {
                Words::After => say(&mut scenes, format!("{}", time as u64)),
                Words::AfterInTenths => say(&mut scenes, format!("{time:.1} seconds")),
                _ => {}
            }
        }
        if self.words == Words::Series {
            say(&mut scenes, "\n\n".into());
        }
        scenes
    }
}

fn minutes(seconds: f64) -> String {
    let seconds = seconds as u64;
    format!("{:02}:{:02}", seconds / 60, seconds % 60)
}

fn hours(seconds: f64) -> String {
    let seconds = seconds as u64;
    let (minutes, rest) = (seconds / 60, seconds % 60);
    format!("{}:{:02}:{rest:02}", minutes / 60, minutes % 60)
}

/// A number below 1000 in words.
fn in_words(number: usize) -> String {
    const SMALL: [&str; 20] = [
        "zero",
        "one",
        "two",
        "three",
        "four",
        "five",
        "six",
        "seven",
        "eight",
        "nine",
        "ten",
        "eleven",
        "twelve",
        "thirteen",
        "fourteen",
        "fifteen",
        "sixteen",
        "seventeen",
        "eighteen",
        "nineteen",
    ];
    const TENS: [&str; 10] = [
        "", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety",
    ];
    match (number, number % 10, number % 100) {
        (0..20, ..) => SMALL[number].into(),
        (20..100, 0, _) => TENS[number / 10].into(),
        (20..100, one, _) => format!("{}-{}", TENS[number / 10], SMALL[one]),
        (100..1000, _, 0) => format!("{} hundred", SMALL[number / 100]),
        (100..1000, _, rest) => format!("{} hundred and {}", SMALL[number / 100], in_words(rest)),
        _ => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(words: Words, together: u32, times: &[f64], seconds: f64) -> String {
        let film = Film {
            together,
            words,
            ..Film::PLAIN
        };
        let each = film.scenes(times, seconds).into_iter();
        let each = each.map(|scene| match scene {
            Scene::Text(text) => text,
            Scene::Frames(own) => format!("[{}..{}]", own.start, own.end),
        });
        each.collect()
    }

    /// What transformers' processors write for videos, with numbers of frames in the places of their tokens.
    #[test]
    fn words_are_those_of_the_families() {
        let times = [0.0, 0.5, 61.25, 62.0];
        for (words, together, want) in [
            (Words::None, 0, "[0..4]"),
            (Words::Seconds, 2, "<0.2 seconds>[0..2]<61.6 seconds>[2..4]"),
            (
                Words::Clock,
                1,
                "00:00 [0..1] 00:00 [1..2] 01:01 [2..3] 01:02 [3..4]",
            ),
            (
                Words::Series,
                1,
                "You are provided the following series of four frames from a 1:02:05 [H:MM:SS] video.\n\
                 \nFrame from 00:00:[0..1]\nFrame from 00:00:[1..2]\nFrame from 01:01:[2..3]\nFrame from 01:02:[3..4]\n\n",
            ),
            (
                Words::Numbers,
                1,
                "Frame1: [0..1]\nFrame2: [1..2]\nFrame3: [2..3]\nFrame4: [3..4]",
            ),
            (Words::After, 2, "[0..2]0[2..4]61"),
            (
                Words::AfterInTenths,
                2,
                "[0..2]0.0 seconds[2..4]61.2 seconds",
            ),
        ] {
            assert_eq!(told(words, together, &times, 3725.9), want);
        }
        // The last picture may have fewer frames.
        let odd = told(Words::Seconds, 2, &[0.0, 1.0, 2.0], 3.0);
        assert_eq!(odd, "<0.5 seconds>[0..2]<2.0 seconds>[2..3]");
    }

    #[test]
    fn numbers_are_words() {
        let all = [0, 7, 13, 20, 64, 100, 128, 999, 1000].map(in_words);
        let want = [
            "zero",
            "seven",
            "thirteen",
            "twenty",
            "sixty-four",
            "one hundred",
            "one hundred and twenty-eight",
            "nine hundred and ninety-nine",
            "1000",
        ];
        assert_eq!(all, want);
    }

    #[test]
    fn frames_follow_the_length_within_bounds() {
        let film = Film {
            rate: Some(2.0),
            most: 64,
            together: 2,
            words: Words::Seconds,
            around: None,
        };
        let found = [0.1, 1.4, 2.6, 500.0].map(|seconds| film.frames(seconds, 16));
        assert_eq!(found, [2, 2, 6, 32]);
        assert_eq!(Film::PLAIN.frames(500.0, 16), 8);
        assert_eq!(Film::PLAIN.frames(500.0, 3), 3);
        assert_eq!(
            [film, Film::PLAIN].map(|film| film.frames(500.0, 0)),
            [1, 1]
        );
        let whole = Film {
            together: 0,
            ..film
        };
        assert_eq!(whole.frames(500.0, 1), 64);
    }
}
