//! The block formats against the gguf package's reference (fixtures by tools/quant-fixtures/make.py).

use std::path::Path;
use welte_formats::quant::decode;
use welte_table::Format;

fn fixture(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/quant")
        .join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes
        .as_chunks()
        .0
        .iter()
        .map(|b| f32::from_le_bytes(*b))
        .collect()
}

#[test]
fn decodes_bit_for_bit_as_the_reference() {
    for format in Format::ALL.into_iter().filter(|f| *f != Format::F32) {
        let bytes = fixture(&format!("{}.bytes", format.name()));
        let expected = floats(&fixture(&format!("{}.decoded", format.name())));
        let mut got = vec![0.0; expected.len()];
        decode(format, &bytes, &mut got);
        for (i, (got, expected)) in got.iter().zip(&expected).enumerate() {
            assert_eq!(
                got.to_bits(),
                expected.to_bits(),
                "{} {i}: {got} {expected}",
                format.name()
            );
        }
    }
}
