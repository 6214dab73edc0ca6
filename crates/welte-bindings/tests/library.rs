//! Requests without a network, on the bundled model.

use serde_json::{Value, json};
use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use welte_bindings::{Kind, Library, Session, plan};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/demo.gguf");
const OPTIONS: &str = r#"{"device": "cpu", "context": 512, "threads": 2}"#;
/// Longer than a call goes on without asking whether its answer is still wanted.
const SLOW: Duration = Duration::from_millis(60);

fn go_on(_: u64, _: u64) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

#[test]
fn a_load_may_be_ended() {
    let ended = Library::load(MODEL, OPTIONS, &mut |_, _| ControlFlow::Break(()));
    assert_eq!(ended.err().unwrap().kind, Kind::Cancelled);
}

#[test]
fn images_need_an_encoder_beside_the_model_or_where_the_options_say() {
    let folder = std::env::temp_dir().join(format!("welte-mmproj-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let model = folder.join("demo.gguf");
    std::fs::copy(MODEL, &model).unwrap();
    std::fs::copy(MODEL, folder.join("mmproj-no-encoder.gguf")).unwrap();
    let refused = |options: Value| {
        let library = Library::load(model.to_str().unwrap(), &options.to_string(), &mut go_on)?;
        let url = json!({ "url": "data:image/png;base64,AAAA" });
        let content = json!([{ "type": "image_url", "image_url": url }]);
        let request = json!({ "messages": [{ "role": "user", "content": content }] });
        let mut ignore = |_: &str| ControlFlow::Continue(());
        library.chat(&request.to_string(), &mut ignore, &mut || true)
    };
    let options = |mmproj: Value| json!({ "device": "cpu", "context": 64, "mmproj": mmproj });
    let kind = |mmproj: Value| refused(options(mmproj)).unwrap_err();
    let beside = kind(Value::Null);
    assert_eq!(beside.kind, Kind::Request, "{beside}");
    assert!(beside.message.contains("mmproj-no-encoder"), "{beside}");
    let off = kind(false.into());
    assert!(!off.message.contains("mmproj-no-encoder"), "{off}");
    assert_eq!(
        (off.kind, kind(7.into()).kind),
        (Kind::Request, Kind::Argument)
    );
    let file = kind("/nowhere.gguf".into());
    assert!(
        file.kind == Kind::Model && file.message.contains("/nowhere.gguf"),
        "{file}"
    );
    std::fs::remove_dir_all(folder).unwrap();
}

fn library() -> &'static Arc<Library> {
    static LIBRARY: OnceLock<Arc<Library>> = OnceLock::new();
    LIBRARY.get_or_init(|| Library::load(MODEL, OPTIONS, &mut go_on).unwrap())
}

fn greedy(max_tokens: u32) -> String {
    json!({ "max_tokens": max_tokens, "temperature": 0 }).to_string()
}

#[test]
fn a_streamed_answer_is_that_of_the_whole_response() {
    let library = library();
    let mut pieces = String::new();
    let prompt = "Once upon a time";
    let whole = library.generate(
        prompt.into(),
        &greedy(12),
        &mut |piece| {
            pieces.push_str(piece);
            ControlFlow::Continue(())
        },
        &mut || true,
    );
    let whole = whole.unwrap();
    assert_eq!(whole["choices"][0]["text"], pieces);
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    assert_eq!(whole["usage"]["completion_tokens"], 12);
    let body = json!({ "prompt": prompt, "max_tokens": 12, "temperature": 0 }).to_string();
    let at_once = library.request("POST", "/v1/completions", &body, &mut || true);
    let at_once: Value = serde_json::from_str(&at_once.unwrap()).unwrap();
    assert_eq!(at_once["choices"], whole["choices"]);
    assert_eq!(at_once["object"], whole["object"]);
}

#[test]
fn a_chat_may_have_a_schema_and_probabilities() {
    let schema = json!({ "type": "object", "properties": { "age": { "type": "integer" } }, "required": ["age"] });
    let request = json!({
        "messages": [{ "role": "user", "content": "How old is the fox?" }], "max_tokens": 40,
        "logprobs": true, "top_logprobs": 2,
        "response_format": { "type": "json_schema", "json_schema": { "name": "fox", "schema": schema } },
    });
    let mut ignore = |_: &str| ControlFlow::Continue(());
    let whole = library().chat(&request.to_string(), &mut ignore, &mut || true);
    let whole = whole.unwrap();
    let text = whole.pointer("/choices/0/message/content");
    let text = text
        .and_then(Value::as_str)
        .unwrap_or_else(|| panic!("{whole:#}"));
    let value: Value = serde_json::from_str(text).unwrap();
    assert!(value["age"].is_i64(), "{text}");
    let tokens = whole["choices"][0]["logprobs"]["content"]
        .as_array()
        .unwrap();
    assert_eq!(whole["usage"]["completion_tokens"], tokens.len());
    assert_eq!(tokens[0]["top_logprobs"].as_array().unwrap().len(), 2);
}

#[test]
fn callers_end_answers_by_the_callback_or_from_elsewhere() {
    let library = library();
    let mut count = 0;
    let mut stop = |_: &str| {
        count += 1;
        ControlFlow::Break(())
    };
    let ended = library.generate("A story".into(), &greedy(100), &mut stop, &mut || true);
    assert_eq!(ended.unwrap()["choices"][0]["finish_reason"], "cancelled");
    assert_eq!(count, 1);
    // A caller that reads slowly is asked between any two pieces: the answer is soon complete, and still its rest is not given.
    let endless = json!({ "temperature": 0, "ignore_eos": true }).to_string();
    for most in [0, 1, 4] {
        let mut asked = 0;
        let mut wanted = || {
            asked += 1;
            asked <= most
        };
        let mut read = |_: &str| {
            std::thread::sleep(SLOW);
            ControlFlow::Continue(())
        };
        let ended = library.generate("A".into(), &endless, &mut read, &mut wanted);
        assert_eq!(ended.unwrap_err().kind, Kind::Cancelled);
        assert_eq!(asked, most + 1);
    }
    let long = json!({ "prompt": "A", "temperature": 0, "max_tokens": 400, "ignore_eos": true });
    let mut events = library
        .stream("/v1/completions", &long.to_string(), &mut || true)
        .unwrap();
    assert!(events.next(&mut || true).unwrap().is_some());
    std::thread::sleep(SLOW);
    let problem = events.next(&mut || false).unwrap_err();
    assert_eq!(problem.kind, Kind::Cancelled);
    assert_eq!(events.next(&mut || true).unwrap(), None);
}

#[test]
fn a_session_remembers() {
    let mut session = Session::new(library(), None, &greedy(8)).unwrap();
    let mut ignore = |_: &str| ControlFlow::Continue(());
    let first = session.say("Hello", &mut ignore, &mut || true).unwrap();
    session.say("And then?", &mut ignore, &mut || true).unwrap();
    let roles = session
        .messages()
        .iter()
        .map(|m| m["role"].as_str().unwrap());
    assert_eq!(
        roles.collect::<Vec<_>>(),
        ["user", "assistant", "user", "assistant"]
    );
    assert_eq!(session.messages()[1]["content"], first);
    let before = session.messages().len();
    let mut broken = Session::new(library(), None, r#"{"temperature": -1}"#).unwrap();
    let problem = broken.say("Hello", &mut ignore, &mut || true).unwrap_err();
    assert!(problem.message.contains("temperature"), "{problem}");
    assert_eq!(
        (broken.messages().len(), session.messages().len()),
        (0, before)
    );
}

#[test]
fn texts_become_tokens_and_vectors() {
    let library = library();
    let text = "A fox ran home.";
    let tokens = library.encode(text, false).unwrap();
    assert_eq!(library.decode(&tokens).unwrap(), text);
    assert_eq!(
        library.decode(&[u32::MAX]).unwrap_err().kind,
        Kind::Argument
    );
    let texts = [text.to_string(), "A dog.".to_string()];
    let (values, size) = library.embed(&texts, "", &mut || true).unwrap();
    assert_eq!(values.len(), 2 * size);
    let length: f32 = values[..size].iter().map(|v| v * v).sum();
    assert!((length - 1.0).abs() < 1e-4);
    let said = library.render(json!([{ "role": "user", "content": "Hello" }]), &mut || {
        true
    });
    assert!(said.unwrap().contains("Hello"));
}

#[test]
fn problems_name_the_field_and_have_a_kind() {
    let library = library();
    for (options, words) in [
        ("[]", "not a JSON object"),
        (
            r#"{"contxt": 1}"#,
            "\"contxt\": is unknown; the options are activations",
        ),
        (r#"{"context": "many"}"#, "\"context\""),
        (r#"{"slots": 0}"#, "\"slots\": must be 1"),
        (r#"{"threads": 0}"#, "\"threads\": must be 1"),
        (r#"{"device": "npu"}"#, "\"npu\" is not a device"),
        (r#"{"pooling": "none"}"#, "\"pooling\": use one of"),
        (r#"{"cpu_experts": "some"}"#, "\"cpu_experts\""),
    ] {
        let problem = plan(MODEL, options).unwrap_err();
        assert_eq!(problem.kind, Kind::Argument, "{problem}");
        assert!(problem.message.contains(words), "{problem}");
    }
    let missing = Library::load("/nowhere.gguf", "", &mut go_on)
        .err()
        .unwrap();
    assert_eq!(missing.kind, Kind::Model);
    assert!(missing.message.contains("/nowhere.gguf"), "{missing}");
    for body in [
        r#"{"prompt": "A", "temprature": 1}"#,
        "{",
        r#"{"prompt": 7}"#,
    ] {
        let problem = library.request("POST", "/v1/completions", body, &mut || true);
        assert_eq!(problem.unwrap_err().kind, Kind::Request);
    }
    let unknown = library
        .request("GET", "/nothing", "", &mut || true)
        .unwrap_err();
    assert_eq!(unknown.message, "there is no endpoint /nothing");
    let all = plan(MODEL, OPTIONS).unwrap();
    assert_eq!(all["context"], 512);
    assert_eq!(library.info()["context"], 512);
    assert!(all["total"].as_u64().unwrap() > 0);
}
