//! What a template makes of a conversation, found by rendering short ones.

use super::{ChatTemplate, RenderOptions};
use serde_json::{Map, Value as Json, json};

/// What a chat template can write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TemplateSupport {
    /// Messages of the system.
    pub system: bool,
    /// Tools, and so the model knows them.
    pub tools: bool,
    /// A variable that turns reasoning on and off.
    pub thinking_switch: Option<&'static str>,
    /// `reasoning_effort` changes the prompt.
    pub effort: bool,
    /// Parts that are images have a place of their own.
    pub images: bool,
    /// The same for sounds.
    pub sounds: bool,
}

/// The variables by which templates turn reasoning on and off.
const SWITCHES: [&str; 2] = ["enable_thinking", "thinking"];

impl ChatTemplate {
    /// What the template supports. What it refuses, it does not support.
    pub fn support(&self) -> TemplateSupport {
        const SYSTEM: &str = "Answer as a fox would.";
        let user = json!({"role": "user", "content": "What is this?"});
        let system = [json!({"role": "system", "content": SYSTEM}), user.clone()];
        let system = self.trial(&system, &[]);
        let differs = |name: &str, values: [Json; 2]| {
            let [one, other] =
                values.map(|value| self.trial(std::slice::from_ref(&user), &[(name, value)]));
            one.is_some() && one != other
        };
        let mut switches = SWITCHES.into_iter();
        let takes = |kind: &str| {
            let text = json!({"type": "text", "text": "What is this?"});
            let of =
                |content: Json| self.trial(&[json!({"role": "user", "content": content})], &[]);
            let (with, without) = (of(json!([{"type": kind}, text.clone()])), of(json!([text])));
            // A template that knows no parts prints the list.
            with.is_some()
                && with != without
                && without == self.trial(std::slice::from_ref(&user), &[])
        };
        TemplateSupport {
            system: system.is_some_and(|text| text.contains(SYSTEM)),
            tools: self.supports_tools(),
            thinking_switch: switches.find(|name| differs(name, [true.into(), false.into()])),
            effort: differs("reasoning_effort", ["low".into(), "high".into()]),
            images: takes("image"),
            sounds: takes("audio"),
        }
    }

    /// The prompt for a conversation; `None` if the template refuses it.
    fn trial(&self, messages: &[Json], variables: &[(&str, Json)]) -> Option<String> {
        let variables = variables.iter();
        let variables: Map<String, Json> = variables
            .map(|(name, value)| (name.to_string(), value.clone()))
            .collect();
        let options = RenderOptions {
            add_generation_prompt: true,
            variables,
            // The same clock for all trials.
            now: Some(0),
        };
        let rendered = self.render_with(messages, &options).ok()?;
        Some(rendered.text().to_owned())
    }
}
