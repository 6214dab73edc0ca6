//! Chat templates: Jinja as Python's transformers renders it.

mod budget;
mod open;
mod rendered;
mod shield;
mod support;
mod tree;

pub use self::rendered::Rendered;
pub(crate) use self::shield::uncovered;
pub use self::support::TemplateSupport;

use self::budget::charged;
use self::shield::Shield;
use self::tree::Rebuild;
use crate::Error;
use crate::conversation::{Dialect, MARK, Message};
use crate::generic;
use crate::python;
use crate::token::shortened;
use minijinja::machinery::{CodeGenerator, eval, make_string_output, parse};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, Serde, from_args};
use minijinja::{AutoEscape, Environment, ErrorKind, State, UndefinedBehavior, Value};
use serde_json::{Map, Value as Json, json};
use std::cell::Cell;
use std::sync::OnceLock;
use web_time::{SystemTime, UNIX_EPOCH};

/// The longest template, in bytes. Real ones have a few thousand.
const LONGEST_SOURCE: usize = 1 << 20;
/// The most instructions per rendering. A thousand messages take some ten thousand.
const FUEL: u64 = 2_000_000;
/// The most bytes that one rendering may print.
const LONGEST_OUTPUT: usize = 32 << 20;
/// The deepest nesting of macros and includes.
const DEEPEST: usize = 64;

thread_local! {
    /// Bytes that the rendering on this thread may still print.
    static PRINTABLE: Cell<usize> = const { Cell::new(0) };
}

/// The input of a template besides the messages.
#[derive(Clone, Debug, Default)]
pub struct RenderOptions {
    /// End the prompt with the beginning of an answer.
    pub add_generation_prompt: bool,
    /// More variables: `tools`, `enable_thinking` …
    pub variables: Map<String, Json>,
    /// The time for `strftime_now`, in seconds since 1970. The default is the clock's time in UTC.
    pub now: Option<u64>,
}

impl RenderOptions {
    /// Sets the variables in which some templates expect the date, unless they are set: `date_string` (Llama 3) and `datetime`
    /// (Firefunction).
    pub fn set_dates(&mut self) {
        let now = self.now.unwrap_or_else(clock);
        for (name, format) in [
            ("date_string", "%d %b %Y"),
            ("datetime", "%b %d %Y %H:%M:%S GMT"),
        ] {
            if let Ok(date) = python::strftime(now, format) {
                self.variables.entry(name).or_insert(date.into());
            }
        }
    }
}

/// Seconds since 1970.
fn clock() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// A chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    shield: Shield,
    bos: String,
    eos: String,
    /// The form of messages that it reads: without and with tools.
    dialects: [OnceLock<Dialect>; 2],
    /// What stands for images and sounds.
    media: Vec<Mark>,
}

impl ChatTemplate {
    /// Compiles a template. `bos` and `eos` are the texts of these tokens.
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<ChatTemplate, Error> {
        if source.len() > LONGEST_SOURCE {
            let problem = format!(
                "is {} bytes long; the limit is {LONGEST_SOURCE}",
                source.len()
            );
            return Err(Error::Template { line: 1, problem });
        }
        let source = without_generation_tags(source);
        let mut environment = Environment::new();
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(DEEPEST);
        environment.set_undefined_behavior(UndefinedBehavior::Lenient);
        environment.set_unknown_method_callback(method);
        environment.set_formatter(print);
        environment.add_filter("length", length);
        environment.add_filter("count", length);
        environment.add_filter("tojson", tojson);
        for filter in ["string", "pprint"] {
            environment.add_filter(filter, |value: &Value| charged(python::text(value)?));
        }
        environment.add_filter("replace", open::replace);
        for filter in ["escape", "e"] {
            environment.add_filter(filter, escape);
        }
        environment.add_filter("join", join);
        environment.add_filter("indent", indent);
        // Chats do not need these filters, and each can turn a small input into a large output.
        for filter in ["format", "batch", "slice", "chain", "zip"] {
            environment.remove_filter(filter);
        }
        environment.remove_global("debug");
        environment.add_function("raise_exception", raise_exception);
        budget::add_functions(&mut environment);
        open::add_functions(&mut environment);
        compiled(&source)?;
        Ok(ChatTemplate {
            environment,
            source,
            shield: Shield::default(),
            bos: bos.to_owned(),
            eos: eos.to_owned(),
            dialects: Default::default(),
            media: Vec::new(),
        })
    }

    /// The same template for a model that takes parts of a kind besides text: `image` or `audio`. `mark` stands for one in the prompt. A
    /// template that takes only text gets the parts of a message as one text, with marks among them.
    pub fn with_media(mut self, kind: &'static str, mark: &str) -> ChatTemplate {
        let content = json!([{"type": kind}, {"type": "text", "text": "What is this?"}]);
        let trial = [json!({"role": "user", "content": content})];
        let rendered = self.render_with(&trial, &RenderOptions::default());
        self.media.push(Mark {
            kind,
            text: mark.to_owned(),
            written: rendered.is_ok_and(|rendered| rendered.text().contains(mark)),
        });
        self
    }

    /// The same template for a vocabulary with these marks ([`Tokenizer::marks`](crate::Tokenizer::marks)). Messages that
    /// spell them do not make them tokens.
    pub fn with_marks(mut self, marks: &[String]) -> Result<ChatTemplate, Error> {
        let (_, seen) = compiled(&self.source)?;
        self.shield = Shield::new(&self.source, marks, &seen.literals, &seen.names);
        Ok(self)
    }

    /// The prompt for messages with role and content.
    pub fn render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<Rendered, Error> {
        let options = RenderOptions {
            add_generation_prompt,
            ..RenderOptions::default()
        };
        self.render_chat(messages, &options)
    }

    /// The prompt for a conversation, which may have calls, results and reasoning. `tools` is a variable of `options`.
    /// The messages get the form that the template reads.
    pub fn render_chat(
        &self,
        messages: &[Message],
        options: &RenderOptions,
    ) -> Result<Rendered, Error> {
        let calls = messages
            .iter()
            .any(|message| !message.tool_calls.is_empty());
        let plain = !calls && !options.variables.contains_key("tools");
        self.render_with(&self.dialect(plain).messages(messages), options)
    }

    /// The prompt for a conversation with tools that the template does not know. They are explained in its text, and the
    /// answer has calls in the syntax of [`Format::generic`](crate::calls::Format::generic).
    pub fn render_generic(
        &self,
        messages: &[Message],
        tools: &[Json],
        options: &RenderOptions,
    ) -> Result<Rendered, Error> {
        let with = |system| generic::without_tools(messages, tools, system);
        let rendered = self.render_chat(&with(true), options);
        let explained = rendered
            .as_ref()
            .is_ok_and(|text| text.contains(generic::HOW));
        if explained {
            rendered
        } else {
            // The template refuses or drops messages of the system.
            self.render_chat(&with(false), options)
        }
    }

    /// Adds the beginning of an answer to a prompt. It may have marks of reasoning and calls, and no others.
    pub fn push_answer(&self, rendered: &mut Rendered, text: &str) {
        self.shield.push_answer(rendered, text);
    }

    /// Whether tools appear in the prompt. Without it the model does not know them.
    pub fn supports_tools(&self) -> bool {
        self.dialect(false).tools
    }

    fn dialect(&self, plain: bool) -> &Dialect {
        let render = |messages: &[Json], tools: &[Json]| {
            let mut options = RenderOptions {
                add_generation_prompt: true,
                ..RenderOptions::default()
            };
            if !tools.is_empty() {
                options.variables.insert("tools".into(), tools.into());
            }
            let rendered = self.render_with(messages, &options).ok()?;
            Some(rendered.text().to_owned())
        };
        self.dialects[usize::from(!plain)].get_or_init(|| Dialect::of(&self.source, plain, &render))
    }

    /// The prompt for messages with arbitrary fields, and with more variables.
    pub fn render_with(
        &self,
        messages: &[Json],
        options: &RenderOptions,
    ) -> Result<Rendered, Error> {
        // Trials of the dialect cover texts, too, so they come first.
        let unwritten = self.media.iter().filter(|mark| !mark.written);
        let has = |message: &Json| unwritten.clone().any(|mark| mark.is_in(message));
        let joins = messages.iter().any(has);
        let joins = joins.then(|| self.dialect(true).parts);
        let mut variables = options.variables.clone();
        let input = messages.iter().map(size).sum::<usize>();
        budget::begin(input + variables.values().map(size).sum::<usize>());
        let covered = self.shield.cover(messages, &mut variables);
        let mut covered = covered.ok_or_else(|| Error::Template {
            line: 1,
            problem: "the conversation has every private character of Unicode".to_owned(),
        })?;
        let parts = |message: &Json| message["content"].as_array().map_or(0, Vec::len);
        for (message, covered) in messages.iter().zip(&mut covered) {
            for at in 0..parts(message) {
                if message["content"][at][MARK] == true {
                    let text = &message["content"][at]["text"];
                    covered["content"][at] = json!({"type": "text", "text": text});
                }
            }
        }
        if let Some(as_parts) = joins {
            let all = messages.iter().zip(&mut covered);
            for (_, covered) in all.filter(|(message, _)| has(message)) {
                let text = joined(covered, &self.media);
                covered["content"] = if as_parts {
                    json!([{"type": "text", "text": text}])
                } else {
                    text.into()
                };
            }
        }
        let mut context: Map<String, Json> = Map::new();
        context.insert("bos_token".into(), self.bos.as_str().into());
        context.insert("eos_token".into(), self.eos.as_str().into());
        context.extend(variables);
        context.insert("messages".into(), covered.into());
        context.insert(
            "add_generation_prompt".into(),
            options.add_generation_prompt.into(),
        );
        let now = options.now.unwrap_or_else(clock);
        let clock = Value::from_function(move |format: &str| python::strftime(now, format));
        let context = minijinja::context! { strftime_now => clock, ..Value::from(Serde(&context)) };
        PRINTABLE.set(LONGEST_OUTPUT);
        match self.print(context) {
            Ok(text) => Ok(Rendered::new(shield::uncover(text))),
            Err(Error::Template { line, problem }) => {
                let problem = shield::uncover(problem).0;
                Err(Error::Template { line, problem })
            }
            Err(error) => Err(error),
        }
    }

    fn print(&self, context: Value) -> Result<String, Error> {
        let (generator, _) = compiled(&self.source)?;
        let (instructions, blocks) = generator.finish();
        let mut text = String::new();
        eval(
            &self.environment,
            &instructions,
            context,
            &blocks,
            &mut make_string_output(&mut text),
            AutoEscape::None,
        )
        .map_err(failed)?;
        Ok(text)
    }
}

/// Compiles a template. It is quick, and what it returns borrows the source.
fn compiled(source: &str) -> Result<(CodeGenerator<'_>, Rebuild), Error> {
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()
        .map_err(failed)?;
    tree::check_depth(source, &syntax)?;
    let tree = parse(source, "chat", syntax).map_err(failed)?;
    let mut rebuild = Rebuild::default();
    let tree = rebuild.statement(&tree)?;
    let mut generator = CodeGenerator::new("chat", source);
    generator.compile_stmt(&tree);
    Ok((generator, rebuild))
}

/// What stands for a part of a message in the prompt.
#[derive(Debug)]
struct Mark {
    /// The part's type.
    kind: &'static str,
    text: String,
    /// The template writes it.
    written: bool,
}

impl Mark {
    fn is_in(&self, message: &Json) -> bool {
        let parts = message["content"].as_array();
        parts.is_some_and(|parts| parts.iter().any(|part| part["type"] == self.kind))
    }
}

/// The parts of a message as one text, with marks for those that are none. Its own words are covered.
fn joined(message: &Json, marks: &[Mark]) -> String {
    let parts = message["content"].as_array().into_iter().flatten();
    let text = |part: &'_ Json| {
        let own = part["text"].as_str();
        let mark = || marks.iter().find(|mark| part["type"] == mark.kind);
        own.or_else(|| mark().map(|mark| mark.text.as_str()))
            .unwrap_or("")
            .to_owned()
    };
    parts.map(text).collect()
}

/// The bytes of a value, roughly.
fn size(value: &Json) -> usize {
    match value {
        Json::String(text) => text.len() + 16,
        Json::Array(items) => items.iter().map(size).sum::<usize>() + 16,
        Json::Object(fields) => {
            let field = |(name, value): (&String, &Json)| name.len() + size(value);
            fields.iter().map(field).sum::<usize>() + 16
        }
        _ => 16,
    }
}

fn too_long() -> String {
    format!("prints more than {LONGEST_OUTPUT} bytes")
}

fn failed(error: minijinja::Error) -> Error {
    let line = error.line().unwrap_or(1);
    let problem = match error.kind() {
        ErrorKind::OutOfFuel => format!("takes more than {FUEL} steps"),
        ErrorKind::WriteFailure => too_long(),
        kind => match error.detail() {
            Some(detail) if kind == ErrorKind::InvalidOperation => detail.to_owned(),
            Some(detail) => format!("{kind}: {detail}"),
            None => kind.to_string(),
        },
    };
    let problem = if problem.len() > 2000 {
        shortened(&problem)
    } else {
        problem
    };
    Error::Template { line, problem }
}

/// Prints a value as Python does, within the limit.
fn print(
    output: &mut minijinja::Output,
    _: &mut State,
    value: &Value,
) -> Result<(), minijinja::Error> {
    let text = python::text(value)?;
    let left = PRINTABLE.get().checked_sub(text.len());
    let left =
        left.ok_or_else(|| minijinja::Error::new(ErrorKind::InvalidOperation, too_long()))?;
    PRINTABLE.set(left);
    output.write_str(&text).map_err(minijinja::Error::from)
}

fn length(value: &Value) -> Result<usize, minijinja::Error> {
    if value.is_undefined() {
        return Ok(0);
    }
    value.len().ok_or_else(|| {
        let problem = format!("a value of type {} has no length", value.kind());
        minijinja::Error::new(ErrorKind::InvalidOperation, problem)
    })
}

fn escape(value: &Value) -> Result<Value, minijinja::Error> {
    if value.is_safe() {
        return Ok(value.clone());
    }
    let text = shield::through(&python::text(value)?, python::escape);
    Ok(Value::from_safe_string(text))
}

fn raise_exception(message: Rest<Value>) -> Result<Value, minijinja::Error> {
    let message = message
        .first()
        .map_or_else(String::new, ToString::to_string);
    Err(minijinja::Error::new(
        ErrorKind::InvalidOperation,
        format!("the template raised: {message}"),
    ))
}

/// Python's methods. Those that can turn a small input into a large output are bounded.
fn method(
    state: &mut State,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, minijinja::Error> {
    if let Some(text) = value.as_str()
        && let Some(result) = open::method(state, text, name, args)?
    {
        return Ok(result);
    }
    match (value.as_str(), name) {
        (Some(text), "join") => {
            let (values,): (&Value,) = from_args(args)?;
            charged(python::join(values, text, None)?).map(Value::from)
        }
        (text, _) => {
            match text.filter(|_| name == "format") {
                Some(text) => budget::check_format(text, args)?,
                None => budget::check_method(value, name)?,
            }
            minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
        }
    }
}

fn join(
    values: &Value,
    separator: Option<&str>,
    options: Kwargs,
) -> Result<String, minijinja::Error> {
    let named = options.get::<Option<&str>>("d")?;
    let attribute = options.get::<Option<&str>>("attribute")?;
    options.assert_all_used()?;
    charged(python::join(
        values,
        separator.or(named).unwrap_or(""),
        attribute,
    )?)
}

fn indent(
    text: &str,
    width: Option<usize>,
    first: Option<bool>,
    blank: Option<bool>,
    options: Kwargs,
) -> Result<String, minijinja::Error> {
    let width = width
        .or(options.get::<Option<usize>>("width")?)
        .unwrap_or(4);
    let first = first
        .or(options.get::<Option<bool>>("first")?)
        .unwrap_or(false);
    let blank = blank
        .or(options.get::<Option<bool>>("blank")?)
        .unwrap_or(false);
    options.assert_all_used()?;
    charged(python::indent(text, width, first, blank)?)
}

fn tojson(value: &Value, options: Kwargs) -> Result<Value, minijinja::Error> {
    let ascii = options
        .get::<Option<bool>>("ensure_ascii")?
        .unwrap_or(false);
    let indent = options.get::<Option<usize>>("indent")?;
    let sorted = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    let separators = options.get::<Option<Vec<String>>>("separators")?;
    options.assert_all_used()?;
    let style = python::JsonStyle {
        ascii,
        indent,
        sorted,
        separators,
    };
    charged(python::json(value, &style)?).map(Value::from_safe_string)
}

/// `{% generation %}` only marks text for training. A condition that is always true keeps the white space the same.
fn without_generation_tags(source: &str) -> String {
    let mut rest = source;
    let mut result = String::with_capacity(source.len());
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at + 2);
        result.push_str(before);
        rest = tag;
        let word_at = tag
            .find(|c: char| !c.is_whitespace() && c != '-' && c != '+')
            .unwrap_or(tag.len());
        let word = &tag[word_at..];
        for (name, instead) in [("generation", "if true"), ("endgeneration", "endif")] {
            let Some(end) = word.strip_prefix(name) else {
                continue;
            };
            if end
                .trim_start()
                .trim_start_matches(['-', '+'])
                .starts_with("%}")
            {
                result.push_str(&tag[..word_at]);
                result.push_str(instead);
                rest = end;
            }
        }
    }
    result.push_str(rest);
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_value_has_the_size_of_its_texts() {
        assert_eq!(size(&json!(1)), 16);
        assert_eq!(size(&json!("abc")), 19);
        assert_eq!(size(&json!(["a", 1])), 17 + 16 + 16);
        assert_eq!(size(&json!({"ab": "c", "d": {}})), 2 + 17 + 1 + 16 + 16);
    }

    #[test]
    fn generation_tags_become_conditions() {
        for (source, expected) in [
            (
                "{% generation %}a{% endgeneration %}",
                "{% if true %}a{% endif %}",
            ),
            (
                "{%- generation -%}a{%+ endgeneration +%}",
                "{%- if true -%}a{%+ endif +%}",
            ),
            ("{%generation%}", "{%if true%}"),
            (
                "{% generations %} generation %}",
                "{% generations %} generation %}",
            ),
            ("{% generation x %}{{ a }}{%", "{% generation x %}{{ a }}{%"),
        ] {
            assert_eq!(without_generation_tags(source), expected);
        }
    }

    #[test]
    fn dates_are_set_unless_they_are() {
        let mut options = RenderOptions {
            now: Some(1_709_251_199),
            ..RenderOptions::default()
        };
        options.variables.insert("datetime".into(), "now".into());
        options.set_dates();
        assert_eq!(options.variables["date_string"], "29 Feb 2024");
        assert_eq!(options.variables["datetime"], "now");
        options.variables.clear();
        options.set_dates();
        assert_eq!(options.variables["datetime"], "Feb 29 2024 23:59:59 GMT");
    }
}
