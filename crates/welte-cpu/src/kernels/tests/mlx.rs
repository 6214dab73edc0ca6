//! Products against MLX's own quantised ones, in each of its affine formats (files by tools/goldens/mlx_goldens.py).

use super::Aligned;
use crate::{Isa, Kernel};
use std::path::{Path, PathBuf};
use welte_formats::{open, quant};
use welte_table::Affine;

const K: usize = 256;
const ROWS: usize = 2;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../welte-formats/tests/fixtures/mlx")
}

fn floats(name: &str) -> Vec<f32> {
    let bytes = std::fs::read(fixtures().join(name)).unwrap();
    let words = bytes.as_chunks().0.iter();
    words.map(|b| f32::from_le_bytes(*b)).collect()
}

/// The product of encoded rows with one row of activations.
fn product(kernel: &Kernel, rows: &[u8], x: &[f32]) -> [f32; ROWS] {
    let rows: Vec<&[u8]> = rows.chunks_exact(rows.len() / ROWS).collect();
    let mut tile = Aligned::new(kernel.tile_bytes(K));
    let mut acts = Aligned::new(kernel.acts_bytes(K));
    kernel.pack(K, &rows, tile.bytes());
    kernel.prepare(x, acts.bytes());
    let mut out = [f32::NAN; ROWS];
    // SAFETY: one tile, one row of activations and two outputs, all made for this kernel.
    unsafe {
        let (tile, acts) = (tile.bytes().as_ptr(), acts.bytes().as_ptr());
        kernel.matmul(tile, ROWS, K, acts, 1, out.as_mut_ptr(), ROWS, false);
    }
    out
}

#[test]
fn products_agree_with_mlx() {
    let read = open(&fixtures()).unwrap();
    let (x, products) = (floats("x.f32"), floats("products.f32"));
    for (affine, want) in Affine::ALL.into_iter().zip(products.chunks_exact(ROWS)) {
        let (bits, group) = (affine.bits(), affine.group());
        let kind = if affine.bf16() { "bf16" } else { "f16" };
        let name = format!("b{bits}_g{group}_{kind}.weight");
        let tensor = read.tensor(&name).unwrap();
        let rows = read.rows(tensor, 0, ROWS).unwrap();
        let mut w = [0.0; ROWS * K];
        quant::decode(tensor.format, &rows, &mut w);
        for isa in Isa::available() {
            let kernel = Kernel::for_format(tensor.format, isa);
            let got = product(&kernel, &rows, &x);
            for (r, w) in w.chunks_exact(K).enumerate() {
                let (mut exact, mut size, mut bound) = (0f64, 0f64, 0f64);
                for (w, x) in w.chunks_exact(32).zip(x.chunks_exact(32)) {
                    // Half a step of eight bits.
                    let step = x.iter().fold(0f32, |a, x| a.max(x.abs())) / 254.0;
                    for (w, x) in w.iter().zip(x) {
                        exact += f64::from(*w) * f64::from(*x);
                        size += f64::from((w * x).abs());
                        bound += f64::from(w.abs() * step);
                    }
                }
                let want = f64::from(want[r]);
                assert!(
                    (exact - want).abs() <= 1e-6 * size,
                    "{name}: {exact} {want}"
                );
                // Biases are added apart from the rest: both may be larger than their sum.
                let off = (f64::from(got[r]) - want).abs();
                assert!(
                    off <= 1.01 * bound + 4e-6 * size,
                    "{name} on {isa:?}: {} for {want}, {bound} allowed",
                    got[r]
                );
            }
        }
    }
}
