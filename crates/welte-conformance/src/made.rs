//! Numbers and checkpoints made up for the suite.
#![allow(missing_docs)] // Fields and methods are named after what they fill in.

use std::borrow::Cow;
use std::collections::BTreeMap;
use welte_formats::checkpoint::Dialect;
use welte_formats::synthetic::random_blocks;
use welte_formats::{Checkpoint, Error, Metadata, TensorInfo, quant};
use welte_table::Format;

/// A repeatable sequence of numbers that look random.
#[derive(Default)]
pub struct Numbers(pub u64);

impl Numbers {
    #[expect(
        clippy::should_implement_trait,
        reason = "an endless source, not an iterator"
    )]
    pub fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        let x = self.0 ^ (self.0 >> 31);
        x.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16
    }

    pub fn below(&mut self, n: u32) -> u32 {
        (self.next() % u64::from(n)) as u32
    }

    /// Logits with many ties, huge gaps, infinities and NaN.
    pub fn logits(&mut self, vocab: u32) -> Vec<f32> {
        let kind = self.below(8);
        let mut values: Vec<f32> = (0..vocab as usize)
            .map(|i| {
                let v = self.float() + self.float() + self.float();
                match kind {
                    0 => v * 4.0,
                    1 => (v * 3.0).trunc(),
                    2 => 1.5,
                    3 => v * 20.0 - 30.0,
                    4 if i % 3 == 0 => f32::NEG_INFINITY,
                    5 if self.below(50) == 0 => f32::NAN,
                    6 => [0.0, -0.0, -1e-3][i % 3],
                    _ => v * 2.0,
                }
            })
            .collect();
        match self.below(20) {
            0 => values.fill(f32::NEG_INFINITY),
            1 => values.fill(f32::NAN),
            2 => values[vocab as usize / 2] = f32::INFINITY,
            _ => {}
        }
        values
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u32) as usize]
    }

    /// From -1 to 1.
    pub fn float(&mut self) -> f32 {
        (self.next() & 0xffff) as f32 / 32768.0 - 1.0
    }
}

/// A checkpoint in memory.
#[derive(Default)]
pub struct Made {
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    bytes: BTreeMap<String, Vec<u8>>,
}

impl Made {
    /// Adds a tensor of `n` rows of `k` values.
    pub fn add(&mut self, name: &str, format: Format, n: u32, k: u32, values: &[f32]) {
        let mut bytes = vec![0; format.bytes(values.len()).expect("whole blocks")];
        if quant::has_encoder(format) {
            quant::encode(format, values, &mut bytes);
        } else {
            let power = values.iter().map(|v| v * v).sum::<f32>() / values.len() as f32;
            random_blocks(format, values.len() as u64, power.sqrt(), &mut bytes);
        }
        self.bytes.insert(name.into(), bytes);
        self.tensors.push(TensorInfo {
            name: name.into(),
            format,
            n: n as usize,
            k: k as usize,
            stack: 1,
        });
    }
}

impl Checkpoint for Made {
    fn origin(&self) -> &str {
        "conformance"
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
        self.tensors.iter().find(|t| t.name == name)
    }
    fn rows(&self, tensor: &TensorInfo, first: usize, rows: usize) -> Result<Cow<'_, [u8]>, Error> {
        let row = tensor.format.bytes(tensor.k).expect("whole blocks");
        let bytes = &self.bytes[&tensor.name];
        Ok(Cow::Borrowed(&bytes[first * row..(first + rows) * row]))
    }
}
