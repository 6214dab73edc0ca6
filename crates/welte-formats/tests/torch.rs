//! Files that `torch.save` wrote (`tools/torch-fixtures`), as weights of a directory, and files that only look like them.

use proptest::prelude::*;
use serde_json::Value;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use welte_formats::{Checkpoint, open};
use welte_table::Format;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/torch")
        .join(name)
}

/// A directory with these bytes in place of `pytorch_model.bin`.
fn directory(bytes: &[u8]) -> TempDir {
    let made = TempDir::new().unwrap();
    std::fs::write(
        made.path().join("config.json"),
        r#"{"model_type": "xlm-roberta"}"#,
    )
    .unwrap();
    std::fs::write(made.path().join("pytorch_model.bin"), bytes).unwrap();
    made
}

fn values(read: &dyn Checkpoint, name: &str) -> Vec<f32> {
    let info = read
        .tensor(name)
        .unwrap_or_else(|| panic!("{name} is missing"));
    let rows = read.rows(info, 0, info.n).unwrap();
    let two = rows
        .as_chunks::<2>()
        .0
        .iter()
        .map(|b| u16::from_le_bytes(*b));
    match info.format {
        Format::F32 => {
            let all = rows.as_chunks::<4>().0.iter();
            all.map(|b| f32::from_le_bytes(*b)).collect()
        }
        Format::F16 => two.map(|bits| half::f16::from_bits(bits).into()).collect(),
        Format::BF16 => two
            .map(|bits| f32::from_bits(u32::from(bits) << 16))
            .collect(),
        other => panic!("{name} is {other:?}"),
    }
}

#[test]
fn what_torch_wrote_is_read() {
    let expected = std::fs::read_to_string(fixture("expected.json")).unwrap();
    let expected: Value = serde_json::from_str(&expected).unwrap();
    for (file, tensors) in expected.as_object().unwrap() {
        let bytes = std::fs::read(fixture(&format!("{file}.pt"))).unwrap();
        let made = directory(&bytes);
        let read = open(made.path()).unwrap();
        let tensors = tensors.as_object().unwrap();
        assert_eq!(read.tensors().len(), tensors.len(), "{file}");
        for (name, said) in tensors {
            let got = values(read.as_ref(), name);
            let want: Vec<f32> = said["values"]
                .as_array()
                .unwrap()
                .iter()
                .map(|v| v.as_f64().unwrap() as f32)
                .collect();
            assert_eq!(got, want, "{file}: {name}");
            let shape = said["shape"].as_array().unwrap();
            let k = shape.last().map_or(1, |k| k.as_u64().unwrap() as usize);
            assert_eq!(read.tensor(name).unwrap().k, k, "{file}: {name}");
        }
    }
}

#[test]
fn safetensors_come_first() {
    let bytes = std::fs::read(fixture("linear.pt")).unwrap();
    let made = directory(&bytes);
    let header = r#"{"other": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}"#;
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend([0; 4]);
    std::fs::write(made.path().join("model.safetensors"), file).unwrap();
    let read = open(made.path()).unwrap();
    assert!(read.tensor("other").is_some() && read.tensor("weight").is_none());
}

#[test]
fn one_file_comes_before_an_index() {
    let made = directory(&std::fs::read(fixture("linear.pt")).unwrap());
    let index = r#"{"weight_map": {"weight": "pytorch_model-00001-of-00001.bin"}}"#;
    std::fs::write(made.path().join("pytorch_model.bin.index.json"), index).unwrap();
    assert!(open(made.path()).unwrap().tensor("weight").is_some());
}

#[test]
fn other_files_are_told_apart() {
    for (name, part) in [
        (
            "pytorch_model-00001-of-00002.bin",
            "pytorch_model.bin.index.json is missing",
        ),
        (
            "model-00001-of-00002.safetensors",
            "model.safetensors.index.json is missing",
        ),
        ("training_args.bin", "download the weights"),
        ("flax.bin", "rename it to pytorch_model.bin"),
    ] {
        let made = directory(&[]);
        let old = made.path().join("pytorch_model.bin");
        std::fs::rename(old, made.path().join(name)).unwrap();
        let error = open(made.path()).err().unwrap().to_string();
        assert!(error.contains(part), "{name}: {error:?} lacks {part:?}");
        assert!(error.contains("none of model.safetensors"), "{error}");
    }
}

#[test]
fn the_matrices_of_tokens_have_names_of_their_own() {
    let made = directory(&std::fs::read(fixture("many.pt")).unwrap());
    for (name, file) in [
        ("sparse_linear", "linear"),
        ("colbert_linear", "linear-half"),
    ] {
        let from = fixture(&format!("{file}.pt"));
        std::fs::copy(from, made.path().join(format!("{name}.pt"))).unwrap();
    }
    let read = open(made.path()).unwrap();
    let sparse = read.tensor("sparse_linear.weight").unwrap();
    assert_eq!((sparse.n, sparse.k, sparse.format), (1, 8, Format::F32));
    assert!(read.tensor("sparse_linear.bias").is_some());
    assert_eq!(
        read.tensor("colbert_linear.weight").unwrap().format,
        Format::F16
    );
    // The error names the file that is wrong.
    std::fs::copy(fixture("bad-code.pt"), made.path().join("sparse_linear.pt")).unwrap();
    let error = open(made.path()).err().unwrap().to_string();
    assert!(error.contains("sparse_linear.pt"), "{error}");
}

#[test]
fn what_is_not_a_dict_of_tensors_is_refused() {
    let cases = [
        ("bad-code", ["posix.mkdir", "nothing of it was run"]),
        ("bad-nested", ["\"state\"", "not a tensor"]),
        ("bad-strides", ["one after the other", "contiguous"]),
        ("bad-list", ["instruction 0x5d", "safetensors"]),
        ("bad-double", ["tensor wide", "F64"]),
        ("bad-legacy", ["before 1.6", "safetensors"]),
        ("bad-protocol", ["protocol 4", "supported is 2"]),
    ];
    for (file, parts) in cases {
        let bytes = std::fs::read(fixture(&format!("{file}.pt"))).unwrap();
        let error = open(directory(&bytes).path()).err().unwrap().to_string();
        for part in parts.iter().chain(&["pytorch_model.bin"]) {
            assert!(error.contains(part), "{file}: {error:?} lacks {part:?}");
        }
    }
    assert!(!Path::new("pickles-run-code").exists());
}

/// A pickle in an archive as PyTorch writes it.
fn archived(pickle: &[u8], method: u16) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut list = Vec::new();
    for (name, data) in [("x/data.pkl", pickle), ("x/data/0", &[0; 64])] {
        let place = (bytes.len() as u32).to_le_bytes();
        let sizes = [(data.len() as u32).to_le_bytes(); 2].concat();
        let head = [&[0; 2], &method.to_le_bytes()[..], &[0; 8], &sizes].concat();
        let names = (name.len() as u16).to_le_bytes();
        bytes.extend(
            [
                b"PK\x03\x04",
                &[0; 2][..],
                &head,
                &names,
                &[0; 2],
                name.as_bytes(),
                data,
            ]
            .concat(),
        );
        list.extend(
            [
                b"PK\x01\x02",
                &[0; 4][..],
                &head,
                &names,
                &[0; 12],
                &place,
                name.as_bytes(),
            ]
            .concat(),
        );
    }
    let place = (bytes.len() as u32).to_le_bytes();
    let size = (list.len() as u32).to_le_bytes();
    bytes.extend(list);
    bytes.extend(
        [
            b"PK\x05\x06",
            &[0; 4][..],
            &[2, 0, 2, 0],
            &size,
            &place,
            &[0; 2],
        ]
        .concat(),
    );
    bytes
}

fn error_of(pickle: &[u8]) -> String {
    let made = directory(&archived(pickle, 0));
    open(made.path())
        .err()
        .map_or(String::new(), |e| e.to_string())
}

#[test]
fn hostile_pickles_are_refused() {
    // Tuples within tuples would be freed one inside the other.
    let deep = [b"\x80\x02)".to_vec(), vec![0x85; 1 << 20], b".".to_vec()].concat();
    assert!(error_of(&deep).contains("nests tuples"));
    // A tuple of twice the tuple before it, many times over.
    let mut twice = b"\x80\x02)q\x00".to_vec();
    (0..40u8).for_each(|_| twice.extend(b"h\x00h\x00\x86q\x00"));
    assert!(error_of(&twice).contains("nests tuples"));
    // One name and one tensor, recalled many times over.
    let mut again = tensor(16, 0, "0");
    again.truncate(again.len() - 2);
    again.extend(b"q\x01sX\x01\x00\x00\x00bq\x00h\x01s");
    again.extend(b"h\x00h\x01s".repeat(1 << 16));
    again.push(b'.');
    assert!(error_of(&again).contains("\"b\" twice"));
    again.pop();
    again.extend(b"h\x00h\x01s".repeat(1 << 18));
    assert!(error_of(&again).contains("more than 262144 tensors"));
    // A shape of many sizes, which every tensor could recall.
    let wide = [&b"("[..], &b"K\x01".repeat(9), b"tq\x00"].concat();
    let wide = of_shape(0, "0", &[&wide[..], b"h\x00"].concat());
    assert!(error_of(&wide).contains("more than 8 dimensions"));
    let high = [&b"\x80\x02"[..], &b"N".repeat(1 << 17), b"."].concat();
    assert!(error_of(&high).contains("values on the stack"));
    let large = vec![b'N'; (64 << 20) + 1];
    assert!(error_of(&large).contains("larger than the limit"));
    for (pickle, part) in [
        (&b""[..], "broken"),
        (b"\x80\x02.", "broken"),
        (b"\x80\x02u.", "broken"),
        (b"\x80\x02(}s.", "broken"),
        (b"\x80\x02h\x07.", "broken"),
        (b"\x80\x02X\xff\xff\xff\xff.", "broken"),
        (b"\x80\x02cos\nsystem", "broken"),
        (b"\x80\x02cos\nsystem\n.", "os.system"),
        (b"\x80\x02\x8a\x09123456789.", "64 bits"),
        (b"\x80\x02}q\x00}h\x00K\x01s.", "keys are not texts"),
        (
            b"\x80\x02}q\x00h\x00X\x01\x00\x00\x00aK\x01s.",
            "a second time",
        ),
        (b"\x80\x02}q\x00h\x00.", "a second time"),
        (b"\x80\x02}q\x00}X\x01\x00\x00\x00ah\x00s.", "not a tensor"),
        (
            b"\x80\x02ccollections\nOrderedDict\n(K\x01tR.",
            "calls a function",
        ),
        (b"\x80\x02i", "instruction 0x69"),
        (b"\x80\x02K\x01.", "does not hold a state dict"),
        (b"\x80\x02K\x01K\x02b.", "sets the fields"),
    ] {
        let error = error_of(pickle);
        assert!(
            error.contains(part) && error.contains("data.pkl"),
            "{pickle:?}: {error:?} lacks {part:?}"
        );
    }
}

/// A dict of a tensor in 16 floats, of this many elements.
fn tensor(count: u8, first: u8, storage: &str) -> Vec<u8> {
    of_shape(first, storage, &[b'K', count, 0x85, b'K', 1, 0x85])
}

/// A dict of a tensor in 16 floats, whose sizes and strides this makes.
fn of_shape(first: u8, storage: &str, shape: &[u8]) -> Vec<u8> {
    let mut pickle = b"\x80\x02}X\x01\x00\x00\x00actorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\n".to_vec();
    pickle.extend([b'X', storage.len() as u8, 0, 0, 0]);
    pickle.extend(storage.as_bytes());
    pickle.extend(b"X\x03\x00\x00\x00cpuK\x10tQ");
    pickle.extend([b'K', first]);
    pickle.extend(shape);
    pickle.extend(b"\x89ccollections\nOrderedDict\n)RtRs.");
    pickle
}

#[test]
fn tensors_lie_in_their_storages() {
    assert_eq!(error_of(&tensor(16, 0, "0")), "");
    assert_eq!(error_of(&tensor(6, 10, "0")), "");
    assert!(error_of(&tensor(17, 0, "0")).contains("does not fit in data/0"));
    assert!(error_of(&tensor(6, 11, "0")).contains("does not fit in data/0"));
    assert!(error_of(&tensor(1, 0, "../0")).contains("which the file lacks"));
    assert!(error_of(&tensor(0, 0, "0")).contains("is empty"));
    let made = directory(&archived(&tensor(16, 0, "0"), 8));
    let error = open(made.path()).err().unwrap().to_string();
    assert!(error.contains("x/data.pkl is compressed"), "{error}");
}

proptest! {
    /// Whatever is changed in a file, it is read or refused.
    #[test]
    fn changed_files_are_refused_or_read(at in 0usize..1885, to in any::<u8>(), end in 0usize..2000) {
        let mut bytes = std::fs::read(fixture("linear.pt")).unwrap();
        let length = bytes.len();
        bytes[at % length] = to;
        bytes.truncate(end.max(1));
        let made = directory(&bytes);
        if let Ok(read) = open(made.path()) {
            for tensor in read.tensors() {
                let _ = read.rows(tensor, 0, tensor.n);
            }
        }
    }
}
