mod mlx;

use super::layout::{ACT, ACT_SCALE, CHUNK};
use super::*;
use welte_formats::quant;

/// A small generator with a fixed seed: failures are reproducible.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        let x = self.0 ^ self.0 >> 29;
        x.wrapping_mul(0xbf58476d1ce4e5b9) >> 16
    }

    fn float(&mut self) -> f32 {
        (self.next() % 65536) as f32 / 32768.0 - 1.0
    }

    /// Blocks with any bits in their quants and moderate scales.
    fn row(&mut self, format: Format, k: usize) -> Vec<u8> {
        match format {
            Format::F32 => return (0..k).flat_map(|_| self.float().to_le_bytes()).collect(),
            Format::F16 => {
                return (0..k)
                    .flat_map(|_| half::f16::from_f32(self.float()).to_le_bytes())
                    .collect();
            }
            Format::BF16 => {
                return (0..k)
                    .flat_map(|_| half::bf16::from_f32(self.float()).to_le_bytes())
                    .collect();
            }
            _ => {}
        }
        let mut row: Vec<u8> = (0..format.bytes(k).unwrap())
            .map(|_| self.next() as u8)
            .collect();
        match format {
            Format::MXFP4 => {
                for (b, block) in row.chunks_exact_mut(17).enumerate() {
                    block[0] = [0, 1, 2, 3, 120, 121, 122, 124][(b + k) % 8];
                }
                return row;
            }
            Format::F8_E4M3 => {
                for block in row.chunks_exact_mut(132) {
                    block[..4].copy_from_slice(&(self.float() / 400.0).to_le_bytes());
                    block[4..]
                        .iter_mut()
                        .for_each(|v| *v &= !(u8::from(*v & 0x7f == 0x7f) << 3));
                }
                return row;
            }
            Format::NVFP4 | Format::NVFP4_F32 => {
                for block in row.chunks_exact_mut(format.block_bytes()) {
                    let (factor, rest) = block.split_at_mut(format.block_bytes() - 36);
                    if let [_, _, _, _] = factor {
                        factor.copy_from_slice(&self.float().to_le_bytes());
                    }
                    for scale in &mut rest[..4] {
                        *scale = [0, 1, 7, 8, 0x20, 0x25, 0x2c, 0x7f][usize::from(*scale % 8)];
                    }
                }
                return row;
            }
            Format::Integers(member) => {
                for block in row.chunks_exact_mut(format.block_bytes()) {
                    let zero = f32::from(block[0]) % (2 * member.middle()) as f32;
                    let head =
                        quant::integers::joined_head(member, self.float().abs() / 50.0, zero);
                    block[..4].copy_from_slice(&head);
                }
                return row;
            }
            Format::IQ1_M => {
                for block in row.chunks_exact_mut(56) {
                    let d = half::f16::from_f32(self.float() / 50.0).to_bits();
                    for (i, word) in block[48..].chunks_exact_mut(2).enumerate() {
                        word[1] = word[1] & 15 | ((d >> (4 * i) & 15) << 4) as u8;
                    }
                }
                return row;
            }
            _ => {}
        }
        let scales: &[usize] = match format {
            Format::TQ1_0 => &[52],
            Format::TQ2_0 => &[64],
            Format::Q6_K => &[208],
            Format::Q3_K => &[108],
            Format::Q2_K => &[80, 82],
            Format::Q4_1 | Format::Q5_1 | Format::Q4_K | Format::Q5_K | Format::Affine(_) => {
                &[0, 2]
            }
            _ => &[0],
        };
        for block in row.chunks_exact_mut(format.block_bytes()) {
            for at in scales {
                let scale = self.float() / 50.0;
                let bytes = match format {
                    Format::Affine(a) if a.bf16() => half::bf16::from_f32(scale).to_le_bytes(),
                    _ => half::f16::from_f32(scale).to_le_bytes(),
                };
                block[*at..at + 2].copy_from_slice(&bytes);
            }
        }
        row
    }
}

/// Bytes aligned to 64, like the device's memory.
struct Aligned(Vec<[u8; 64]>, usize);

impl Aligned {
    fn new(bytes: usize) -> Aligned {
        Aligned(vec![[0xA5; 64]; bytes.div_ceil(64)], bytes)
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.0.as_flattened_mut()[..self.1]
    }
}

struct Case {
    kernel: Kernel,
    n: usize,
    k: usize,
    weights: Vec<Vec<u8>>,
    tiles: Aligned,
    x: Vec<Vec<f32>>,
    acts: Aligned,
}

impl Case {
    fn new(format: Format, isa: Isa, n: usize, k: usize, rows: usize) -> Case {
        let mut random = Random((n * 1000 + k) as u64);
        let kernel = Kernel::for_format(format, isa);
        let weights: Vec<Vec<u8>> = (0..n).map(|_| random.row(format, k)).collect();
        let bytes = kernel.tile_bytes(k);
        let mut tiles = Aligned::new(n.div_ceil(16) * bytes);
        for (tile, rows) in tiles
            .bytes()
            .chunks_exact_mut(bytes)
            .zip(weights.chunks(16))
        {
            let rows: Vec<&[u8]> = rows.iter().map(Vec::as_slice).collect();
            kernel.pack(k, &rows, tile);
        }
        let x: Vec<Vec<f32>> = (0..rows)
            .map(|_| (0..k).map(|_| 3.0 * random.float().powi(3)).collect())
            .collect();
        let bytes = kernel.acts_bytes(k);
        let mut acts = Aligned::new(rows * bytes);
        for (acts, x) in acts.bytes().chunks_exact_mut(bytes).zip(&x) {
            kernel.prepare(x, acts);
        }
        Case {
            kernel,
            n,
            k,
            weights,
            tiles,
            x,
            acts,
        }
    }

    /// Rows `first..` of the product, `rows` of them at once, with two poisoned floats after each row.
    fn run(&mut self, first: usize, rows: usize, before: Option<f32>) -> Vec<f32> {
        let mut out = vec![before.unwrap_or(f32::NAN); rows * (self.n + 2)];
        let acts = &self.acts.bytes()[first * self.kernel.acts_bytes(self.k)..];
        let acts = acts.as_ptr();
        let tiles = self.tiles.bytes().as_ptr();
        let (n, k) = (self.n, self.k);
        // SAFETY: tiles, activations and outputs were made for this n, k and number of rows.
        unsafe {
            self.kernel.matmul(
                tiles,
                n,
                k,
                acts,
                rows,
                out.as_mut_ptr(),
                n + 2,
                before.is_some(),
            )
        };
        out
    }

    /// The activations as the kernel sees them.
    fn seen(&mut self, r: usize) -> Vec<f32> {
        let bytes = self.kernel.acts_bytes(self.k);
        let acts = &self.acts.bytes()[r * bytes..(r + 1) * bytes];
        if self.kernel.rounds_acts() {
            return self.x[r]
                .iter()
                .map(|x| half::bf16::from_f32(*x).to_f32())
                .collect();
        }
        if !self.kernel.format.rounds_activations() {
            return self.x[r].clone();
        }
        let mut seen = Vec::new();
        for act in acts.chunks_exact(ACT).take(self.k / CHUNK) {
            let scale = f32::from_le_bytes(act[ACT_SCALE..ACT_SCALE + 4].try_into().unwrap());
            seen.extend(act[..CHUNK].iter().map(|q| scale * f32::from(*q as i8)));
        }
        seen
    }
}

fn cases(mut check: impl FnMut(Case)) {
    for isa in Isa::available() {
        for format in Format::ALL {
            let blocks: &[usize] = match format.block() {
                1 => &[1, 64, 77],
                32 => &[1, 5, 8],
                _ => &[1, 3],
            };
            for (i, k) in blocks.iter().map(|b| b * format.block()).enumerate() {
                check(Case::new(format, isa, [7, 37, 48][i], k, 17));
            }
        }
    }
}

/// Against decoded weights: exact for the kernel's prepared activations, close for the original ones.
#[test]
fn agrees_with_decoded_weights() {
    cases(|mut case| {
        let (format, isa) = (case.kernel.format, case.kernel.isa);
        let out = case.run(0, 17, None);
        for r in 0..17 {
            let seen = case.seen(r);
            for i in 0..case.n {
                let mut w = vec![0f32; case.k];
                quant::decode(format, &case.weights[i], &mut w);
                let (mut exact, mut truth, mut size, mut bound) = (0f64, 0f64, 0f64, 0f64);
                for ((w, x), seen) in w.iter().zip(&case.x[r]).zip(&seen) {
                    exact += f64::from(*w) * f64::from(*seen);
                    truth += f64::from(*w) * f64::from(*x);
                    // Minima are added apart from scaled quants: both may be larger than their sum.
                    size += (f64::from(w.abs()) + 1.0) * f64::from(seen.abs());
                    bound += f64::from(w.abs()) * f64::from((x - seen).abs());
                    let step = if format.rounds_activations() {
                        3.0 / 127.0 / 2.0
                    } else {
                        3.0 / 256.0
                    };
                    assert!(
                        (x - seen).abs() <= step * 1.001,
                        "{format:?} {isa:?}: activation {x} became {seen}"
                    );
                }
                let got = f64::from(out[r * (case.n + 2) + i]);
                let name = format!(
                    "{format:?} on {isa:?}, n {} k {} row {r} output {i}",
                    case.n, case.k
                );
                assert!(
                    (got - exact).abs() <= 2e-6 * size,
                    "{name}: {got} for {exact}"
                );
                assert!(
                    (got - truth).abs() <= bound + 2e-6 * size,
                    "{name}: {got} for {truth}"
                );
            }
        }
    });
}

/// A row's bits do not depend on the rows or tiles beside it, nothing beyond n is written, and accumulation adds.
#[test]
fn rows_and_tiles_stand_alone() {
    cases(|mut case| {
        let name = format!("{:?} on {:?}", case.kernel.format, case.kernel.isa);
        let (n, stride) = (case.n, case.n + 2);
        let all = case.run(0, 17, None);
        for r in 0..17 {
            assert!(
                all[r * stride + n..(r + 1) * stride]
                    .iter()
                    .all(|x| x.is_nan()),
                "{name}: wrote beyond n"
            );
        }
        for rows in 1..17 {
            let first = (17 - rows) / 2;
            let some = case.run(first, rows, None);
            for r in 0..rows {
                let (a, b) = (&some[r * stride..][..n], &all[(first + r) * stride..][..n]);
                assert!(
                    a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits()),
                    "{name}: {rows} rows differ"
                );
            }
        }
        let added = case.run(0, 3, Some(0.5));
        for r in 0..3 {
            for i in 0..n {
                assert_eq!(
                    added[r * stride + i],
                    0.5 + all[r * stride + i],
                    "{name}: accumulation"
                );
            }
            assert_eq!(
                added[r * stride + n..(r + 1) * stride],
                [0.5, 0.5],
                "{name}: wrote beyond n"
            );
        }
        one_tile_alone(&mut case, &all);
    });
}

fn one_tile_alone(case: &mut Case, all: &[f32]) {
    let (kernel, k, stride) = (case.kernel, case.k, case.n + 2);
    for t in 0..case.n.div_ceil(16) {
        let n = (case.n - t * 16).min(16);
        let mut out = [f32::NAN; 16];
        // SAFETY: tile t and activation row 0 exist, and the outputs are 16.
        unsafe {
            let tile = case.tiles.bytes().as_ptr().add(t * kernel.tile_bytes(k));
            kernel.matmul(
                tile,
                n,
                k,
                case.acts.bytes().as_ptr(),
                1,
                out.as_mut_ptr(),
                16,
                false,
            );
        }
        let b = &all[t * 16..t * 16 + n];
        assert!(
            out[..n]
                .iter()
                .zip(b)
                .all(|(a, b)| a.to_bits() == b.to_bits()),
            "a tile alone differs"
        );
        assert!(stride > n && out[n..].iter().all(|x| x.is_nan()));
    }
}

/// Integer sums are exact and the float operations the same: every instruction set gives the same bits.
#[test]
fn instruction_sets_agree_bit_for_bit() {
    for format in Format::ALL.into_iter().filter(|f| f.is_quantised()) {
        let mut first: Option<Vec<u32>> = None;
        for isa in Isa::available() {
            let mut case = Case::new(format, isa, 37, 512, 5);
            if case.kernel.rounds_acts() {
                continue;
            }
            let out = case
                .run(0, 5, Some(0.0))
                .iter()
                .map(|x| x.to_bits())
                .collect::<Vec<_>>();
            let first = first.get_or_insert_with(|| out.clone());
            assert!(*first == out, "{format:?} on {isa:?} differs");
        }
    }
}

#[test]
fn packed_size_is_near_the_files() {
    // Indices into tables of eight elements are replaced by a code per element, and numbers in base 3 by two bits each.
    let bits = |format| match format {
        Format::IQ1_S => 2.65,
        Format::IQ1_M | Format::IQ2_XS | Format::IQ2_S => 3.57,
        Format::IQ2_XXS => 3.32,
        Format::IQ3_XXS | Format::IQ3_S => 4.32,
        // One bit becomes two.
        Format::Q1_0 => 2.14,
        Format::TQ1_0 | Format::TQ2_0 => 2.07,
        Format::NVFP4 => 5.0,
        known => known.bytes(4096).unwrap() as f64 * 1.04 * 8.0 / 4096.0,
    };
    for format in Format::ALL {
        let packed = Kernel::for_format(format, Isa::Scalar).tile_bytes(4096);
        let wanted = bits(format) / 8.0 * 4096.0 * 16.0;
        assert!(packed as f64 <= wanted, "{format:?}: {packed} for {wanted}");
    }
}

#[test]
fn packing_is_the_same_everywhere() {
    for format in Format::ALL {
        for (n, k) in [
            (16, 512),
            (5, 256),
            (16, format.block() * 3),
            (9, format.block()),
        ] {
            let mut random = Random(n as u64);
            let rows: Vec<Vec<u8>> = (0..n).map(|_| random.row(format, k)).collect();
            let rows: Vec<&[u8]> = rows.iter().map(Vec::as_slice).collect();
            let mut tiles = [1, 2].map(|poison| vec![poison; layout::tile_bytes(format, k)]);
            // SAFETY: `packer` chooses what the processor can run.
            unsafe { packer(format)(format, k, &rows, &mut tiles[0]) };
            let plain: Pack = by_format!(format, plain_pack);
            // SAFETY: plain code.
            unsafe { plain(format, k, &rows, &mut tiles[1]) };
            assert!(tiles[0] == tiles[1], "{format:?} {n} x {k}");
        }
    }
}

/// Rows read back from tiles equal the decoded rows.
#[test]
fn rows_are_read_back_from_tiles() {
    for format in Format::ALL {
        for k in [format.block(), format.block() * 3] {
            let mut case = Case::new(format, Isa::Scalar, 19, k, 1);
            for r in 0..19 {
                let (mut want, mut got) = (vec![0f32; k], vec![f32::NAN; k]);
                quant::decode(format, &case.weights[r], &mut want);
                case.kernel.unpack_row(case.tiles.bytes(), r, &mut got);
                let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&got), bits(&want), "{format:?}, row {r} of {k}");
            }
        }
    }
}

#[test]
fn activations_are_prepared_alike_everywhere() {
    let mut random = Random(5);
    for format in Format::ALL.into_iter().filter(|f| f.rounds_activations()) {
        for scale in [0.0, 1e-36, 1e-3, 1.0, 1e30] {
            let x: Vec<f32> = (0..512).map(|_| random.float() * scale).collect();
            let prepared = |isa| {
                let kernel = Kernel::for_format(format, isa);
                let mut acts = vec![0u8; kernel.acts_bytes(x.len())];
                kernel.prepare(&x, &mut acts);
                acts
            };
            for isa in Isa::available() {
                assert_eq!(prepared(isa), prepared(Isa::Scalar), "{format:?}, {isa:?}");
            }
        }
    }
}

#[test]
fn infinite_activations_are_not_hidden() {
    for isa in Isa::available() {
        for format in Format::ALL {
            let kernel = Kernel::for_format(format, isa);
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut case = Case::new(format, isa, 16, 256, 1);
                case.x[0][77] = bad;
                kernel.prepare(&case.x[0], case.acts.bytes());
                let out = case.run(0, 1, None);
                assert!(
                    out[..16].iter().all(|x| !x.is_finite()),
                    "{format:?} on {isa:?} hides {bad}"
                );
            }
        }
    }
}

#[test]
fn tiny_and_zero_activations_give_zero() {
    for format in Format::ALL.into_iter().filter(|f| f.rounds_activations()) {
        let kernel = Kernel::for_format(format, Isa::best());
        let mut case = Case::new(format, Isa::best(), 16, 256, 1);
        for x in [0.0, 1e-38, 1e-44] {
            kernel.prepare(&[x; 256], case.acts.bytes());
            assert_eq!(case.run(0, 1, None)[..16], [0.0; 16], "{format:?}");
        }
    }
}

#[test]
fn names_are_found_again() {
    for isa in Isa::ALL {
        assert_eq!(Isa::from_name(isa.name()), Some(isa));
    }
    assert!(Isa::best().is_available());
}

/// Unpacked tiles give the bits of packed ones, nothing beyond n is written, and accumulation adds.
#[test]
fn unpacked_tiles_give_the_same_bits() {
    let mut seen = 0;
    for isa in Isa::available() {
        for format in Format::ALL {
            for (n, blocks, rows) in [
                (7, 1, 70),
                (37, 3, 17),
                (48, 2, 1),
                (16, 5, 13),
                (17, 18, 35),
            ] {
                let k = blocks * format.block().max(32);
                let mut case = Case::new(format, isa, n, k, rows);
                let Some(bytes) = case.kernel.unpacked_bytes(k) else {
                    continue;
                };
                seen += 1;
                let tiles = n.div_ceil(16);
                let mut unpacked = Aligned::new(tiles * bytes + 64);
                for before in [None, Some(0.25)] {
                    let want = case.run(0, rows, before);
                    let mut out = vec![before.unwrap_or(f32::NAN); rows * (n + 2)];
                    // SAFETY: as in `Case::run`; the unpacked tiles were made for this k.
                    unsafe {
                        let room = unpacked.bytes().as_mut_ptr();
                        for t in 0..tiles {
                            let tile = case.tiles.bytes().as_ptr();
                            let tile = tile.add(t * case.kernel.tile_bytes(k));
                            case.kernel.unpack(tile, k, room.add(t * bytes));
                        }
                        let (acts, out) = (case.acts.bytes().as_ptr(), out.as_mut_ptr());
                        let add = before.is_some();
                        let kernel = case.kernel;
                        kernel.matmul_unpacked(room, n, k, acts, rows, out, n + 2, add);
                    }
                    let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                    assert_eq!(bits(&out), bits(&want), "{format:?} on {isa:?}, {n} x {k}");
                }
                assert!(
                    unpacked.bytes()[tiles * bytes..].iter().all(|b| *b == 0xA5),
                    "{format:?} on {isa:?} unpacks beyond its tiles"
                );
            }
        }
    }
    // Plain code has no separate form for many rows.
    assert!(seen > 0 || Isa::best() == Isa::Scalar);
}
