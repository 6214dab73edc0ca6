//! F8_E4M3 and MXFP4 weights in safetensors: what they are read as, and what is refused.

mod common;

use common::{Tensor, directory_of, floats, holds};
use std::path::Path;
use tempfile::TempDir;
use welte_formats::{Checkpoint, open, quant};
use welte_table::Format;

fn directory(quantization: &str, tensors: &[Tensor<'_>]) -> TempDir {
    directory_of("x", quantization, tensors)
}

#[track_caller]
fn refused(quantization: &str, tensors: &[Tensor<'_>], parts: &[&str]) {
    let made = directory(quantization, tensors);
    let error = open(made.path()).err().expect("must be refused");
    holds(&error.to_string(), parts);
}

const FP8: &str = r#""quant_method": "fp8""#;
const CT: &str = r#""quant_method": "compressed-tensors", "format": "float-quantized""#;

/// Bytes that are no NaN, and what they stand for.
fn eights(count: usize) -> (Vec<u8>, Vec<f32>) {
    let bytes: Vec<u8> = (0..count)
        .map(|i| (i * 37 % 251) as u8)
        .map(|b| if b & 0x7f == 0x7f { 3 } else { b })
        .collect();
    let mut block = 1f32.to_le_bytes().to_vec();
    let mut values = vec![0.0; count.next_multiple_of(128)];
    block.extend(&bytes);
    block.resize(4 + values.len(), 0);
    for (from, values) in values.chunks_mut(128).enumerate() {
        let part = [&block[..4], &block[4 + 128 * from..][..128]].concat();
        quant::decode(Format::F8_E4M3, &part, values);
    }
    values.truncate(count);
    (bytes, values)
}

/// The values of a tensor, read in pieces of one row and in one.
fn values(read: &dyn Checkpoint, name: &str) -> Vec<f32> {
    let tensor = read.tensor(name).unwrap();
    let all = read.rows(tensor, 0, tensor.n).unwrap();
    let rows: Vec<_> = (0..tensor.n)
        .map(|row| read.rows(tensor, row, 1).unwrap().into_owned())
        .collect();
    assert_eq!(rows.concat(), *all);
    let mut out = vec![0.0; tensor.n * tensor.k];
    quant::decode(tensor.format, &all, &mut out);
    out
}

#[test]
fn scales_of_every_kind_become_one() {
    let (n, k) = (200, 384);
    let (bytes, plain) = eights(n * k);
    let half = |v: f32| half::bf16::from_f32(v).to_le_bytes().to_vec();
    let squares: Vec<f32> = (0..6).map(|i| 0.5 + i as f32).collect();
    let by_row: Vec<u8> = (0..n).flat_map(|r| half(1.0 + r as f32)).collect();
    let made = directory(
        r#""quant_method": "fp8", "weight_block_size": [128, 128]"#,
        &[
            ("s.weight", "F8_E4M3", &[n, k], bytes.clone()),
            ("s.weight_scale_inv", "F32", &[2, 3], floats(&squares)),
            ("r.weight", "F8_E4M3", &[n, k], bytes.clone()),
            ("r.weight_scale", "BF16", &[n, 1], by_row),
            ("a.weight", "F8_E4M3", &[n, k], bytes.clone()),
            ("a.weight_scale", "F32", &[], floats(&[0.25])),
            ("a.input_scale", "F32", &[1], floats(&[9.0])),
            ("a.plain", "F32", &[2], floats(&[1.0, 2.0])),
        ],
    );
    let read = open(made.path()).unwrap();
    let names: Vec<_> = read.tensors().iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["s.weight", "r.weight", "a.weight", "a.plain"]);
    let tensor = read.tensor("s.weight").unwrap();
    assert_eq!((tensor.format, tensor.n, tensor.k), (Format::F8_E4M3, n, k));
    type Scale<'a> = &'a dyn Fn(usize, usize) -> f32;
    let scales: [(&str, Scale<'_>); 3] = [
        ("s.weight", &|r, c| squares[r / 128 * 3 + c / 128]),
        ("r.weight", &|r, _| 1.0 + r as f32),
        ("a.weight", &|_, _| 0.25),
    ];
    for (name, scale) in scales {
        for (i, (got, plain)) in values(&*read, name).iter().zip(&plain).enumerate() {
            let (r, c) = (i / k, i % k);
            let scale = half::bf16::from_f32(scale(r, c)).to_f32();
            assert_eq!(*got, plain * scale, "{name} {r} {c}");
        }
    }
    assert!(read.rows(tensor, n - 1, 2).is_err());
    assert!(read.rows(tensor, usize::MAX, 2).is_err());
}

#[test]
fn rows_that_are_no_whole_blocks_become_bf16() {
    let (bytes, plain) = eights(3 * 160);
    let made = directory(
        CT,
        &[
            ("w.weight", "F8_E4M3", &[3, 160], bytes),
            ("w.weight_scale", "F32", &[3], floats(&[1.1, 2.2, 3.3])),
        ],
    );
    let read = open(made.path()).unwrap();
    assert_eq!(read.tensor("w.weight").unwrap().format, Format::BF16);
    for (i, (got, plain)) in values(&*read, "w.weight").iter().zip(&plain).enumerate() {
        let want = plain * [1.1, 2.2, 3.3][i / 160];
        assert_eq!(*got, half::bf16::from_f32(want).to_f32(), "{i}");
    }
}

#[test]
fn what_is_wrong_with_scales_is_named() {
    let weight = || ("w.weight", "F8_E4M3", &[256, 128][..], vec![1; 256 * 128]);
    let ones = |n: usize| floats(&vec![1.0; n]);
    refused(
        FP8,
        &[weight()],
        &[
            "model.safetensors",
            "tensor w.weight",
            "w.weight_scale is missing",
        ],
    );
    for shape in [&[128][..], &[1, 256], &[2, 2], &[256, 1, 1], &[0]] {
        let scales = ("w.weight_scale", "F32", shape, ones(shape.iter().product()));
        let parts = ["tensor w.weight_scale", "shape", "[256, 1] or [2, 1]"];
        refused(FP8, &[weight(), scales], &parts);
    }
    let scales = ("w.weight_scale", "U8", &[1][..], vec![1]);
    refused(
        FP8,
        &[weight(), scales],
        &["tensor w.weight_scale", "U8", "BF16"],
    );
    let other = ("w.weight", "BF16", &[1, 1][..], vec![0; 2]);
    let scales = || ("w.weight_scale", "F32", &[1][..], ones(1));
    refused(
        FP8,
        &[other, scales()],
        &["tensor w.weight_scale", "w.weight", "BF16"],
    );
    refused(FP8, &[scales()], &["tensor w.weight_scale", "is missing"]);
    let stack = ("w.weight", "F8_E4M3", &[1, 2, 128][..], vec![1; 256]);
    refused(
        FP8,
        &[stack, scales()],
        &["tensor w.weight", "3 dimensions"],
    );
    for size in [
        "[128]",
        "[0, 128]",
        "[128, 64]",
        "[-1, 128]",
        "3",
        "[1, 2, 3]",
    ] {
        let config = format!(r#"{FP8}, "weight_block_size": {size}"#);
        refused(
            &config,
            &[weight(), scales()],
            &["config.json", "weight_block_size"],
        );
    }
}

#[test]
fn methods_that_are_not_known_are_named() {
    for method in ["aqlm", "hqq", "bitsandbytes", "quip"] {
        let config = format!(r#""quant_method": "{method}""#);
        let parts = [
            "config.json",
            "quantization_config.quant_method",
            method,
            "fp8",
        ];
        refused(&config, &[], &parts);
    }
    refused(
        r#""quant_method": "compressed-tensors", "format": "marlin-24""#,
        &[],
        &[
            "config.json",
            "quantization_config.format",
            "marlin-24",
            "float-quantized",
        ],
    );
    refused(r#""quant_method": 3"#, &[], &["quant_method", "not text"]);
    let five = ("w.weight", "F8_E5M2", &[1, 2][..], vec![0; 2]);
    refused(FP8, &[five], &["tensor w.weight", "F8_E5M2", "F8_E4M3"]);
}

#[test]
fn damaged_values_are_found_when_they_are_read() {
    let mut bytes = vec![1; 2 * 128];
    bytes[128 + 77] = 0xff;
    let scales = ("w.weight_scale", "F32", &[2][..], floats(&[f32::NAN, 1.0]));
    let made = directory(FP8, &[("w.weight", "F8_E4M3", &[2, 128], bytes), scales]);
    let read = open(made.path()).unwrap();
    let tensor = read.tensor("w.weight").unwrap();
    let error = |row| read.rows(tensor, row, 1).unwrap_err().to_string();
    holds(&error(0), &["tensor w.weight", "scale", "row 0"]);
    holds(&error(1), &["tensor w.weight", "row 1", "NaN at 77"]);
}

#[test]
fn exponents_and_places_become_one() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/mxfp4");
    let read = open(&folder).unwrap();
    let tensor = read.tensor("e.down_proj").unwrap();
    assert_eq!((tensor.format, tensor.n, tensor.k), (Format::MXFP4, 6, 160));
    assert_eq!(read.tensors().len(), 1);
    let want = std::fs::read(folder.join("values.f32")).unwrap();
    let want: Vec<f32> = want
        .as_chunks()
        .0
        .iter()
        .map(|b| f32::from_le_bytes(*b))
        .collect();
    assert_eq!(values(&*read, "e.down_proj"), want);
    assert!(read.rows(tensor, 5, 2).is_err() && read.rows(tensor, usize::MAX, 9).is_err());
}

#[test]
fn what_is_wrong_with_exponents_is_named() {
    const MX: &str = r#""quant_method": "mxfp4""#;
    let blocks =
        |shape: &'static [usize]| ("e_blocks", "U8", shape, vec![0; shape.iter().product()]);
    let scales =
        |shape: &'static [usize]| ("e_scales", "U8", shape, vec![0; shape.iter().product()]);
    refused(
        MX,
        &[blocks(&[2, 3, 16])],
        &["tensor e_blocks", "e_scales is missing"],
    );
    for shape in [&[2, 3, 15][..], &[3, 16], &[1, 2, 3, 4, 16], &[16]] {
        refused(
            MX,
            &[blocks(shape), scales(&[2, 3])],
            &["tensor e_blocks", "shape"],
        );
    }
    for shape in [&[2, 2][..], &[6], &[3, 2], &[2, 3, 1]] {
        refused(
            MX,
            &[blocks(&[2, 3, 16]), scales(shape)],
            &["tensor e_scales", "[2, 3]"],
        );
    }
    refused(
        MX,
        &[blocks(&[0, 3, 16]), scales(&[0, 3])],
        &["tensor e_blocks", "empty"],
    );
    let wide = ("e_scales", "F32", &[2, 3][..], vec![0; 24]);
    refused(
        MX,
        &[blocks(&[2, 3, 16]), wide],
        &["tensor e_scales", "F32"],
    );
    let other = ("e", "U8", &[2, 3][..], vec![0; 6]);
    refused(MX, &[other], &["tensor e", "U8"]);
}

const MXFP4: &str = r#""quant_method": "mxfp4""#;

/// The names of a layer's experts.
fn experts(part: &str) -> String {
    format!("model.layers.0.mlp.experts.{part}")
}

#[track_caller]
fn refused_gpt_oss(tensors: &[Tensor<'_>], parts: &[&str]) {
    let made = directory_of("gpt_oss", MXFP4, tensors);
    let error = open(made.path()).err().expect("must be refused");
    holds(&error.to_string(), parts);
}

/// Two experts of three gates and three ups, of 64 elements each: one scale and 16 bytes for each 32.
fn gate_up() -> (Vec<u8>, Vec<u8>) {
    let blocks = (0..2 * 6 * 2 * 16).map(|i| (i * 29 % 253) as u8);
    let scales = (0..2 * 6 * 2).map(|i| 120 + i as u8 % 9);
    (blocks.collect(), scales.collect())
}

#[test]
fn experts_of_gpt_oss_are_told_apart() {
    let (blocks, scales) = gate_up();
    let names = ["gate_up_proj_blocks", "gate_up_proj_scales"].map(experts);
    let tensors = [
        (names[0].as_str(), "U8", &[2, 6, 2, 16][..], blocks),
        (names[1].as_str(), "U8", &[2, 6, 2][..], scales),
    ];
    // Of another model the rows stay as they are.
    let plain = directory_of("x", MXFP4, &tensors);
    let plain = values(&*open(plain.path()).unwrap(), &experts("gate_up_proj"));
    let made = directory_of("gpt_oss", MXFP4, &tensors);
    let read = open(made.path()).unwrap();
    assert_eq!(read.tensors().len(), 2);
    for (first, part) in ["gate_proj.weight", "up_proj.weight"].iter().enumerate() {
        let tensor = read.tensor(&experts(part)).unwrap();
        assert_eq!(
            (tensor.format, tensor.n, tensor.k, tensor.stack),
            (Format::MXFP4, 6, 64, 2)
        );
        let got = values(&*read, &experts(part));
        let want = plain.chunks(64).skip(first).step_by(2);
        assert_eq!(got, want.flatten().copied().collect::<Vec<_>>(), "{part}");
        assert!(read.rows(tensor, 6, 1).is_err());
        assert!(read.rows(tensor, usize::MAX, 2).is_err());
    }
}

#[test]
fn floats_of_gpt_oss_are_turned() {
    // [experts, inputs, outputs]; the value says where it is.
    let at = |e: usize, k: usize, n: usize| (100 * e + 10 * k + n) as f32;
    let all = |inputs: usize, outputs: usize| {
        let each = (0..2).flat_map(move |e| (0..inputs * outputs).map(move |i| (e, i)));
        floats(
            &each
                .map(|(e, i)| at(e, i / outputs, i % outputs))
                .collect::<Vec<_>>(),
        )
    };
    let names = [
        "gate_up_proj",
        "down_proj",
        "gate_up_proj_bias",
        "down_proj_bias",
    ]
    .map(experts);
    let made = directory_of(
        "gpt_oss",
        "",
        &[
            (&names[0], "F32", &[2, 3, 4], all(3, 4)),
            (&names[1], "F32", &[2, 2, 3], all(2, 3)),
            (&names[2], "F32", &[2, 4], all(1, 4)),
            (&names[3], "F32", &[2, 3], all(1, 3)),
        ],
    );
    let read = open(made.path()).unwrap();
    let check = |part: &str, (n, k): (usize, usize), want: &dyn Fn(usize, usize) -> f32| {
        let tensor = read.tensor(&experts(part)).unwrap();
        assert_eq!((tensor.n, tensor.k), (n, k), "{part}");
        let want: Vec<f32> = (0..n * k).map(|i| want(i / k, i % k)).collect();
        assert_eq!(values(&*read, &experts(part)), want, "{part}");
        assert!(read.rows(tensor, n, 1).is_err());
        assert!(read.rows(tensor, usize::MAX, 2).is_err());
    };
    check("gate_proj.weight", (4, 3), &|row, k| {
        at(row / 2, k, 2 * (row % 2))
    });
    check("up_proj.weight", (4, 3), &|row, k| {
        at(row / 2, k, 2 * (row % 2) + 1)
    });
    check("down_proj.weight", (6, 2), &|row, k| {
        at(row / 3, k, row % 3)
    });
    check("gate_proj.bias", (2, 2), &|row, k| at(row, 0, 2 * k));
    check("up_proj.bias", (2, 2), &|row, k| at(row, 0, 2 * k + 1));
    check("down_proj.bias", (2, 3), &|row, k| at(row, 0, k));
    assert_eq!(read.tensors().len(), 6);
}

#[test]
fn bad_experts_of_gpt_oss_are_refused() {
    let (blocks, scales) = gate_up();
    let names = ["gate_up_proj_blocks", "gate_up_proj_scales"].map(experts);
    let blocks = (names[0].as_str(), "U8", &[2, 6, 2, 16][..], blocks);
    refused_gpt_oss(
        std::slice::from_ref(&blocks),
        &["gate_up_proj_blocks", "gate_up_proj_scales is missing"],
    );
    refused_gpt_oss(
        &[
            blocks,
            (names[1].as_str(), "U8", &[2, 2, 6][..], scales.clone()),
        ],
        &["gate_up_proj_scales", "[2, 2, 6]", "[2, 6, 2]"],
    );
    let odd = (names[0].as_str(), "U8", &[2, 3, 2, 16][..], vec![0; 192]);
    let halves = (names[1].as_str(), "U8", &[2, 3, 2][..], vec![120; 12]);
    refused_gpt_oss(
        &[odd, halves],
        &["gate_up_proj_blocks", "3 outputs", "alternate"],
    );
    let one = |part: &str, shape: &[usize], bytes: usize, said: &[&str]| {
        refused_gpt_oss(&[(&experts(part), "F32", shape, vec![0; bytes])], said);
    };
    one(
        "gate_up_proj",
        &[2, 3, 5],
        120,
        &["gate_up_proj", "5 outputs"],
    );
    one(
        "gate_up_proj",
        &[6, 4],
        96,
        &["[6, 4]", "[experts, inputs, outputs]"],
    );
    one("down_proj", &[2, 0, 3], 0, &["down_proj", "[2, 0, 3]"]);
    one("down_proj_bias", &[6], 24, &["[6]", "[experts, outputs]"]);
    one("gate_up_proj_bias", &[2, 3], 24, &["3 outputs"]);
    let eight = (experts("down_proj"), vec![0; 24]);
    refused_gpt_oss(
        &[(&eight.0, "I8", &[2, 3, 4], eight.1)],
        &["down_proj", "I8", "supported are"],
    );
    // The same tensor in both layouts.
    let both = ["down_proj", "down_proj.weight"].map(experts);
    refused_gpt_oss(
        &[
            (&both[0], "F32", &[1, 2, 2], vec![0; 16]),
            (&both[1], "F32", &[2, 2], vec![0; 16]),
        ],
        &["down_proj.weight", "duplicates"],
    );
}
