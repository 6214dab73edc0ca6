//! What a session is asked for, in OpenAI's form of today and in the older one.

use crate::error::Failure;
use crate::fields::Fields;
use serde_json::{Value, json};
use std::ops::RangeInclusive;
use welte::TranscribeOptions;
use welte_audio::{StreamFormat, VoiceSettings};

/// What `include` may have.
const LOGPROBS: &str = "item.input_audio_transcription.logprobs";
/// The most milliseconds of a padding or a silence.
const LONGEST: u32 = 10_000;
/// The fewest milliseconds of silence that end a turn.
const SHORTEST: u32 = 20;

/// Which form the events of a session have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Dialect {
    #[default]
    Today,
    /// That of the beta: `transcription_session.update`, with fields side by side.
    Beta,
}

/// The settings of a session.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// The model that the client named last; `None`: the default one.
    pub(super) asked: Option<String>,
    /// What the model is called.
    pub(super) model: String,
    pub(super) format: StreamFormat,
    pub(super) language: Option<String>,
    pub(super) prompt: Option<String>,
    /// `None`: the client commits.
    pub(super) turns: Option<VoiceSettings>,
    pub(super) logprobs: bool,
}

impl Settings {
    /// Those of a new session.
    pub(super) fn new(asked: Option<String>, model: &str) -> Settings {
        Settings {
            asked,
            model: model.to_string(),
            format: StreamFormat::default(),
            language: None,
            prompt: None,
            turns: Some(VoiceSettings::default()),
            logprobs: false,
        }
    }

    /// How a sound is written down.
    pub(super) fn options(&self, seed: u64) -> TranscribeOptions {
        let mut options = TranscribeOptions::default();
        options.language = self.language.clone();
        options.prompt = self.prompt.clone();
        options.logprobs = self.logprobs;
        options.seed = seed;
        options
    }

    /// Takes the fields of an update; those that it does not have stay as they are. `no_turns`: `turn_detection` is null, which
    /// counts as missing among fields.
    pub(super) fn update(
        &mut self,
        session: &mut Fields,
        dialect: Dialect,
        no_turns: bool,
    ) -> Result<(), Failure> {
        if let Some(include) = session.take::<Vec<String>>("include")? {
            self.logprobs = !include.is_empty();
            if include.iter().any(|what| what != LOGPROBS) {
                return Err(session.wrong("include", format!("must be {LOGPROBS}")));
            }
        }
        if no_turns {
            self.turns = None;
        }
        match dialect {
            Dialect::Today => {
                if session.need::<String>("type")? != "transcription" {
                    let problem = "must be transcription; other sessions are not supported";
                    return Err(session.wrong("type", problem));
                }
                let Some(mut audio) = session.object("audio")? else {
                    return Ok(());
                };
                if let Some(mut input) = audio.object("input")? {
                    input.refuse(&["noise_reduction"])?;
                    self.take_format(&mut input)?;
                    self.take_transcription(&mut input, "transcription")?;
                    self.take_turns(&mut input)?;
                    input.finish()?;
                }
                audio.finish()
            }
            Dialect::Beta => {
                session.refuse(&["input_audio_noise_reduction"])?;
                // There is text only, and keys are the server's.
                session.ignore(&["modalities", "client_secret"]);
                if let Some(format) = session.take::<String>("input_audio_format")? {
                    self.format = named(&format, BETA_FORMATS).ok_or_else(|| {
                        let names = BETA_FORMATS.map(|(name, _)| name).join(", ");
                        session.wrong("input_audio_format", format!("must be one of {names}"))
                    })?;
                }
                self.take_transcription(session, "input_audio_transcription")?;
                self.take_turns(session)
            }
        }
    }

    fn take_format(&mut self, input: &mut Fields) -> Result<(), Failure> {
        let Some(mut format) = input.object("format")? else {
            return Ok(());
        };
        let name: String = format.need("type")?;
        self.format = named(&name, FORMATS).ok_or_else(|| {
            let names = FORMATS.map(|(name, _)| name).join(", ");
            format.wrong("type", format!("must be one of {names}"))
        })?;
        format.only("rate", &[self.format.rate().into()])?;
        format.finish()
    }

    fn take_transcription(&mut self, input: &mut Fields, name: &str) -> Result<(), Failure> {
        let Some(mut own) = input.object(name)? else {
            return Ok(());
        };
        let given = |text: String| Some(text).filter(|text| !text.trim().is_empty());
        if let Some(model) = own.take::<String>("model")? {
            self.asked = given(model);
        }
        if let Some(language) = own.take::<String>("language")? {
            self.language = given(language);
        }
        if let Some(prompt) = own.take::<String>("prompt")? {
            self.prompt = given(prompt);
        }
        own.refuse(&["delay", "keywords", "languages"])?;
        own.finish()
    }

    fn take_turns(&mut self, input: &mut Fields) -> Result<(), Failure> {
        let Some(mut own) = input.object("turn_detection")? else {
            return Ok(());
        };
        if let Some(kind) = own.take::<String>("type")?
            && kind != "server_vad"
        {
            let problem = "must be server_vad, or turn_detection null";
            return Err(own.wrong("type", problem));
        }
        let mut turns = self.turns.unwrap_or_default();
        if let Some(threshold) = own.take::<f32>("threshold")? {
            if !(0.0..=1.0).contains(&threshold) {
                return Err(own.wrong("threshold", "must be from 0 to 1"));
            }
            turns.threshold = threshold;
        }
        let milliseconds = |own: &mut Fields, name: &str, range: RangeInclusive<u32>| {
            let value = own.take::<u32>(name)?;
            if value.is_none_or(|value| range.contains(&value)) {
                return Ok(value);
            }
            let problem = format!("must be from {} to {}", range.start(), range.end());
            Err(own.wrong(name, problem))
        };
        if let Some(prefix) = milliseconds(&mut own, "prefix_padding_ms", 0..=LONGEST)? {
            turns.prefix_ms = prefix;
        }
        let silence = milliseconds(&mut own, "silence_duration_ms", SHORTEST..=LONGEST)?;
        if let Some(silence) = silence {
            turns.silence_ms = silence;
        }
        // There are no responses that these could begin or end.
        own.ignore(&["create_response", "interrupt_response"]);
        own.refuse(&["idle_timeout_ms", "eagerness"])?;
        self.turns = Some(turns);
        own.finish()
    }

    /// The session as clients see it.
    pub(super) fn json(&self, id: &str, dialect: Dialect) -> Value {
        let transcription = json!({
            "model": self.model, "language": self.language, "prompt": self.prompt,
        });
        let turns = self.turns.map(|turns| {
            let threshold = f64::from((turns.threshold * 1e4).round()) / 1e4;
            json!({
                "type": "server_vad", "threshold": threshold,
                "prefix_padding_ms": turns.prefix_ms, "silence_duration_ms": turns.silence_ms,
            })
        });
        let include: &[&str] = if self.logprobs { &[LOGPROBS] } else { &[] };
        let mut session =
            json!({ "id": id, "object": "realtime.transcription_session", "include": include });
        let name = |all: [(&'static str, StreamFormat); 3]| {
            let found = all.into_iter().find(|(_, format)| *format == self.format);
            found.map(|(name, _)| name)
        };
        match dialect {
            Dialect::Today => {
                session["type"] = "transcription".into();
                let mut format = json!({ "type": name(FORMATS) });
                if self.format == StreamFormat::Pcm16 {
                    format["rate"] = self.format.rate().into();
                }
                session["audio"] = json!({ "input": {
                    "format": format, "transcription": transcription, "noise_reduction": null, "turn_detection": turns,
                } });
            }
            Dialect::Beta => {
                session["input_audio_format"] = name(BETA_FORMATS).into();
                session["input_audio_transcription"] = transcription;
                session["turn_detection"] = turns.into();
            }
        }
        session
    }
}

const FORMATS: [(&str, StreamFormat); 3] = [
    ("audio/pcm", StreamFormat::Pcm16),
    ("audio/pcmu", StreamFormat::Ulaw),
    ("audio/pcma", StreamFormat::Alaw),
];
const BETA_FORMATS: [(&str, StreamFormat); 3] = [
    ("pcm16", StreamFormat::Pcm16),
    ("g711_ulaw", StreamFormat::Ulaw),
    ("g711_alaw", StreamFormat::Alaw),
];

fn named(name: &str, all: [(&str, StreamFormat); 3]) -> Option<StreamFormat> {
    let found = all.into_iter().find(|(own, _)| *own == name);
    found.map(|(_, format)| format)
}
