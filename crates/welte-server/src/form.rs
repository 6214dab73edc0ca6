//! The form that a request gives its answer: reasoning, calls by their schemas, and text by a schema or grammar.

use crate::answer::Parsing;
use crate::ask::{Ask, Shape};
use crate::error::Failure;
use serde_json::{Map, Value, json};
use welte::Constraint;
use welte_text::calls::{CallParser, Contents, Form, Tool};

impl Ask {
    /// The form of the answer after a rendered prompt. `variables` are those of the template.
    pub(crate) fn shape(
        &self,
        rendered: &str,
        variables: &Map<String, Value>,
    ) -> Result<Shape, Failure> {
        let mut shape = Shape {
            opening: String::new(),
            constraint: None,
            parsing: None,
        };
        let Some(format) = self.served.format else {
            return Ok(shape);
        };
        let format = if self.has_generic_tools() {
            format.generic()
        } else {
            format
        };
        let functions = self.functions()?;
        let own = self.options.constraint.as_ref();
        let tools = self.tools.iter().filter_map(Tool::from_json).collect();
        let parser = CallParser::after_prompt(format, tools, rendered);
        let parsing = |parser, opening: &str| Parsing {
            parser,
            opening: opening.to_string(),
            one_call: self.one_call,
        };
        if own.is_none() && functions.is_empty() {
            shape.parsing = Some(parsing(parser, ""));
            return Ok(shape);
        }
        if let (Some(field), Some(own)) = (&self.constrained_by, own) {
            own.check().map_err(|error| Failure::field(field, error))?;
        }
        let off = |name: &str| variables.get(name) == Some(&Value::Bool(false));
        let pairs: Vec<(&str, &Value)> = functions
            .iter()
            .map(|(name, schema)| (name.as_str(), schema))
            .collect();
        let contents = Contents {
            reasoning: !off("enable_thinking") && !off("thinking"),
            functions: &pairs,
            must_call: self.must_call.is_some(),
            own_form: own.is_some(),
        };
        let Some(answer) = format.answer_form(rendered, &contents) else {
            let problem = format!(
                "a schema cannot be enforced in this model's syntax of calls ({}); leave it out",
                format.syntax.name
            );
            return Err(Failure::field(self.form_field(), problem));
        };
        let parser = if own.is_some() {
            parser.plain_text()
        } else {
            parser
        };
        if answer.reasons || !functions.is_empty() {
            shape.constraint = Some(constraint(answer.form, own));
            shape.parsing = Some(parsing(parser, &answer.opening));
        }
        shape.opening = answer.opening;
        Ok(shape)
    }

    /// The functions whose calls have a form, with the schemas of their arguments.
    fn functions(&self) -> Result<Vec<(String, Value)>, Failure> {
        let any = json!({ "type": "object" });
        // A model that was not made for calls needs the form to write one.
        let generic = self.has_generic_tools();
        let strict = |name: &str| self.strict.iter().any(|(strict, _)| strict == name);
        // The client did not ask for it there, so that agents may have schemas that cannot be enforced.
        let helps =
            |schema: &Value| generic && Constraint::JsonSchema(schema.clone()).check().is_ok();
        let function = |tool: &Value| {
            let name = tool["function"]["name"].as_str()?.to_string();
            let given = tool["function"].get("parameters").unwrap_or(&any);
            let enforced = self.must_call.is_some() || strict(&name) || helps(given);
            let schema = if enforced { given } else { &any };
            Some((name, schema.clone()))
        };
        let mut all: Vec<(String, Value)> = self.tools.iter().filter_map(function).collect();
        if let Some(must) = &self.must_call {
            all.retain(|(name, _)| must.name.as_ref().is_none_or(|wanted| wanted == name));
            if all.is_empty() {
                let problem = "needs a tool that may be called";
                return Err(Failure::field(&must.field, problem));
            }
        } else if !generic && self.strict.is_empty() && self.options.constraint.is_none() {
            all.clear();
        }
        Ok(all)
    }

    /// The field that asks for the form of calls, or of the text.
    pub(crate) fn form_field(&self) -> &str {
        let must_call = self.must_call.as_ref().map(|must| &must.field);
        let strict = self.strict.first().map(|(_, field)| field);
        let strict = strict.filter(|_| !self.tools.is_empty());
        let field = must_call.or(strict).or(self.constrained_by.as_ref());
        field.map_or("tools", String::as_str)
    }
}

/// The constraint of a form. `own` is that of the text.
fn constraint(form: Form, own: Option<&Constraint>) -> Constraint {
    let all = |forms: Vec<Form>| {
        forms
            .into_iter()
            .map(|form| constraint(form, own))
            .collect()
    };
    match form {
        Form::Text(text) => Constraint::Text(text),
        Form::Until { mark, without } => Constraint::Until { mark, without },
        Form::Without(marks) => Constraint::Without(marks),
        Form::Pattern(regex) => Constraint::Regex(regex),
        Form::Json(schema) => Constraint::JsonSchema(schema),
        Form::Content => own
            .cloned()
            .unwrap_or_else(|| Constraint::Without(Vec::new())),
        Form::Sequence(forms) => Constraint::Sequence(all(forms)),
        Form::OneOf(forms) => Constraint::OneOf(all(forms)),
        Form::Repeated(form) => Constraint::Repeated(Box::new(constraint(*form, own))),
    }
}
