//! Tokenizers against the ids that the reference packages give (tools/text-fixtures), and against bad files.

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use welte_text::pretokenizers::{PRE_TOKENIZERS, REFUSED, named};
use welte_text::{InfillTokens, Tokenizer, Vocabulary};

fn fixture(name: &str) -> Value {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name);
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn cases(fixture: &Value) -> Vec<(String, Vec<u32>)> {
    let ids = |case: &Value| {
        case["ids"]
            .as_array()
            .unwrap()
            .iter()
            .map(|id| id.as_u64().unwrap() as u32)
            .collect()
    };
    let all = fixture["cases"].as_array().unwrap();
    all.iter()
        .map(|case| (case["text"].as_str().unwrap().to_owned(), ids(case)))
        .collect()
}

/// What a converter would write of a `tokenizer.json`.
fn vocabulary_of(fixture: &Value) -> Vocabulary {
    let json = &fixture["tokenizer"];
    let vocab = json["model"]["vocab"].as_object().unwrap();
    let added = json["added_tokens"].as_array().unwrap();
    let size = vocab.len().max(
        added
            .iter()
            .map(|token| token["id"].as_u64().unwrap() as usize + 1)
            .max()
            .unwrap(),
    );
    let mut vocabulary = Vocabulary {
        model: "gpt2".into(),
        pre: Some(fixture["pre"].as_str().unwrap().into()),
        tokens: vec![String::new(); size],
        token_types: vec![1; size],
        ..Vocabulary::default()
    };
    for (text, id) in vocab {
        vocabulary.tokens[id.as_u64().unwrap() as usize] = text.clone();
    }
    for token in added {
        let id = token["id"].as_u64().unwrap() as usize;
        vocabulary.tokens[id] = token["content"].as_str().unwrap().into();
        vocabulary.token_types[id] = if token["special"] == true { 3 } else { 4 };
    }
    vocabulary.bos = vocabulary
        .tokens
        .iter()
        .position(|text| text == "<|begin|>")
        .map(|id| id as u32);
    let merges = json["model"]["merges"].as_array().unwrap();
    vocabulary.merges = merges
        .iter()
        .map(|merge| {
            format!(
                "{} {}",
                merge[0].as_str().unwrap(),
                merge[1].as_str().unwrap()
            )
        })
        .collect();
    vocabulary
}

/// Every kind of vocabulary, read back from what it is written as.
#[test]
fn vocabularies_are_written_as_json() {
    let mut all: Vec<(&str, Tokenizer, Value)> = Vec::new();
    for name in ["bpe-gpt-2", "bpe-llama-bpe", "bpe-qwen2", "bpe-starcoder"] {
        let fixture = fixture(&format!("{name}.json"));
        let tokenizer = Tokenizer::from_vocabulary(vocabulary_of(&fixture)).unwrap();
        all.push((name, tokenizer, fixture));
    }
    for name in ["sentencepiece", "sentencepiece-no-prefix"] {
        let (vocabulary, fixture) = sentence_piece(&format!("{name}.json"));
        all.push((
            name,
            Tokenizer::from_vocabulary(vocabulary).unwrap(),
            fixture,
        ));
    }
    for (name, tokenizer, fixture) in all {
        let written = tokenizer.to_json();
        let backend = tokenizers::Tokenizer::from_bytes(written.to_string())
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let read = Tokenizer::from_json(&written.to_string(), None).unwrap();
        for (text, _) in cases(&fixture) {
            for special in [false, true] {
                let own = tokenizer.encode(&text, special, true).unwrap();
                assert_eq!(
                    read.encode(&text, special, true).unwrap(),
                    own,
                    "{name}: {text:?}"
                );
                let encoded = backend.encode(text.as_str(), special).unwrap();
                assert_eq!(
                    encoded.get_ids(),
                    own,
                    "{name}: {text:?} with the crate tokenizers"
                );
            }
            let tokens = tokenizer.encode(&text, false, true).unwrap();
            let decoded = backend.decode(&tokens, true).unwrap();
            assert_eq!(decoded, tokenizer.decode(&tokens), "{name}: {text:?}");
        }
    }
}

/// A `tokenizer.json` as the fields of a GGUF file gives the same tokens.
#[test]
fn vocabularies_are_written_as_gguf() {
    let mut all: Vec<(&str, Tokenizer, Value)> = Vec::new();
    for name in ["bpe-gpt-2", "bpe-llama-bpe", "bpe-qwen2", "bpe-starcoder"] {
        let fixture = fixture(&format!("{name}.json"));
        let tokenizer = Tokenizer::from_json(&fixture["tokenizer"].to_string(), None).unwrap();
        all.push((name, tokenizer, fixture));
    }
    for name in ["sentencepiece", "sentencepiece-no-prefix"] {
        let (vocabulary, fixture) = sentence_piece(&format!("{name}.json"));
        let json = Tokenizer::from_vocabulary(vocabulary).unwrap().to_json();
        let tokenizer = Tokenizer::from_json(&json.to_string(), None).unwrap();
        all.push((name, tokenizer, fixture));
    }
    for (name, tokenizer, fixture) in all {
        let written = tokenizer
            .to_vocabulary()
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        if let Some(pre) = fixture.get("pre") {
            let named = |name: &str| welte_text::pretokenizers::named(name).unwrap();
            let pre = pre.as_str().unwrap();
            assert_eq!(named(written.pre.as_deref().unwrap()), named(pre), "{name}");
        }
        let read = Tokenizer::from_vocabulary(written).unwrap();
        assert_eq!(read.vocab_size(), tokenizer.vocab_size(), "{name}");
        for (text, _) in cases(&fixture) {
            for special in [false, true] {
                let own = tokenizer.encode(&text, special, special).unwrap();
                let other = read.encode(&text, special, special).unwrap();
                assert_eq!(other, own, "{name}: {text:?}");
            }
        }
    }
}

#[test]
fn what_gguf_cannot_express_is_refused() {
    let refusal = |json: &Value| {
        let tokenizer = Tokenizer::from_json(&json.to_string(), None).unwrap();
        tokenizer.to_vocabulary().unwrap_err().to_string()
    };
    let mut json = fixture("bpe-qwen2.json")["tokenizer"].take();
    let steps = &mut json["pre_tokenizer"]["pretokenizers"];
    steps[0]["pattern"]["Regex"] = Value::from(r"[a-f]+|\s+|.");
    let problem = refusal(&json);
    assert!(problem.contains("no known pre-tokenizer"), "{problem}");
    let problem = refusal(&fixture("unigram.json")["tokenizer"]);
    assert!(problem.contains("byte-pair"), "{problem}");
    let mut lower = fixture("bpe-gpt-2.json")["tokenizer"].take();
    lower["normalizer"] = serde_json::json!({ "type": "Lowercase" });
    let problem = refusal(&lower);
    assert!(problem.contains("would be"), "{problem}");
}

fn sentence_piece(name: &str) -> (Vocabulary, Value) {
    let fixture = fixture(name);
    let list = |field: &str| fixture[field].as_array().unwrap().clone();
    let vocabulary = Vocabulary {
        model: "llama".into(),
        tokens: list("tokens")
            .iter()
            .map(|text| text.as_str().unwrap().to_owned())
            .collect(),
        scores: list("scores")
            .iter()
            .map(|score| score.as_f64().unwrap() as f32)
            .collect(),
        token_types: list("token_types")
            .iter()
            .map(|kind| kind.as_i64().unwrap() as i32)
            .collect(),
        add_space_prefix: fixture["add_space_prefix"].as_bool(),
        ..Vocabulary::default()
    };
    (vocabulary, fixture)
}

/// What a converter would write of XLM-R's `tokenizer.json`.
fn unigram() -> (Vocabulary, Value) {
    let fixture = fixture("unigram.json");
    let json = &fixture["tokenizer"];
    let entries = json["model"]["vocab"].as_array().unwrap();
    let unknown = json["model"]["unk_id"].as_u64().unwrap() as usize;
    let mut token_types = vec![1; entries.len()];
    token_types[unknown] = 2;
    for token in json["added_tokens"].as_array().unwrap() {
        token_types[token["id"].as_u64().unwrap() as usize] = 3;
    }
    let bytes = fixture["charsmap"].as_array().unwrap().iter();
    let vocabulary = Vocabulary {
        model: "t5".into(),
        tokens: entries
            .iter()
            .map(|entry| entry[0].as_str().unwrap().to_owned())
            .collect(),
        scores: entries
            .iter()
            .map(|entry| entry[1].as_f64().unwrap() as f32)
            .collect(),
        token_types,
        bos: Some(0),
        eos: Some(2),
        unk: Some(unknown as u32),
        add_bos: Some(true),
        add_eos: Some(true),
        add_space_prefix: Some(true),
        remove_extra_whitespaces: Some(true),
        charsmap: bytes.map(|byte| byte.as_u64().unwrap() as u8).collect(),
        ..Vocabulary::default()
    };
    (vocabulary, fixture)
}

const BYTE_LEVEL: [&str; 4] = [
    "bpe-gpt-2.json",
    "bpe-qwen2.json",
    "bpe-llama-bpe.json",
    "bpe-starcoder.json",
];

#[test]
fn byte_level_gives_the_reference_ids_from_either_source() {
    for name in BYTE_LEVEL {
        let fixture = fixture(name);
        let json = Tokenizer::from_json(&fixture["tokenizer"].to_string(), None).unwrap();
        let gguf = Tokenizer::from_vocabulary(vocabulary_of(&fixture)).unwrap();
        assert_eq!(gguf.vocab_size(), json.vocab_size(), "{name}");
        for (text, ids) in cases(&fixture) {
            assert_eq!(
                json.encode(&text, true, true).unwrap(),
                ids,
                "{name} json {text:?}"
            );
            assert_eq!(
                gguf.encode(&text, true, true).unwrap(),
                ids,
                "{name} gguf {text:?}"
            );
            let plain = gguf.encode(&text, false, false).unwrap();
            assert_eq!(
                plain,
                json.encode(&text, false, false).unwrap(),
                "{name} plain {text:?}"
            );
            assert!(plain.iter().all(|&id| !gguf.is_control(id)));
            assert_eq!(gguf.decode(&plain), text, "{name}");
        }
        for id in 0..gguf.vocab_size() as u32 {
            assert_eq!(gguf.token_bytes(id), json.token_bytes(id), "{name} {id}");
            assert_eq!(gguf.token_text(id), json.token_text(id), "{name} {id}");
        }
        assert_eq!(gguf.end_tokens(), [gguf.id_of("<|im_end|>").unwrap()]);
        assert_eq!(gguf.adds_bos(), name == "bpe-llama-bpe.json");
    }
}

#[test]
fn unigram_gives_the_reference_ids_from_either_source() {
    let (vocabulary, fixture) = unigram();
    let json = Tokenizer::from_json(&fixture["tokenizer"].to_string(), None).unwrap();
    let gguf = Tokenizer::from_vocabulary(vocabulary.clone()).unwrap();
    for (text, ids) in cases(&fixture) {
        for tokenizer in [&json, &gguf] {
            assert_eq!(
                tokenizer.encode(&text, true, true).unwrap(),
                ids,
                "{text:?}"
            );
        }
        // Text never becomes a control token unless that is asked for.
        let plain = gguf.encode(&text, false, false).unwrap();
        assert!(plain.iter().all(|&id| !gguf.is_control(id)), "{text:?}");
    }
    let round = |text: &str| gguf.decode(&gguf.encode(text, true, false).unwrap());
    assert_eq!(round("  a fox,  the\triver "), "a fox, the river");
    let (pair, second) = gguf.encode_pair("a fox", "the river").unwrap();
    assert_eq!(
        json.encode_pair("a fox", "the river").unwrap(),
        (pair.clone(), second)
    );
    assert_eq!(pair[second - 2..second], [2, 2]);
    // Scores decide: a token that is unlikely gives way to its parts.
    let word = gguf.encode(" fox", false, true).unwrap();
    let longest = *word
        .iter()
        .max_by_key(|&&id| gguf.token_text(id).len())
        .unwrap();
    let mut other = vocabulary;
    other.scores[longest as usize] = -1e6;
    let other = Tokenizer::from_vocabulary(other).unwrap();
    let parts = other.encode(" fox", false, true).unwrap();
    assert!(!parts.contains(&longest) && other.decode(&parts) == "fox");
}

#[test]
fn bad_unigram_vocabularies_are_refused_with_the_field() {
    let refusal = |change: fn(&mut Vocabulary)| {
        let mut vocabulary = unigram().0;
        change(&mut vocabulary);
        let made = Tokenizer::from_vocabulary(vocabulary);
        made.unwrap_err().to_string()
    };
    assert!(refusal(|v| v.scores.clear()).contains("tokenizer.ggml.scores: is missing"));
    assert!(refusal(|v| v.tokens[9].clear()).contains("token 9 is empty"));
    let no_unknown = refusal(|v| {
        v.unk = None;
        v.token_types[3] = 1;
    });
    assert!(no_unknown.contains("tokenizer.ggml.unknown_token_id"));
    assert!(refusal(|v| v.add_space_prefix = Some(false)).contains("add_space_prefix"));
    for change in [
        (|v| v.charsmap.truncate(3)) as fn(&mut Vocabulary),
        |v| v.charsmap[..4].fill(0),
        |v| v.charsmap[..4].fill(0xff),
        |v| v.charsmap[..4].copy_from_slice(&7u32.to_le_bytes()),
        |v| v.charsmap.extend([0xff, 0]),
    ] {
        let problem = refusal(change);
        assert!(problem.contains("tokenizer.ggml.precompiled_charsmap"));
        assert!(problem.contains("is not a map of characters"), "{problem}");
    }
    // A character may become a word, and not a page.
    let long = |v: &mut Vocabulary| v.charsmap.extend([&[b'x'; 10_000][..], &[0]].concat());
    assert!(refusal(long).contains("has a replacement of 10000 bytes"));
    // A tree that points anywhere is an error of the text that meets it, or has no effect.
    let mut wrong = unigram().0;
    wrong.charsmap[4..400].fill(0x7f);
    let wrong = Tokenizer::from_vocabulary(wrong).unwrap();
    let _ = wrong.encode("a fox \u{3000} ½", true, true);
}

#[test]
fn sentence_piece_gives_the_reference_ids() {
    for name in ["sentencepiece.json", "sentencepiece-no-prefix.json"] {
        let (vocabulary, fixture) = sentence_piece(name);
        let tokenizer = Tokenizer::from_vocabulary(vocabulary).unwrap();
        for (text, ids) in cases(&fixture) {
            assert_eq!(
                tokenizer.encode(&text, false, false).unwrap(),
                ids,
                "{name} {text:?}"
            );
            let round = text.replace('\u{2581}', " ");
            assert_eq!(tokenizer.decode(&ids), round, "{name}");
        }
        let with = tokenizer.encode("fox", true, false).unwrap();
        assert_eq!(with[0], tokenizer.bos().unwrap());
        assert_eq!(tokenizer.token_text(with[0]), "<s>");
        assert_eq!(tokenizer.token_bytes(with[0]), b"");
        assert_eq!(tokenizer.end_tokens(), [tokenizer.id_of("</s>").unwrap()]);
        let newline = tokenizer.id_of("<0x0A>").unwrap();
        assert_eq!(tokenizer.token_bytes(newline), b"\n");
    }
}

#[test]
fn listed_pieces_give_the_reference_ids() {
    let fixture = fixture("listed-pieces.json");
    let texts = |field: &str| -> Vec<String> {
        let list = fixture[field].as_array().unwrap();
        list.iter().map(|v| v.as_str().unwrap().into()).collect()
    };
    let kinds = fixture["token_types"].as_array().unwrap();
    let tokenizer = Tokenizer::from_vocabulary(Vocabulary {
        model: "gemma4".into(),
        tokens: texts("tokens"),
        merges: texts("merges"),
        token_types: kinds.iter().map(|k| k.as_i64().unwrap() as i32).collect(),
        bos: Some(2),
        eos: Some(1),
        ..Vocabulary::default()
    })
    .unwrap();
    for (text, ids) in cases(&fixture) {
        let got = tokenizer.encode(&text, false, true).unwrap();
        assert_eq!(got, ids, "{text:?}");
        let plain = tokenizer.encode(&text, false, false).unwrap();
        assert_eq!(tokenizer.decode(&plain), text.replace('\u{2581}', " "));
    }
    let with = tokenizer.encode("fox", true, false).unwrap();
    assert_eq!(tokenizer.token_text(with[0]), "<bos>");
    let breaks = tokenizer.encode("a\n\n\nb", false, false).unwrap();
    assert_eq!(breaks.len(), 3, "a run of newlines is one token");
}

#[test]
fn control_tokens_in_a_text_are_parsed_only_on_request() {
    let (vocabulary, _) = sentence_piece("sentencepiece.json");
    let tokenizer = Tokenizer::from_vocabulary(vocabulary).unwrap();
    assert_eq!(
        tokenizer.encode("</s>", false, true).unwrap(),
        tokenizer.end_tokens()
    );
    assert!(
        !tokenizer
            .encode("</s>", false, false)
            .unwrap()
            .contains(&tokenizer.eos().unwrap())
    );
}

#[test]
fn configuration_names_the_special_tokens() {
    let fixture = fixture("bpe-qwen2.json");
    let config =
        r#"{"bos_token": null, "eos_token": {"content": "<|im_end|>"}, "add_eos_token": true}"#;
    let tokenizer = Tokenizer::from_json(&fixture["tokenizer"].to_string(), Some(config)).unwrap();
    assert_eq!(tokenizer.eos(), tokenizer.id_of("<|im_end|>"));
    assert_eq!(tokenizer.bos(), None);
    assert_eq!(
        tokenizer.encode("", true, true).unwrap(),
        [tokenizer.eos().unwrap()]
    );
}

#[test]
fn word_piece_marks_continuations() {
    let tokens = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "\u{2581}fox",
        "es",
        "\u{2581}river",
        "\u{2581}!",
    ];
    let vocabulary = Vocabulary {
        model: "bert".into(),
        tokens: tokens.map(str::to_owned).to_vec(),
        token_types: vec![3, 2, 3, 3, 1, 1, 1, 1],
        bos: Some(2),
        sep: Some(3),
        unk: Some(1),
        ..Vocabulary::default()
    };
    let tokenizer = Tokenizer::from_vocabulary(vocabulary.clone()).unwrap();
    assert_eq!(
        tokenizer.encode("Foxes river!", true, false).unwrap(),
        [2, 4, 5, 6, 7, 3]
    );
    assert_eq!(tokenizer.encode("bear", false, false).unwrap(), [1]);
    assert_eq!(tokenizer.decode(&[4, 5, 6]), " foxes river");
    // Files name the first and the last token in different keys, or in none.
    for (bos, cls, sep) in [
        (None, Some(2), Some(3)),
        (Some(0), Some(2), Some(3)),
        (None, None, None),
    ] {
        let vocabulary = Vocabulary {
            bos,
            cls,
            sep,
            ..vocabulary.clone()
        };
        let tokenizer = Tokenizer::from_vocabulary(vocabulary).unwrap();
        assert_eq!(
            tokenizer.encode("fox", true, false).unwrap(),
            [2, 4, 3],
            "{bos:?} {cls:?}"
        );
        assert_eq!(tokenizer.bos(), Some(2));
    }
}

#[test]
fn stages_that_lengthen_a_text_without_end_are_refused() {
    let fixture = fixture("bpe-qwen2.json");
    let load = |part: &str, stage: Value| {
        let mut json = fixture["tokenizer"].clone();
        json[part] = stage;
        Tokenizer::from_json(&json.to_string(), None).map_err(|error| error.to_string())
    };
    let replace = |pattern: Value, content: &str| json!({"type": "Replace", "pattern": pattern, "content": content});
    let sequence =
        |stage: Value, count: usize| json!({"type": "Sequence", "normalizers": vec![stage; count]});
    let refused = |part: &str, stage: Value, place: &str| {
        let error = load(part, stage).unwrap_err();
        assert!(
            error.starts_with(&format!("tokenizer.json: {place}")),
            "{error}"
        );
    };
    let doubled = replace(json!({"String": "a"}), "aa");
    refused(
        "normalizer",
        sequence(doubled.clone(), 40),
        "normalizer.normalizers[6]",
    );
    refused(
        "normalizer",
        sequence(sequence(doubled, 2), 20),
        "normalizer.normalizers[3].normalizers[0]",
    );
    refused(
        "normalizer",
        sequence(json!({"type": "ByteLevel"}), 40),
        "normalizer.normalizers",
    );
    refused(
        "normalizer",
        sequence(json!({"type": "Prepend", "prepend": "ab"}), 40),
        "normalizer.normalizers",
    );
    refused(
        "normalizer",
        sequence(json!({"type": "Lowercase"}), 99),
        "normalizer.normalizers[64]",
    );
    refused(
        "normalizer",
        replace(json!({"String": "a"}), &"a".repeat(999)),
        "normalizer: has a text of 999 bytes",
    );
    let levels = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    refused(
        "pre_tokenizer",
        json!({"type": "Sequence", "pretokenizers": vec![levels; 40]}),
        "pre_tokenizer.pretokenizers",
    );
    for regex in ["", "a*", "(?=a)", "(a"] {
        refused(
            "normalizer",
            replace(json!({"Regex": regex}), "b"),
            "normalizer.pattern",
        );
    }
    refused(
        "normalizer",
        replace(json!({"String": ""}), "b"),
        "normalizer.pattern",
    );
    let spaces = json!([
        {"type": "Prepend", "prepend": "\u{2581}"},
        replace(json!({"String": " "}), "\u{2581}"),
        replace(json!({"Regex": " {2,}"}), "\u{2581}"),
        {"type": "NFKC"},
    ]);
    load(
        "normalizer",
        json!({"type": "Sequence", "normalizers": spaces}),
    )
    .unwrap();
}

#[test]
fn every_pre_tokenizer_builds_and_loses_nothing() {
    let mut names: Vec<&str> = PRE_TOKENIZERS
        .iter()
        .flat_map(|row| row.names)
        .copied()
        .collect();
    let all = cases(&fixture("bpe-gpt-2.json"));
    let mut vocabulary = vocabulary_of(&fixture("bpe-gpt-2.json"));
    for row in PRE_TOKENIZERS {
        vocabulary.pre = Some(row.names[0].into());
        let tokenizer = Tokenizer::from_vocabulary(vocabulary.clone()).unwrap();
        for (text, _) in &all {
            let ids = tokenizer.encode(text, false, false).unwrap();
            assert_eq!(&tokenizer.decode(&ids), text, "{}", row.names[0]);
        }
    }
    names.sort_unstable();
    let count = names.len();
    names.dedup();
    assert_eq!(names.len(), count, "a name is there twice");
    let error = named("brand-new").unwrap_err().to_string();
    assert!(
        error.contains("brand-new") && error.contains("llama-bpe") && error.contains("qwen2"),
        "{error}"
    );
}

/// The names that llama.cpp knew in November 2026.
const LLAMA_CPP: &str = "a.x-4.0 afmoe bailingmoe bailingmoe2 bloom chameleon chatglm-bpe codeshell cohere2moe command-r dbrx \
    deepseek-coder deepseek-llm deepseek-r1-qwen deepseek-v3 default exaone exaone-moe exaone4 f2llmv2 falcon falcon-h1 falcon3 \
    gemma4 gigachat glm4 glm5 gpt-2 gpt-4o gpt3-finnish granite-docling granite-embed-multi-311m granite-embed-multi-97m grok-2 \
    hunyuan hunyuan-dense hy_v4 jais jais-2 jina-de jina-es jina-v1-en jina-v2-code jina-v2-de jina-v2-es jina-v5-nano joyai-llm \
    kanana2 kimi-k2 kormo laguna lfm2 llada-moe llama-bpe llama-v3 llama3 llama4 megrez mellum mellum2 midm-2.0 minerva-7b \
    minicpm5 minimax-m2 modern-bert mpt olmo phi-2 pixtral poro-chat qwen2 qwen35 refact roberta-bpe sarvam-moe seed-coder \
    smaug-bpe smollm solar-open spark2_5 stablelm2 starcoder superbpe talkie tekken tiny_aya trillion ufakzeka viking whitespace \
    youtu";

#[test]
fn llama_cpps_pre_tokenizers_are_covered_or_refused_by_name() {
    let refused: Vec<&str> = LLAMA_CPP
        .split_whitespace()
        .filter(|name| named(name).is_err())
        .collect();
    let listed: Vec<&str> = REFUSED
        .iter()
        .flat_map(|(names, _)| *names)
        .copied()
        .collect();
    assert_eq!(refused.len(), listed.len(), "{refused:?}");
    for name in refused {
        let error = named(name).unwrap_err().to_string();
        assert!(listed.contains(&name) && error.contains(name), "{error}");
        assert!(error.contains("is not supported"), "{error}");
    }
}

/// Spellings that end an answer in every vocabulary.
const ENDS: &str = "<|im_end|> <|eot_id|> <|eom_id|> <|end_of_text|> <|endoftext|> <|end|> <|eot|> <|return|> <|call|> \
    <|endofturn|> <|END_OF_TURN_TOKEN|> <end_of_turn> <end_of_utterance> <turn|> <|tool_response> \
    <start_function_response> <|observation|> <EOT> _<EOT> <｜end▁of▁sentence｜> [EOS] <eos> </s>";

/// A token ends an answer if the file says so, or by its spelling if it is a control or user-defined token.
#[test]
fn tokens_of_every_kind_end_an_answer() {
    const NORMAL: i32 = 1;
    const CONTROL: i32 = 3;
    const USER_DEFINED: i32 = 4;
    let ends =
        |spelling: &str, kind: i32, name: fn(&mut Vocabulary) -> Option<&mut Option<u32>>| {
            let mut vocabulary = small();
            vocabulary.tokens.push(spelling.into());
            vocabulary.token_types = vec![NORMAL, NORMAL, NORMAL, kind];
            if let Some(named) = name(&mut vocabulary) {
                *named = Some(3);
            }
            let tokenizer = Tokenizer::from_vocabulary(vocabulary).unwrap();
            match tokenizer.end_tokens() {
                [] => false,
                [3] => true,
                other => panic!("{spelling}: {other:?}"),
            }
        };
    for spelling in ENDS.split_whitespace() {
        for (kind, expected) in [(NORMAL, false), (CONTROL, true), (USER_DEFINED, true)] {
            assert_eq!(
                ends(spelling, kind, |_| None),
                expected,
                "{spelling} {kind}"
            );
        }
    }
    for kind in [NORMAL, CONTROL, USER_DEFINED] {
        assert!(!ends("<|mine|>", kind, |_| None));
        assert!(ends("<|mine|>", kind, |v| Some(&mut v.eos)), "{kind}");
        assert!(ends("<|mine|>", kind, |v| Some(&mut v.eot)), "{kind}");
        assert!(ends("<|mine|>", kind, |v| Some(&mut v.eom)), "{kind}");
    }
    let mut tokenizer = Tokenizer::from_vocabulary(small()).unwrap();
    // The vocabulary has three tokens.
    tokenizer.add_end_tokens(&[2, 99, 3, 0, 2]);
    assert_eq!(tokenizer.end_tokens(), [0, 2]);
}

#[test]
fn a_prompt_is_counted_with_the_tokens_before_it_and_none_behind() {
    let mut vocabulary = small();
    (vocabulary.bos, vocabulary.eos) = (Some(0), Some(1));
    (vocabulary.add_bos, vocabulary.add_eos) = (Some(true), Some(true));
    let tokenizer = Tokenizer::from_vocabulary(vocabulary).unwrap();
    for (text, count) in [("", 1), ("a", 2), ("aba", 3), ("bbb", 4)] {
        assert_eq!(tokenizer.count_prompt(text).unwrap(), count, "{text}");
        assert_eq!(tokenizer.encode(text, true, true).unwrap().len(), count + 1);
    }
    assert!(tokenizer.adds_bos());
    let plain = Tokenizer::from_vocabulary(small()).unwrap();
    assert_eq!(plain.count_prompt("aba").unwrap(), 2);
    assert!(!plain.adds_bos());
}

/// SentencePiece has fixed places for these tokens, if the vocabulary reaches so far.
#[test]
fn pieces_have_default_tokens_within_the_vocabulary() {
    let tokens = ["<unk>", "<s>", "</s>", "▁", "a"];
    for count in 1..=tokens.len() {
        let vocabulary = Vocabulary {
            model: "llama".into(),
            tokens: tokens[..count]
                .iter()
                .map(|text| (*text).to_owned())
                .collect(),
            scores: vec![0.0; count],
            add_eos: Some(true),
            ..Vocabulary::default()
        };
        let tokenizer = Tokenizer::from_vocabulary(vocabulary.clone()).unwrap();
        let bos = (count > 1).then_some(1);
        let eos = (count > 2).then_some(2);
        assert_eq!((tokenizer.bos(), tokenizer.eos()), (bos, eos), "{count}");
        let around: Vec<u32> = bos.into_iter().chain(eos).collect();
        assert_eq!(tokenizer.encode("", true, true).unwrap(), around);
        // A run of characters that it lacks is its unknown token.
        let text = tokenizer.encode("a水水", false, true).unwrap();
        let expected: &[u32] = match count {
            5 => &[3, 4, 0],
            4 => &[3, 0],
            _ => &[0],
        };
        assert_eq!(text, expected, "{count}");
        // Another unknown token by its type, or by its number.
        if count == tokens.len() {
            let mut typed = vocabulary.clone();
            typed.token_types = vec![1, 1, 2, 1, 1];
            let typed = Tokenizer::from_vocabulary(typed).unwrap();
            assert_eq!(typed.encode("水", false, true).unwrap(), [3, 2]);
            let mut numbered = vocabulary;
            (numbered.token_types, numbered.unk) = (vec![1, 1, 2, 1, 1], Some(1));
            let numbered = Tokenizer::from_vocabulary(numbered).unwrap();
            assert_eq!(numbered.encode("水", false, true).unwrap(), [3, 1]);
        }
    }
}

fn small() -> Vocabulary {
    Vocabulary {
        model: "gpt2".into(),
        pre: Some("gpt-2".into()),
        tokens: ["a", "b", "ab"].map(str::to_owned).to_vec(),
        merges: vec!["a b".into()],
        ..Vocabulary::default()
    }
}

fn refusal(change: impl FnOnce(&mut Vocabulary)) -> String {
    let mut vocabulary = small();
    change(&mut vocabulary);
    Tokenizer::from_vocabulary(vocabulary)
        .unwrap_err()
        .to_string()
}

#[test]
fn bad_vocabularies_are_refused_with_the_field() {
    assert!(Tokenizer::from_vocabulary(small()).is_ok());
    assert!(refusal(|v| v.tokens.clear()).contains("tokenizer.ggml.tokens"));
    assert!(refusal(|v| v.bos = Some(3)).contains("tokenizer.ggml.bos_token_id: is 3"));
    assert!(refusal(|v| v.scores = vec![0.0]).contains("tokenizer.ggml.scores"));
    assert!(refusal(|v| v.scores = vec![f32::NAN; 3]).contains("not a number"));
    assert!(refusal(|v| v.token_types = vec![1; 4]).contains("token_type"));
    assert!(refusal(|v| v.tokens[1] = "a".into()).contains("tokens 0 and 1 are both 'a'"));
    assert!(refusal(|v| v.merges.push("ab".into())).contains("entry 1, 'ab'"));
    assert!(refusal(|v| v.merges.push("a ".into())).contains("merges"));
    assert!(refusal(|v| v.merges.push(String::new())).contains("merges"));
    assert!(refusal(|v| v.pre = Some("what".into())).contains("unknown pre-tokenizer 'what'"));
    assert!(refusal(|v| v.model = "rwkv".into()).contains("unknown tokenizer model 'rwkv'"));
    assert!(refusal(|v| v.model = "x".repeat(1_000_000)).len() < 300);
    assert!(refusal(|v| v.model = "bert".into()).contains("unknown"));
}

const LISTED_MERGES: [&str; 4] = [
    "bpe-gpt-2.json",
    "bpe-llama-bpe.json",
    "bpe-qwen2.json",
    "bpe-starcoder.json",
];

/// A file spelt like SentencePiece: unknown characters become bytes, or one token.
fn spelled(with_bytes: bool) -> Value {
    let words = ["<unk>", "▁", "f", "o", "x", "fo", "fox", "▁fox"];
    let bytes = (0..=255).filter(|_| with_bytes);
    let bytes = bytes.map(|byte| format!("<0x{byte:02X}>"));
    let words = words.map(str::to_owned).into_iter().chain(bytes);
    let vocab: Map<String, Value> = words.zip((0..).map(|id: u32| id.into())).collect();
    json!({
        "added_tokens": [{ "id": 0, "content": "<unk>", "special": true, "normalized": false,
            "single_word": false, "lstrip": false, "rstrip": false }],
        "normalizer": { "type": "Sequence", "normalizers": [
            { "type": "Prepend", "prepend": "▁" },
            { "type": "Replace", "pattern": { "String": " " }, "content": "▁" },
        ] },
        "model": { "type": "BPE", "vocab": vocab, "merges": ["f o", "fo x", "▁ fox"],
            "byte_fallback": with_bytes, "fuse_unk": true, "unk_token": "<unk>" },
    })
}

/// Files of the usual kind have a way of their own. A dropout of 0 means nothing, but needs the backend.
#[test]
fn merges_that_are_read_fast_give_the_tokens_of_the_backend() {
    let config = json!({ "bos_token": "<|begin|>", "add_bos_token": true, "eos_token": { "content": "<|im_end|>" } });
    let config = config.to_string();
    let mut texts = ["", "fox", "fox ox水 é\u{0} f", "水火 fo", "<unk>fox", "▁"]
        .map(str::to_owned)
        .to_vec();
    let mut files = vec![spelled(false), spelled(true)];
    for name in LISTED_MERGES {
        let mut fixture = fixture(name);
        texts.extend(cases(&fixture).into_iter().map(|(text, _)| text));
        let file = fixture["tokenizer"].take();
        let mut whole_words = file.clone();
        whole_words["model"]["ignore_merges"] = true.into();
        let mut lines = file.clone();
        for merge in lines["model"]["merges"].as_array_mut().unwrap() {
            let part = |at: usize| merge[at].as_str().unwrap();
            *merge = format!("{} {}", part(0), part(1)).into();
        }
        files.extend([file, whole_words, lines]);
    }
    for (number, mut file) in files.into_iter().enumerate() {
        let read = |file: &Value| Tokenizer::from_json(&file.to_string(), Some(&config)).unwrap();
        let fast = read(&file);
        file["model"]["dropout"] = 0.0.into();
        let backend = read(&file);
        let all = |tokenizer: &Tokenizer| {
            let ids = 0..tokenizer.vocab_size() as u32;
            let token = |id| {
                let (text, bytes) = (tokenizer.token_text(id), tokenizer.token_bytes(id));
                (text.to_owned(), bytes.to_vec(), tokenizer.is_control(id))
            };
            let ends = tokenizer.end_tokens().to_vec();
            let special = (tokenizer.bos(), tokenizer.eos(), ends, tokenizer.marks());
            (ids.map(token).collect::<Vec<_>>(), special)
        };
        assert_eq!(all(&fast), all(&backend), "{number}");
        for text in &texts {
            for (around, marks) in [(true, true), (false, false)] {
                assert_eq!(
                    fast.encode(text, around, marks).unwrap(),
                    backend.encode(text, around, marks).unwrap(),
                    "{number}: {text:?}"
                );
            }
        }
    }
}

#[test]
fn bad_json_is_refused() {
    let refusal = |json: &str| Tokenizer::from_json(json, None).unwrap_err().to_string();
    assert!(refusal("").contains("tokenizer.json"));
    assert!(refusal("{}").contains("tokenizer.json"));
    assert!(refusal(&"[".repeat(100_000)).contains("tokenizer.json"));
    let model = |vocab: &str, merges: &str, more: &str| {
        format!(r#"{{"model":{{"type":"BPE","vocab":{vocab},"merges":{merges}{more}}}}}"#)
    };
    assert!(refusal(&model("{}", "[]", "")).contains("empty"));
    assert!(refusal(&model(r#"{"a":0}"#, r#"[["a","b"]]"#, "")).contains("model.merges[0]"));
    assert!(
        refusal(&model(r#"{"a":0,"b":1}"#, r#"["a b"]"#, ""))
            .contains("'ab' is not in model.vocab")
    );
    assert!(refusal(&model(r#"{"a":0,"b":1}"#, r#"["ab"]"#, "")).contains("model.merges[0]"));
    let prefixed = model(
        r#"{"a":0,"b":1}"#,
        r#"["a b"]"#,
        r###","continuing_subword_prefix":"##""###,
    );
    assert!(refusal(&prefixed).contains("model.merges[0]"));
    assert!(refusal(&model(r#"{"a":4000000000}"#, "[]", "")).contains("ids up to 4000000000"));
    let config = Tokenizer::from_json(&model(r#"{"a":0}"#, "[]", ""), Some("[")).unwrap_err();
    assert!(config.to_string().contains("tokenizer_config.json"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_vocabulary_is_taken_or_refused(
        model in prop::sample::select(vec!["gpt2", "llama", "bert", "x"]),
        tokens in prop::collection::vec("\\PC{0,4}|<0x[0-9A-F]{2}>|[ab▁]{1,4}", 0..40),
        types in prop::collection::vec(-1..8_i32, 0..40),
        merges in prop::collection::vec("[ab ]{0,5}", 0..20),
        ids in prop::collection::vec(prop::option::of(0..50_u32), 4),
        text in "\\PC{0,30}|[ab ]{0,30}",
    ) {
        let mut vocabulary = Vocabulary { model: model.into(), pre: Some("llama-bpe".into()), merges, ..Vocabulary::default() };
        let mut tokens = tokens;
        tokens.sort();
        tokens.dedup();
        vocabulary.token_types = types.into_iter().chain(std::iter::repeat(1)).take(tokens.len()).collect();
        vocabulary.scores = (0..tokens.len()).map(|i| -(i as f32)).collect();
        vocabulary.tokens = tokens;
        (vocabulary.bos, vocabulary.eos, vocabulary.unk, vocabulary.sep) = (ids[0], ids[1], ids[2], ids[3]);
        if let Ok(tokenizer) = Tokenizer::from_vocabulary(vocabulary)
            && let Ok(ids) = tokenizer.encode(&text, true, true)
        {
            prop_assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size()));
            tokenizer.decode(&ids);
        }
    }

    #[test]
    fn any_text_round_trips(text in "\\PC{0,60}|[ \\t\\r\\na-c'1-9]{0,60}") {
        thread_local! {
            static BOTH: [Tokenizer; 2] = [
                Tokenizer::from_vocabulary(vocabulary_of(&fixture("bpe-qwen2.json"))).unwrap(),
                Tokenizer::from_vocabulary(sentence_piece("sentencepiece.json").0).unwrap(),
            ];
        }
        BOTH.with(|[bpe, pieces]| {
            let ids = bpe.encode(&text, false, false).unwrap();
            assert_eq!(bpe.decode(&ids), text);
            let ids = pieces.encode(&text, false, false).unwrap();
            assert_eq!(pieces.decode(&ids), text.replace('\u{2581}', " "));
        });
    }
}

#[test]
fn a_gap_is_marked_by_the_vocabularys_tokens() {
    let mut vocabulary = vocabulary_of(&fixture("bpe-gpt-2.json"));
    let plain = Tokenizer::from_vocabulary(vocabulary.clone()).unwrap();
    assert_eq!(plain.infill_tokens(), None);
    assert_eq!(plain.encode_infill("a", "b").unwrap(), None);
    let first = vocabulary.tokens.len() as u32;
    for text in ["<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<fim_pad>"] {
        vocabulary.tokens.push(text.into());
        vocabulary.token_types.push(3);
    }
    let tokenizer = Tokenizer::from_vocabulary(vocabulary.clone()).unwrap();
    let tokens = tokenizer.encode_infill("a <fim_prefix>", "b").unwrap();
    // A mark that is spelt out is text.
    let text = |text: &str| plain.encode(text, false, false).unwrap();
    let begin = if tokenizer.adds_bos() {
        tokenizer.bos().into_iter().collect()
    } else {
        Vec::new()
    };
    let expected = [
        &begin[..],
        &[first],
        &text("a <fim_prefix>"),
        &[first + 1],
        &text("b"),
        &[first + 2],
    ];
    assert_eq!(tokens.unwrap(), expected.concat());
    let ends: Vec<u32> = (first..first + 4).collect();
    assert_eq!(tokenizer.infill_ends(), ends);
    // The file's own fields come first, and are checked.
    let mut own = InfillTokens {
        prefix: 1,
        suffix: 2,
        middle: 3,
    };
    vocabulary.infill = Some(own);
    let tokenizer = Tokenizer::from_vocabulary(vocabulary.clone()).unwrap();
    assert_eq!(tokenizer.infill_tokens(), Some(own));
    own.middle = first + 4;
    vocabulary.infill = Some(own);
    let error = Tokenizer::from_vocabulary(vocabulary).unwrap_err();
    assert!(error.to_string().contains("fim_mid_token_id"), "{error}");
}
