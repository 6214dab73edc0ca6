//! GGUF: what is written is read back, and nothing that is wrong gets through or harms.

use proptest::prelude::*;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use welte_formats::gguf::{Gguf, Kind, Kinds, Writer, split_name, type_id};
use welte_formats::{Checkpoint, Metadata, TensorInfo, Value, open};
use welte_table::Format;

/// A GGUF file written by hand.
#[derive(Clone, Default)]
struct Raw {
    keys: Vec<Vec<u8>>,
    tensors: Vec<Vec<u8>>,
    data: Vec<u8>,
    alignment: usize,
}

fn text(s: &str) -> Vec<u8> {
    [&(s.len() as u64).to_le_bytes()[..], s.as_bytes()].concat()
}

impl Raw {
    fn key(mut self, name: &str, kind: u32, value: &[u8]) -> Raw {
        self.keys
            .push([&text(name)[..], &kind.to_le_bytes(), value].concat());
        self
    }

    fn tensor(mut self, name: &str, sizes: &[u64], kind: u32, offset: u64) -> Raw {
        let mut line = text(name);
        line.extend((sizes.len() as u32).to_le_bytes());
        sizes.iter().for_each(|s| line.extend(s.to_le_bytes()));
        line.extend(kind.to_le_bytes());
        line.extend(offset.to_le_bytes());
        self.tensors.push(line);
        self
    }

    fn data(mut self, bytes: usize) -> Raw {
        self.data = (0..bytes).map(|i| i as u8).collect();
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let mut out = header(3, self.tensors.len() as u64, self.keys.len() as u64);
        out.extend(self.keys.concat());
        out.extend(self.tensors.concat());
        if !self.data.is_empty() {
            out.resize(out.len().next_multiple_of(self.alignment.max(32)), 0);
            out.extend(&self.data);
        }
        out
    }
}

fn header(version: u32, tensors: u64, keys: u64) -> Vec<u8> {
    [
        &b"GGUF"[..],
        &version.to_le_bytes(),
        &tensors.to_le_bytes(),
        &keys.to_le_bytes(),
    ]
    .concat()
}

fn put(directory: &TempDir, name: &str, bytes: &[u8]) -> PathBuf {
    let path = directory.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

/// Opens these bytes; the error as text.
fn open_bytes(bytes: &[u8]) -> Result<Gguf, String> {
    let directory = TempDir::new().unwrap();
    let path = put(&directory, "a.gguf", bytes);
    Gguf::open(&path).map_err(|e| e.to_string())
}

/// The refusal of these bytes, which must name the file and all of `parts`.
#[track_caller]
fn refused(bytes: &[u8], parts: &[&str]) {
    let error = open_bytes(bytes).expect_err("must be refused");
    assert!(error.contains("a.gguf"), "{error}");
    for part in parts {
        assert!(error.contains(part), "{error:?} lacks {part:?}");
    }
}

/// Metadata of every type, and its types.
fn every_kind() -> (Metadata, Kinds) {
    let strings =
        |s: &[&str]| Value::Array(s.iter().map(|s| Value::String(s.to_string())).collect());
    let array = |kind: Kind| Kind::Array(Box::new(kind));
    let rows = [
        (
            "general.architecture",
            Value::String("llama".into()),
            Kind::String,
        ),
        ("u8", Value::U64(255), Kind::U8),
        ("i8", Value::I64(-128), Kind::I8),
        ("u16", Value::U64(65535), Kind::U16),
        ("i16", Value::I64(-32768), Kind::I16),
        ("u32", Value::U64(7), Kind::U32),
        ("i32", Value::I64(-7), Kind::I32),
        ("f32", Value::F64(f64::from(1e-5f32)), Kind::F32),
        ("bool", Value::Bool(true), Kind::Bool),
        ("string", Value::String("Grüße ▁".into()), Kind::String),
        ("u64", Value::U64(u64::MAX), Kind::U64),
        ("i64", Value::I64(i64::MIN), Kind::I64),
        ("f64", Value::F64(1e-300), Kind::F64),
        ("empty", Value::Array(vec![]), array(Kind::I32)),
        ("strings", strings(&["a", "", "c"]), array(Kind::String)),
        (
            "bools",
            Value::Array(vec![Value::Bool(false), Value::Bool(true)]),
            array(Kind::Bool),
        ),
        (
            "floats",
            Value::Array(vec![Value::F64(0.5), Value::F64(-2.0)]),
            array(Kind::F32),
        ),
        (
            "bytes",
            Value::Array(vec![Value::U64(0), Value::U64(200)]),
            array(Kind::U8),
        ),
        (
            "nested",
            Value::Array(vec![Value::Array(vec![Value::U64(1)]), strings(&["x"])]),
            Kind::Arrays(vec![array(Kind::U16), array(Kind::String)]),
        ),
    ];
    let metadata = rows
        .iter()
        .map(|(k, v, _)| (k.to_string(), v.clone()))
        .collect();
    (
        metadata,
        rows.iter()
            .map(|(k, _, kind)| (k.to_string(), kind.clone()))
            .collect(),
    )
}

/// A tensor of every format, a vector among them, with odd sizes so that padding is needed.
fn every_format() -> Vec<TensorInfo> {
    let tensor = |(i, format): (usize, Format)| TensorInfo {
        name: format!("t.{}", format.name()),
        format,
        n: 1 + i % 3,
        k: if format.is_quantised() { 256 } else { 7 },
        stack: 1,
    };
    stored().enumerate().map(tensor).collect()
}

fn bytes_of(tensor: &TensorInfo, salt: usize) -> Vec<u8> {
    (0..tensor.n * tensor.format.bytes(tensor.k).unwrap())
        .map(|i| (i * 31 + salt) as u8)
        .collect()
}

fn write(path: &Path, metadata: &Metadata, kinds: &Kinds, tensors: &[TensorInfo]) {
    let mut writer = Writer::create(path, metadata, kinds, tensors).unwrap();
    for (i, tensor) in tensors.iter().enumerate() {
        bytes_of(tensor, i)
            .chunks(97)
            .for_each(|piece| writer.write(piece).unwrap());
    }
    writer.finish().unwrap();
}

fn sample() -> Vec<u8> {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("a.gguf");
    let (metadata, kinds) = every_kind();
    write(&path, &metadata, &kinds, &every_format());
    std::fs::read(path).unwrap()
}

/// The formats that GGUF has.
fn stored() -> impl Iterator<Item = Format> {
    Format::ALL.into_iter().filter(|f| type_id(*f).is_some())
}

#[test]
fn everything_comes_back_as_written() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("a.gguf");
    let (metadata, kinds) = every_kind();
    let tensors = every_format();
    write(&path, &metadata, &kinds, &tensors);
    let read = open(&path).unwrap();
    assert_eq!(read.metadata(), &metadata);
    assert_eq!(read.kinds(), &kinds);
    assert_eq!(read.tensors(), &tensors);
    for (i, tensor) in tensors.iter().enumerate() {
        let bytes = bytes_of(tensor, i);
        let row = bytes.len() / tensor.n;
        assert_eq!(read.rows(tensor, 0, tensor.n).unwrap(), bytes);
        assert_eq!(
            read.rows(tensor, tensor.n - 1, 1).unwrap(),
            &bytes[bytes.len() - row..]
        );
        assert!(read.rows(tensor, tensor.n, 1).is_err());
        assert!(read.rows(tensor, usize::MAX, 2).is_err());
        assert_eq!(read.tensor(&tensor.name), Some(tensor));
    }
    let mut other = tensors[0].clone();
    other.n = 1000;
    assert!(read.rows(&other, 500, 1).is_err());
    // Written again from what was read, the file is the same.
    let again = directory.path().join("b.gguf");
    write(&again, read.metadata(), read.kinds(), read.tensors());
    assert_eq!(
        std::fs::read(&path).unwrap(),
        std::fs::read(&again).unwrap()
    );
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2);
}

#[test]
fn customary_types_without_a_table() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("a.gguf");
    let metadata = Metadata::from([
        ("a".to_string(), Value::U64(1)),
        ("b".to_string(), Value::U64(1 << 40)),
        ("c".to_string(), Value::F64(0.5)),
        (
            "d".to_string(),
            Value::Array(vec![Value::I64(1), Value::I64(-1 << 40)]),
        ),
        (
            "e".to_string(),
            Value::Array(vec![Value::Array(vec![Value::Bool(true)])]),
        ),
        ("general.alignment".to_string(), Value::U64(4096)),
        ("split.count".to_string(), Value::U64(3)),
    ]);
    write(&path, &metadata, &Kinds::new(), &[]);
    let read = open(&path).unwrap();
    let kinds = read.kinds();
    assert_eq!(
        (&kinds["a"], &kinds["b"], &kinds["c"]),
        (&Kind::U32, &Kind::U64, &Kind::F32)
    );
    assert_eq!(kinds["d"], Kind::Array(Box::new(Kind::I64)));
    assert_eq!(
        kinds.len(),
        5,
        "alignment and split.* belong to the file, not the model"
    );
    assert!(read.tensors().is_empty(), "a vocabulary-only file opens");
}

#[test]
fn an_unfinished_file_is_removed() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("a.gguf");
    std::fs::write(&path, "old").unwrap();
    let tensors = every_format();
    let mut writer = Writer::create(&path, &Metadata::new(), &Kinds::new(), &tensors).unwrap();
    writer.write(&[0; 3]).unwrap();
    let error = writer.write(&[0; 1000]).unwrap_err().to_string();
    assert!(
        error.contains("a.gguf") && error.contains("t.F32"),
        "{error}"
    );
    let error = writer.finish().unwrap_err().to_string();
    assert!(
        error.contains("t.F32") && error.contains("3 of 28"),
        "{error}"
    );
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    assert_eq!(std::fs::read(&path).unwrap(), b"old");
    // What cannot be written is refused before anything is.
    let misfit = Kinds::from([("a".to_string(), Kind::U8)]);
    let metadata = Metadata::from([("a".to_string(), Value::U64(256))]);
    let error = Writer::create(&path, &metadata, &misfit, &[])
        .unwrap_err()
        .to_string();
    assert!(error.contains("a.gguf: a:"), "{error}");
    let uneven = TensorInfo {
        name: "t".into(),
        format: Format::Q4_0,
        n: 1,
        k: 33,
        stack: 1,
    };
    let unstacked = TensorInfo {
        k: 32,
        n: 7,
        stack: 2,
        ..uneven.clone()
    };
    for bad in [uneven, unstacked] {
        assert!(Writer::create(&path, &Metadata::new(), &Kinds::new(), &[bad]).is_err());
    }
    let nowhere = directory.path().join("no/such/a.gguf");
    assert!(
        Writer::create(&nowhere, &Metadata::new(), &Kinds::new(), &[])
            .unwrap_err()
            .to_string()
            .contains("no/such")
    );
    assert!(Writer::create(directory.path(), &Metadata::new(), &Kinds::new(), &[]).is_err());
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_is_an_error() {
    if !Path::new("/dev/full").exists() {
        return;
    }
    // The temporary file's name is known, so it can be made to lead to the full device.
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("a.gguf");
    let temporary = directory
        .path()
        .join(format!("a.gguf.part-{}", std::process::id()));
    std::os::unix::fs::symlink("/dev/full", temporary).unwrap();
    let tensors = [TensorInfo {
        name: "t".into(),
        format: Format::F32,
        n: 1024,
        k: 1024,
        stack: 1,
    }];
    let mut writer = Writer::create(&path, &Metadata::new(), &Kinds::new(), &tensors).unwrap();
    let failed = (0..1024)
        .map(|_| writer.write(&[1; 4096]))
        .find_map(Result::err)
        .expect("no space is left");
    assert!(failed.to_string().contains("a.gguf"), "{failed}");
    drop(writer);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn versions() {
    assert!(open_bytes(&header(2, 0, 0)).is_ok());
    assert!(open_bytes(&header(3, 0, 0)).is_ok());
    refused(&header(1, 0, 0), &["version 1", "2 and 3"]);
    refused(&header(4, 0, 0), &["version 4"]);
    refused(&header(3u32.swap_bytes(), 0, 0), &["big-endian"]);
    refused(b"GGML", &["not a GGUF"]);
}

#[test]
fn huge_counts_are_refused_at_once() {
    let huge = 1u64 << 60;
    let filler = vec![1u8; 176];
    let with = |head: Vec<u8>| [head, filler.clone()].concat();
    refused(
        &with(header(3, huge, 0)),
        &["tensor count", "1152921504606846976"],
    );
    refused(&with(header(3, 0, huge)), &["key count"]);
    refused(&with(header(3, u64::MAX, u64::MAX)), &["count"]);
    let long = |kind: u32, value: &[u8]| Raw::default().key("k", kind, value).bytes();
    refused(&long(8, &huge.to_le_bytes()), &[": k:"]);
    for element in 0..13u32 {
        let array = [&element.to_le_bytes()[..], &huge.to_le_bytes(), &[0; 64]].concat();
        refused(&long(9, &array), &[": k:", "declares"]);
    }
    let shape = Raw::default()
        .tensor("t", &[huge, huge], 0, 0)
        .data(64)
        .bytes();
    refused(&shape, &["tensor t"]);
    refused(
        &Raw::default()
            .tensor("t", &[1 << 40], 0, 0)
            .data(64)
            .bytes(),
        &["tensor t", "past the end"],
    );
    refused(
        &Raw::default()
            .tensor("t", &[1], 0, u64::MAX - 31)
            .data(64)
            .bytes(),
        &["tensor t", "past the end"],
    );
    refused(
        &Raw::default().tensor("t", &[0, 4], 0, 0).data(64).bytes(),
        &["tensor t", "empty"],
    );
}

#[test]
fn arrays_nest_only_so_deep() {
    let nested = |depth: usize| {
        let mut value = Vec::new();
        for _ in 1..depth {
            value.extend(9u32.to_le_bytes());
            value.extend(1u64.to_le_bytes());
        }
        value.extend(0u32.to_le_bytes());
        value.extend(0u64.to_le_bytes());
        Raw::default().key("k", 9, &value).bytes()
    };
    assert!(open_bytes(&nested(8)).is_ok());
    refused(&nested(9), &[": k:", "nested"]);
    refused(&nested(100_000), &[": k:", "nested"]);
}

#[test]
fn wrong_fields_are_named() {
    let raw = Raw::default;
    refused(
        &raw().key("k", 4, &[0; 4]).key("k", 4, &[0; 4]).bytes(),
        &[": k:", "twice"],
    );
    refused(&raw().key("k", 13, &[0; 4]).bytes(), &[": k:", "type 13"]);
    refused(&raw().key("k", 7, &[2]).bytes(), &[": k:", "boolean"]);
    refused(
        &raw().key("k", 8, &[1, 0, 0, 0, 0, 0, 0, 0, 0xff]).bytes(),
        &[": k:", "UTF-8"],
    );
    for alignment in [0u32, 24, 1 << 31] {
        refused(
            &raw()
                .key("general.alignment", 4, &alignment.to_le_bytes())
                .bytes(),
            &["general.alignment"],
        );
    }
    let two = |second: u64| {
        raw()
            .tensor("a", &[16], 0, 0)
            .tensor("b", &[8], 0, second)
            .data(256)
            .bytes()
    };
    assert!(open_bytes(&two(64)).is_ok());
    refused(&two(32), &["tensor b", "overlaps tensor a"]);
    refused(&two(0), &["overlaps"]);
    refused(&two(65), &["tensor b", "alignment 32"]);
    refused(
        &raw()
            .tensor("a", &[8], 0, 0)
            .tensor("a", &[8], 0, 32)
            .data(64)
            .bytes(),
        &["tensor a", "twice"],
    );
    refused(
        &raw()
            .tensor("a", &[256], 24, 0)
            .tensor("b", &[256], 0, 256)
            .data(2048)
            .bytes(),
        &["tensor a", "I8", "Q4_0", "MXFP4", "1 of 2 are I8"],
    );
    refused(
        &raw().tensor("a", &[256], 77, 0).data(512).bytes(),
        &["tensor a", "77"],
    );
    refused(
        &raw().tensor("a", &[33], 2, 0).data(512).bytes(),
        &["tensor a", "Q4_0", "32"],
    );
    // The kernels of a convolution are rows.
    let kernels = open_bytes(&raw().tensor("a", &[2, 3, 4, 5], 0, 0).data(512).bytes());
    let kernels = kernels.expect("4 dimensions");
    let info = kernels.tensor("a").expect("the tensor");
    assert_eq!((info.n, info.k, info.stack), (5, 24, 1));
    refused(
        &raw()
            .tensor("a", &[1 << 40, 1 << 40, 2, 2], 0, 0)
            .data(512)
            .bytes(),
        &["tensor a", "is empty"],
    );
    refused(
        &raw().tensor("a", &[1; 9], 0, 0).data(512).bytes(),
        &["tensor a", "9 dimensions"],
    );
    assert!(open_bytes(&raw().tensor("a", &[2, 2, 1, 1], 0, 0).data(512).bytes()).is_ok());
}

#[test]
fn another_alignment() {
    let mut raw = Raw::default()
        .key("general.alignment", 4, &64u32.to_le_bytes())
        .tensor("a", &[1], 0, 0)
        .tensor("b", &[1], 0, 64)
        .data(68);
    raw.alignment = 64;
    let read = open_bytes(&raw.bytes()).unwrap();
    let b = read.tensor("b").unwrap();
    assert_eq!(*read.rows(b, 0, 1).unwrap(), [64, 65, 66, 67]);
}

fn part(number: u16, count: u16, total: i32, tensor: &str) -> Raw {
    Raw::default()
        .key("split.no", 2, &number.to_le_bytes())
        .key("split.count", 2, &count.to_le_bytes())
        .key("split.tensors.count", 5, &total.to_le_bytes())
        .tensor(tensor, &[4], 0, 0)
        .data(32)
}

#[test]
fn split_files() {
    assert_eq!(split_name("a-b-00002-of-00003.gguf"), Some(("a-b", 2, 3)));
    for wrong in [
        "a.gguf",
        "a-00004-of-00003.gguf",
        "a-00000-of-00003.gguf",
        "a-0001-of-00003.gguf",
        "é-of-.gguf",
    ] {
        assert_eq!(split_name(wrong), None, "{wrong}");
    }
    let directory = TempDir::new().unwrap();
    let name = |i: u16| format!("m-{i:05}-of-00003.gguf");
    let paths: Vec<PathBuf> = (1..=3)
        .map(|i| {
            put(
                &directory,
                &name(i),
                &part(i - 1, 3, 3, &format!("t{i}")).bytes(),
            )
        })
        .collect();
    for path in &paths {
        let read = open(path).unwrap();
        assert_eq!(read.tensors().len(), 3);
        let last = read.tensor("t3").unwrap();
        assert_eq!(read.rows(last, 0, 1).unwrap().len(), 16);
    }
    let error = |path: &Path| open(path).err().expect("must be refused").to_string();
    // A part that says something else.
    put(&directory, &name(2), &part(2, 3, 3, "t2").bytes());
    let said = error(&paths[0]);
    assert!(
        said.contains(&name(2)) && said.contains("split.no"),
        "{said}"
    );
    put(&directory, &name(2), &part(1, 4, 3, "t2").bytes());
    let said = error(&paths[0]);
    assert!(
        said.contains(&name(2)) && said.contains("split.count"),
        "{said}"
    );
    put(&directory, &name(2), &part(1, 3, 3, "t1").bytes());
    let said = error(&paths[0]);
    assert!(
        said.contains(&name(2)) && said.contains("t1") && said.contains("twice"),
        "{said}"
    );
    std::fs::remove_file(&paths[1]).unwrap();
    for path in [&paths[0], &paths[2]] {
        let said = error(path);
        assert!(
            said.contains(&name(2)) && said.contains("part 2 of 3 is missing"),
            "{said}"
        );
    }
    // Names that do not fit what the file says.
    let said = error(&put(
        &directory,
        "renamed.gguf",
        &part(0, 3, 3, "t").bytes(),
    ));
    assert!(said.contains("split.count"), "{said}");
    let said = error(&put(
        &directory,
        "x-00001-of-99999.gguf",
        &part(0, 3, 3, "t").bytes(),
    ));
    assert!(said.contains("split.count"), "{said}");
    let said = error(&put(
        &directory,
        "x-00001-of-00002.gguf",
        &Raw::default().bytes(),
    ));
    assert!(said.contains("split.count"), "{said}");
    assert!(
        open(&put(
            &directory,
            "y-00001-of-00001.gguf",
            &part(0, 1, 1, "t").bytes()
        ))
        .is_ok()
    );
}

#[test]
fn every_type_number_is_its_own() {
    let numbers: BTreeMap<u32, Format> = stored().map(|f| (type_id(f).unwrap(), f)).collect();
    assert_eq!(numbers.len(), stored().count());
}

#[test]
fn cut_anywhere_it_is_refused() {
    let whole = sample();
    let directory = TempDir::new().unwrap();
    let head = 1600.min(whole.len());
    let lengths = (0..head).chain((head..whole.len()).step_by(61));
    for length in lengths {
        let path = put(&directory, "a.gguf", &whole[..length]);
        // Only the padding after the last tensor may be missing.
        if let Ok(read) = Gguf::open(&path) {
            assert!(whole.len() - length < 32, "{length} of {}", whole.len());
            assert_eq!(read.tensors().len(), stored().count());
        }
    }
}

/// Reads whatever can be read.
fn exercise(bytes: &[u8]) {
    if let Ok(read) = open_bytes(bytes) {
        for tensor in read.tensors() {
            assert!(
                read.rows(tensor, 0, tensor.n)
                    .is_ok_and(|rows| rows.len() <= bytes.len())
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..Default::default() })]

    #[test]
    fn flipped_bytes_do_no_harm(flips in prop::collection::vec((0usize..2000, any::<u8>()), 1..6)) {
        let mut bytes = sample();
        for (at, value) in flips {
            let length = bytes.len();
            bytes[at % length] = value;
        }
        exercise(&bytes);
    }

    #[test]
    fn random_bytes_do_no_harm(tail in prop::collection::vec(any::<u8>(), 0..300), keys in 0u64..4, tensors in 0u64..4) {
        exercise(&tail);
        exercise(&[header(3, tensors, keys), tail].concat());
    }

    #[test]
    fn random_values_do_no_harm(kind in 0u32..14, value in prop::collection::vec(0u8..16, 0..120)) {
        exercise(&Raw::default().key("k", kind, &value).tensor("t", &[4], 0, 0).data(32).bytes());
    }
}

/// NVFP4 matrices have factors in tensors of their own: one for each stacked matrix.
#[test]
fn factors_join_their_matrix() {
    let file = |factors: &[f32], kind: u32| {
        let mut raw = Raw::default()
            .tensor("a.weight", &[64, 2, 2], 40, 0)
            .tensor("a.scale", &[factors.len() as u64], kind, 160)
            .tensor("a.input_scale", &[1], 0, 192)
            .tensor("b.weight", &[64], 40, 224)
            .tensor("c.scale", &[1], 0, 288)
            .data(320);
        for (i, factor) in factors.iter().enumerate() {
            raw.data[160 + 4 * i..][..4].copy_from_slice(&factor.to_le_bytes());
        }
        raw.bytes()
    };
    let directory = TempDir::new().unwrap();
    let path = put(&directory, "a.gguf", &file(&[0.5, 3.0], 0));
    let read = Gguf::open(&path).unwrap();
    let found: Vec<_> = read
        .tensors()
        .iter()
        .map(|t| (t.name.as_str(), t.format))
        .collect();
    let wanted = [
        ("a.weight", Format::NVFP4_F32),
        ("b.weight", Format::NVFP4),
        ("c.scale", Format::F32),
    ];
    assert_eq!(found, wanted);
    let tensor = read.tensor("a.weight").unwrap();
    for row in 0..4 {
        let block = read.rows(tensor, row, 1).unwrap();
        assert_eq!(block[..4], [0.5f32, 3.0][row / 2].to_le_bytes());
        assert!(
            block[4..]
                .iter()
                .enumerate()
                .all(|(i, byte)| *byte == (36 * row + i) as u8)
        );
    }
    assert_eq!(read.rows(tensor, 1, 3).unwrap().len(), 3 * 40);
    refused(&file(&[0.5], 0), &["tensor a.scale", "2 numbers", "F32"]);
    refused(
        &file(&[0.5, 1.0], 1),
        &["tensor a.scale", "2 numbers", "F32"],
    );
    refused(&file(&[0.5, f32::NAN], 0), &["tensor a.scale", "finite"]);
}
