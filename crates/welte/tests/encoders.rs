//! Vectors and scores of encoders against transformers. The script in `tools/goldens` wrote the files.

use serde_json::Value;
use std::path::Path;
use welte::{Error, LoadOptions, Model, Pair, Pooling, Request};
use welte_formats::Value as Meta;
use welte_formats::gguf::{Kinds, Writer};
use welte_goldens::Golden;

/// The largest error of a value as a share of the largest value of its vector: with activations in F32, and with 16-bit
/// activations, queries, keys and values, as a GPU has them. 5.1e-3 was the worst seen there.
const EXACT: f32 = 2e-4;
const ON_GPU: f32 = 8e-3;

fn goldens() -> Vec<Value> {
    let list = welte_goldens::folder().join("encoders.json");
    serde_json::from_str(&std::fs::read_to_string(list).unwrap()).unwrap()
}

fn bert() -> Golden {
    Golden::new("encoders/bert")
}

fn load(path: &Path, device: &str, scores: bool, pooling: Option<Pooling>) -> Model {
    let mut options = LoadOptions::default();
    (options.device, options.threads) = (device.parse().unwrap(), Some(2));
    (options.embeddings, options.scores, options.pooling) = (!scores, scores, pooling);
    options.slots = 4;
    Model::load(&path.display().to_string(), &options, &mut |_| ()).unwrap()
}

/// The error of a load that must be refused.
fn refused(path: &Path, change: impl FnOnce(&mut LoadOptions)) -> String {
    let mut options = LoadOptions::default();
    change(&mut options);
    let loaded = Model::load(&path.display().to_string(), &options, &mut |_| ());
    loaded.err().unwrap().to_string()
}

fn floats(list: &Value) -> Vec<f32> {
    let values = list.as_array().unwrap().iter();
    values.map(|v| v.as_f64().unwrap() as f32).collect()
}

fn agree(device: &str, most: f32) {
    let goldens = goldens();
    let mut wrong = Vec::new();
    assert!(goldens.len() >= 26);
    for golden in goldens {
        let name = golden["name"].as_str().unwrap();
        let scores = golden["scores"].as_bool().unwrap();
        if golden["vectors"] == Value::Array(Vec::new()) {
            continue;
        }
        let file = Golden::new(golden["path"].as_str().unwrap());
        let model = load(file.path(), device, scores, None);
        let engine = model.engine().unwrap();
        let texts = golden["texts"].as_array().unwrap().iter();
        let begun: Vec<_> = texts
            .map(|text| {
                let tokens: Vec<u32> = floats(text).into_iter().map(|v| v as u32).collect();
                let second = name.starts_with("bert").then_some(tokens.len() / 2);
                if scores {
                    Err(engine.score(Pair { tokens, second }, None).unwrap())
                } else {
                    Ok(engine.embed(tokens, None).unwrap().unnormalised())
                }
            })
            .collect();
        let wanted = golden["vectors"].as_array().unwrap();
        for (at, (begun, want)) in begun.into_iter().zip(wanted).enumerate() {
            let want = floats(want);
            let got = match begun {
                Ok(embedding) => embedding.wait().unwrap(),
                Err(score) => vec![score.wait().unwrap()],
            };
            assert_eq!(got.len(), want.len(), "{name}");
            assert!(got.iter().all(|v| v.is_finite()), "{name}, text {at}");
            let largest = want.iter().fold(0f32, |most, v| most.max(v.abs()));
            let pairs = got.iter().zip(&want);
            let off = pairs.map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
            if off > most * largest {
                wrong.push(format!("{name}, text {at}: off by {off} of {largest}"));
            }
        }
    }
    assert!(wrong.is_empty(), "on {device}:\n{}", wrong.join("\n"));
}

/// What the tokens of texts weigh, alone and beside texts whose vectors alone are wanted.
fn weights_agree(device: &str, most: f32) {
    let goldens = goldens();
    let with_weights = goldens.iter().filter(|golden| golden["weights"].is_array());
    assert!(with_weights.clone().count() >= 5);
    for golden in with_weights {
        let name = &golden["name"];
        let file = Golden::new(golden["path"].as_str().unwrap());
        let model = load(file.path(), device, false, None);
        assert!(model.has_sparse_vectors());
        let engine = model.engine().unwrap();
        let texts = golden["texts"].as_array().unwrap().iter();
        let texts = texts.map(|text| floats(text).into_iter().map(|v| v as u32).collect());
        let texts: Vec<Vec<u32>> = texts.collect();
        let begun: Vec<_> = texts
            .iter()
            .map(|text| {
                // SPLADE has no other vectors.
                let dense = engine.embed(text.clone(), None);
                assert_eq!(dense.is_ok(), model.embedding_size() == Some(48));
                (engine.embed_sparse(text.clone(), None).unwrap(), dense)
            })
            .collect();
        for ((sparse, dense), want) in begun.into_iter().zip(golden["weights"].as_array().unwrap())
        {
            let sparse = sparse.wait().unwrap();
            let dense = dense.map_or(Vec::new(), |dense| dense.wait().unwrap());
            assert_eq!(sparse.dense, dense, "{name}");
            let want = want.as_object().unwrap();
            assert!(sparse.weights.is_sorted_by(|a, b| a.0 < b.0), "{name}");
            // A weight near 0 may be on either side of it.
            let all = want.keys().map(|token| token.parse().unwrap());
            let all = all.chain(sparse.weights.iter().map(|(token, _)| *token));
            for token in all {
                let got = sparse.weights.iter().find(|(known, _)| *known == token);
                let got = got.map_or(0.0, |(_, weight)| *weight);
                let want = want.get(&token.to_string());
                let want = want.map_or(0.0, |weight| weight.as_f64().unwrap() as f32);
                assert!(
                    (got - want).abs() <= most,
                    "{name}, token {token}: {got}, not {want}"
                );
            }
        }
    }
}

#[test]
fn the_cpu_weighs_tokens_as_transformers_does() {
    weights_agree("cpu", 1e-3);
}

#[test]
fn the_reference_weighs_tokens_as_transformers_does() {
    weights_agree("reference", 1e-3);
}

#[test]
#[ignore = "needs a GPU"]
fn a_gpu_weighs_tokens_as_transformers_does() {
    weights_agree("cuda", 3e-2);
}

#[test]
fn a_model_without_weights_of_tokens_has_no_sparse_vectors() {
    let sparse = |model: &Model| {
        let refused = model.engine().unwrap().embed_sparse(vec![7, 8], None);
        refused.err().unwrap().to_string()
    };
    let model = load(bert().path(), "cpu", false, None);
    assert!(!model.has_sparse_vectors());
    assert!(sparse(&model).contains("sparse_linear.pt"));
    // The mean of all rows is another output than the rows.
    let golden = Golden::new("encoders/bge-m3");
    let model = load(golden.path(), "cpu", false, Some(Pooling::Mean));
    assert!(!model.has_sparse_vectors());
    assert!(sparse(&model).contains("mean pooling"));
    let model = load(golden.path(), "cpu", false, Some(Pooling::Last));
    let engine = model.engine().unwrap();
    let text = vec![9, 8, 9, 7];
    let vector = engine.embed(text.clone(), None).unwrap().wait().unwrap();
    let sparse = engine.embed_sparse(text, None).unwrap().wait().unwrap();
    assert_eq!(sparse.dense, vector);
    let engine = load(golden.path(), "cpu", false, None).engine().unwrap();
    let first = engine.embed(vec![9, 8, 9, 7], None).unwrap();
    assert_ne!(first.wait().unwrap(), vector);
    assert!(matches!(
        engine.embed_sparse(vec![7; 73], None).err(),
        Some(Error::ContextFull { .. })
    ));
    assert!(matches!(
        engine.embed_sparse(vec![], None).err(),
        Some(Error::EmptyPrompt)
    ));
}

#[test]
fn pooling_of_the_vocabulary_needs_a_head() {
    for name in ["encoders/bert", "encoders/modernbert", "qwen3/hf"] {
        let problem = refused(Golden::new(name).path(), |o| {
            (o.embeddings, o.pooling) = (true, Some(Pooling::Vocabulary));
        });
        assert!(
            problem.contains("masked language model"),
            "{name}: {problem}"
        );
    }
    // With another pooling the model is an encoder like others, and says what is missing.
    let golden = Golden::new("encoders/splade-roberta");
    let model = load(golden.path(), "cpu", false, Some(Pooling::Mean));
    assert_eq!(model.embedding_size(), Some(48));
    let engine = model.engine().unwrap();
    let refused = engine.embed_sparse(vec![7, 8], None).err().unwrap();
    assert!(
        refused.to_string().contains("--pooling splade"),
        "{refused}"
    );
}

/// A prompt belongs to its task, whose change is in the weights.
#[test]
fn a_published_jina_v3_has_the_prompts_of_its_task() {
    let golden = Golden::new("encoders/jina-v3-tasks");
    let names = |model: &Model| {
        let prompts = model.vector_settings().prompts.iter();
        prompts.map(|(name, _)| name.clone()).collect::<Vec<_>>()
    };
    let model = load(golden.path(), "reference", false, None);
    assert_eq!(names(&model), ["plain", "retrieval.passage"]);
    let config = golden.path().join("config.json");
    let said = std::fs::read_to_string(&config).unwrap();
    let other = said.replace(
        "\"default_task\": \"retrieval.passage\"",
        "\"default_task\": \"x\"",
    );
    std::fs::write(&config, other).unwrap();
    let problem = refused(golden.path(), |o| o.embeddings = true);
    assert!(problem.contains("default_task"), "{problem}");
    let none = said.replace("\"default_task\"", "\"other\"");
    std::fs::write(&config, none).unwrap();
    let base = load(golden.path(), "reference", false, None);
    assert_eq!(names(&base), ["plain"]);
    let vector = |model: &Model| {
        let engine = model.engine().unwrap();
        engine.embed(vec![7, 8, 9], None).unwrap().wait().unwrap()
    };
    assert_ne!(vector(&base), vector(&model));
}

#[test]
fn other_feed_forward_parts_of_jina_are_refused() {
    let golden = Golden::new("encoders/jina-v2");
    let config = golden.path().join("config.json");
    let said = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, said.replace("geglu", "reglu")).unwrap();
    let problem = refused(golden.path(), |o| o.embeddings = true);
    assert!(problem.contains("feed_forward_type"), "{problem}");
}

/// An encoder reads a text at once, also where only its last row makes the vector.
#[test]
fn no_text_of_an_encoder_is_cut() {
    let golden = bert();
    let vectors = |together: usize| {
        let model = load(golden.path(), "cpu", false, Some(Pooling::Last));
        let engine = model.engine().unwrap();
        let text = |nth: u32| {
            (0..60)
                .map(|at| 5 + (at * 7 + nth) % 90)
                .collect::<Vec<u32>>()
        };
        let begun = (0..4).map(|nth| engine.embed(text(nth), None).unwrap());
        let mut begun: Vec<_> = begun.collect();
        begun.truncate(together);
        let vectors = begun.into_iter().map(|one| one.wait().unwrap());
        vectors.collect::<Vec<_>>()
    };
    assert_eq!(vectors(4)[0], vectors(1)[0]);
}

#[test]
fn the_cpu_agrees_with_transformers() {
    agree("cpu", EXACT);
}

#[test]
fn the_reference_agrees_with_transformers() {
    agree("reference", EXACT);
}

#[test]
#[ignore = "needs a GPU"]
fn a_gpu_agrees_with_transformers() {
    agree("cuda", ON_GPU);
}

#[test]
fn an_encoder_generates_no_text() {
    let model = load(bert().path(), "cpu", false, None);
    assert!(model.is_encoder() && !model.scores_pairs());
    let engine = model.engine().unwrap();
    let refused = engine.submit(Request::new(vec![5, 6])).err();
    assert!(matches!(refused, Some(Error::NoText { .. })));
    assert!(matches!(model.stepper().err(), Some(Error::NoText { .. })));
}

#[test]
fn texts_have_at_most_the_models_positions() {
    let golden = bert();
    let model = load(golden.path(), "cpu", false, None);
    assert_eq!(model.context(), 72);
    let engine = model.engine().unwrap();
    assert!(engine.embed(vec![7; 72], None).unwrap().wait().is_ok());
    let longer = engine.embed(vec![7; 73], None).err();
    assert!(matches!(longer, Some(Error::ContextFull { .. })));
    let problem = refused(golden.path(), |o| (o.context, o.embeddings) = (73, true));
    assert!(
        problem.contains("context") && problem.contains("72"),
        "{problem}"
    );
}

#[test]
fn pooling_can_be_chosen() {
    let golden = bert();
    let vector = |pooling| {
        let engine = load(golden.path(), "cpu", false, pooling).engine().unwrap();
        engine.embed(vec![9, 8, 7], None).unwrap().wait().unwrap()
    };
    assert_eq!(vector(None), vector(Some(Pooling::Mean)));
    assert_ne!(vector(None), vector(Some(Pooling::First)));
    let length: f32 = vector(None).iter().map(|v| v * v).sum();
    assert!((length - 1.0).abs() < 1e-5, "{length}");
}

#[test]
fn the_pooling_of_a_classifier_cannot_be_chosen() {
    let classifier = Golden::new("encoders/modernbert-classifier");
    let problem = refused(classifier.path(), |o| {
        (o.embeddings, o.pooling) = (true, Some(Pooling::Mean));
    });
    assert!(problem.contains("--pooling"), "{problem}");
}

/// Files of BERT may name the first token in `cls_token_id` only.
#[test]
fn texts_begin_with_the_cls_token_of_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bert.gguf");
    let text = |text: &str| Meta::String(text.to_owned());
    let tokens = ["[PAD]", "[UNK]", "<first>", "<last>", "\u{2581}fox"];
    let types = [3, 2, 3, 3, 1].map(Meta::I64);
    let metadata = [
        ("general.architecture", text("bert")),
        ("tokenizer.ggml.model", text("bert")),
        (
            "tokenizer.ggml.tokens",
            Meta::Array(tokens.map(text).to_vec()),
        ),
        ("tokenizer.ggml.token_type", Meta::Array(types.to_vec())),
        ("tokenizer.ggml.unknown_token_id", Meta::U64(1)),
        ("tokenizer.ggml.cls_token_id", Meta::U64(2)),
        ("tokenizer.ggml.seperator_token_id", Meta::U64(3)),
    ];
    let metadata = metadata.map(|(key, value)| (key.to_owned(), value)).into();
    let writer = Writer::create(&path, &metadata, &Kinds::new(), &[]).unwrap();
    writer.finish().unwrap();
    let checkpoint = welte::open(path.to_str().unwrap()).unwrap();
    let tokenizer = welte::tokenizer(checkpoint.as_ref()).unwrap();
    assert_eq!(tokenizer.encode("fox", true, false).unwrap(), [2, 4, 3]);
}

#[test]
fn a_model_without_a_classifier_scores_nothing() {
    let problem = refused(bert().path(), |o| o.scores = true);
    assert!(problem.contains("classifier"), "{problem}");
}
