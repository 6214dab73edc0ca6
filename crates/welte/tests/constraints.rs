//! Constrained answers: whatever the model would say, a finished answer satisfies its constraint, and what cannot be
//! enforced is refused.

mod common;
#[path = "common/schemas.rs"]
mod schemas;

use common::{Random, load, on_devices, with};
use serde_json::{Value, json};
use std::borrow::Cow;
use welte::{
    Constraint, DeviceChoice, Engine, EngineOptions, Error, LoadOptions, Model, Outcome, Request,
    Sampling, Speculation, StopReason, Stream, SyntheticDraft,
};
use welte_formats::{Checkpoint, Overlay, TensorInfo};
use welte_table::Format;

fn demo_path() -> String {
    let folder = std::env::var("CARGO_MANIFEST_DIR");
    let folder = folder.unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").to_string());
    format!("{folder}/../../models/demo.gguf")
}

fn options(device: DeviceChoice) -> LoadOptions {
    with(LoadOptions::default(), |o| {
        o.device = device;
        o.context = 512;
        o.threads = Some(2);
        o.slots = 8;
    })
}

fn model(device: DeviceChoice) -> Model {
    load(&demo_path(), &options(device))
}

/// A request whose tokens are close to random: the temperature is high, and the prompt does not ask for the format.
fn request(model: &Model, constraint: Constraint, seed: u64) -> Request {
    let mut request = Request::new(model.encode("Once upon a time").unwrap());
    request.options.constraint = Some(constraint);
    request.options.max_tokens = 300;
    request.options.sampling = Sampling {
        temperature: 3.0,
        seed,
        ..Sampling::default()
    };
    request
}

fn answer(engine: &Engine, constraint: Constraint, seed: u64) -> (String, Outcome) {
    let request = request(engine.model(), constraint, seed);
    engine.submit(request).unwrap().complete().unwrap()
}

fn is_finished(outcome: &Outcome) -> bool {
    matches!(outcome.stop, StopReason::End(_))
}

/// Whether a text is JSON that an independent validator accepts.
fn validate(schema: &Value, text: &str) -> Result<(), String> {
    let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let validator = jsonschema::options().should_validate_formats(true);
    let validator = validator.build(schema).map_err(|error| error.to_string())?;
    validator
        .validate(&value)
        .map_err(|error| error.to_string())
}

fn every_finished_answer_satisfies_its_schema(device: DeviceChoice) {
    satisfy_schemas(&model(device), &[]);
}

/// The bundled model with random weights: it keeps its vocabulary, and the scales of its blocks.
struct RandomWeights(Box<dyn Checkpoint>);

impl Overlay for RandomWeights {
    fn base(&self) -> &dyn Checkpoint {
        &*self.0
    }

    fn origin(&self) -> &str {
        "random weights"
    }

    fn rows(
        &self,
        tensor: &TensorInfo,
        first: usize,
        rows: usize,
    ) -> Result<Cow<'_, [u8]>, welte_formats::Error> {
        let mut bytes = self.0.rows(tensor, first, rows)?.into_owned();
        if tensor.format == Format::Q8_0 {
            let name = tensor.name.bytes().map(u64::from);
            let seed = name.fold(first as u64, |seed, byte| seed * 31 % (1 << 40) + byte);
            let mut random = Random(seed);
            for block in bytes.chunks_mut(34) {
                block[2..].fill_with(|| random.below(255).wrapping_sub(127) as u8);
            }
        }
        Ok(Cow::Owned(bytes))
    }
}

#[test]
fn answers_of_random_weights_satisfy_their_schemas() {
    let checkpoint = RandomWeights(welte::open(&demo_path()).unwrap());
    let options = options(DeviceChoice::CPU);
    let model = Model::from_checkpoint(Box::new(checkpoint), &options, &mut |_| ()).unwrap();
    // Random weights seldom end a string or a list.
    let closes = |token: &u32| {
        let text = model.tokenizer().unwrap().token_bytes(*token);
        text.iter().any(|byte| b"\"]}".contains(byte))
    };
    let closing = (0..model.vocab()).filter(closes).take(1000);
    let bias: Vec<(u32, f32)> = closing.map(|token| (token, 9.0)).collect();
    assert!(bias.len() > 3);
    satisfy_schemas(&model, &bias);
}

fn satisfy_schemas(model: &Model, bias: &[(u32, f32)]) {
    let engine = model.engine().unwrap();
    let mut random = Random(7);
    let (mut accepted, mut finished, mut refused) = (0, 0, Vec::new());
    let mut wrong = Vec::new();
    let mut flights: Vec<(Value, Stream)> = Vec::new();
    let mut end = |(schema, stream): (Value, Stream)| {
        let (text, outcome) = stream.complete().unwrap();
        if !is_finished(&outcome) {
            assert!(matches!(
                outcome.stop,
                StopReason::Length | StopReason::ContextFull
            ));
            return 0;
        }
        if let Err(problem) = validate(&schema, &text) {
            wrong.push(format!("{problem}: {text}: {schema}"));
        }
        1
    };
    for seed in 0..340 {
        let schema = schemas::schema(&mut random);
        let constraint = Constraint::JsonSchema(schema.clone());
        let mut request = request(model, constraint, seed);
        request.options.bias = bias.to_vec();
        match engine.submit(request) {
            Ok(stream) => {
                accepted += 1;
                flights.push((schema, stream));
            }
            Err(error) => refused.push(format!("{error}: {schema}")),
        }
        if flights.len() == 8 {
            finished += end(flights.remove(0));
        }
    }
    finished += flights.into_iter().map(&mut end).sum::<i32>();
    println!("{accepted} schemas, {finished} finished, refused: {refused:#?}");
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(accepted >= 300, "only {accepted} schemas were accepted");
    assert!(
        finished * 4 >= accepted * 3,
        "only {finished} of {accepted} finished"
    );
}

/// Guesses within a constraint change no token, in chains and in steps that verify.
fn guesses_change_no_answer(device: DeviceChoice) {
    let model = model(device);
    let engine = |speculation: Speculation, always: bool| {
        let options = with(EngineOptions::default(), |o| {
            (o.speculation, o.speculate_always) = (speculation, always);
        });
        Engine::new(&model, &options).unwrap()
    };
    let (plain, guesses) = (
        engine(Speculation::Off, false),
        engine(Speculation::Ngram, true),
    );
    let mut random = Random(9);
    let (mut accepted, mut refused) = (0, 0);
    for seed in 0..60 {
        let schema = match seed % 3 {
            0 => schemas::schema(&mut random),
            _ => json!({"type": "array", "minItems": 6, "maxItems": 12, "items": {
                "type": "object",
                "properties": {"colour": {"enum": ["red", "dark red"]}, "n": {"type": "integer", "maximum": 9}},
                "required": ["colour", "n"],
                "additionalProperties": false,
            }}),
        };
        let mut request = request(&model, Constraint::JsonSchema(schema.clone()), seed);
        request.options.max_tokens = 120;
        if seed % 4 == 0 {
            request.options.sampling.frequency_penalty = 0.3;
            request.options.sampling.repeat_last_n = 64;
        }
        let Ok(stream) = plain.submit(request.clone()) else {
            continue;
        };
        let (text, outcome) = stream.complete().unwrap();
        request.synthetic_draft = (seed % 5 == 0).then(|| SyntheticDraft {
            answer: outcome.tokens.clone(),
            agreement: 0.8,
            ..SyntheticDraft::default()
        });
        let (same, guessed) = guesses.submit(request).unwrap().complete().unwrap();
        assert_eq!(same, text, "{schema}");
        assert_eq!(guessed.tokens, outcome.tokens, "{schema}");
        accepted += guessed.speculated.accepted;
        refused += guessed.speculated.drafted - guessed.speculated.accepted;
    }
    println!("{accepted} guesses accepted, {refused} refused");
    assert!(accepted > 100 && refused > 20, "{accepted} {refused}");
}

fn texts_of_every_kind(device: DeviceChoice) {
    let model = model(device);
    let engine = model.engine().unwrap();
    let gbnf = r#"
# A list of words.
root  ::= "[" ws word ( "," ws word ){1,3} "]"
word  ::= [a-f] [^\x00-` {-\U0010FFFF]{0,4} | "\"" [0-9]+ "\""
ws    ::= " "?
"#;
    let lark = "start: pair (\";\" pair)?\npair: NAME \"=\" /[0-9]{1,3}/\nNAME: /[a-z]{1,4}/\n";
    for seed in 0..12 {
        let choice = Constraint::Choice(vec![
            "yes".into(),
            "no, \"never\"".into(),
            "yes, but".into(),
        ]);
        let (text, outcome) = answer(&engine, choice, seed);
        assert!(is_finished(&outcome));
        assert!(
            ["yes", "no, \"never\"", "yes, but"].contains(&text.as_str()),
            "{text}"
        );

        let (text, outcome) = answer(
            &engine,
            Constraint::Regex(r"[0-9]{2}(-[a-c]+|:x){1,2}".into()),
            seed,
        );
        if is_finished(&outcome) {
            let (digits, rest) = text.split_at(2);
            assert!(digits.bytes().all(|b| b.is_ascii_digit()), "{text}");
            assert!(rest.starts_with("-") || rest.starts_with(":x"), "{text}");
        }

        let (text, outcome) = answer(&engine, Constraint::grammar(lark.into()), seed);
        assert!(is_finished(&outcome));
        for pair in text.split(';') {
            let (name, number) = pair.split_once('=').unwrap_or_else(|| panic!("{text}"));
            assert!(
                (1..=4).contains(&name.len()) && number.parse::<u32>().is_ok(),
                "{text}"
            );
        }

        let (text, outcome) = answer(&engine, Constraint::grammar(gbnf.into()), seed);
        if is_finished(&outcome) {
            let list = text.strip_prefix('[').and_then(|t| t.strip_suffix(']'));
            let words: Vec<&str> = list
                .unwrap_or_else(|| panic!("{text}"))
                .split(',')
                .collect();
            assert!((2..=4).contains(&words.len()), "{text}");
        }

        let (text, outcome) = answer(&engine, Constraint::Json, seed);
        if is_finished(&outcome) {
            let value: Value =
                serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
            assert!(value.is_object(), "{text}");
        }
    }
}

/// Free text up to a mark, then a form; a mark that is a control token; and text without marks.
fn forms_of_parts(device: DeviceChoice) {
    let model = model(device);
    let engine = model.engine().unwrap();
    let schema = json!({ "type": "object", "properties": { "n": { "enum": [1, 2] } }, "required": ["n"], "additionalProperties": false });
    let text = |text: &str| Constraint::Text(text.into());
    let (mut repeated, mut marked) = (0, 0);
    for seed in 0..12 {
        let form = Constraint::Sequence(vec![
            Constraint::Until {
                mark: "e".into(),
                without: vec!["a".into(), "in".into()],
            },
            Constraint::OneOf(vec![text(""), Constraint::Regex("[ \\n]{1,3}".into())]),
            Constraint::JsonSchema(schema.clone()),
            Constraint::Repeated(Box::new(Constraint::Choice(vec![
                ";x".into(),
                ";yy".into(),
            ]))),
            text("</done>"),
        ]);
        let (answer, outcome) = answer(&engine, form, seed);
        if !is_finished(&outcome) {
            continue;
        }
        let (before, rest) = answer.split_once('e').unwrap();
        assert!(!before.contains('a') && !before.contains("in"), "{answer}");
        let rest = rest.strip_suffix("</done>").unwrap();
        let (object, more) = rest.split_at(rest.find('}').unwrap() + 1);
        validate(&schema, object).unwrap();
        assert_eq!(more.replace(";x", "").replace(";yy", ""), "", "{answer}");
        repeated += usize::from(!more.is_empty());
        // Control tokens are not printed, but they separate the parts.
        let form = Constraint::Sequence(vec![
            Constraint::Until {
                mark: "<|im_start|>b".into(),
                without: Vec::new(),
            },
            text("c<|im_start|>"),
            Constraint::OneOf(vec![text("d"), text("<|im_start|>e")]),
        ]);
        let mut request = request(&model, form, seed);
        request.options.bias = vec![(1, 30.0)];
        let (answer, outcome) = engine.submit(request).unwrap().complete().unwrap();
        assert!(is_finished(&outcome));
        let controls = outcome.tokens.iter().filter(|token| **token == 1).count();
        let end = ["bcd", "bce"][controls - 2];
        assert!(answer.ends_with(end), "{answer} {:?}", outcome.tokens);
        marked += usize::from(controls == 3);
    }
    assert!(repeated > 0 && marked > 0, "{repeated}, {marked}");
    // What comes may not contain the marks, and may end at any place.
    for seed in 0..12 {
        let free = Constraint::Without(vec!["the".into(), " a".into(), "\n".into()]);
        let (answer, _) = answer(&engine, free, seed);
        for mark in ["the", " a", "\n"] {
            assert!(!answer.contains(mark), "{answer}");
        }
    }
    // Text in which a mark begins an object of a schema.
    let call = Constraint::Sequence(vec![
        Constraint::Until {
            mark: "e".into(),
            without: Vec::new(),
        },
        Constraint::JsonSchema(schema.clone()),
    ]);
    let form = Constraint::Sequence(vec![
        Constraint::Repeated(Box::new(call)),
        Constraint::Without(vec!["e".into()]),
    ]);
    for seed in 0..12 {
        let (answer, outcome) = answer(&engine, form.clone(), seed);
        let mut rest = answer.as_str();
        while let Some((_, after)) = rest.split_once('e') {
            let Some(end) = after.find('}') else {
                assert!(!is_finished(&outcome), "{answer}");
                break;
            };
            let (object, more) = after.split_at(end + 1);
            validate(&schema, object).unwrap();
            rest = more;
        }
    }
    for refused in [
        Constraint::OneOf(Vec::new()),
        Constraint::Until {
            mark: String::new(),
            without: Vec::new(),
        },
        Constraint::Sequence(vec![Constraint::JsonSchema(json!({ "not": {} }))]),
        Constraint::Repeated(Box::new(Constraint::Regex("(".into()))),
        Constraint::Without(vec!["x".repeat(2 << 20)]),
    ] {
        let error = engine
            .submit(request(&model, refused, 1))
            .map(|_| ())
            .unwrap_err();
        assert!(matches!(error, Error::Constraint { .. }), "{error}");
    }
}

/// A schema of one value is forced as a whole: the answer costs no choice, and equals the one that is chosen token by token.
fn the_end_of_the_constraint_ends_the_answer(device: DeviceChoice) {
    let model = model(device);
    let engine = model.engine().unwrap();
    let schema = json!({"const": {"name": "Welte", "born": [1832, 1904]}});
    for greedy in [true, false] {
        let mut request = request(&model, Constraint::JsonSchema(schema.clone()), 3);
        if greedy {
            request.options.sampling = Sampling::default();
        }
        let (text, outcome) = engine.submit(request.clone()).unwrap().complete().unwrap();
        assert_eq!(
            serde_json::from_str::<Value>(&text).unwrap(),
            schema["const"],
            "{text}"
        );
        assert!(is_finished(&outcome), "{:?}", outcome.stop);
        // At its limit it ends, and nobody closes it.
        request.options.max_tokens = 5;
        let (cut, outcome) = engine.submit(request).unwrap().complete().unwrap();
        assert_eq!(outcome.stop, StopReason::Length);
        assert_eq!(outcome.tokens.len(), 5);
        assert!(text.starts_with(&cut), "{text}: {cut}");
    }
}

/// Biases, penalties and filters choose among the allowed tokens only.
fn settings_do_not_break_a_constraint(device: DeviceChoice) {
    let model = model(device);
    let engine = model.engine().unwrap();
    let schema =
        json!({"type": "array", "items": {"enum": ["u", "v"]}, "minItems": 3, "maxItems": 3});
    for seed in 0..10 {
        let mut request = request(&model, Constraint::JsonSchema(schema.clone()), seed);
        let options = &mut request.options;
        options.sampling = Sampling {
            temperature: [0.0, 1.0][seed as usize % 2],
            top_k: [0, 3][seed as usize / 2 % 2],
            top_p: 0.5,
            min_p: 0.1,
            repeat_penalty: 3.0,
            seed,
            ..Sampling::default()
        };
        options.bias = (0..400).map(|token| (token * 3, 50.0)).collect();
        let (text, outcome) = engine.submit(request).unwrap().complete().unwrap();
        assert!(is_finished(&outcome));
        validate(&schema, &text).unwrap_or_else(|error| panic!("{error}: {text}"));
    }
    // Where no allowed token is left, the request fails, and no other.
    let mut hopeless = request(&model, Constraint::Choice(vec!["a".into(), "b".into()]), 1);
    hopeless.options.bias = (0..model.vocab().min(1000))
        .filter(|token| !model.end_tokens().contains(token))
        .map(|token| (token, f32::NEG_INFINITY))
        .collect();
    let bystander = engine.submit(request(&model, Constraint::Json, 1)).unwrap();
    let failed = engine.submit(hopeless).unwrap().complete();
    if model.vocab() <= 1000 {
        assert!(matches!(failed, Err(Error::Guidance { .. })), "{failed:?}");
    }
    assert!(bystander.complete().is_ok());
}

fn refusals(device: DeviceChoice) {
    let model = model(device);
    let engine = model.engine().unwrap();
    let refused = |constraint: Constraint| {
        let result = engine.submit(request(&model, constraint.clone(), 1));
        match result {
            Err(Error::Constraint { at, problem, .. }) => (at.unwrap_or_default(), problem),
            Err(error) => panic!("{constraint:?}: {error}"),
            Ok(_) => panic!("{constraint:?} was accepted"),
        }
    };
    for (schema, pointer) in [
        (json!({"not": {"type": "string"}}), "/not"),
        (
            json!({"properties": {"a/b": {"if": true}}}),
            "/properties/a~1b/if",
        ),
        (json!({"items": [{"contains": {}}]}), "/items/0/contains"),
        (
            json!({"$defs": {"x": {"uniqueItems": true}}}),
            "/$defs/x/uniqueItems",
        ),
        (
            json!({"anyOf": [{}, {"dependentRequired": {}}]}),
            "/anyOf/1/dependentRequired",
        ),
        (json!({"type": "string", "format": "phone"}), "/format"),
        (json!({"$ref": "https://example.com/schema"}), "/$ref"),
        (json!({"x-guidance": {"lenient": true}}), "/x-guidance"),
        (json!({"properties": {"a": 3}}), "/properties/a"),
        (
            json!({"allOf": [{"maxProperties": 1, "properties": {"a": true}}]}),
            "/allOf/0/maxProperties",
        ),
    ] {
        assert_eq!(
            refused(Constraint::JsonSchema(schema.clone())).0,
            pointer,
            "{schema}"
        );
    }
    for schema in [
        json!({"type": "strin"}),
        json!({"$ref": "#/$defs/missing"}),
        json!({"type": "string", "pattern": "(?=a)b"}),
        json!({"type": "integer", "minimum": 3, "maximum": 2}),
        json!(false),
        json!(3),
    ] {
        let (_, problem) = refused(Constraint::JsonSchema(schema.clone()));
        println!("{schema}: {problem}");
    }
    for constraint in [
        Constraint::Regex("(".into()),
        Constraint::Regex(String::new()),
        Constraint::Lark("start: missing".into()),
        Constraint::Lark(" ".into()),
        Constraint::Choice(Vec::new()),
        Constraint::Choice(vec![String::new()]),
        Constraint::Gbnf("root ::= missing".into()),
        Constraint::Gbnf("list ::= \"a\"".into()),
        Constraint::Gbnf("root ::= \"a".into()),
        Constraint::Gbnf("root ::= [z-a]".into()),
        Constraint::Gbnf("root ::= \"a\"{3,1}".into()),
        Constraint::Gbnf(format!("root ::= {}", "(".repeat(100_000))),
        Constraint::Regex("a".repeat(2 << 20)),
    ] {
        let (_, problem) = refused(constraint);
        println!("{problem}");
    }
    let mut endless = request(&model, Constraint::Json, 1);
    endless.options.ignore_end = true;
    assert!(matches!(
        engine.submit(endless),
        Err(Error::Constraint { .. })
    ));
}

on_devices!(
    every_finished_answer_satisfies_its_schema,
    guesses_change_no_answer,
    texts_of_every_kind,
    forms_of_parts,
    the_end_of_the_constraint_ends_the_answer,
    settings_do_not_break_a_constraint,
    refusals,
);
