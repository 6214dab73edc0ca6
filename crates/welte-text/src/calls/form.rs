//! The form of an answer: where its reasoning ends, how a call begins, and where JSON of a schema must follow.

mod tree;
mod values;
mod xml;

pub use self::tree::Form;

use self::tree::{optional, text};
use self::values::Writing;
use super::body::Start;
use super::format::{Format, Opening};
use super::named::Named;
use serde_json::{Value, json};

/// What an answer may contain.
#[derive(Clone, Copy, Debug)]
pub struct Contents<'a> {
    /// Reasoning may come first.
    pub reasoning: bool,
    /// Functions that may be called, with the schemas of their arguments.
    pub functions: &'a [(&'a str, &'a Value)],
    /// The answer is one call.
    pub must_call: bool,
    /// Text has a form of its own, [`Form::Content`].
    pub own_form: bool,
}

/// The form of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct AnswerForm {
    /// The end of the prompt. [`CallParser`](super::CallParser) takes it as the beginning of the answer.
    pub opening: String,
    /// The rest of the answer.
    pub form: Form,
    /// The answer may contain reasoning.
    pub reasons: bool,
}

/// Line breaks and spaces between the parts of an answer.
const LAYOUT: &str = "[ \\n]{1,4}";

/// Begins a message in channels after another one.
const NEXT_MESSAGE: &str = "<|start|>assistant";

impl Format {
    /// The form of an answer after a rendered prompt. `None`: calls in this syntax cannot be given a form, or the schema of an
    /// argument cannot be enforced in it.
    pub fn answer_form(&self, prompt: &str, contents: &Contents) -> Option<AnswerForm> {
        if self.syntax.channels {
            return Some(channels(contents));
        }
        let opened = self.opens_reasoning(prompt);
        let closed = prompt.trim_end().ends_with(self.reasoning.close);
        let marks = |all: &[Opening]| all.iter().map(|opening| opening.mark.to_string()).collect();
        let openings = if contents.functions.is_empty() {
            &[]
        } else {
            self.syntax.openings
        };
        let mut opening = String::new();
        let mut parts = Vec::new();
        let mut reasons = false;
        if contents.reasoning && (opened || self.template_reasons && !closed) {
            let tokens = openings.iter().filter(|opening| opening.is_token);
            let mut reasoning = vec![Form::Until {
                mark: self.reasoning.close.to_string(),
                without: tokens.map(|opening| opening.mark.to_string()).collect(),
            }];
            reasoning.push(optional(Form::Pattern(LAYOUT.to_string())));
            if !opened {
                reasoning.insert(0, text(self.reasoning.open));
            }
            let reasoning = Form::Sequence(reasoning);
            parts.push(if opened {
                reasoning
            } else {
                optional(reasoning)
            });
            reasons = true;
        } else if opened {
            opening = format!("\n{}\n\n", self.reasoning.close);
        }
        if openings.is_empty() && contents.functions.is_empty() {
            parts.push(Form::Content);
        } else if contents.must_call {
            parts.push(self.one_call(contents.functions)?);
        } else if contents.own_form {
            let call = self.calls(contents.functions)?;
            let calls = Form::Sequence(vec![call.clone(), Form::Repeated(Box::new(call))]);
            parts.push(Form::OneOf(vec![calls, Form::Content]));
        } else if self.syntax.bare.is_some() {
            let call = self.calls(contents.functions)?;
            // Whatever begins like a call must be one. No character of a mark of text comes first, or the rest of the mark
            // could follow unseen.
            let begins = openings.iter().filter(|opening| !opening.is_token);
            let begins: String = begins.filter_map(|o| o.mark.chars().next()).collect();
            let prose = Form::Sequence(vec![
                Form::Pattern(format!("[^\\s{{\\[{begins}]")),
                Form::Without(marks(openings)),
            ]);
            parts.push(Form::OneOf(vec![call, prose, text("")]));
        } else {
            let mut without: Vec<String> = marks(openings);
            without.push(self.reasoning.open.to_string());
            let mut calls = Vec::new();
            for opening in openings {
                let Some(rest) = self.rest(opening, contents.functions) else {
                    continue;
                };
                let others = without.iter().filter(|mark| *mark != opening.mark);
                let until = Form::Until {
                    mark: opening.mark.to_string(),
                    without: others.cloned().collect(),
                };
                calls.push(Form::Sequence(vec![until, rest]));
            }
            if calls.is_empty() {
                return None;
            }
            parts.push(Form::Repeated(Box::new(Form::OneOf(calls))));
            parts.push(Form::Without(without));
        }
        Some(AnswerForm {
            opening,
            form: Form::Sequence(parts),
            reasons,
        })
    }

    /// A call of one of these functions, as the whole rest of the answer.
    fn one_call(&self, functions: &[(&str, &Value)]) -> Option<Form> {
        let opening = self.syntax.openings.first()?;
        let mark = text(opening.mark);
        Some(match opening.start {
            Start::Llama if self.syntax.bare.is_some() => {
                Form::Json(envelope(functions, "parameters", None))
            }
            Start::Llama => Form::Sequence(vec![
                mark,
                text("["),
                values::call(Writing::Python, functions)?,
                text("]"),
            ]),
            Start::Python => Form::Sequence(vec![
                mark,
                text("\n"),
                values::call(Writing::Python, functions)?,
                text("\n```"),
            ]),
            Start::Json => Form::Sequence(vec![
                mark,
                text("\n"),
                Form::Json(envelope(functions, "arguments", None)),
            ]),
            Start::Mistral(named) => Form::Sequence(vec![
                mark,
                Form::OneOf(vec![
                    Form::Json(envelope(functions, "arguments", Some(1))),
                    named_calls(named, functions, false),
                ]),
            ]),
            Start::Section(named) => Form::Sequence(vec![
                mark,
                text(named.begin.first()?),
                named_calls(named, functions, self.is_fenced()),
            ]),
            _ => Form::Sequence(vec![mark, self.rest(opening, functions)?]),
        })
    }

    /// Arguments may be in a block of code, as DeepSeek's first models write them.
    fn is_fenced(&self) -> bool {
        self.syntax.closings.contains(&"```")
    }

    /// A block of calls, with its mark.
    fn calls(&self, functions: &[(&str, &Value)]) -> Option<Form> {
        let opening = self.syntax.openings.first()?;
        if let (Start::Llama, Some(_)) = (opening.start, self.syntax.bare) {
            let call = Form::Json(envelope(functions, "parameters", None));
            let another = Form::Sequence(vec![text("; "), call.clone()]);
            return Some(Form::Sequence(vec![
                optional(text(opening.mark)),
                call,
                Form::Repeated(Box::new(another)),
            ]));
        }
        let rest = self.rest(opening, functions)?;
        let layout = optional(Form::Pattern(LAYOUT.to_string()));
        Some(Form::Sequence(vec![text(opening.mark), rest, layout]))
    }

    /// A block of calls after its mark.
    fn rest(&self, opening: &Opening, functions: &[(&str, &Value)]) -> Option<Form> {
        let line = || optional(text("\n"));
        let closings: Vec<Form> = self.syntax.closings.iter().map(|mark| text(mark)).collect();
        let closing = || {
            let mut all = closings.clone();
            all.push(text(""));
            Form::OneOf(all)
        };
        let fenced = self.is_fenced();
        Some(match opening.start {
            Start::Json => {
                let calls = Form::OneOf(vec![
                    Form::Json(envelope(functions, "arguments", None)),
                    Form::Json(envelope(functions, "arguments", Some(usize::MAX))),
                ]);
                let closing = match (opening.is_token, self.syntax.closings.first()) {
                    // After a call without its closing mark another call could follow unseen.
                    (false, Some(mark)) => text(mark),
                    _ => closing(),
                };
                Form::Sequence(vec![line(), calls, line(), closing])
            }
            Start::Mistral(named) => Form::OneOf(vec![
                Form::Json(envelope(functions, "arguments", Some(usize::MAX))),
                named_calls(named, functions, fenced),
            ]),
            Start::Section(named) => {
                let call = Form::Sequence(vec![
                    text(named.begin.first()?),
                    named_calls(named, functions, fenced),
                    Form::Repeated(Box::new(Form::OneOf(closings))),
                ]);
                Form::Sequence(vec![call.clone(), Form::Repeated(Box::new(call))])
            }
            Start::Named(named) => Form::Sequence(vec![
                named_calls(named, functions, fenced),
                Form::Repeated(Box::new(Form::OneOf(closings))),
            ]),
            Start::XmlBlock(syntax) => {
                let call = xml::calls(syntax, true, functions)?;
                Form::Sequence(vec![call, line(), closing()])
            }
            Start::XmlCall(syntax) => xml::calls(syntax, false, functions)?,
            Start::Gemma(quote) => Form::Sequence(vec![
                values::call(Writing::Gemma(quote), functions)?,
                closing(),
            ]),
            Start::Llama => {
                let call = values::call(Writing::Python, functions)?;
                let more = Form::Sequence(vec![text(", "), call.clone()]);
                let more = Form::Repeated(Box::new(more));
                Form::Sequence(vec![text("["), call, more, text("]"), closing()])
            }
            Start::Python => {
                let call = values::call(Writing::Python, functions)?;
                let line = Form::Sequence(vec![text("\n"), call]);
                let more = Form::Repeated(Box::new(line.clone()));
                Form::Sequence(vec![line, more, text("\n```")])
            }
        })
    }
}

/// An answer in channels: reasoning, then a call or text.
fn channels(contents: &Contents) -> AnswerForm {
    let message = |channel: &str| {
        Form::Sequence(vec![
            text(&format!("<|channel|>{channel}<|message|>")),
            Form::Until {
                mark: "<|end|>".to_string(),
                without: Vec::new(),
            },
            text(NEXT_MESSAGE),
        ])
    };
    let content = if contents.own_form {
        Form::Content
    } else {
        Form::Without(Vec::new())
    };
    let answer = Form::Sequence(vec![text("<|channel|>final<|message|>"), content]);
    let mut parts = Vec::new();
    if contents.reasoning {
        parts.push(message("analysis"));
    }
    let json = " <|constrain|>json<|message|>";
    let mut ends: Vec<Form> = Vec::new();
    for (name, schema) in contents.functions {
        for header in [
            format!("<|channel|>commentary to=functions.{name}{json}"),
            format!(" to=functions.{name}<|channel|>commentary{json}"),
        ] {
            let schema = Form::Json((*schema).clone());
            ends.push(Form::Sequence(vec![text(&header), schema]));
        }
    }
    // Text before a call, unless all text has a form.
    if !ends.is_empty() && !contents.must_call && !contents.own_form {
        parts.push(message("commentary"));
    }
    if !contents.must_call {
        ends.push(answer);
    }
    let mut form = vec![Form::OneOf(ends)];
    if !parts.is_empty() {
        form.insert(0, Form::Repeated(Box::new(Form::OneOf(parts))));
    }
    AnswerForm {
        opening: String::new(),
        form: Form::Sequence(form),
        reasons: true,
    }
}

/// A call of one of these functions: a name, a mark and JSON.
fn named_calls(named: &Named, functions: &[(&str, &Value)], fenced: bool) -> Form {
    let mut all = Vec::new();
    for (name, schema) in functions {
        let json = || Form::Json((*schema).clone());
        all.push(if named.numbered {
            Form::Sequence(vec![
                text(&format!("functions.{name}:")),
                Form::Pattern("[0-9]{1,4}".to_string()),
                text(named.separator),
                json(),
            ])
        } else {
            Form::Sequence(vec![text(&format!("{name}{}", named.separator)), json()])
        });
        if fenced {
            let begin = format!("function{}{name}\n```json\n", named.separator);
            all.push(Form::Sequence(vec![text(&begin), json(), text("\n```")]));
        }
    }
    Form::OneOf(all)
}

/// The schema of `{"name": ..., KEY: {...}}`, alone or in a list of at most this many.
fn envelope(functions: &[(&str, &Value)], key: &str, list: Option<usize>) -> Value {
    let mut definitions = serde_json::Map::new();
    let mut calls = Vec::new();
    for (index, (name, schema)) in functions.iter().enumerate() {
        let mut schema = (*schema).clone();
        let place = format!("#/$defs/{index}");
        move_references(&mut schema, &place);
        definitions.insert(index.to_string(), schema);
        calls.push(json!({
            "type": "object", "properties": { "name": { "const": name }, key: { "$ref": place } },
            "required": ["name", key], "additionalProperties": false,
        }));
    }
    let mut schema = match list {
        Some(most) => {
            let mut list = json!({ "type": "array", "items": { "anyOf": calls }, "minItems": 1 });
            if most != usize::MAX {
                list["maxItems"] = most.into();
            }
            list
        }
        None => json!({ "anyOf": calls }),
    };
    schema["$defs"] = definitions.into();
    schema
}

/// Changes the references within a schema that now lies at `place`.
fn move_references(schema: &mut Value, place: &str) {
    match schema {
        Value::Object(map) => {
            for (key, value) in map {
                match value {
                    Value::String(text) if key == "$ref" && text.starts_with('#') => {
                        text.replace_range(..1, place);
                    }
                    value => move_references(value, place),
                }
            }
        }
        Value::Array(all) => all
            .iter_mut()
            .for_each(|value| move_references(value, place)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Answer, CallParser, Syntax, Tool};
    use super::*;

    /// Chooses alternatives.
    struct Choices(u64);

    impl Choices {
        fn new(seed: u64) -> Choices {
            Choices((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
        }

        fn below(&mut self, count: usize) -> usize {
            self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (self.0 >> 33) as usize % count
        }

        /// A text of a form.
        fn text(&mut self, form: &Form) -> String {
            match form {
                Form::Text(text) => text.clone(),
                Form::Until { mark, .. } => format!("so {mark}"),
                Form::Without(_) => ["", "Well", " well\n"][self.below(3)].to_string(),
                Form::Pattern(pattern) => match pattern.as_str() {
                    LAYOUT => "\n\n".to_string(),
                    "[0-9]{1,4}" => self.below(20).to_string(),
                    values::NAME => "b".to_string(),
                    values::NUMBER => "-3.5".to_string(),
                    text if text.contains(values::PYTHON_CHARACTER) => "\"it's\"".to_string(),
                    _ => "I".to_string(),
                },
                Form::Json(schema) => self.json(schema).to_string(),
                Form::Content => "{\"a\": \"<think><tool_call>\"}".to_string(),
                Form::Sequence(parts) => parts.iter().map(|part| self.text(part)).collect(),
                Form::OneOf(parts) => {
                    let index = self.below(parts.len());
                    self.text(&parts[index])
                }
                Form::Repeated(part) => {
                    let count = self.below(3);
                    (0..count).map(|_| self.text(part)).collect()
                }
            }
        }

        /// A value of the arguments' schema, or an envelope.
        fn json(&mut self, schema: &Value) -> Value {
            if let Some(calls) = schema["anyOf"].as_array() {
                let properties = &calls[self.below(calls.len())]["properties"];
                let properties = properties.as_object().unwrap();
                let key = properties.keys().find(|key| *key != "name").unwrap();
                return json!({ "name": properties["name"]["const"], key: { "a": 7 } });
            }
            match schema["type"].as_str() {
                Some("array") => {
                    let most = schema["maxItems"].as_u64().unwrap_or(2);
                    let count = self.below(2).min(most as usize - 1) + 1;
                    (0..count).map(|_| self.json(&schema["items"])).collect()
                }
                Some("object") => json!({ "a": 7 }),
                _ => json!(7),
            }
        }
    }

    fn parse(format: Format, prompt: &str, own: bool, answer: &AnswerForm, text: &str) -> Answer {
        let tools = ["first", "second"].map(|name| Tool {
            name: name.into(),
            parameters: schema(),
        });
        let parser = CallParser::after_prompt(format, tools.into(), prompt);
        let parser = if own { parser.plain_text() } else { parser };
        parser.parse(&format!("{}{text}", answer.opening))
    }

    fn schema() -> Value {
        json!({
            "type": "object", "properties": { "a": { "type": "integer" } }, "required": ["a"],
        })
    }

    /// Whatever a form allows, the parser finds calls with these arguments, reasoning and text in it, and nothing malformed.
    #[test]
    fn every_text_of_a_form_is_taken_apart() {
        let schema = schema();
        let functions = [("first", &schema), ("second", &schema)];
        let mut enforced = Vec::new();
        for syntax in Syntax::all() {
            for (must_call, own_form, opened, reasoning) in [
                (true, false, false, false),
                (true, false, true, true),
                (false, true, false, true),
                (false, true, true, true),
                (false, false, false, true),
                (false, false, true, false),
            ] {
                let mut format = Format::named(syntax.name).unwrap();
                format.template_reasons = reasoning;
                let prompt = if opened {
                    format!("Hello.\n{}\n", format.reasoning.open)
                } else {
                    "Hello.\n".to_string()
                };
                let contents = Contents {
                    reasoning,
                    functions: &functions,
                    must_call,
                    own_form,
                };
                let Some(answer) = format.answer_form(&prompt, &contents) else {
                    continue;
                };
                enforced.push(syntax.name);
                let (mut called, mut said) = (0, 0);
                for seed in 0..200 {
                    let text = Choices::new(seed).text(&answer.form);
                    let parsed = parse(format, &prompt, own_form, &answer, &text);
                    let case = format!("{} {contents:?} {text:?}: {parsed:?}", syntax.name);
                    assert!(parsed.problems.is_empty(), "{case}");
                    called += usize::from(!parsed.calls.is_empty());
                    said += usize::from(!parsed.text.is_empty());
                    assert!(!must_call || parsed.calls.len() == 1, "{case}");
                    for call in &parsed.calls {
                        assert!(["first", "second"].contains(&call.name.as_str()), "{case}");
                        let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
                        assert_eq!(arguments, json!({ "a": 7 }), "{case}");
                    }
                    let own = "{\"a\": \"<think><tool_call>\"}";
                    assert!(
                        !own_form || !parsed.calls.is_empty() || parsed.text == own,
                        "{case}"
                    );
                }
                assert!(called > 20, "{}: {called} calls", syntax.name);
                assert_eq!(said == 0, must_call, "{}", syntax.name);
            }
        }
        enforced.dedup();
        let missing: Vec<&str> = Syntax::all()
            .iter()
            .map(|syntax| syntax.name)
            .filter(|name| !enforced.contains(name))
            .collect();
        assert_eq!(missing, ["none"]);
    }

    #[test]
    fn reasoning_is_left_out_where_it_is_off() {
        let format = Format::of_template("<think><tool_call>");
        let form = |prompt: &str, reasoning| {
            let contents = Contents {
                reasoning,
                functions: &[],
                must_call: false,
                own_form: true,
            };
            format.answer_form(prompt, &contents).unwrap()
        };
        let off = form("<think>\n", false);
        assert_eq!(
            (off.opening.as_str(), off.reasons),
            ("\n</think>\n\n", false)
        );
        assert_eq!(off.form, Form::Sequence(vec![Form::Content]));
        assert!(!form("<think>\n\n</think>\n\n", true).reasons);
        assert!(form("<think>\n", true).reasons && form("Hello", true).reasons);
        let plain = Format::of_template("<tool_call>");
        let contents = Contents {
            reasoning: true,
            functions: &[],
            must_call: false,
            own_form: true,
        };
        assert!(!plain.answer_form("Hello", &contents).unwrap().reasons);
    }

    /// In XML only some schemas can be enforced.
    #[test]
    fn parameters_in_xml_have_their_schemas() {
        let format = Format::named("qwen-xml").unwrap();
        let form = |property: Value| {
            let schema = json!({
                "type": "object", "properties": { "p": property }, "required": ["p"],
                "$defs": { "n": { "type": "integer" } },
            });
            let contents = Contents {
                reasoning: false,
                functions: &[("f", &schema)],
                must_call: true,
                own_form: false,
            };
            let answer = format.answer_form("", &contents)?;
            Some(Choices::new(5).text(&answer.form))
        };
        let text = form(json!({ "type": "string" })).unwrap();
        assert!(
            text.contains("<function=f>") && text.contains("<parameter=p>\nso </parameter>"),
            "{text}"
        );
        for red in [
            json!({ "enum": ["red"], "type": "string" }),
            json!({ "enum": ["red"] }),
        ] {
            let text = form(red).unwrap();
            assert!(text.contains("<parameter=p>\nred"), "{text}");
        }
        let text = form(json!({ "$ref": "#/$defs/n" })).unwrap();
        assert!(text.contains("<parameter=p>\n7"), "{text}");
        let optional = json!({ "anyOf": [{ "type": "string" }, { "type": "null" }] });
        assert!(form(optional).is_some());
        for refused in [
            json!({ "type": "string", "pattern": "a+" }),
            json!({ "anyOf": [{ "type": "string" }, { "type": "integer" }] }),
            json!({}),
        ] {
            assert_eq!(form(refused), None);
        }
    }

    /// Answers of a form with one function `f` that must be called, taken apart.
    fn calls_of(syntax: &str, schema: &Value) -> Option<Vec<Value>> {
        let format = Format::named(syntax).unwrap();
        let contents = Contents {
            reasoning: false,
            functions: &[("f", schema)],
            must_call: true,
            own_form: false,
        };
        let answer = format.answer_form("", &contents)?;
        let tool = Tool {
            name: "f".into(),
            parameters: schema.clone(),
        };
        let call = |seed| {
            let text = Choices::new(seed).text(&answer.form);
            let parsed = CallParser::after_prompt(format, vec![tool.clone()], "").parse(&text);
            assert!(parsed.problems.is_empty(), "{text}: {parsed:?}");
            assert_eq!(parsed.calls.len(), 1, "{text}");
            serde_json::from_str(&parsed.calls[0].arguments).unwrap()
        };
        Some((0..300).map(call).collect())
    }

    /// Syntaxes that do not write JSON.
    const LITERALS: [&str; 4] = ["gemma-4", "function-gemma", "lfm2", "gemma"];

    #[test]
    fn values_that_are_not_json_have_their_schemas() {
        let schema = json!({
            "type": "object", "additionalProperties": false, "required": ["n", "tags"],
            "properties": {
                "early": { "type": "boolean" },
                "n": { "type": "integer", "minimum": 3, "description": "a number" },
                "colour": { "enum": ["red", "it's a \"b\\\n", 4, null] },
                "tags": { "type": "array", "items": { "type": "string" }, "minItems": 1, "maxItems": 3 },
                "place": { "$ref": "#/$defs/place" },
                "either": { "type": ["string", "number"] },
                "last": { "anyOf": [{ "const": "x" }, { "type": "null" }] },
            },
            "$defs": { "place": {
                "type": "object", "properties": { "x": { "type": "number" }, "y": { "type": "number" } },
            } },
        });
        for syntax in LITERALS {
            let all = calls_of(syntax, &schema).unwrap();
            let mut seen = std::collections::BTreeSet::new();
            for call in &all {
                let map = call.as_object().unwrap();
                seen.extend(map.keys().cloned());
                assert_eq!(call["n"], 7);
                let tags = call["tags"].as_array().unwrap();
                assert!((1..=3).contains(&tags.len()), "{call}");
                assert!(tags.iter().all(Value::is_string), "{call}");
                seen.insert(format!("{} tags", tags.len()));
                let colours = [json!("red"), json!("it's a \"b\\\n"), json!(4), json!(null)];
                let fits = |key: &str, fits: &dyn Fn(&Value) -> bool| map.get(key).is_none_or(fits);
                assert!(fits("early", &Value::is_boolean), "{call}");
                assert!(fits("colour", &|value| colours.contains(value)), "{call}");
                assert!(fits("place", &Value::is_object), "{call}");
                assert!(
                    fits("either", &|value| value.is_string() || *value == 7),
                    "{call}"
                );
                assert!(
                    fits("last", &|value| value.is_null() || value == "x"),
                    "{call}"
                );
                seen.insert(format!(
                    "place {}",
                    map.get("place").unwrap_or(&Value::Null)
                ));
            }
            for some in [
                "colour",
                "early",
                "either",
                "last",
                "n",
                "place",
                "1 tags",
                "2 tags",
                "3 tags",
                "place {}",
                "place {\"x\":7}",
                "place {\"x\":7,\"y\":7}",
                "place {\"y\":7}",
            ] {
                assert!(
                    seen.contains(some),
                    "{syntax}: {some} is missing in {seen:?}"
                );
            }
        }
    }

    #[test]
    fn schemas_that_cannot_be_enforced_are_refused() {
        let with = |property: Value| json!({ "type": "object", "properties": { "p": property } });
        for syntax in LITERALS {
            for schema in [
                with(json!({ "type": "string", "pattern": "a+" })),
                with(json!({ "type": "string", "format": "date" })),
                with(json!({ "not": { "type": "string" } })),
                with(json!({ "$ref": "#/properties/p" })),
                with(json!({ "$ref": "other.json" })),
                with(json!({ "enum": [] })),
                with(json!({ "enum": [["a"]] })),
                with(json!({ "type": "integer", "enum": ["a"] })),
                with(json!({ "type": "array", "minItems": 100 })),
                with(json!({ "type": "object", "patternProperties": {} })),
                json!({ "type": "object", "properties": {}, "required": ["q"] }),
                json!({ "type": "object", "properties": { "a b": {} } }),
                json!({ "type": "array" }),
            ] {
                let refused = calls_of(syntax, &schema).is_none();
                assert!(refused, "{syntax} does not refuse {schema}");
            }
        }
        // Python's strings have lengths, Gemma's have not.
        let short = with(json!({ "type": "string", "minLength": 2, "maxLength": 8 }));
        assert!(calls_of("lfm2", &short).is_some() && calls_of("gemma-4", &short).is_none());
    }

    /// A form that grows with its schema ends somewhere.
    #[test]
    fn forms_have_a_limit() {
        let mut schema = json!({ "type": "string" });
        for _ in 0..4 {
            let properties = (0..20).map(|i| (format!("p{i}"), schema.clone()));
            let properties: serde_json::Map<String, Value> = properties.collect();
            schema = json!({ "type": "object", "properties": properties });
        }
        for syntax in LITERALS {
            assert!(calls_of(syntax, &schema).is_none(), "{syntax}");
        }
    }

    /// A request has many functions, and a form may be far larger than its schema.
    #[test]
    fn forms_of_all_functions_have_a_limit_together() {
        let has_form = |syntax: &str, schema: &Value, count: usize| {
            let functions = vec![("f", schema); count];
            let contents = Contents {
                reasoning: false,
                functions: &functions,
                must_call: true,
                own_form: false,
            };
            let format = Format::named(syntax).unwrap();
            format.answer_form("", &contents).is_some()
        };
        let schema = |count: usize, property: Value| {
            let names: Vec<String> = (0..count).map(|i| format!("p{i}")).collect();
            let properties = names.iter().map(|name| (name.clone(), property.clone()));
            let properties: serde_json::Map<String, Value> = properties.collect();
            json!({
                "type": "object", "properties": properties, "required": names,
                "$defs": { "long": { "description": "x".repeat(10_000) } },
            })
        };
        // Any value takes hundreds of nodes.
        let any = |count: usize| schema(count, Value::Bool(true));
        for syntax in LITERALS {
            assert!(has_form(syntax, &any(4), 2), "{syntax}");
            assert!(!has_form(syntax, &any(100), 1), "{syntax}");
            assert!(!has_form(syntax, &any(4), 100), "{syntax}");
        }
        // Every parameter that is not text has a copy of the definitions.
        let numbers = |count: usize| schema(count, json!({ "type": "integer" }));
        for syntax in ["qwen-xml", "glm", "minimax", "seed", "deepseek-v3.2"] {
            assert!(has_form(syntax, &numbers(50), 1), "{syntax}");
            assert!(!has_form(syntax, &numbers(200), 1), "{syntax}");
            assert!(!has_form(syntax, &numbers(50), 4), "{syntax}");
            let texts = schema(200, json!({ "type": "string" }));
            assert!(has_form(syntax, &texts, 1), "{syntax}");
        }
    }

    #[test]
    fn functions_without_a_schema_take_any_arguments() {
        let names = Syntax::all().iter().map(|syntax| syntax.name);
        let xml = ["qwen-xml", "glm", "minimax", "seed", "deepseek-v3.2"];
        for syntax in names.filter(|name| LITERALS.contains(name) || xml.contains(name)) {
            let any = calls_of(syntax, &json!({ "type": "object" })).unwrap();
            let counts = any.iter().map(|call| call.as_object().unwrap().len());
            assert!(any.contains(&json!({})), "{syntax}");
            assert!(counts.max() > Some(0), "{syntax}");
            let nothing = json!({ "type": "object", "additionalProperties": false });
            let nothing = calls_of(syntax, &nothing).unwrap();
            assert!(nothing.iter().all(|call| *call == json!({})), "{syntax}");
        }
    }

    #[test]
    fn references_stay_within_their_schema() {
        let schema = json!({ "$defs": { "x": { "type": "string" } }, "properties": {
            "a": { "$ref": "#/$defs/x" }, "b": { "anyOf": [{ "const": "#" }, { "$ref": "#/$defs/x" }] },
            "c": { "$ref": "other.json" },
        } });
        let schema = envelope(&[("f", &json!({})), ("g", &schema)], "arguments", None);
        let properties = &schema["$defs"]["1"]["properties"];
        for reference in [&properties["a"], &properties["b"]["anyOf"][1]] {
            let pointer = reference["$ref"].as_str().unwrap().strip_prefix('#');
            let target = schema.pointer(pointer.unwrap());
            assert_eq!(target, Some(&json!({ "type": "string" })));
        }
        // Texts and other files stay.
        assert_eq!(properties["b"]["anyOf"][0], json!({ "const": "#" }));
        assert_eq!(properties["c"]["$ref"], "other.json");
    }

    #[test]
    fn an_envelope_has_one_call_or_a_list_of_them() {
        let of = |list| envelope(&[("f", &json!({}))], "arguments", list);
        let call = json!({
            "type": "object", "properties": { "name": { "const": "f" }, "arguments": { "$ref": "#/$defs/0" } },
            "required": ["name", "arguments"], "additionalProperties": false,
        });
        assert_eq!(of(None), json!({ "anyOf": [call], "$defs": { "0": {} } }));
        let any = json!({ "type": "array", "items": { "anyOf": [call] }, "minItems": 1, "$defs": { "0": {} } });
        assert_eq!(of(Some(usize::MAX)), any);
        let mut one = any;
        one["maxItems"] = json!(1);
        assert_eq!(of(Some(1)), one);
    }
}
