//! Chat templates: Jinja as Python's transformers renders it.

use crate::Error;
use crate::conversation::{Dialect, Message};
use crate::python;
use crate::tokenizer::shortened;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, Serde, from_args};
use minijinja::{Environment, ErrorKind, State, UndefinedBehavior, Value};
use serde_json::{Map, Value as Json};
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

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos: String,
    eos: String,
    /// The form of messages that it reads: without and with tools.
    dialects: [OnceLock<Dialect>; 2],
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
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
            .map_err(failed)?;
        environment.set_syntax(syntax);
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(DEEPEST);
        environment.set_undefined_behavior(UndefinedBehavior::Lenient);
        environment.set_unknown_method_callback(method);
        environment.set_formatter(print);
        environment.add_filter("length", length);
        environment.add_filter("count", length);
        environment.add_filter("tojson", tojson);
        environment.add_filter("string", |value: &Value| python::text(value));
        environment.add_filter("pprint", |value: &Value| python::text(value));
        environment.add_filter(
            "replace",
            |text: &str, old: &str, new: &str, count: Option<i64>| {
                python::replace(text, old, new, count)
            },
        );
        environment.add_filter("join", join);
        environment.add_filter("indent", indent);
        // Chats do not need these filters, and each can turn a small input into a large output.
        for filter in ["format", "batch", "slice"] {
            environment.remove_filter(filter);
        }
        environment.add_function("raise_exception", raise_exception);
        environment
            .add_template_owned("chat", without_generation_tags(source))
            .map_err(failed)?;
        Ok(ChatTemplate {
            environment,
            bos: bos.to_owned(),
            eos: eos.to_owned(),
            dialects: Default::default(),
        })
    }

    /// The prompt for messages with role and content.
    pub fn render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<String, Error> {
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
    ) -> Result<String, Error> {
        let calls = messages
            .iter()
            .any(|message| !message.tool_calls.is_empty());
        let plain = !calls && !options.variables.contains_key("tools");
        self.render_with(&self.dialect(plain).messages(messages), options)
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
            self.render_with(messages, &options).ok()
        };
        let source = self.environment.get_template("chat");
        let source = source.as_ref().map_or("", |template| template.source());
        self.dialects[usize::from(!plain)].get_or_init(|| Dialect::of(source, plain, &render))
    }

    /// The prompt for messages with arbitrary fields, and with more variables.
    pub fn render_with(&self, messages: &[Json], options: &RenderOptions) -> Result<String, Error> {
        let mut context: Map<String, Json> = Map::new();
        context.insert("bos_token".into(), self.bos.as_str().into());
        context.insert("eos_token".into(), self.eos.as_str().into());
        context.extend(options.variables.clone());
        context.insert("messages".into(), messages.into());
        context.insert(
            "add_generation_prompt".into(),
            options.add_generation_prompt.into(),
        );
        let now = options.now.unwrap_or_else(|| {
            SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| since.as_secs())
        });
        let clock = Value::from_function(move |format: &str| python::strftime(now, format));
        let context = minijinja::context! { strftime_now => clock, ..Value::from(Serde(&context)) };
        PRINTABLE.set(LONGEST_OUTPUT);
        let mut output = Bounded(Vec::new());
        let template = self.environment.get_template("chat").map_err(failed)?;
        template
            .render_captured_to(context, &mut output)
            .map_err(failed)?;
        String::from_utf8(output.0).map_err(|_| Error::Template {
            line: 1,
            problem: "the output is not UTF-8".to_owned(),
        })
    }
}

/// The output. It fails instead of exhausting memory.
struct Bounded(Vec<u8>);

impl std::io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if bytes.len() > LONGEST_OUTPUT.saturating_sub(self.0.len()) {
            return Err(std::io::Error::other(too_long()));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
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
    match (value.as_str(), name) {
        (Some(text), "replace") => {
            let (old, new, count): (&str, &str, Option<i64>) = from_args(args)?;
            python::replace(text, old, new, count).map(Value::from)
        }
        (Some(text), "join") => {
            let (values,): (&Value,) = from_args(args)?;
            python::join(values, text, None).map(Value::from)
        }
        (Some(text), "format") => {
            python::check_format(text)?;
            minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
        }
        _ => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
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
    python::join(values, separator.or(named).unwrap_or(""), attribute)
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
    python::indent(text, width, first, blank)
}

fn tojson(value: &Value, options: Kwargs) -> Result<Value, minijinja::Error> {
    let ascii = options
        .get::<Option<bool>>("ensure_ascii")?
        .unwrap_or(false);
    let indent = options.get::<Option<usize>>("indent")?;
    let sorted = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    let separators = options.get::<Option<Vec<String>>>("separators")?;
    options.assert_all_used()?;
    python::json(
        value,
        &python::JsonStyle {
            ascii,
            indent,
            sorted,
            separators,
        },
    )
    .map(Value::from_safe_string)
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
