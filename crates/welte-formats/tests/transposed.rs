//! Weights that the file stores transposed.

use std::borrow::Cow;
use welte_formats::checkpoint::Dialect;
use welte_formats::{Checkpoint, Error, Metadata, TensorInfo, WeightRows, quant};
use welte_table::{Format, Part, Source, Usage, WeightSpec};

/// A checkpoint of one tensor.
struct One {
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    data: Vec<u8>,
}

impl One {
    fn of(format: Format, n: usize, k: usize, values: &[f32]) -> One {
        let mut data = vec![0; format.bytes(k).unwrap() * n];
        quant::encode(format, values, &mut data);
        One {
            metadata: Metadata::new(),
            tensors: vec![TensorInfo {
                name: "up".into(),
                format,
                n,
                k,
                stack: 1,
            }],
            data,
        }
    }
}

impl Checkpoint for One {
    fn origin(&self) -> &str {
        "file"
    }

    fn dialect(&self) -> Dialect {
        Dialect::Gguf
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.iter().find(|info| info.name == name)
    }

    fn rows(&self, info: &TensorInfo, first: usize, rows: usize) -> Result<Cow<'_, [u8]>, Error> {
        let row = self.data.len() / info.n;
        Ok(Cow::Borrowed(&self.data[first * row..(first + rows) * row]))
    }
}

/// Two matrices of 3 x 2, stored as rows 0..2 and 3..5 of 3 elements.
fn two_heads(format: Format) -> WeightSpec {
    let part = |first_row| Part {
        tensor: "up".into(),
        first_row,
        rows: 2,
    };
    WeightSpec {
        name: "keys".into(),
        format,
        n: 6,
        k: 2,
        usage: Usage::Matrix,
        add: 0.0,
        source: Source::Transposed(vec![part(0), part(3)]),
    }
}

fn counting(n: usize) -> Vec<f32> {
    (0..n).map(|i| i as f32).collect()
}

#[test]
fn columns_become_rows() {
    let file = One::of(Format::BF16, 5, 3, &counting(15));
    let spec = two_heads(Format::BF16);
    let rows = WeightRows {
        spec: &spec,
        checkpoint: &file,
    };
    let all = [0., 3., 1., 4., 2., 5., 9., 12., 10., 13., 11., 14.];
    assert_eq!(rows.values().unwrap(), all);
    // Every stretch of rows, also one across both matrices.
    for first in 0..6 {
        for count in 1..=6 - first {
            let bytes = rows.encoded(first, count).unwrap().concat();
            let mut values = vec![0.0; count * 2];
            quant::decode(Format::BF16, &bytes, &mut values);
            assert_eq!(values, all[first * 2..][..count * 2], "{first} {count}");
        }
    }
}

#[test]
fn blocks_become_halves() {
    let values: Vec<f32> = (0..64).map(|i| i as f32 - 31.0).collect();
    let file = One::of(Format::Q8_0, 2, 32, &values);
    let spec = WeightSpec {
        n: 32,
        source: Source::Transposed(vec![Part {
            tensor: "up".into(),
            first_row: 0,
            rows: 2,
        }]),
        ..two_heads(Format::F16)
    };
    let rows = WeightRows {
        spec: &spec,
        checkpoint: &file,
    };
    let mut stored = vec![0.0; 64];
    quant::decode(Format::Q8_0, &file.data, &mut stored);
    let mut got = [0.0; 2];
    quant::decode(Format::F16, &rows.encoded(7, 1).unwrap().concat(), &mut got);
    for (got, want) in got.into_iter().zip([stored[7], stored[39]]) {
        assert!((got - want).abs() <= want.abs() / 2048.0, "{got} {want}");
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let refused = |file: One, spec: WeightSpec, problem: &str| {
        let rows = WeightRows {
            spec: &spec,
            checkpoint: &file,
        };
        let error = rows.encoded(0, 6).expect_err(problem).to_string();
        assert!(error.contains(problem) && error.contains("keys"), "{error}");
    };
    refused(
        One::of(Format::F32, 5, 4, &counting(20)),
        two_heads(Format::F32),
        "up has rows of 4 elements, not 3",
    );
    refused(
        One::of(Format::F32, 4, 3, &counting(12)),
        two_heads(Format::F32),
        "up has 4 rows, 5 are needed",
    );
    refused(
        One::of(Format::F32, 5, 3, &[1e6; 15]),
        two_heads(Format::F16),
        "its value 1000000 is too large for F16",
    );
}
