//! What was said, and how it is written down.

use super::tokens::language_name;
use serde_json::{Value, json};

/// What is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Task {
    /// What is said, in its language.
    #[default]
    Transcribe,
    /// What is said, in English.
    Translate,
}

/// What was said.
#[derive(Clone, Debug, PartialEq)]
pub struct Transcript {
    /// What was written.
    pub task: Task,
    /// The code of the language, if it is known.
    pub language: Option<String>,
    /// How likely it is, if it was detected.
    pub language_probability: f32,
    /// The length of the sound.
    pub seconds: f64,
    /// The text, piece by piece.
    pub segments: Vec<Segment>,
}

/// A piece of a text.
#[derive(Clone, Debug, PartialEq)]
pub struct Segment {
    /// Its number.
    pub id: usize,
    /// The window's first frame, of which a second has 100.
    pub seek: usize,
    /// When it begins, in seconds.
    pub start: f64,
    /// When it ends.
    pub end: f64,
    /// The text, usually with a space in front.
    pub text: String,
    /// The text's tokens, with timestamps.
    pub tokens: Vec<u32>,
    /// The logarithm of each token's probability, if it is known.
    pub logprobs: Vec<f32>,
    /// The temperature at which its window was written.
    pub temperature: f32,
    /// The mean logarithm of the probability of the window's tokens; 0 if it is not known.
    pub avg_logprob: f32,
    /// How many times the window's text is longer than its compressed form.
    pub compression_ratio: f32,
    /// How likely it is that nobody speaks; 0 if it is not known.
    pub no_speech_prob: f32,
    /// The words, if they were asked for.
    pub words: Vec<Word>,
}

/// A word with its time.
#[derive(Clone, Debug, PartialEq)]
pub struct Word {
    /// The word, with the space in front and punctuation.
    pub word: String,
    /// When it begins, in seconds.
    pub start: f64,
    /// When it ends.
    pub end: f64,
    /// The mean probability of its tokens.
    pub probability: f32,
}

/// How a transcript is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TranscriptFormat {
    /// The text alone.
    Text,
    /// `{"text": …}`
    Json,
    /// With segments, language and length.
    VerboseJson,
    /// Subtitles as SubRip has them.
    Srt,
    /// Subtitles of the web.
    Vtt,
}

impl TranscriptFormat {
    /// All formats.
    pub const ALL: [TranscriptFormat; 5] = [
        TranscriptFormat::Json,
        TranscriptFormat::Text,
        TranscriptFormat::Srt,
        TranscriptFormat::VerboseJson,
        TranscriptFormat::Vtt,
    ];

    /// Its name in the API.
    pub fn name(self) -> &'static str {
        match self {
            TranscriptFormat::Text => "text",
            TranscriptFormat::Json => "json",
            TranscriptFormat::VerboseJson => "verbose_json",
            TranscriptFormat::Srt => "srt",
            TranscriptFormat::Vtt => "vtt",
        }
    }
}

impl Transcript {
    /// The whole text.
    pub fn text(&self) -> String {
        let all = self.segments.iter().map(|segment| segment.text.as_str());
        all.collect::<String>().trim().to_string()
    }

    /// The words of all segments.
    pub fn words(&self) -> impl Iterator<Item = &Word> {
        self.segments.iter().flat_map(|segment| &segment.words)
    }

    /// The transcript in a format.
    pub fn write(&self, format: TranscriptFormat) -> String {
        match format {
            TranscriptFormat::Text => self.text() + "\n",
            TranscriptFormat::Json => json!({"text": self.text()}).to_string(),
            TranscriptFormat::VerboseJson => self.verbose(true, true).to_string(),
            TranscriptFormat::Srt => {
                let mut all = String::new();
                for (number, segment) in (1..).zip(&self.segments) {
                    all += &format!("{number}\n{}\n\n", segment.subtitle(','));
                }
                all
            }
            TranscriptFormat::Vtt => {
                let mut all = "WEBVTT\n\n".to_string();
                for segment in &self.segments {
                    all += &format!("{}\n\n", segment.subtitle('.'));
                }
                all
            }
        }
    }

    /// The transcript with all that is known, and segments or words.
    pub fn verbose(&self, segments: bool, words: bool) -> Value {
        let mut all = json!({
            "task": match self.task { Task::Transcribe => "transcribe", Task::Translate => "translate" },
            // Clients expect a text.
            "language": self.language.as_deref().map_or("unknown", language_name),
            "duration": self.seconds,
            "text": self.text(),
        });
        if segments {
            all["segments"] = self.segments.iter().map(Segment::json).collect();
        }
        if words && self.words().next().is_some() {
            all["words"] = self.words().map(Word::json).collect();
        }
        all
    }
}

impl Segment {
    fn subtitle(&self, point: char) -> String {
        let [start, end] = [self.start, self.end].map(|seconds| clock(seconds, point));
        // An arrow would end the line of times.
        let text = self.text.trim().replace("-->", "->");
        format!("{start} --> {end}\n{text}")
    }

    /// As APIs write it.
    pub fn json(&self) -> Value {
        json!({
            "id": self.id,
            "seek": self.seek,
            "start": round(self.start),
            "end": round(self.end),
            "text": self.text,
            "tokens": self.tokens,
            "temperature": self.temperature,
            "avg_logprob": self.avg_logprob,
            "compression_ratio": self.compression_ratio,
            "no_speech_prob": self.no_speech_prob,
        })
    }
}

impl Word {
    fn json(&self) -> Value {
        json!({"word": self.word.trim(), "start": round(self.start), "end": round(self.end)})
    }
}

/// Sums of hundredths are not written with the digits that rounding leaves.
fn round(seconds: f64) -> f64 {
    (seconds * 1000.0).round() / 1000.0
}

/// `01:02:03.456`
fn clock(seconds: f64, point: char) -> String {
    let all = (seconds.max(0.0) * 1000.0).round() as u64;
    let (hours, minutes) = (all / 3_600_000, all / 60_000 % 60);
    let (seconds, milliseconds) = (all / 1000 % 60, all % 1000);
    format!("{hours:02}:{minutes:02}:{seconds:02}{point}{milliseconds:03}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transcript() -> Transcript {
        let segment = |id, start, end, text: &str| Segment {
            id,
            seek: 0,
            start,
            end,
            text: text.to_string(),
            tokens: vec![1],
            logprobs: vec![-0.25],
            temperature: 0.0,
            avg_logprob: -0.25,
            compression_ratio: 1.5,
            no_speech_prob: 0.125,
            words: Vec::new(),
        };
        Transcript {
            task: Task::Transcribe,
            language: Some("en".to_string()),
            language_probability: 0.9,
            seconds: 3661.5,
            segments: vec![
                segment(0, 0.0, 2.5, " So it begins --> here."),
                segment(1, 3600.0 + 2.52, 3661.04, " The end."),
            ],
        }
    }

    #[test]
    fn subtitles_have_their_times() {
        let srt = "1\n00:00:00,000 --> 00:00:02,500\nSo it begins -> here.\n\n2\n01:00:02,520 --> 01:01:01,040\nThe end.\n\n";
        assert_eq!(transcript().write(TranscriptFormat::Srt), srt);
        let vtt = "WEBVTT\n\n00:00:00.000 --> 00:00:02.500\nSo it begins -> here.\n\n01:00:02.520 --> 01:01:01.040\nThe end.\n\n";
        assert_eq!(transcript().write(TranscriptFormat::Vtt), vtt);
        let text = "So it begins --> here. The end.\n";
        assert_eq!(transcript().write(TranscriptFormat::Text), text);
    }

    #[test]
    fn json_has_what_the_api_promises() {
        let verbose = transcript().verbose(true, true);
        assert_eq!(verbose["language"], "english");
        assert_eq!(verbose["duration"], 3661.5);
        assert_eq!(verbose["segments"][1]["end"], 3661.04);
        assert!(verbose.get("words").is_none());
        let short: Value =
            serde_json::from_str(&transcript().write(TranscriptFormat::Json)).unwrap();
        assert_eq!(short, json!({"text": "So it begins --> here. The end."}));
    }
}
