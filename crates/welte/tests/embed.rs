//! Vectors of texts: they depend on the tokens alone, whatever else the engine does.

use std::time::{Duration, Instant};
use welte::{Error, LoadOptions, Model, Pooling, Request};

fn options(device: &str, slots: u32, prompt_rows: u32, embeddings: bool) -> LoadOptions {
    let mut options = LoadOptions::default();
    (options.context, options.slots, options.prompt_rows) = (256, slots, prompt_rows);
    (options.device, options.embeddings) = (device.parse().unwrap(), embeddings);
    options.threads = Some(2);
    options
}

fn load_with(options: &LoadOptions) -> Model {
    Model::load("synthetic:tiny:q8_0", options, &mut |_| ()).unwrap()
}

fn load(device: &str, slots: u32, prompt_rows: u32, embeddings: bool) -> Model {
    load_with(&options(device, slots, prompt_rows, embeddings))
}

fn text(length: usize, seed: u32) -> Vec<u32> {
    (0..length as u32)
        .map(|i| (i * 7 + seed * 13) % 250)
        .collect()
}

#[test]
fn vectors_depend_on_their_tokens_alone() {
    let texts: Vec<Vec<u32>> = [1, 2, 15, 16, 17, 40, 100, 3, 255, 256]
        .into_iter()
        .zip(0..)
        .map(|(length, seed)| text(length, seed))
        .collect();
    let alone = load("cpu", 1, 64, true);
    let embed = |text: &Vec<u32>| alone.engine().unwrap().embed(text.clone(), None)?.wait();
    let expected: Vec<Vec<f32>> = texts.iter().map(|text| embed(text).unwrap()).collect();
    for (vector, other) in expected.iter().zip(&expected[1..]) {
        let length: f32 = vector.iter().map(|v| v * v).sum();
        assert!((length - 1.0).abs() < 1e-4, "{length}");
        assert_ne!(vector, other);
    }
    // In pieces, beside others and beside answers.
    let busy = load("cpu", 4, 16, true);
    let engine = busy.engine().unwrap();
    let mut request = Request::new(text(30, 99));
    request.options.max_tokens = 64;
    let answer = engine.submit(request.clone()).unwrap();
    let embeddings: Vec<_> = texts
        .iter()
        .map(|text| engine.embed(text.clone(), None).unwrap())
        .collect();
    let text = answer.complete().unwrap().0;
    for (embedding, expected) in embeddings.into_iter().zip(&expected) {
        assert_eq!(&embedding.wait().unwrap(), expected);
    }
    assert_eq!(engine.submit(request).unwrap().complete().unwrap().0, text);
}

/// The rows of a text are the vectors of its beginnings, since a row sees only what is before it.
#[test]
fn a_pooling_takes_the_rows_of_its_name() {
    let text = text(9, 3);
    let vector = |pooling, text: &[u32]| {
        let mut options = options("cpu", 1, 32, true);
        options.pooling = pooling;
        let engine = load_with(&options).engine().unwrap();
        let embedding = engine.embed(text.to_vec(), None).unwrap();
        embedding.unnormalised().wait().unwrap()
    };
    let rows = (1..=text.len()).map(|end| vector(Some(Pooling::Last), &text[..end]));
    let rows: Vec<Vec<f32>> = rows.collect();
    let mean = (0..rows[0].len()).map(|at| {
        let sum: f32 = rows.iter().map(|row| row[at]).sum();
        sum / rows.len() as f32
    });
    let mean: Vec<f32> = mean.collect();
    let cases = [
        (None, &rows[8]),
        (Some(Pooling::Last), &rows[8]),
        (Some(Pooling::First), &rows[0]),
        (Some(Pooling::Mean), &mean),
    ];
    for (pooling, expected) in cases {
        let found = vector(pooling, &text);
        let differences = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
        let most = differences.fold(0_f32, f32::max);
        assert!(most < 1e-4, "{pooling:?}: {most}");
    }
    assert_ne!(rows[0], rows[8]);
}

#[test]
fn devices_agree() {
    let vector = |device| {
        let engine = load(device, 1, 32, true).engine().unwrap();
        engine.embed(text(50, 1), None).unwrap().wait().unwrap()
    };
    let (cpu, reference) = (vector("cpu"), vector("reference"));
    let same: f32 = cpu.iter().zip(&reference).map(|(a, b)| a * b).sum();
    assert!(same > 0.999, "{same}");
}

#[test]
fn what_cannot_be_embedded_is_refused() {
    let model = load("cpu", 1, 32, true);
    let engine = model.engine().unwrap();
    let embed = |tokens| engine.embed(tokens, None).err();
    assert!(matches!(embed(Vec::new()), Some(Error::EmptyPrompt)));
    assert!(matches!(embed(vec![1 << 30]), Some(Error::Token { .. })));
    assert!(matches!(
        embed(text(257, 1)),
        Some(Error::ContextFull { .. })
    ));
    let past = Instant::now() - Duration::from_secs(1);
    let late = engine.embed(text(3, 1), Some(past)).unwrap();
    assert!(matches!(late.wait(), Err(Error::Deadline)));
    // A vector that nobody wants any more leaves the engine free.
    drop(engine.embed(text(200, 1), None).unwrap());
    engine.embed(text(3, 1), None).unwrap().wait().unwrap();
    let without = load("cpu", 1, 32, false).engine().unwrap();
    let refused = without.embed(text(3, 1), None).err();
    assert!(matches!(refused, Some(Error::NoEmbeddings { .. })));
}
