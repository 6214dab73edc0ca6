//! The prompt of a conversation, and how it ends: with the beginning of an answer, or with the one that the last message begins.

use crate::ask::{Ask, Ending};
use crate::error::Failure;
use crate::fields::Fields;
use crate::turns;
use crate::volatile_lines;
use serde_json::{Map, Value};
use welte::Message;
use welte_text::{RenderOptions, Rendered};

impl Ending {
    /// Takes `add_generation_prompt` and `continue_final_message`, as vLLM and llama.cpp have them.
    pub(crate) fn take(fields: &mut Fields, messages: &[Message]) -> Result<Ending, Failure> {
        let begin: Option<bool> = fields.take("add_generation_prompt")?;
        let goes_on: Option<bool> = fields.take("continue_final_message")?;
        let calls = messages
            .last()
            .is_some_and(|last| !last.tool_calls.is_empty());
        match (goes_on, begin) {
            (Some(true), Some(true)) => {
                let problem = "does not go with add_generation_prompt";
                Err(fields.wrong("continue_final_message", problem))
            }
            (Some(true), _) if calls => {
                let problem = "the last message ends with calls of tools";
                Err(fields.wrong("continue_final_message", problem))
            }
            (Some(true), _) => Ok(Ending::Continue),
            (_, Some(false)) => Ok(Ending::Nothing),
            (Some(false), _) | (None, Some(true)) => Ok(Ending::Begin),
            (None, None) => Ok(Ending::Auto),
        }
    }
}

/// True for a message that an answer can continue.
fn is_beginning(message: &Message) -> bool {
    message.role == "assistant" && message.tool_calls.is_empty()
}

impl Ask {
    /// The prompt of a conversation, with what the model's recipe puts before it. The variables go to the chat template.
    pub(crate) fn render(
        &self,
        messages: &[Message],
        variables: &Map<String, Value>,
    ) -> Result<Rendered, Failure> {
        let recipe = self.served.recipe.as_ref();
        let messages = &*recipe.map_or(messages.into(), |recipe| recipe.opened(messages));
        let goes_on = match self.ending {
            Ending::Auto => messages.last().is_some_and(is_beginning),
            ending => ending == Ending::Continue,
        };
        let Some((last, rest)) = messages.split_last().filter(|_| goes_on) else {
            let begins = self.ending != Ending::Nothing;
            let rendered = self.render_all(messages, variables, begins)?;
            return Ok(self.without_reasoning(rendered, variables));
        };
        if !is_beginning(last) {
            return self.render_open(messages, &last.content, variables);
        }
        if rest.last().is_some_and(is_beginning) {
            let problem = "two messages of the assistant are at the end";
            return Err(Failure::field("messages", problem));
        }
        let mut rendered = self.render_all(rest, variables, true)?;
        // `render_all` needs a template.
        if let Some(template) = &self.served.template {
            if let Some(format) = &self.served.format {
                let before = format.before_text(&rendered, &last.reasoning);
                template.push_answer(&mut rendered, &before);
            }
            template.push_answer(&mut rendered, &last.content);
        }
        Ok(rendered)
    }

    /// The prompt up to the end of the last message's text, which is not the assistant's.
    fn render_open(
        &self,
        messages: &[Message],
        last: &str,
        variables: &Map<String, Value>,
    ) -> Result<Rendered, Failure> {
        let mut rendered = self.render_all(messages, variables, false)?;
        let last = last.trim();
        let Some(at) = rendered.rfind(last) else {
            let problem = "the chat template changes the last message, so nothing can continue it";
            return Err(Failure::field("continue_final_message", problem));
        };
        rendered.truncate(at + last.len());
        Ok(rendered)
    }

    fn render_all(
        &self,
        messages: &[Message],
        variables: &Map<String, Value>,
        add_generation_prompt: bool,
    ) -> Result<Rendered, Failure> {
        let served = &self.served;
        let Some(template) = &served.template else {
            let origin = served.model.origin().to_string();
            return Err(welte::Error::NoChatTemplate { origin }.into());
        };
        let mut options = RenderOptions {
            add_generation_prompt,
            variables: variables.clone(),
            ..RenderOptions::default()
        };
        options.set_dates();
        let messages = volatile_lines::without(messages, &served.drop_changing);
        let tools = self.tools.as_slice();
        // Firefunction's name for the tools, as text.
        let functions = if tools.is_empty() {
            String::new()
        } else {
            format!("{:#}", Value::from(tools))
        };
        options
            .variables
            .entry("functions")
            .or_insert(functions.into());
        let generic = self.has_generic_tools();
        if !tools.is_empty() && !generic {
            options.variables.insert("tools".to_string(), tools.into());
        }
        let render = |messages: &[Message]| {
            if generic {
                template.render_generic(messages, tools, &options)
            } else {
                template.render_chat(messages, &options)
            }
        };
        let rendered = render(&messages);
        let is_complete = |prompt: &Rendered| turns::has_systems(prompt, &messages);
        if !rendered.as_ref().is_ok_and(is_complete)
            && let Some(one) = turns::with_one_system(&messages)
        {
            return Ok(render(&one)?);
        }
        Ok(rendered?)
    }

    /// The prompt, with the end of the reasoning that it begins where reasoning is off and the template does not know it.
    fn without_reasoning(
        &self,
        mut rendered: Rendered,
        variables: &Map<String, Value>,
    ) -> Rendered {
        let off = variables.get("enable_thinking") == Some(&Value::Bool(false));
        if let Some(format) = self.served.format.as_ref().filter(|_| off) {
            let end = format.end_of_reasoning(&rendered);
            rendered.push_str(end);
        }
        rendered
    }
}
