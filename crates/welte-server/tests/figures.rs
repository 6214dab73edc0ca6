//! Every figure that is reported: streamed and whole, per API and in `/metrics`.

mod common;

use axum::Router;
use common::live::{RUNNING, endless, start};
use common::{get, post, with};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::io::AsyncReadExt;

fn metered() -> Router {
    with(|options| options.metrics = true)
}

/// What an API reports of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Figures {
    prompt: u64,
    cached: u64,
    output: u64,
}

fn messages(text: &str) -> Value {
    json!([{ "role": "user", "content": text }])
}

/// An API: its path, a body for a text and a number of choices, and where its figures are.
struct Api {
    path: &'static str,
    body: fn(&str, usize) -> Value,
    /// Of prompt, cached and output tokens.
    figures: [&'static str; 3],
    /// The prompt's figure leaves out the cached tokens.
    without_cached: bool,
    most_choices: usize,
}

const APIS: [Api; 7] = [
    Api {
        path: "/v1/chat/completions",
        body: |text, n| json!({ "messages": messages(text), "max_tokens": 6, "ignore_eos": true, "n": n, "stream_options": { "include_usage": true } }),
        figures: OPENAI,
        without_cached: false,
        most_choices: 2,
    },
    Api {
        path: "/v1/completions",
        body: |text, n| json!({ "prompt": text, "max_tokens": 6, "ignore_eos": true, "n": n, "stream_options": { "include_usage": true } }),
        figures: OPENAI,
        without_cached: false,
        most_choices: 2,
    },
    Api {
        path: "/v1/responses",
        body: |text, _| json!({ "input": text, "max_output_tokens": 6, "ignore_eos": true }),
        figures: [
            "/usage/input_tokens",
            "/usage/input_tokens_details/cached_tokens",
            "/usage/output_tokens",
        ],
        without_cached: false,
        most_choices: 1,
    },
    Api {
        path: "/v1/messages",
        body: |text, _| json!({ "model": "demo", "messages": messages(text), "max_tokens": 6, "ignore_eos": true }),
        figures: [
            "/usage/input_tokens",
            "/usage/cache_read_input_tokens",
            "/usage/output_tokens",
        ],
        without_cached: true,
        most_choices: 1,
    },
    Api {
        path: "/api/chat",
        body: |text, _| json!({ "model": "demo", "messages": messages(text), "options": { "num_predict": 6, "ignore_eos": true } }),
        figures: OLLAMA,
        without_cached: false,
        most_choices: 1,
    },
    Api {
        path: "/api/generate",
        body: |text, _| json!({ "model": "demo", "prompt": text, "options": { "num_predict": 6, "ignore_eos": true } }),
        figures: OLLAMA,
        without_cached: false,
        most_choices: 1,
    },
    Api {
        path: "/completion",
        body: |text, _| json!({ "prompt": text, "n_predict": 6, "ignore_eos": true }),
        figures: ["/tokens_evaluated", "/tokens_cached", "/tokens_predicted"],
        without_cached: false,
        most_choices: 1,
    },
];

const OPENAI: [&str; 3] = [
    "/usage/prompt_tokens",
    "/usage/prompt_tokens_details/cached_tokens",
    "/usage/completion_tokens",
];
const OLLAMA: [&str; 3] = ["/prompt_eval_count", "/welte/cached_tokens", "/eval_count"];

impl Api {
    /// Asks, whole or streamed.
    async fn ask(&self, server: &Router, text: &str, n: usize, stream: bool) -> Figures {
        let mut body = (self.body)(text, n);
        body["stream"] = stream.into();
        let reply = post(server, self.path, body).await;
        assert_eq!(reply.status, 200, "{}: {}", self.path, reply.text);
        let value = if !stream {
            reply.json()
        } else if self.path.starts_with("/api/") {
            serde_json::from_str(reply.text.lines().last().unwrap()).unwrap()
        } else {
            let events = reply.events();
            let has_figures = |event: &&Value| event.pointer(self.figures[2]).is_some();
            let last = events.iter().rev().find(has_figures);
            let of_response = events.last().map(|event| &event["response"]);
            last.or(of_response).unwrap().clone()
        };
        self.check_times(&value);
        let [prompt, cached, output] = self.figures.map(|pointer| {
            let figure = value.pointer(pointer).and_then(Value::as_u64);
            figure.unwrap_or_else(|| panic!("{}: {pointer} in {value}", self.path))
        });
        let prompt = if self.without_cached {
            prompt + cached
        } else {
            prompt
        };
        assert!(cached <= prompt, "{}: {value}", self.path);
        for total in ["/usage/total_tokens"] {
            if let Some(total) = value.pointer(total) {
                assert_eq!(total, &json!(prompt + output), "{}", self.path);
            }
        }
        Figures {
            prompt,
            cached,
            output,
        }
    }

    /// Our own figures agree with those of the API.
    fn check_times(&self, value: &Value) {
        let own = &value["welte"];
        let number = |name: &str| {
            own[name]
                .as_f64()
                .unwrap_or_else(|| panic!("{name}: {own}"))
        };
        assert!(
            number("prompt_ms") > 0.0 && number("queued_ms") >= 0.0,
            "{own}"
        );
        let cached = value.pointer(self.figures[1]).and_then(Value::as_f64);
        assert_eq!(cached, Some(number("cached_tokens")), "{}", self.path);
    }
}

/// The sum of a metric over its lines.
fn metric(text: &str, name: &str) -> f64 {
    let lines = text.lines().filter(|line| {
        let rest = line.strip_prefix(name);
        rest.is_some_and(|rest| rest.starts_with('{'))
    });
    let values = lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap());
    values.sum()
}

#[tokio::test]
async fn streamed_figures_are_those_of_the_whole_and_add_up_to_the_counters() {
    let server = metered();
    let before = get(&server, "/metrics").await.text;
    for name in [
        "vllm:kv_cache_usage_perc",
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total",
        "welte_requests_total",
    ] {
        assert!(before.contains(name), "{name}");
        assert_eq!(metric(&before, name), 0.0, "{name}");
    }
    let (mut sum, mut requests, mut choices, mut looked_up) = (Figures::default(), 0, 0, 0);
    let mut letters = ('A'..='Z').chain('a'..='z');
    for api in &APIS {
        for n in 1..=api.most_choices {
            // The prompts share what the chat template begins with, and after it only the request before is cached.
            let text = |letter: char| {
                format!("{letter} is for a fox that went into the wood, and then it came back.")
            };
            let mut begin = || text(letters.next().unwrap());
            let (some, text, other) = (begin(), begin(), begin());
            let warm = api.ask(&server, &some, n, false).await;
            let first = api.ask(&server, &text, n, false).await;
            let fresh = api.ask(&server, &other, n, true).await;
            let again = api.ask(&server, &text, n, true).await;
            let last = api.ask(&server, &other, n, false).await;
            assert_eq!(first, fresh, "{} n = {n}", api.path);
            assert_eq!(again, last, "{} n = {n}", api.path);
            assert_eq!(first.prompt, again.prompt, "{} n = {n}", api.path);
            assert!(again.cached > first.cached, "{} {again:?}", api.path);
            assert!(again.cached < again.prompt, "{} {again:?}", api.path);
            assert_eq!(first.output, 6 * n as u64, "{}", api.path);
            for figures in [warm, first, fresh, again, last] {
                sum.prompt += figures.prompt;
                sum.cached += figures.cached;
                sum.output += figures.output;
                looked_up += figures.prompt * n as u64;
                requests += 1;
                choices += n as u64;
            }
        }
    }
    // Nothing is at work: what is cached can be had back. The engine clears away after it has answered.
    let after = loop {
        let text = get(&server, "/metrics").await.text;
        let busy = ["vllm:num_requests_running", "vllm:kv_cache_usage_perc"];
        if busy.iter().all(|name| metric(&text, name) == 0.0) {
            break text;
        }
    };
    let counted = |name: &str| metric(&after, name) as u64;
    assert_eq!(counted("vllm:prompt_tokens_total"), sum.prompt);
    assert_eq!(counted("vllm:generation_tokens_total"), sum.output);
    assert_eq!(counted("vllm:prefix_cache_queries_total"), looked_up);
    let hits = counted("vllm:prefix_cache_hits_total");
    assert!(sum.cached <= hits && hits <= looked_up, "{hits}, {sum:?}");
    assert_eq!(counted("welte_requests_total"), choices);
    assert!(choices > requests);
    assert_eq!(counted("vllm:request_success_total"), choices);
    for histogram in [
        "vllm:time_to_first_token_seconds_count",
        "vllm:request_queue_time_seconds_count",
        "vllm:e2e_request_latency_seconds_count",
    ] {
        assert_eq!(counted(histogram), choices, "{histogram}");
    }
    let queued = metric(&after, "vllm:request_queue_time_seconds_sum");
    let first = metric(&after, "vllm:time_to_first_token_seconds_sum");
    let whole = metric(&after, "vllm:e2e_request_latency_seconds_sum");
    assert!(
        queued < first && first <= whole,
        "{queued}, {first}, {whole}"
    );
}

#[tokio::test]
async fn prompts_without_a_cache_and_answers_without_a_token_are_counted() {
    let server = metered();
    let body = json!({ "prompt": "A fox and a bear.", "max_tokens": 4, "cache_prompt": false, "ignore_eos": true });
    for _ in 0..2 {
        let reply = post(&server, "/v1/completions", body.clone()).await.json();
        assert_eq!(reply["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
        assert_eq!(reply["welte"]["cached_tokens"], 0);
    }
    let tree = get(&server, "/welte/state").await.json()["tree"].clone();
    assert_eq!((&tree["lookups"], &tree["hits"]), (&json!(2), &json!(0)));
    let body = json!({ "prompt": "A fox and a bear.", "n_predict": 0 });
    let reply = post(&server, "/completion", body).await.json();
    assert_eq!(reply["tokens_predicted"], 0);
    let text = get(&server, "/metrics").await.text;
    assert_eq!(metric(&text, "vllm:generation_tokens_total"), 8.0);
    // The last one had no first token.
    assert_eq!(metric(&text, "vllm:time_to_first_token_seconds_count"), 2.0);
    assert_eq!(metric(&text, "vllm:request_queue_time_seconds_count"), 3.0);
}

/// By reason: a client that leaves is not an error.
#[tokio::test(flavor = "multi_thread")]
async fn requests_whose_clients_left_are_aborted() {
    let server = start(|_| ()).await;
    let mut client = server.send("/completion", &endless(true)).await;
    client.read_exact(&mut [0; 16]).await.unwrap();
    drop(client);
    server.until(RUNNING, "0").await;
    // A response in the background ends when it is deleted.
    let body = json!({ "input": "A fox.", "background": true, "max_output_tokens": 8000, "ignore_eos": true });
    let text = common::live::read(&mut server.send("/v1/responses", &body).await).await;
    let response: Value = serde_json::from_str(text.split_once("\r\n\r\n").unwrap().1).unwrap();
    server.until(RUNNING, "1").await;
    let path = format!("/v1/responses/{}", response["id"].as_str().unwrap());
    let head = format!("DELETE {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    server.raw(head.as_bytes()).await;
    server.until(RUNNING, "0").await;
    let ended = |text: &str, reason: &str| {
        let label = format!("finished_reason=\"{reason}\"");
        let lines = text.lines().filter(|line| line.contains(&label));
        lines
            .map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap())
            .sum::<u64>()
    };
    // The counters follow the engine.
    let reasons = ["stop", "length", "abort", "error"];
    let mut counts = [0; 4];
    while counts.iter().sum::<u64>() < 2 {
        let text = server.get("/metrics").await;
        counts = reasons.map(|reason| ended(&text, reason));
    }
    assert_eq!(counts, [0, 0, 2, 0]);
}

/// What the engine page shows agrees with itself and with what was asked.
#[tokio::test(flavor = "multi_thread")]
async fn the_engine_page_shows_who_runs_and_who_waits() {
    let server = start(|_| ()).await;
    let state = async || -> Value {
        let text = server.get("/welte/state").await;
        serde_json::from_str(text.split_once("\r\n\r\n").unwrap().1).unwrap()
    };
    let all = |value: &Value| value.as_array().unwrap().clone();
    let idle = state().await;
    assert_eq!(idle["queue"], json!([]));
    let slot = |index: usize| json!({ "slot": index, "state": "idle" });
    assert_eq!(idle["slots"], json!([slot(0), slot(1)]));
    assert!(!idle["pools"][0]["pages"].as_str().unwrap().contains('o'));
    let model = &idle["model"];
    // Of models/demo.gguf.
    assert_eq!(model["parameters"], 7_083_264);
    assert_eq!(model["formats"], json!(["Q8_0"]));
    assert_eq!(
        [&model["layers"], &model["vocab"], &model["context"]],
        [&json!(8), &json!(3072), &json!(8192)]
    );
    let bytes = all(&idle["plan"]["entries"]);
    let bytes: u64 = bytes.iter().map(|e| e["bytes"].as_u64().unwrap()).sum();
    assert_eq!(idle["plan"]["total"], bytes);
    assert_eq!(idle["engine"]["slots"], 2);
    assert_eq!(idle["engine"]["prompt_rows"], 64);
    // Three clients for two slots. The last one goes first.
    let mut clients = vec![
        server.send("/completion", &endless(true)).await,
        server.send("/completion", &endless(true)).await,
    ];
    for client in &mut clients {
        client.read_exact(&mut [0; 16]).await.unwrap();
    }
    server.until(RUNNING, "2").await;
    clients.push(server.send("/completion", &endless(true)).await);
    server.until("vllm:num_requests_waiting", "1").await;
    // Speeds are known when the page has looked twice.
    let mut busy = state().await;
    while all(&busy["slots"])
        .iter()
        .any(|slot| slot["tokens_per_second"].as_f64() <= Some(0.0))
    {
        tokio::time::sleep(Duration::from_millis(20)).await;
        busy = state().await;
    }
    let used = metric(&server.get("/metrics").await, "vllm:kv_cache_usage_perc");
    assert!(0.0 < used && used <= 1.0, "{used}");
    let queue = all(&busy["queue"]);
    assert_eq!(queue.len(), 1, "{busy}");
    assert_eq!(queue[0]["preempted"], false);
    assert_eq!(queue[0]["priority"], 0);
    let page = busy["engine"]["page"].as_u64().unwrap();
    let mut requests = vec![queue[0]["request"].as_str().unwrap().to_string()];
    let mut pages = std::collections::HashSet::new();
    for slot in all(&busy["slots"]) {
        assert_eq!(slot["state"], "decode", "{slot}");
        requests.push(slot["request"].as_str().unwrap().to_string());
        let number = |name: &str| slot[name].as_u64().unwrap();
        assert_eq!(slot["prompt_tokens"], queue[0]["prompt_tokens"]);
        let (position, limit) = (number("position"), number("limit"));
        assert!(number("prompt_tokens") < position && position < limit && limit <= 8192);
        assert!(number("cached_tokens") <= number("prompt_tokens"));
        assert!(slot["tokens_per_second"].as_f64() > Some(0.0), "{slot}");
        let mut held = 0;
        for run in all(&slot["pages"][0]["runs"]) {
            let (first, count) = (run[0].as_u64().unwrap(), run[1].as_u64().unwrap());
            held += count;
            pages.extend(first..first + count);
        }
        assert!(held * page >= position, "{slot}");
    }
    requests.sort();
    requests.dedup();
    assert_eq!(requests.len(), 3);
    let letters = busy["pools"][0]["pages"].as_str().unwrap();
    let used = |&(_, letter): &(usize, char)| letter == 'o' || letter == 's';
    let used = letters.chars().enumerate().filter(used);
    let used: std::collections::HashSet<u64> = used.map(|(at, _)| at as u64).collect();
    assert_eq!(used, pages);
    let rate = |name: &str| busy["rates"][name].as_f64().unwrap();
    assert!(rate("decode") > 0.0 && rate("rows") > 0.0, "{busy}");
    assert_eq!(busy["totals"]["requests"], 3);
    let guesses = &busy["totals"]["guesses"];
    assert_eq!(
        guesses["by_position"].as_array().unwrap().len(),
        8,
        "{guesses}"
    );
    drop(clients);
    server.until(RUNNING, "0").await;
    let after = state().await;
    let sum = |of: &str| -> u64 {
        let branches = all(&after["tree"]["branches"]);
        branches.iter().map(|b| b[of].as_u64().unwrap()).sum()
    };
    assert!(sum("tokens") > 0);
    assert_eq!(after["tree"]["tokens"], sum("tokens"));
    assert_eq!(sum("sequences"), 0);
}

/// Each kind of request counts where it belongs.
#[tokio::test]
async fn reasons_pieces_and_vectors_are_counted() {
    let server = metered();
    let count = async |name: &str| -> f64 {
        let text = get(&server, "/metrics").await.text;
        let lines = text.lines().filter(|line| line.starts_with(name));
        let values = lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap());
        values.sum()
    };
    let ended = async |reason: &str| {
        let text = get(&server, "/metrics").await.text;
        let label = format!("finished_reason=\"{reason}\"");
        let line = text.lines().find(|line| line.contains(&label));
        line.map_or("0", |line| line.rsplit_once(' ').unwrap().1)
            .to_string()
    };
    let whole = json!({ "prompt": "A fox", "n_predict": 2, "ignore_eos": true });
    post(&server, "/completion", whole).await;
    let form = json!({ "prompt": "A fox", "n_predict": 9, "grammar": "root ::= \"ab\"" });
    post(&server, "/completion", form).await;
    assert_eq!(ended("length").await, "1");
    assert_eq!(ended("stop").await, "1");
    assert_eq!(ended("error").await, "0");
    let before = count("vllm:inter_token_latency_seconds_count").await;
    let stream = json!({ "prompt": "A fox", "n_predict": 9, "ignore_eos": true, "stream": true });
    post(&server, "/completion", stream).await;
    let after = count("vllm:inter_token_latency_seconds_count").await;
    assert!(after > before, "{before} {after}");
    let before = count("vllm:prompt_tokens_total").await;
    let body = json!({ "input": ["A fox", "Another fox"] });
    let vectors = post(&server, "/v1/embeddings", body).await.json();
    let tokens = vectors["usage"]["prompt_tokens"].as_f64().unwrap();
    assert!(tokens > 0.0);
    assert_eq!(count("vllm:prompt_tokens_total").await, before + tokens);
}
