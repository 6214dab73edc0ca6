//! Perplexity and divergence against sums written out here, over logits that were fed token by token.

mod common;

use common::*;
use welte::{DeviceChoice, Error, Model, divergence, importance, perplexity};
use welte_formats::quant::decode;

/// Steps of other numbers of rows change the scores by less than this part.
const TOLERANCE: f64 = 2e-2;

fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let sum: f64 = logits.iter().map(|l| f64::from(*l).exp()).sum();
    logits.iter().map(|l| f64::from(*l) - sum.ln()).collect()
}

/// For each chunk: the predictions at the positions of its second half but the last, and the tokens that follow them.
fn predictions(
    model: &Model,
    tokens: &[u32],
    chunk: usize,
    bos: Option<u32>,
) -> Vec<Vec<(Vec<f64>, u32)>> {
    let mut stepper = model.stepper().unwrap();
    let of_chunk = |original: &[u32]| {
        stepper.clear();
        let mut own = original.to_vec();
        own[0] = bos.unwrap_or(own[0]);
        let rows: Vec<Vec<f64>> = own
            .iter()
            .map(|token| log_softmax(&logits(&mut stepper, &[*token])))
            .collect();
        (chunk / 2..chunk - 1)
            .map(|at| (rows[at].clone(), original[at + 1]))
            .collect()
    };
    tokens.chunks_exact(chunk).map(of_chunk).collect()
}

/// Mean and standard error.
fn mean(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>();
    (mean, (squares / count / (count - 1.0)).sqrt())
}

#[track_caller]
fn near(got: f64, expected: f64) {
    assert!((got / expected - 1.0).abs() < TOLERANCE, "{got} {expected}");
}

#[test]
fn perplexity_is_that_of_the_second_halves() {
    let model = tiny(DeviceChoice::CPU);
    // Three chunks and an incomplete one.
    let tokens = prompt(3 * 16 + 9, &model);
    let mut stepper = model.stepper().unwrap();
    for bos in [None, Some(1)] {
        let losses: Vec<Vec<f64>> = predictions(&model, &tokens, 16, bos)
            .iter()
            .map(|chunk| {
                chunk
                    .iter()
                    .map(|(row, token)| -row[*token as usize])
                    .collect()
            })
            .collect();
        let mut heard = Vec::new();
        let score = perplexity(&mut stepper, &tokens, 16, bos, &mut |score| {
            heard.push(score);
            true
        })
        .unwrap();
        assert_eq!((score.chunks, score.scored), (3, 21));
        let (loss, error) = mean(&losses.concat());
        near(score.ppl, loss.exp());
        near(score.error, loss.exp() * error);
        assert_eq!(heard.last(), Some(&score));
        assert_eq!((heard[0].chunks, heard[0].scored, heard.len()), (1, 7, 3));
        near(heard[0].ppl, mean(&losses[0]).0.exp());
        // The callback ends the run after the first chunk.
        let first = perplexity(&mut stepper, &tokens, 16, bos, &mut |_| false).unwrap();
        assert_eq!(first, heard[0]);
    }
}

#[test]
fn divergence_is_that_of_the_second_halves() {
    let model = tiny(DeviceChoice::CPU);
    let other = load("synthetic:tiny:q2_k", &options(DeviceChoice::CPU));
    // A chunk has more positions than are scored at once.
    let tokens = prompt(2 * 64 + 9, &model);
    let (mut own, mut base) = (other.stepper().unwrap(), model.stepper().unwrap());
    let rows = |model| predictions(model, &tokens, 64, Some(1)).concat();
    let (mut values, mut same) = (Vec::new(), 0);
    let top = |row: &[f64]| (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b]));
    for ((p, _), (q, _)) in rows(&model).iter().zip(&rows(&other)) {
        let terms = p.iter().zip(q).map(|(p, q)| p.exp() * (p - q));
        values.push(terms.sum::<f64>());
        same += usize::from(top(p) == top(q));
    }
    let mut heard = Vec::new();
    let got = divergence(&mut own, &mut base, &tokens, 64, Some(1), &mut |score| {
        heard.push(score.positions);
        true
    })
    .unwrap();
    assert_eq!((got.positions, heard), (62, vec![31, 62]));
    let (expected, error) = mean(&values);
    near(got.mean, expected);
    near(got.error, error);
    near(got.largest, values.iter().copied().fold(0.0, f64::max));
    assert!((got.same_top - same as f64 / 62.0).abs() < 0.05);
    let first = divergence(&mut own, &mut base, &tokens, 64, None, &mut |_| false).unwrap();
    assert_eq!(first.positions, 31);
    let itself = divergence(
        &mut model.stepper().unwrap(),
        &mut base,
        &tokens,
        64,
        None,
        &mut |_| true,
    )
    .unwrap();
    assert_eq!((itself.mean, itself.same_top), (0.0, 1.0));
}

/// A model whose ops stay apart.
fn apart(source: &str) -> Model {
    let mut options = options(DeviceChoice::CPU);
    options.fused = false;
    options.prompt_rows = 64;
    load(source, &options)
}

/// The first matrices read normed embeddings, which are computed here from the checkpoint.
#[test]
fn importance_is_the_sum_of_squared_inputs() {
    let model = apart(TINY);
    let tokens = prompt(2 * 16 + 9, &model);
    let mut stepper = model.stepper().unwrap();
    let mut heard = Vec::new();
    let all = importance(&mut stepper, &tokens, 16, Some(1), &mut |done| {
        heard.push(done);
        true
    })
    .unwrap();
    assert_eq!((all.chunks, all.chunk, heard), (2, 16, vec![1, 2]));
    let checkpoint = welte::open(TINY).unwrap();
    let rows = |name: &str, first| {
        let info = checkpoint.tensor(name).unwrap();
        let mut values = vec![0.0; info.k];
        decode(
            info.format,
            &checkpoint.rows(info, first, 1).unwrap(),
            &mut values,
        );
        values
    };
    let norm = rows("blk.0.attn_norm.weight", 0);
    let mut expected = vec![0.0; norm.len()];
    for chunk in tokens.chunks_exact(16) {
        for token in [1].iter().chain(&chunk[1..]) {
            let row = rows("token_embd.weight", *token as usize);
            let mean = row.iter().map(|x| x * x).sum::<f32>() / row.len() as f32;
            for ((sum, x), weight) in expected.iter_mut().zip(row).zip(&norm) {
                *sum += (x * weight).powi(2) / mean;
            }
        }
    }
    for name in ["attn_q", "attn_k", "attn_v"] {
        let squares = &all.tensors[&format!("blk.0.{name}.weight")];
        assert_eq!(squares.counts, [32.0]);
        for (got, expected) in squares.sums.iter().zip(&expected) {
            assert!(
                (got / expected - 1.0).abs() < 0.02,
                "{name}: {got} {expected}"
            );
        }
    }
    let layers = model.spec().layers as usize;
    assert_eq!(
        all.tensors.len(),
        7 * layers,
        "all products of the layers, not the head"
    );
}

#[test]
fn importance_counts_the_rows_of_each_expert() {
    let model = apart("synthetic:custom,arch=qwen3moe,layers=2:q8_0");
    let tokens = prompt(32, &model);
    let mut stepper = model.stepper().unwrap();
    let all = importance(&mut stepper, &tokens, 32, None, &mut |_| true).unwrap();
    let experts = model.spec().experts.unwrap();
    for name in ["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"] {
        let squares = &all.tensors[&format!("blk.1.{name}.weight")];
        assert_eq!(squares.counts.len(), experts.count as usize);
        let counted: f32 = squares.counts.iter().sum();
        assert_eq!(counted, (32 * experts.used) as f32, "{name}");
        let columns = squares.sums.len() / squares.counts.len();
        for (sums, count) in squares.sums.chunks(columns).zip(&squares.counts) {
            assert_eq!(sums.iter().sum::<f32>() > 0.0, *count > 0.0, "{name}");
        }
    }
    assert!(matches!(
        importance(&mut stepper, &tokens, 33, None, &mut |_| true),
        Err(Error::TooShort { tokens: 32, .. })
    ));
}

#[test]
fn texts_and_chunks_have_bounds() {
    let model = tiny(DeviceChoice::CPU);
    let mut stepper = model.stepper().unwrap();
    let tokens = prompt(600, &model);
    let mut score = |length: usize, chunk| {
        perplexity(&mut stepper, &tokens[..length], chunk, None, &mut |_| true)
    };
    for (length, chunk) in [(600, 3), (600, 257)] {
        let error = score(length, chunk).unwrap_err();
        assert!(matches!(error, Error::ChunkSize { context: 256, .. }));
    }
    assert!(matches!(
        score(31, 16),
        Err(Error::TooShort {
            tokens: 31,
            chunk: 16
        })
    ));
    assert_eq!(score(32, 16).unwrap().scored, 14);
    assert_eq!(score(8, 4).unwrap().scored, 2);
    assert_eq!(score(512, 256).unwrap().scored, 2 * 127);
    let mut other = model.stepper().unwrap();
    let mut compare = |length: usize, chunk| {
        let tokens = &tokens[..length];
        divergence(&mut stepper, &mut other, tokens, chunk, None, &mut |_| true)
    };
    for (length, chunk) in [(600, 3), (600, 257)] {
        let error = compare(length, chunk).unwrap_err();
        assert!(matches!(error, Error::ChunkSize { context: 256, .. }));
    }
    assert!(matches!(compare(31, 16), Err(Error::TooShort { .. })));
    assert_eq!(compare(32, 16).unwrap().positions, 14);
    assert_eq!(compare(8, 4).unwrap().positions, 2);
    let demo = demo(DeviceChoice::CPU);
    let mut demo = demo.stepper().unwrap();
    assert!(matches!(
        divergence(&mut stepper, &mut demo, &tokens, 16, None, &mut |_| true),
        Err(Error::VocabularyMismatch { own: 1024, .. })
    ));
}
