//! Numbers at their borders: negative, zero, absent and huge, for every option that is a number.

mod common;

use axum::Router;
use common::{get, post, server, with};
use serde_json::{Map, Value, json};

fn messages() -> Value {
    json!([{ "role": "user", "content": "Tell me a story about a fox." }])
}

/// The endpoints that sample, with a small body and where its sampling fields are.
fn sampling() -> [(&'static str, Value, &'static str); 7] {
    let options = json!({ "num_predict": 4, "seed": 3 });
    [
        (
            "/v1/chat/completions",
            json!({ "messages": messages(), "max_tokens": 4, "seed": 3 }),
            "",
        ),
        (
            "/v1/completions",
            json!({ "prompt": "Once", "max_tokens": 4, "seed": 3 }),
            "",
        ),
        (
            "/v1/responses",
            json!({ "input": "Hello", "max_output_tokens": 4, "seed": 3 }),
            "",
        ),
        (
            "/v1/messages",
            json!({ "model": "demo", "messages": messages(), "max_tokens": 4, "seed": 3 }),
            "",
        ),
        (
            "/completion",
            json!({ "prompt": "Once", "n_predict": 4, "seed": 3 }),
            "",
        ),
        (
            "/api/chat",
            json!({ "model": "demo", "messages": messages(), "options": options, "stream": false }),
            "options",
        ),
        (
            "/api/generate",
            json!({ "model": "demo", "prompt": "Tell me a story about a fox.", "options": options, "stream": false }),
            "options",
        ),
    ]
}

/// Numbers of completions that other endpoints do not have.
const OTHERS: [&str; 6] = [
    "n",
    "max_tokens",
    "n_predict",
    "logprobs",
    "best_of",
    "id_slot",
];

/// Every number of the document with its schema, for the sampling fields of an endpoint.
fn numbers(properties: &Map<String, Value>) -> Vec<(String, Value)> {
    let number = |(name, schema): (&String, &Value)| {
        let kinds = schema["anyOf"].as_array()?;
        let kind = &kinds[0];
        let is_number = kind["type"] == "number" || kind["type"] == "integer";
        is_number.then(|| (name.clone(), kind.clone()))
    };
    properties.iter().filter_map(number).collect()
}

#[tokio::test]
async fn every_sampling_number_is_accepted_up_to_its_borders() {
    let server = server();
    let document = get(&server, "/openapi.json").await.json();
    let known = |path: &str| {
        let schema = &document["paths"][path]["post"]["requestBody"]["content"];
        schema["application/json"]["schema"]["properties"].clone()
    };
    let all = numbers(known("/v1/completions").as_object().unwrap());
    let shared: Vec<_> = all
        .into_iter()
        .filter(|(name, _)| !OTHERS.contains(&name.as_str()))
        .collect();
    assert!(shared.len() >= 21, "{shared:?}");
    for (path, body, place) in sampling() {
        for (name, schema) in &shared {
            let ask = async |value: Value| {
                let mut body = body.clone();
                match place {
                    "" => body[name] = value,
                    place => body[place][name] = value,
                }
                post(&server, path, body).await
            };
            let least = schema["minimum"].as_f64();
            let (above, most) = (
                schema["exclusiveMinimum"].as_f64(),
                schema["maximum"].as_f64(),
            );
            let whole = schema["type"] == "integer";
            let mut inside = vec![json!(1), json!(null)];
            // Zero, negative and huge, where the schema has nothing against them.
            if least.is_none_or(|least| least <= 0.0) && above.is_none() {
                inside.push(json!(0));
            }
            if least.is_none() && above.is_none() {
                inside.extend([json!(-1), json!(-7)]);
            }
            match most {
                Some(most) => inside.push(json!(most)),
                None => inside.extend([json!(5_000_000_000u64), json!(i64::MAX)]),
            }
            inside.extend(least.map(|least| json!(least)).filter(|_| !whole));
            if !whole {
                inside.push(json!(above.or(least).unwrap_or(0.0).max(0.0) + 1e-30));
                inside.push(json!(1e-9 + above.or(least).unwrap_or(0.0).max(0.0)));
            }
            for value in inside {
                let reply = ask(value.clone()).await;
                assert_eq!(reply.status, 200, "{path} {name} {value}: {}", reply.text);
            }
            let mut outside = vec![json!("warm"), json!([1])];
            outside.extend(least.map(|least| {
                if whole {
                    json!(least as i64 - 1)
                } else {
                    json!(least - 0.5 - least.abs() / 2.0)
                }
            }));
            outside.extend(above.map(|above| json!(above)));
            outside.extend(most.map(|most| json!(most * 1.5 + 1.0)));
            if !whole {
                outside.push(json!(1e200));
            }
            if whole {
                outside.push(json!(1.5));
            }
            for value in outside {
                let reply = ask(value.clone()).await;
                assert_eq!(reply.status, 400, "{path} {name} {value}: {}", reply.text);
                assert!(reply.text.contains(name.as_str()), "{}", reply.text);
            }
        }
    }
}

/// The text of an answer, and its number of tokens.
fn answer(path: &str, reply: &Value) -> (String, u64) {
    let (text, count) = match path {
        "/v1/chat/completions" => ("/choices/0/message/content", "/usage/completion_tokens"),
        "/v1/completions" => ("/choices/0/text", "/usage/completion_tokens"),
        "/v1/responses" => ("/output/0/content/0/text", "/usage/output_tokens"),
        "/v1/messages" => ("/content/0/text", "/usage/output_tokens"),
        "/completion" => ("/content", "/tokens_predicted"),
        "/api/chat" => ("/message/content", "/eval_count"),
        _ => ("/response", "/eval_count"),
    };
    let text = reply.pointer(text).and_then(Value::as_str);
    let count = reply.pointer(count).and_then(Value::as_u64);
    (text.unwrap_or_default().to_string(), count.unwrap())
}

async fn text_with(
    server: &Router,
    path: &str,
    mut body: Value,
    place: &str,
    more: &Value,
) -> String {
    let fields = match place {
        "" => &mut body,
        place => &mut body[place],
    };
    // So warm that a filter changes the text.
    for (name, value) in [("temperature", json!(1.4)), ("repeat_penalty", json!(1.5))] {
        fields[name] = value;
    }
    for (name, limit) in [
        ("max_tokens", 24),
        ("max_output_tokens", 24),
        ("n_predict", 24),
        ("num_predict", 24),
    ] {
        if fields.get(name).is_some() {
            fields[name] = limit.into();
        }
    }
    for (name, value) in more.as_object().unwrap() {
        fields[name] = value.clone();
    }
    let reply = post(server, path, body).await;
    assert_eq!(reply.status, 200, "{path} {more}: {}", reply.text);
    answer(path, &reply.json()).0
}

#[tokio::test]
async fn values_that_mean_the_same_give_the_same_text() {
    let server = server();
    for (path, body, place) in sampling() {
        let text = async |more: Value| text_with(&server, path, body.clone(), place, &more).await;
        let plain = text(json!({})).await;
        assert!(!plain.is_empty(), "{path}");
        // Off, or without a limit.
        for same in [
            json!({ "top_k": 0 }),
            json!({ "top_k": -1 }),
            json!({ "top_k": 9_000_000_000u64 }),
            json!({ "top_p": 1 }),
            json!({ "min_p": 0 }),
            json!({ "typical_p": 1.0 }),
            json!({ "top_n_sigma": 0 }),
            json!({ "top_n_sigma": -1 }),
            json!({ "xtc_probability": 0 }),
            json!({ "dynatemp_range": 0 }),
            json!({ "dry_multiplier": 0 }),
            json!({ "presence_penalty": 0, "frequency_penalty": 0 }),
            json!({ "min_tokens": 0, "stop": [], "logit_bias": {}, "stop_token_ids": [] }),
            json!({ "repetition_penalty": 1.5 }),
            json!({ "seed": 3 }),
        ] {
            assert_eq!(text(same.clone()).await, plain, "{path} {same}");
        }
        // All recent tokens, however it is said; and none.
        let all = text(json!({ "repeat_last_n": -1 })).await;
        assert_eq!(
            text(json!({ "repeat_last_n": 9_000_000_000u64 })).await,
            all,
            "{path}"
        );
        let none = text(json!({ "repeat_last_n": 0 })).await;
        assert_eq!(text(json!({ "repeat_penalty": 1 })).await, none, "{path}");
        assert_ne!(all, none, "{path}");
        // The likeliest token, however it is said.
        let greedy = text(json!({ "temperature": 0 })).await;
        for same in [
            json!({ "top_k": 1 }),
            json!({ "top_p": 0 }),
            json!({ "min_p": 1 }),
            json!({ "temperature": 1e-30 }),
        ] {
            assert_eq!(text(same.clone()).await, greedy, "{path} {same}");
        }
        assert_ne!(plain, greedy, "{path}");
        let other = text(json!({ "seed": 4 })).await;
        assert_ne!(plain, other, "{path}");
        // Huge values leave an answer.
        for huge in [
            json!({ "temperature": 3e38 }),
            json!({ "frequency_penalty": 3e38 }),
            json!({ "presence_penalty": -3e38 }),
            json!({ "repeat_penalty": 3e38 }),
            json!({ "repeat_penalty": 1e-38 }),
            json!({ "dry_multiplier": 3e38, "dry_base": 3e38 }),
            json!({ "dynatemp_range": 3e38, "dynatemp_exponent": 3e38 }),
            json!({ "top_n_sigma": 3e38 }),
            json!({ "min_tokens": u64::MAX }),
            json!({ "logit_bias": { "5": 3e38, "6": -3e38 } }),
        ] {
            text(huge).await;
        }
    }
}

#[tokio::test]
async fn limits_of_tokens_follow_their_api() {
    let server = server();
    // What a value does: refused, a number of tokens, or as if there were no limit.
    const REFUSED: Option<u64> = None;
    const OPEN: u64 = u64::MAX;
    for (path, name, cases) in [
        (
            "/v1/chat/completions",
            "max_tokens",
            [
                (-1, REFUSED),
                (0, Some(0)),
                (3, Some(3)),
                (i64::MAX, Some(OPEN)),
            ],
        ),
        (
            "/v1/chat/completions",
            "max_completion_tokens",
            [
                (-1, REFUSED),
                (0, Some(0)),
                (3, Some(3)),
                (i64::MAX, Some(OPEN)),
            ],
        ),
        (
            "/v1/completions",
            "max_tokens",
            [
                (-1, REFUSED),
                (0, Some(0)),
                (3, Some(3)),
                (i64::MAX, Some(OPEN)),
            ],
        ),
        (
            "/v1/responses",
            "max_output_tokens",
            [
                (-1, REFUSED),
                (0, Some(0)),
                (3, Some(3)),
                (i64::MAX, Some(OPEN)),
            ],
        ),
        (
            "/v1/messages",
            "max_tokens",
            [
                (-1, REFUSED),
                (0, Some(0)),
                (3, Some(3)),
                (i64::MAX, Some(OPEN)),
            ],
        ),
        (
            "/completion",
            "n_predict",
            [
                (-1, Some(OPEN)),
                (0, Some(0)),
                (3, Some(3)),
                (i64::MAX, Some(OPEN)),
            ],
        ),
        (
            "/api/chat",
            "num_predict",
            [
                (-1, Some(OPEN)),
                (0, Some(OPEN)),
                (3, Some(3)),
                (-2, Some(OPEN)),
            ],
        ),
        (
            "/api/generate",
            "num_predict",
            [
                (-1, Some(OPEN)),
                (0, Some(OPEN)),
                (3, Some(3)),
                (i64::MAX, Some(OPEN)),
            ],
        ),
    ] {
        let (_, body, place) = sampling().into_iter().find(|one| one.0 == path).unwrap();
        for (value, expected) in cases {
            let mut body = body.clone();
            let fields = match place {
                "" => &mut body,
                place => &mut body[place],
            };
            let former = [
                "max_tokens",
                "max_output_tokens",
                "n_predict",
                "num_predict",
            ];
            former.iter().for_each(|name| {
                fields.as_object_mut().unwrap().remove(*name);
            });
            fields[name] = value.into();
            let reply = post(&server, path, body).await;
            let Some(expected) = expected else {
                assert_eq!(reply.status, 400, "{path} {name} {value}");
                assert!(reply.text.contains(name), "{}", reply.text);
                continue;
            };
            assert_eq!(reply.status, 200, "{path} {name} {value}: {}", reply.text);
            let count = answer(path, &reply.json()).1;
            match expected {
                OPEN => assert!(count > 16, "{path} {name} {value}: {count}"),
                expected => assert_eq!(count, expected, "{path} {name} {value}"),
            }
        }
    }
}

#[tokio::test]
async fn ollamas_other_numbers_have_borders_too() {
    let server = server();
    for (field, value, status) in [
        ("num_ctx", json!(-1), 400),
        ("num_ctx", json!(0), 200),
        ("num_ctx", json!(512), 200),
        ("num_ctx", json!(513), 400),
        ("num_ctx", json!(u64::MAX), 400),
        ("num_ctx", json!(null), 200),
        ("seed", json!(-1), 200),
        ("seed", json!(0), 200),
        ("seed", json!(u64::MAX), 200),
        ("seed", json!(1.5), 400),
        ("num_keep", json!(-1), 200),
        ("num_keep", json!(u64::MAX), 200),
        ("num_gpu", json!(-1), 200),
        ("num_thread", json!(0), 200),
        ("mirostat", json!(0), 200),
        ("mirostat", json!(2), 400),
    ] {
        for path in ["/api/chat", "/api/generate"] {
            let mut body = json!({
                "model": "demo", "messages": messages(), "prompt": "Once", "stream": false,
                "options": { "num_predict": 1 },
            });
            body["options"][field] = value.clone();
            let reply = post(&server, path, body).await;
            assert_eq!(
                reply.status, status,
                "{path} {field} {value}: {}",
                reply.text
            );
            assert!(
                status == 200 || reply.text.contains(field),
                "{}",
                reply.text
            );
        }
    }
    for (value, status) in [
        (json!(-1), 200),
        (json!(0), 200),
        (json!("0"), 200),
        (json!("-1m"), 200),
        (json!("5m"), 200),
        (json!(1e300), 200),
        (json!("soon"), 400),
        (json!(true), 400),
    ] {
        let body = json!({ "model": "demo", "keep_alive": value });
        let reply = post(&server, "/api/generate", body).await;
        assert_eq!(reply.status, status, "{value}: {}", reply.text);
    }
}

/// What schemathesis tries: bodies that `/openapi.json` allows are answered, and others are not.
#[tokio::test]
async fn the_description_and_the_server_agree() {
    let server = server();
    let user = json!([{ "role": "user", "content": "Hi" }]);
    let system = json!([{ "role": "system", "content": "" }]);
    for (path, body, status) in [
        (
            "/v1/chat/completions/input_tokens",
            json!({ "messages": user, "n": 64 }),
            200,
        ),
        (
            "/v1/chat/completions/input_tokens",
            json!({ "messages": user, "n": 65 }),
            400,
        ),
        (
            "/v1/messages/count_tokens",
            json!({ "messages": system }),
            200,
        ),
        ("/v1/messages/count_tokens", json!({ "messages": [] }), 400),
        ("/api/embed", json!({ "model": "demo", "input": "" }), 200),
        ("/api/embed", json!({ "model": "demo", "input": [] }), 200),
        (
            "/api/embeddings",
            json!({ "model": "demo", "prompt": "" }),
            200,
        ),
        (
            "/api/chat",
            json!({ "model": "demo", "messages": [], "tools": [1] }),
            400,
        ),
        ("/api/show", json!({ "model": "demo", "verbose": {} }), 400),
        (
            "/api/show",
            json!({ "model": "demo", "verbose": true }),
            200,
        ),
        (
            "/v1/responses",
            json!({ "input": "a", "max_output_tokens": 1, "include": [""] }),
            400,
        ),
        (
            "/completion",
            json!({ "prompt": "a", "n_predict": 1, "samplers": ["top_k", "min_p"] }),
            200,
        ),
        (
            "/completion",
            json!({ "prompt": "a", "n_predict": 1, "samplers": [""] }),
            400,
        ),
    ] {
        let reply = post(&server, path, body.clone()).await;
        assert_eq!(reply.status, status, "{path} {body}: {}", reply.text);
    }
    let metered = with(|options| options.metrics = true);
    let described = get(&metered, "/openapi.json").await.json();
    for (path, kind, schema) in [
        ("/metrics", "text/plain", json!({ "type": "string" })),
        ("/slots", "application/json", json!({ "type": "array" })),
    ] {
        let content = &described["paths"][path]["get"]["responses"]["200"]["content"];
        assert_eq!(content[kind]["schema"], schema, "{path}");
    }
    let answer = |path: &str| {
        let content = &described["paths"][path]["post"]["responses"]["200"]["content"];
        content["application/json"]["schema"].clone()
    };
    let chat = answer("/v1/chat/completions");
    assert!(
        chat["required"]
            .as_array()
            .unwrap()
            .contains(&"choices".into())
    );
    assert_eq!(answer("/completion")["anyOf"][1]["type"], "array");
    // What no model here can do.
    for path in ["/infill", "/v1/rerank"] {
        assert!(described["paths"].get(path).is_none(), "{path}");
    }
    let strict = with(|options| options.strict = true);
    let strict = get(&strict, "/openapi.json").await.json();
    let body = |described: &Value, path: &str| {
        let body = &described["paths"][path]["post"]["requestBody"];
        body["content"]["application/json"]["schema"]["required"].clone()
    };
    let path = "/v1/chat/completions";
    assert_eq!(body(&described, path), json!(["messages"]));
    let mut required = body(&strict, path);
    required
        .as_array_mut()
        .unwrap()
        .sort_by_key(Value::to_string);
    assert_eq!(required, json!(["messages", "model"]));
    let schemas = &described["components"]["schemas"];
    let has = |name: &str, value: &str| {
        schemas[name]["enum"]
            .as_array()
            .unwrap()
            .contains(&value.into())
    };
    assert!(has("Sampler", "top_k") && has("Include", "message.output_text.logprobs"));
    let chat = &described["paths"]["/v1/chat/completions"]["post"]["requestBody"];
    assert!(chat["content"]["application/json"]["schema"]["anyOf"].is_array());
}
