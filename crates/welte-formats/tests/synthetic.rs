//! Made-up models: always the same, valid in every format, written as a file that reads back.

use std::collections::BTreeSet;
use welte_formats::quant::decode;
use welte_formats::synthetic::{Synthetic, names, write};
use welte_formats::{Checkpoint, Value, open};
use welte_table::Format;

fn made(text: &str) -> Synthetic {
    Synthetic::parse(text).unwrap_or_else(|e| panic!("{e}"))
}

/// All rows of a tensor as numbers.
fn values(model: &dyn Checkpoint, name: &str) -> Vec<f32> {
    let tensor = model.tensor(name).unwrap();
    let bytes = model.rows(tensor, 0, tensor.n).unwrap();
    let mut out = vec![0.0; tensor.n * tensor.k];
    decode(tensor.format, &bytes, &mut out);
    out
}

#[test]
fn named_shapes_have_their_real_sizes() {
    let parameters = |text: &str| {
        made(text)
            .tensors()
            .iter()
            .map(|t| t.n * t.k)
            .sum::<usize>()
    };
    assert_eq!(parameters("qwen3-0.6b:q4_0"), 596_049_920);
    assert_eq!(parameters("qwen3-4b:q4_0"), 4_022_468_096);
    assert_eq!(parameters("qwen3-8b:q4_0"), 8_190_735_360);
    assert_eq!(parameters("tinyllama-1.1b:f16"), 1_100_048_384);
    // These two have 32 and 64 numbers of rope factors besides.
    assert_eq!(parameters("llama-1b:q8_0"), 1_235_814_400 + 32);
    assert_eq!(parameters("llama-8b:q8_0"), 8_030_261_248 + 64);
    assert_eq!(parameters("gemma-3-1b:q4_0"), 999_885_952);
    assert_eq!(parameters("qwen3-30b-a3b:q4_k"), 30_532_122_624);
    for name in names() {
        assert!(Synthetic::parse(&format!("{name}:q4_k_m")).is_ok());
    }
}

#[test]
fn every_format_has_sane_values() {
    for format in Format::ALL {
        let model = made(&format!("tiny,dim=1024:{}", format.name()));
        let name = "blk.1.ffn_up.weight";
        assert_eq!(model.tensor(name).unwrap().format, format);
        let values = values(&model, name);
        let count = values.len() as f64;
        let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / count;
        let deviation = (values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / count).sqrt();
        let wanted = 1.0 / 1024f64.sqrt();
        assert!(
            (deviation / wanted - 1.0).abs() < 0.03,
            "{format:?}: {deviation} where {wanted} is meant"
        );
        assert!((mean / wanted).abs() < 0.02, "{format:?}: mean {mean}");
        assert!(
            values.iter().all(|v| v.abs() < 8.0 * wanted as f32),
            "{format:?}"
        );
    }
}

#[test]
fn rows_are_the_same_however_they_are_asked_for() {
    for format in ["q4_k", "q6_k", "q8_0", "f16", "bf16", "f32", "q5_0"] {
        let (model, again) = (
            made(&format!("tiny:{format}")),
            made(&format!("tiny:{format}")),
        );
        let tensor = model.tensor("blk.0.attn_q.weight").unwrap();
        let all = model.rows(tensor, 0, tensor.n).unwrap();
        let row = all.len() / tensor.n;
        for first in [0, 1, 100, 255] {
            assert_eq!(
                *again.rows(tensor, first, 1).unwrap(),
                all[first * row..][..row]
            );
        }
        let rows: BTreeSet<&[u8]> = all.chunks(row).collect();
        assert_eq!(rows.len(), tensor.n, "rows differ");
        let other = made(&format!("tiny,seed=1:{format}"));
        assert_ne!(other.rows(tensor, 0, 1).unwrap(), &all[..row]);
        assert!(model.rows(tensor, 250, 7).is_err());
    }
}

#[test]
fn a_written_file_reads_back() {
    let directory = tempfile::TempDir::new().unwrap();
    let path = directory.path().join("a.gguf");
    for what in [
        "tiny,arch=qwen2:q4_k_m",
        "tiny,arch=qwen3,tied=false:bf16",
        "tiny,rope_factor=8:q5_1",
        "tiny,arch=qwen3moe,experts=5:q4_k",
        "tiny,arch=gemma3:q8_0",
        "tiny,arch=gpt-oss,experts=3:mxfp4_moe",
        "lfm2-moe-small,dim=64,heads=4,kv_heads=2,head_dim=16,ffn=64,experts=3,used=2,vocab=1000:q8_0",
        "nemotron-h-small,layers=7,dim=64,heads=4,kv_heads=2,head_dim=16,vocab=1000:q4_0",
        "nemotron-3-small,layers=7,dim=64,heads=4,kv_heads=2,head_dim=16,ffn=64,experts=3,used=2,vocab=1000:q8_0",
        "glm-flash-small,layers=2,dim=64,heads=2,ffn=64,experts=3,used=2,vocab=1000:q8_0",
        "gemma-3n-small,layers=5,dim=64,heads=4,kv_heads=1,head_dim=32,ffn=64,vocab=1000:q8_0",
    ] {
        let model = made(what);
        let mut last = (0, 1);
        write(&model, &path, &mut |done, total| last = (done, total)).unwrap();
        assert_eq!(last.0, last.1);
        let read = open(&path).unwrap();
        assert_eq!(read.metadata(), model.metadata());
        assert_eq!(read.tensors(), model.tensors());
        for tensor in model.tensors() {
            assert_eq!(
                read.rows(tensor, 0, tensor.n).unwrap(),
                model.rows(tensor, 0, tensor.n).unwrap()
            );
        }
    }
}

#[test]
fn families_have_their_tensors() {
    let has = |text: &str, name: &str| made(text).tensor(name).is_some();
    assert!(has("tiny,arch=qwen2:q8_0", "blk.0.attn_k.bias"));
    assert!(has("tiny,arch=qwen3:q8_0", "blk.1.attn_q_norm.weight"));
    assert!(has("tiny,rope_factor=8:q8_0", "rope_freqs.weight"));
    assert!(has("tiny,tied=false:q8_0", "output.weight"));
    assert!(has("tiny,arch=gemma3:q8_0", "blk.1.post_ffw_norm.weight"));
    assert!(has("tiny,arch=qwen3moe:q8_0", "blk.0.ffn_gate_inp.weight"));
    let model = made("tiny,arch=gpt-oss:mxfp4_moe");
    let format = |name: &str| model.tensor(name).unwrap().format;
    assert_eq!(format("blk.1.ffn_up_exps.weight"), Format::MXFP4);
    assert_eq!(format("blk.1.attn_q.weight"), Format::Q8_0);
    assert_eq!(format("output.weight"), Format::Q8_0);
    let bias = model.tensor("blk.0.ffn_gate_exps.bias").unwrap();
    assert_eq!((bias.format, bias.n, bias.k), (Format::F32, 4, 512));
    assert_eq!(model.tensor("blk.0.attn_sinks.weight").unwrap().k, 4);
    for (text, factor) in [("", 32.0), (",rope_factor=2", 2.0)] {
        let model = made(&format!("tiny,arch=gpt-oss{text}:f16"));
        let stored = model.metadata().get("gpt-oss.rope.scaling.factor");
        assert_eq!(stored, Some(&Value::F64(factor)));
        assert!(model.tensor("rope_freqs.weight").is_none());
    }
    let model = made("tiny,arch=qwen3moe,experts=5,used=3,ffn=96:q8_0");
    let down = model.tensor("blk.1.ffn_down_exps.weight").unwrap();
    assert_eq!((down.stack, down.n, down.k), (5, 5 * 256, 96));
    assert!(!has("tiny,arch=qwen3moe:q8_0", "blk.0.ffn_down.weight"));
    assert!(!has("tiny:q8_0", "output.weight"));
    assert!(!has("tiny:q8_0", "rope_freqs.weight"));
}

/// Their attention has no factor, so the norm of the keys brings it.
#[test]
fn scores_of_new_gemmas_are_moderate() {
    let sizes = "dim=64,heads=4,kv_heads=1,head_dim=32,ffn=64,vocab=300:q8_0";
    for shape in ["gemma-3n-small", "gemma4-small", "gemma4-moe-small"] {
        let model = made(&format!("{shape},{sizes}"));
        let tensors = model.tensors().iter().map(|tensor| tensor.name.as_str());
        let of_keys: Vec<&str> = tensors.filter(|n| n.contains("attn_k_norm")).collect();
        assert!(!of_keys.is_empty());
        for name in of_keys {
            let keys = values(&model, name);
            let factor = (keys.len() as f32).sqrt();
            let near_one = |v: &f32| (0.89..1.11).contains(&(v * factor));
            assert!(keys.iter().all(near_one), "{shape}, {name}");
        }
        let queries = values(&model, "blk.0.attn_q_norm.weight");
        assert!(queries.iter().all(|v| (0.89..1.11).contains(v)));
    }
}

#[test]
fn llama3_factors() {
    let model = made("llama-8b:q4_0");
    let factors = values(&model, "rope_freqs.weight");
    // The first waves are short and stay; the last are stretched in full; between them it rises.
    assert_eq!((factors[0], factors[63]), (1.0, 8.0));
    assert!(factors.windows(2).all(|w| w[0] <= w[1]));
    // A number worked out by hand: wave 2 pi 500000^(60/128) = 2948.4, 2.7785 turns, kept 0.59282.
    assert!(
        (factors[30] - 1.0 / (0.40718 / 8.0 + 0.59282)).abs() < 1e-3,
        "{}",
        factors[30]
    );
}

#[test]
fn rows_of_uneven_blocks_fall_back() {
    let format = |text: &str, name: &str| made(text).tensor(name).unwrap().format;
    let name = "blk.0.attn_q.weight";
    for (wanted, fallen) in [
        ("q2_k", Format::Q4_0),
        ("q3_k", Format::Q4_0),
        ("q4_k", Format::Q5_0),
        ("q5_k", Format::Q5_1),
        ("q6_k", Format::Q8_0),
        ("iq4_xs", Format::IQ4_NL),
    ] {
        assert_eq!(format(&format!("tiny,dim=288:{wanted}"), name), fallen);
        assert_eq!(format(&format!("tiny,dim=100:{wanted}"), name), Format::F16);
    }
    assert_eq!(format("tiny:q4_k_m", "token_embd.weight"), Format::Q6_K);
    assert_eq!(format("tiny:q4_k_m", name), Format::Q4_K);
}

#[test]
fn the_vocabulary_is_whole() {
    let model = made("tiny,vocab=300:q8_0");
    let Value::Array(tokens) = &model.metadata()["tokenizer.ggml.tokens"] else {
        panic!("tokens")
    };
    let text = |v: &Value| match v {
        Value::String(s) => s.clone(),
        _ => panic!("a token is text"),
    };
    let set: BTreeSet<String> = tokens.iter().map(text).collect();
    assert_eq!((tokens.len(), set.len()), (300, 300));
    let Value::Array(merges) = &model.metadata()["tokenizer.ggml.merges"] else {
        panic!("merges")
    };
    for merge in merges.iter().map(text) {
        let (a, b) = merge.split_once(' ').unwrap();
        assert!(
            set.contains(a) && set.contains(b) && set.contains(&format!("{a}{b}")),
            "{merge}"
        );
    }
}

#[test]
fn what_cannot_be_is_refused_with_the_reason() {
    for (text, part) in [
        ("qwen3-0.6b", "lacks a format"),
        ("qwen3-0.6b:q9", "Q4_K_M"),
        ("qwen9:q4_0", "qwen3-0.6b"),
        ("tiny,layers:q4_0", "KEY=VALUE"),
        ("tiny,layers=0:q4_0", "layers=0"),
        ("tiny,layers=99999999999999999999:q4_0", "layers"),
        ("tiny,dim=-1:q4_0", "dim"),
        ("tiny,colour=3:q4_0", "colour"),
        ("tiny,arch=mamba:q4_0", "gemma3 or gpt-oss"),
        ("tiny,arch=gpt-oss,used=5:mxfp4_moe", "experts=4"),
        ("tiny,heads=3:q4_0", "kv_heads"),
        ("tiny,arch=qwen3moe,used=5:q4_0", "experts=4"),
        ("tiny,head_dim=63:q4_0", "head_dim"),
        ("tiny,vocab=10:q4_0", "vocab"),
        ("tiny,rope_base=nan:q4_0", "rope_base"),
        ("tiny,seed=x:q4_0", "seed"),
        ("", "lacks"),
        (":", "unknown"),
    ] {
        let error = Synthetic::parse(text)
            .expect_err("must be refused")
            .to_string();
        assert!(
            error.contains(part) && error.starts_with("synthetic:"),
            "{error}"
        );
    }
}
