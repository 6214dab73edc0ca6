//! llama.cpp's API beyond what the other tests use.

mod common;

use axum::Router;
use common::{get, model, post, server, with};
use serde_json::{Value, json};
use welte_server::{Catalog, ServerOptions, router};

async fn completion(server: &Router, body: Value) -> Value {
    let reply = post(server, "/completion", body).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    reply.json()
}

async fn refused(server: &Router, path: &str, body: Value, word: &str) {
    let reply = post(server, path, body).await;
    assert_eq!(reply.status, 400, "{}", reply.text);
    let error = reply.json()["error"]["message"].to_string();
    assert!(error.contains(word), "{error}");
}

/// Greedy and short.
fn short(more: Value) -> Value {
    let mut body = json!({ "prompt": "Once upon a time", "n_predict": 6, "temperature": 0 });
    let (Value::Object(all), Value::Object(more)) = (&mut body, more) else {
        panic!("no objects")
    };
    all.extend(more);
    body
}

#[tokio::test]
async fn a_raw_prompt_may_spell_control_tokens_and_a_message_may_not() {
    let server = server();
    let mark = "<|im_end|>";
    let tokens = async |parse_special: bool| {
        let body = json!({ "content": mark, "parse_special": parse_special });
        let reply = post(&server, "/tokenize", body).await;
        reply.json()["tokens"].as_array().expect("tokens").len()
    };
    let (one, spelt) = (tokens(true).await, tokens(false).await);
    assert!(one == 1 && spelt > 1, "{one} {spelt}");
    let evaluated = async |text: &str| {
        let answer = completion(&server, json!({ "prompt": text, "n_predict": 1 })).await;
        answer["tokens_evaluated"].as_u64().expect("a count") as usize
    };
    let more = evaluated(&format!("a fox {mark}")).await - evaluated("a fox ").await;
    assert_eq!(more, one);
    let prompt = async |text: &str| {
        let messages = json!([{ "role": "user", "content": text }]);
        let body = json!({ "messages": messages, "max_tokens": 1 });
        let reply = post(&server, "/v1/chat/completions", body).await;
        let used = reply.json()["usage"]["prompt_tokens"].as_u64();
        used.expect("a count") as usize
    };
    // Neighbours may join with the first or the last letter of the mark.
    let more = prompt(&format!("a fox\n{mark}\nran")).await - prompt("a fox\n\nran").await;
    assert!(more + 2 >= spelt, "{more} tokens for {spelt}");
}

#[tokio::test]
async fn paths_need_no_version() {
    let server = server();
    let messages = json!([{ "role": "user", "content": "Hi" }]);
    for (path, body, field) in [
        (
            "/chat/completions",
            json!({ "messages": messages, "max_tokens": 2 }),
            "choices",
        ),
        (
            "/chat/completions/input_tokens",
            json!({ "messages": messages }),
            "input_tokens",
        ),
        ("/completions", short(json!({})), "content"),
        (
            "/responses",
            json!({ "input": "Hi", "max_output_tokens": 2 }),
            "output",
        ),
    ] {
        let reply = post(&server, path, body).await;
        assert_eq!(reply.status, 200, "{path}: {}", reply.text);
        assert!(reply.json().get(field).is_some(), "{path}: {}", reply.text);
    }
    for path in ["/models", "/v1/health"] {
        assert_eq!(get(&server, path).await.status, 200, "{path}");
    }
    let count = post(
        &server,
        "/v1/chat/completions/input_tokens",
        json!({ "messages": messages }),
    );
    assert!(count.await.json()["input_tokens"].as_u64() > Some(1));
}

#[tokio::test]
async fn one_model_answers_to_every_name() {
    let server = server();
    let body = short(json!({ "model": "gpt-4" }));
    assert_eq!(completion(&server, body).await["model"], "demo");
    let reply = post(
        &server,
        "/v1/completions",
        json!({ "model": "davinci-002", "prompt": "a", "max_tokens": 1 }),
    )
    .await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    // It is not listed under every name.
    assert_eq!(get(&server, "/v1/models/gpt-4").await.status, 404);
    // Of two models, the name decides.
    let mut catalog = Catalog::default();
    assert!(catalog.add_loaded("a", model(), None));
    assert!(catalog.add_loaded("b", model(), None));
    let two = router(catalog, ServerOptions::default()).unwrap();
    let reply = post(&two, "/completion", short(json!({ "model": "gpt-4" }))).await;
    assert_eq!(reply.status, 404, "{}", reply.text);
}

#[tokio::test]
async fn a_model_has_further_names_and_tags() {
    let mut catalog = Catalog::default();
    assert!(catalog.add_loaded("a", model(), None));
    assert!(catalog.add_loaded("b", model(), None));
    assert!(catalog.alias("a", "fim"));
    assert!(!catalog.alias("a", "fim"));
    assert!(!catalog.alias("x", "y"));
    assert!(!catalog.add("fim", "elsewhere"));
    let mut options = ServerOptions::default();
    options.tags = vec!["chat".to_string()];
    let server = router(catalog, options).unwrap();
    let models = get(&server, "/models").await.json();
    assert_eq!(models["data"][0]["id"], "a");
    assert_eq!(models["data"][0]["aliases"], json!(["a", "fim"]));
    assert_eq!(models["data"][0]["tags"], json!(["chat"]));
    for (asked, answers) in [("fim", "a"), ("a", "a"), ("b", "b"), ("b:latest", "b")] {
        let reply = completion(&server, short(json!({ "model": asked }))).await;
        assert_eq!(reply["model"], answers, "{asked}");
    }
    let unknown = post(&server, "/completion", short(json!({ "model": "c" }))).await;
    assert_eq!(unknown.status, 404, "{}", unknown.text);
}

#[tokio::test]
async fn a_completion_says_how_it_was_made() {
    let server = with(|options| options.seed = Some(42));
    let reply = completion(&server, short(json!({ "return_tokens": true }))).await;
    assert_eq!(reply["tokens"].as_array().unwrap().len(), 6);
    assert_eq!(reply["generation_settings"]["n_predict"], 6);
    assert_eq!(reply["generation_settings"]["seed"], 42);
    assert_eq!(reply["generation_settings"]["logit_bias"], json!([]));
    assert!(
        reply["prompt"]
            .as_str()
            .unwrap()
            .ends_with("Once upon a time")
    );
    assert_eq!(reply["truncated"], false);
    assert!(reply["has_new_line"].is_boolean());
    let timings = reply["timings"].as_object().unwrap();
    assert_eq!(timings["predicted_n"], 6);
    assert!(
        timings.values().all(|v| v.as_f64() >= Some(0.0)),
        "{timings:?}"
    );
    // Nothing was guessed.
    assert!(!timings.contains_key("draft_n"), "{timings:?}");
    // The rate leaves out the first token, which costs no step.
    let steps = timings["predicted_ms"].as_f64().unwrap() / 1e3
        * timings["predicted_per_second"].as_f64().unwrap();
    assert!((steps - 5.0).abs() < 1e-6, "{steps}");
    let one = completion(&server, short(json!({ "n_predict": 1 }))).await;
    assert_eq!(one["tokens"], json!([]));
    assert_eq!(one["timings"]["predicted_per_second"], 0.0);
    let text = completion(&server, short(json!({ "return_tokens": false }))).await;
    assert_eq!(text["content"], reply["content"]);
    let never = completion(&server, short(json!({ "ignore_eos": true }))).await;
    let biases = never["generation_settings"]["logit_bias"]
        .as_array()
        .unwrap()
        .clone();
    assert!(!biases.is_empty() && biases.iter().all(|bias| bias["bias"].is_null()));
    let whole = json!({ "n_predict": -1, "ignore_eos": true });
    let whole = completion(&server, short(whole)).await;
    assert_eq!(whole["truncated"], true);
    assert_eq!(whole["stop_type"], "limit");
    assert_eq!(whole["generation_settings"]["n_predict"], -1);
    for (samplers, least) in [(json!(["min_p"]), 0.05), (json!(["min_p", "infill"]), 0.2)] {
        let asked = short(json!({ "min_p": 0.05, "samplers": samplers }));
        let reply = completion(&server, asked).await;
        let used = reply["generation_settings"]["min_p"].as_f64().unwrap();
        assert!((used - least).abs() < 1e-6, "{samplers} {used}");
    }
    // Without a seed there is one that a client in JavaScript can repeat.
    let free = common::server();
    let mut seeds = Vec::new();
    for _ in 0..4 {
        let reply = completion(&free, short(json!({}))).await;
        seeds.push(reply["generation_settings"]["seed"].as_u64().unwrap());
    }
    assert!(seeds.iter().all(|seed| *seed < 1 << 53), "{seeds:?}");
    assert!(seeds.iter().any(|seed| *seed != seeds[0]), "{seeds:?}");
}

#[tokio::test]
async fn prompts_come_in_lists_and_mixtures() {
    let server = server();
    let encoded = post(
        &server,
        "/tokenize",
        json!({ "content": "Once upon a time", "add_special": true }),
    )
    .await
    .json();
    let tokens = encoded["tokens"].clone();
    let text = completion(&server, short(json!({}))).await["content"].clone();
    let several = json!([
        "Once upon a time",
        tokens,
        { "prompt_string": "Once upon a time" },
        ["Once upon a time", ""],
    ]);
    for prompt in [several, json!(["Once upon a time"])] {
        let count = prompt.as_array().unwrap().len();
        let all = completion(&server, short(json!({ "prompt": prompt }))).await;
        let all = all.as_array().unwrap();
        assert_eq!(all.len(), count);
        for (index, one) in all.iter().enumerate() {
            assert_eq!(one["index"], index);
            assert_eq!(one["content"], text, "{index}");
        }
    }
    // Texts and tokens that follow each other: here the same as the text alone.
    let first = tokens[0].as_u64().unwrap();
    let rest = post(
        &server,
        "/detokenize",
        json!({ "tokens": &tokens.as_array().unwrap()[1..] }),
    );
    let rest = rest.await.json()["content"].clone();
    let mixed = completion(&server, short(json!({ "prompt": [first, rest] }))).await;
    assert_eq!(mixed["tokens_evaluated"], tokens.as_array().unwrap().len());
    assert_eq!(mixed["content"], text);
    let choices = completion(&server, short(json!({ "n_cmpl": 2 }))).await;
    assert_eq!(choices.as_array().unwrap().len(), 2);
    let stream = post(
        &server,
        "/completion",
        short(json!({ "stream": true, "prompt": [tokens, tokens] })),
    )
    .await;
    let ends: Vec<Value> = stream
        .events()
        .into_iter()
        .filter(|e| e["stop"] == true)
        .collect();
    assert_eq!(ends.len(), 2);
    for (prompt, word) in [
        (json!({}), "content"),
        (json!(7), "prompt"),
        (json!([[true]]), "prompt[0]"),
        (json!([-1, "a"]), "prompt"),
        (
            json!({ "prompt_string": "a<__media__>", "multimodal_data": ["x"] }),
            "multimodal_data[0]",
        ),
    ] {
        refused(
            &server,
            "/completion",
            short(json!({ "prompt": prompt })),
            word,
        )
        .await;
    }
}

#[tokio::test]
async fn a_stream_tells_tokens_timings_and_progress() {
    let server = with(|_| ());
    let prompt = "A small fox went out into the cold wood. ".repeat(16);
    let body = json!({
        "prompt": prompt, "n_predict": 4, "temperature": 0, "stream": true,
        "timings_per_token": true, "return_progress": true,
    });
    let events = post(&server, "/completion", body.clone()).await.events();
    let progress: Vec<&Value> = events
        .iter()
        .filter(|e| e.get("prompt_progress").is_some())
        .collect();
    assert!(progress.len() >= 2, "{events:?}");
    let first = progress[0];
    assert_eq!(
        first["prompt_progress"]["processed"],
        first["prompt_progress"]["cache"]
    );
    assert_eq!(first["timings"]["prompt_n"], 0);
    assert_eq!(first["timings"]["prompt_ms"], 0.0);
    let last = &progress[progress.len() - 1]["prompt_progress"];
    assert_eq!(last["processed"], last["total"]);
    let done: Vec<u64> = progress
        .iter()
        .map(|p| p["prompt_progress"]["processed"].as_u64().unwrap())
        .collect();
    assert!(done.is_sorted_by(|a, b| a < b), "{done:?}");
    let pieces: Vec<&Value> = events
        .iter()
        .filter(|e| e["stop"] == false && e.get("prompt_progress").is_none())
        .collect();
    let tokens = pieces
        .iter()
        .map(|piece| piece["tokens"].as_array().unwrap().len());
    assert_eq!(tokens.sum::<usize>(), 4);
    assert!(
        pieces
            .iter()
            .all(|piece| piece["timings"]["predicted_n"].as_u64() > Some(0))
    );
    assert!(events.last().unwrap()["generation_settings"].is_object());
    // Cached the second time.
    let again = post(&server, "/completion", body).await.events();
    assert!(again[0]["prompt_progress"]["cache"].as_u64() > Some(0));
    // Without the fields there is nothing of that.
    let plain = post(&server, "/completion", short(json!({ "stream": true })))
        .await
        .events();
    assert!(
        plain[..plain.len() - 1]
            .iter()
            .all(|e| e.get("timings").is_none())
    );
}

#[tokio::test]
async fn chats_tell_timings_and_progress_too() {
    let server = server();
    let body = json!({
        "messages": [{ "role": "user", "content": "Tell me of a fox." }], "max_tokens": 4, "stream": true,
        "stream_options": { "include_usage": true }, "timings_per_token": true, "return_progress": true,
    });
    let events = post(&server, "/v1/chat/completions", body).await.events();
    let first = &events[0];
    assert!(first["choices"][0]["delta"]["content"].is_null());
    assert!(first.get("timings").is_none());
    let fingerprint = first["system_fingerprint"].as_str().unwrap();
    assert!(
        events
            .iter()
            .all(|event| event["system_fingerprint"] == fingerprint)
    );
    assert!(
        events
            .iter()
            .any(|event| event.get("prompt_progress").is_some())
    );
    let usage = events.last().unwrap();
    assert_eq!(usage["usage"]["completion_tokens"], 4);
    assert_eq!(usage["timings"]["predicted_n"], 4);
    let text = |event: &&Value| {
        event["choices"][0]["delta"]
            .get("content")
            .is_some_and(Value::is_string)
    };
    assert!(
        events
            .iter()
            .filter(text)
            .all(|event| event.get("timings").is_some())
    );
    let whole = json!({
        "messages": [{ "role": "user", "content": "Tell me of a fox." }], "max_tokens": 4, "verbose": true,
    });
    let whole = post(&server, "/v1/chat/completions", whole).await.json();
    assert_eq!(whole["timings"]["predicted_n"], 4);
    let verbose = &whole["__verbose"];
    assert!(
        verbose["prompt"]
            .as_str()
            .unwrap()
            .contains("Tell me of a fox.")
    );
    assert_eq!(
        verbose["content"],
        whole["choices"][0]["message"]["content"]
    );
    assert_eq!(verbose["generation_settings"]["n_predict"], 4);
}

#[tokio::test]
async fn probabilities_after_sampling_sum_to_one() {
    let server = server();
    let body = json!({
        "prompt": "The", "n_predict": 5, "temperature": 1.0, "n_probs": 10, "post_sampling_probs": true, "seed": 3,
    });
    let reply = completion(&server, body.clone()).await;
    assert_eq!(reply["generation_settings"]["top_k"], 20);
    let all = reply["completion_probabilities"].as_array().unwrap();
    assert_eq!(all.len(), 5);
    for one in all {
        let prob = one["prob"].as_f64().unwrap();
        assert!(prob > 0.0 && prob <= 1.0, "{one}");
        let top = one["top_probs"].as_array().unwrap();
        let sum: f64 = top.iter().map(|t| t["prob"].as_f64().unwrap()).sum();
        match top.len() {
            10 => assert!(sum <= 1.0 + 1e-6),
            _ => assert!((sum - 1.0).abs() < 1e-5, "{one}"),
        }
    }
    for (field, value) in [
        ("top_k", json!(40)),
        ("repeat_penalty", json!(1.5)),
        ("grammar", json!("root ::= \"a\"")),
    ] {
        let mut body = body.clone();
        body[field] = value;
        refused(&server, "/completion", body, "post_sampling_probs").await;
    }
    // Without them, the usual logarithms.
    let mut plain = body.clone();
    plain["post_sampling_probs"] = false.into();
    let plain = completion(&server, plain).await;
    assert!(plain["completion_probabilities"][0]["top_logprobs"].is_array());
}

#[tokio::test]
async fn biases_may_name_texts() {
    let server = server();
    let free = completion(&server, short(json!({ "n_predict": 1 }))).await;
    let word = free["content"].as_str().unwrap().to_string();
    for bias in [
        json!([[word, -100]]),
        json!({ &word: -100 }),
        json!([[word, false]]),
    ] {
        let reply = completion(
            &server,
            short(json!({ "n_predict": 1, "logit_bias": bias })),
        )
        .await;
        assert_ne!(reply["content"], word.as_str());
    }
}

#[tokio::test]
async fn an_answer_continues_the_assistants_message() {
    let server = server();
    let chat = |more: Value| {
        let mut body = json!({
            "messages": [
                { "role": "user", "content": "Tell me a story." },
                { "role": "assistant", "content": "Once upon a" },
            ],
            "max_tokens": 4, "temperature": 0, "verbose": true,
        });
        let (Value::Object(all), Value::Object(more)) = (&mut body, more) else {
            panic!("no objects")
        };
        all.extend(more);
        body
    };
    let path = "/v1/chat/completions";
    let prompt = |reply: common::Reply| {
        assert_eq!(reply.status, 200, "{}", reply.text);
        reply.json()["__verbose"]["prompt"]
            .as_str()
            .unwrap()
            .to_string()
    };
    let implied = prompt(post(&server, path, chat(json!({}))).await);
    assert!(implied.ends_with("Once upon a"), "{implied}");
    let said = json!({ "add_generation_prompt": false, "continue_final_message": true });
    assert_eq!(prompt(post(&server, path, chat(said)).await), implied);
    let begun = json!({ "continue_final_message": false });
    let begun = prompt(post(&server, path, chat(begun)).await);
    assert!(begun.contains("Once upon a") && !begun.ends_with("Once upon a"));
    let both = json!({ "add_generation_prompt": true, "continue_final_message": true });
    refused(&server, path, chat(both), "add_generation_prompt").await;
    let twice = json!({ "messages": [
        { "role": "user", "content": "a" }, { "role": "assistant", "content": "b" }, { "role": "assistant", "content": "c" },
    ] });
    refused(&server, path, chat(twice), "two messages").await;
    // Also the only message, and by request the user's.
    let only = json!({ "messages": [{ "role": "assistant", "content": "Once" }] });
    let only = prompt(post(&server, path, chat(only)).await);
    assert!(only.ends_with("assistant\nOnce"), "{only}");
    let user = json!({ "continue_final_message": true, "messages": [{ "role": "user", "content": "Why is" }] });
    let user = prompt(post(&server, path, chat(user)).await);
    assert!(user.ends_with("user\nWhy is"), "{user}");
    let function = json!({ "name": "f", "arguments": "{}" });
    let call = json!({ "id": "1", "type": "function", "function": function });
    let called = json!({ "continue_final_message": true, "messages": [
        { "role": "user", "content": "a" }, { "role": "assistant", "content": "", "tool_calls": [call] },
    ] });
    refused(&server, path, chat(called), "continue_final_message").await;
}

/// A template that shows its variables.
const TEMPLATE: &str = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}\
    {% if tools %}({{ tools[0].function.name }}){% endif %}\
    {% if date_string is defined %}<{{ date_string }}|{{ datetime }}>{% endif %}\
    {% if colour is defined %}{{ colour }}{% endif %}\
    {% if add_generation_prompt %}[assistant]<think>\n{% endif %}";

fn templated(change: impl FnOnce(&mut ServerOptions)) -> Router {
    with(|options| {
        options.chat_template = Some(TEMPLATE.to_string());
        change(options);
    })
}

async fn applied(server: &Router, mut body: Value) -> String {
    if body.get("messages").is_none() {
        body["messages"] = json!([{ "role": "user", "content": "hi" }]);
    }
    let reply = post(server, "/apply-template", body).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    reply.json()["prompt"].as_str().unwrap().to_string()
}

#[tokio::test]
async fn templates_get_tools_dates_and_variables() {
    let server = templated(|_| ());
    let plain = applied(&server, json!({})).await;
    assert!(
        plain.starts_with("[user]hi<") && plain.ends_with("[assistant]<think>\n"),
        "{plain}"
    );
    let dates = plain.split(['<', '>', '|']).collect::<Vec<_>>();
    // "28 Nov 2026", and "Nov 28 2026" with a time.
    let (date, time) = (dates[1].split(' ').collect::<Vec<_>>(), dates[2]);
    assert_eq!(date.len(), 3, "{plain}");
    assert!(
        time.starts_with(&format!("{} {} {}", date[1], date[0], date[2])),
        "{plain}"
    );
    let function = json!({ "type": "function", "function": { "name": "look", "parameters": {} } });
    let tools = applied(&server, json!({ "tools": [function] })).await;
    assert!(tools.contains("(look)"), "{tools}");
    let none = applied(
        &server,
        json!({ "tools": [function], "tool_choice": "none" }),
    )
    .await;
    assert!(!none.contains("(look)"), "{none}");
    let open = applied(&server, json!({ "add_generation_prompt": false })).await;
    assert!(!open.contains("[assistant]"), "{open}");
    let own = json!({ "chat_template_kwargs": { "date_string": "today", "colour": "red" } });
    let own = applied(&server, own).await;
    assert!(own.contains("<today|") && own.contains("red"), "{own}");
    let variables = templated(|options| {
        options
            .template_variables
            .insert("colour".into(), "blue".into());
    });
    assert!(applied(&variables, json!({})).await.contains("blue"));
    let red = json!({ "chat_template_kwargs": { "colour": "red" } });
    assert!(!applied(&variables, red).await.contains("blue"));
}

#[tokio::test]
async fn reasoning_that_a_template_begins_is_ended_where_it_is_off() {
    let server = templated(|_| ());
    let off = json!({ "chat_template_kwargs": { "enable_thinking": false } });
    let prompt = applied(&server, off).await;
    assert!(prompt.ends_with("<think>\n</think>"), "{prompt}");
    let off = templated(|options| {
        let name = "enable_thinking".to_string();
        options.template_variables.insert(name, false.into());
    });
    assert!(applied(&off, json!({})).await.ends_with("</think>"));
    // The text of an answer comes after the reasoning.
    let messages =
        json!([{ "role": "user", "content": "hi" }, { "role": "assistant", "content": "Well" }]);
    let prompt = applied(&server, json!({ "messages": messages })).await;
    assert!(prompt.ends_with("<think>\n</think>\n\nWell"), "{prompt}");
}

#[tokio::test]
async fn figures_have_llama_cpps_names_too() {
    let server = server();
    let idle = get(&server, "/metrics").await.text;
    for name in ["prompt_seconds_total", "tokens_predicted_seconds_total"] {
        assert!(idle.contains(&format!("\nllamacpp:{name} 0\n")), "{name}");
    }
    let mut sums = (0, 0, 0);
    for _ in 0..2 {
        let reply = completion(
            &server,
            short(json!({ "prompt": "the quick brown fox jumps" })),
        )
        .await;
        let n = |name: &str| reply["timings"][name].as_u64().unwrap();
        sums = (
            sums.0 + n("prompt_n"),
            sums.1 + n("cache_n"),
            sums.2 + n("predicted_n"),
        );
    }
    assert!(sums.1 > 0);
    // The engine clears away after it has answered.
    let reply = loop {
        let reply = get(&server, "/metrics").await;
        if reply.text.contains("\nllamacpp:requests_processing 0\n") {
            break reply;
        }
    };
    assert!(reply.headers.contains_key("process-start-time-unix"));
    let value = |name: &str| {
        let begin = format!("llamacpp:{name} ");
        assert!(
            reply.text.contains(&format!("# TYPE llamacpp:{name} ")),
            "{name}"
        );
        let line = reply
            .text
            .lines()
            .find_map(|line| line.strip_prefix(&begin));
        line.unwrap().parse::<f64>().unwrap()
    };
    assert_eq!(value("prompt_tokens_total"), sums.0 as f64);
    assert_eq!(value("prompt_tokens_cached_total"), sums.1 as f64);
    assert_eq!(value("tokens_predicted_total"), sums.2 as f64);
    assert!(value("n_decode_total") > 0.0 && value("predicted_tokens_seconds") > 0.0);
    assert!(value("n_tokens_max") > 6.0);
    // Texts to embed are computed, too.
    let vector = post(&server, "/v1/embeddings", json!({ "input": "A fox" })).await;
    let tokens = vector.json()["usage"]["prompt_tokens"].as_u64().unwrap();
    let computed = format!("\nllamacpp:prompt_tokens_total {}\n", sums.0 + tokens);
    assert!(get(&server, "/metrics").await.text.contains(&computed));
}

#[tokio::test]
async fn what_is_switched_off_says_so() {
    let server = with(|options| {
        (options.metrics, options.slots, options.page) = (false, false, false);
    });
    for path in ["/metrics", "/slots"] {
        let reply = get(&server, path).await;
        assert_eq!(reply.status, 501, "{path}: {}", reply.text);
        assert!(
            reply.json()["error"]["message"]
                .as_str()
                .unwrap()
                .contains("--")
        );
    }
    assert_eq!(get(&server, "/").await.status, 404);
    assert_eq!(get(&common::server(), "/").await.status, 200);
}

#[tokio::test]
async fn props_have_the_defaults() {
    let props = get(&with(|options| options.seed = Some(7)), "/props")
        .await
        .json();
    assert_eq!(props["default_generation_settings"]["params"]["seed"], 7);
    assert_eq!(props["is_sleeping"], false);
    assert_eq!(props["model_path"], "demo.gguf");
    let props = get(&with(|options| options.verbose = true), "/props").await;
    let path = props.json()["model_path"].as_str().unwrap().to_string();
    assert!(path.ends_with("models/demo.gguf"), "{path}");
}

#[tokio::test]
async fn texts_to_embed_come_in_lists_and_mixtures() {
    let server = server();
    let vector = |input: Value| {
        let server = server.clone();
        async move {
            let reply = post(&server, "/v1/embeddings", json!({ "input": input })).await;
            assert_eq!(reply.status, 200, "{}", reply.text);
            reply.json()["data"].clone()
        }
    };
    let text = vector(json!("hello world")).await;
    for (input, count) in [
        (json!([12, 34, "string", 56]), 1),
        (json!([[12, 34], [12, "string", 34]]), 2),
        (
            json!(["a", { "prompt_string": "b" }, { "content": [{ "type": "text", "text": "c" }] }]),
            3,
        ),
    ] {
        assert_eq!(vector(input).await.as_array().unwrap().len(), count);
    }
    let parts = json!({ "content": [{ "type": "text", "text": "hello " }, { "type": "text", "text": "world" }] });
    assert_eq!(vector(parts).await[0]["embedding"], text[0]["embedding"]);
    let image = json!({ "content": [{ "type": "image_url", "image_url": { "url": "data:," } }] });
    for input in [
        json!([]),
        json!({ "content": [{ "type": "unknown" }] }),
        image,
    ] {
        let reply = post(&server, "/v1/embeddings", json!({ "input": input })).await;
        assert_eq!(reply.status, 400, "{}", reply.text);
    }
    let long = json!({ "input": "word ".repeat(600) });
    refused(&server, "/v1/embeddings", long, "too large").await;
    // llama.cpp's own form.
    for path in ["/embedding", "/embeddings"] {
        let own = post(&server, path, json!({ "content": "hello world" }))
            .await
            .json();
        assert_eq!(own[0]["embedding"][0], text[0]["embedding"], "{path}");
    }
    let raw = json!({ "input": "hello world", "embd_normalize": -1 });
    let raw = post(&server, "/embedding", raw).await.json();
    let length = |vector: &Value| {
        let squares = vector
            .as_array()
            .unwrap()
            .iter()
            .map(|v| v.as_f64().unwrap().powi(2));
        squares.sum::<f64>().sqrt()
    };
    assert!((length(&raw[0]["embedding"][0]) - 1.0).abs() > 1e-3);
    let other = json!({ "input": "a", "embd_normalize": 1 });
    refused(&server, "/embedding", other, "embd_normalize").await;
}

/// vLLM's form, by which routers learn the tokens of a prompt.
#[tokio::test]
async fn prompts_are_tokenized_as_vllm_does() {
    let server = server();
    let prompt = "Once upon a time";
    let reply = post(
        &server,
        "/tokenize",
        json!({ "model": "x", "prompt": prompt }),
    )
    .await;
    let reply = reply.json();
    let body = json!({ "prompt": reply["tokens"], "max_tokens": 8, "temperature": 0 });
    let by_tokens = post(&server, "/v1/completions", body).await.json();
    let body = json!({ "prompt": prompt, "max_tokens": 8, "temperature": 0 });
    let by_text = post(&server, "/v1/completions", body).await.json();
    assert_eq!(
        by_tokens["choices"][0]["text"],
        by_text["choices"][0]["text"]
    );
    assert_eq!(reply["count"], by_text["usage"]["prompt_tokens"]);
    assert_eq!(reply["max_model_len"], 512);
    let chat = json!({ "messages": [{ "role": "user", "content": "Tell me a story." }] });
    let reply = post(&server, "/tokenize", chat.clone()).await.json();
    let counted = post(&server, "/v1/chat/completions/input_tokens", chat)
        .await
        .json();
    assert_eq!(reply["count"], counted["input_tokens"]);
    assert_eq!(
        Some(reply["tokens"].as_array().unwrap().len() as u64),
        reply["count"].as_u64()
    );
    let wrong = post(&server, "/tokenize", json!({ "prompt": 3 })).await;
    assert!(
        wrong.status == 400 && wrong.text.contains("prompt"),
        "{}",
        wrong.text
    );
}
