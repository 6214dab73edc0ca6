//! Products and attention of prompt rows on cooperative matrices: squares of numbers that a subgroup multiplies by one instruction.

use super::products::{unit_loader, waiting_floats};
use super::{Kernel, MOST_EXPERTS, WORKGROUP, flag};
use welte_table::Format;
use wgpu::{Adapter, CooperativeMatrixProperties, CooperativeScalarType, Features};

/// The cooperative matrices of an adapter: F16, with sums in F32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cooperative {
    /// Rows and columns of a matrix.
    pub(crate) square: u32,
    /// Invocations of a subgroup.
    pub(crate) subgroup: u32,
    /// Elements of k that lie in workgroup memory at a time.
    pub(crate) slice: u32,
}

impl Cooperative {
    /// What the kernels need of an adapter.
    pub(crate) const FEATURES: Features = Features::EXPERIMENTAL_COOPERATIVE_MATRIX
        .union(Features::SHADER_F16)
        .union(Features::SUBGROUP);

    /// None if the adapter lacks a feature or has no such matrices, or if the size of its subgroups varies.
    pub(crate) fn of(adapter: &Adapter) -> Option<Cooperative> {
        let (info, limits) = (adapter.get_info(), adapter.limits());
        let square = square(&adapter.cooperative_matrix_properties())?;
        let memory = limits.max_compute_workgroup_storage_size;
        let sizes = SLICES.map(|slice| Cooperative {
            square,
            subgroup: info.subgroup_min_size,
            slice,
        });
        let found = sizes
            .into_iter()
            .find(|on| Tile::LARGE.bytes(*on) <= memory)?;
        let fits = info.subgroup_min_size == info.subgroup_max_size
            && (8..=64).contains(&found.subgroup)
            && Tile::LARGE.invocations(found) <= limits.max_compute_invocations_per_workgroup
            && adapter.features().contains(Cooperative::FEATURES);
        fits.then_some(found)
    }

    /// The first lines of a kernel: its extensions, and the types of matrices.
    fn head(self) -> String {
        let square = self.square;
        let mut head = String::new();
        for extension in ["f16", "wgpu_cooperative_matrix"] {
            head += &format!("enable {extension};\n");
        }
        for (name, of) in [("Left", "f16, A"), ("Right", "f16, B"), ("Sums", "f32, C")] {
            head += &format!("alias {name} = coop_mat{square}x{square}<{of}>;\n");
        }
        head
    }

    /// The format's products are computed so. F32 stays F32.
    pub(crate) fn takes(format: Format) -> bool {
        format != Format::F32
    }
}

/// The size of the largest matrices whose factors are F16 and whose sums are F32.
fn square(offered: &[CooperativeMatrixProperties]) -> Option<u32> {
    [16, 8].into_iter().find(|size| {
        offered.iter().any(|one| {
            [one.m_size, one.n_size, one.k_size] == [*size; 3]
                && one.ab_type == CooperativeScalarType::F16
                && one.cr_type == CooperativeScalarType::F32
        })
    })
}

/// What a workgroup computes. The bits of a sum do not depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tile {
    /// Subgroups, by rows and by outputs.
    subgroups: [u32; 2],
    /// Rows and outputs of a subgroup.
    each: [u32; 2],
}

/// What a tile multiplies.
#[derive(Clone, Copy)]
pub(crate) struct Factors {
    pub(crate) format: Format,
    /// Elements of a row.
    pub(crate) k: u32,
    /// Outputs begin at multiples of 16 bytes and are whole quads.
    pub(crate) aligned: bool,
    /// The product is added to what is there.
    pub(crate) adds: bool,
    /// The rows of each expert.
    pub(crate) grouped: bool,
}

/// Elements of k that may lie in workgroup memory at a time: the first that fit do.
const SLICES: [u32; 2] = [64, 32];

/// The fewest workgroups of large tiles that are faster than four times as many small ones. On an H200 the two meet between 32 and 80.
const MANY: u32 = 64;

impl Tile {
    pub(super) const LARGE: Tile = Tile {
        subgroups: [2, 4],
        each: [64, 32],
    };
    const SMALL: Tile = Tile {
        subgroups: [2, 2],
        each: [32, 32],
    };
    /// For software, whose subgroups are small. Compiling a kernel takes long there, so it has few squares.
    const SMALLEST: Tile = Tile {
        subgroups: [2, 2],
        each: [8, 16],
    };

    /// For a number of rows and outputs.
    pub(crate) fn of(on: Cooperative, rows: u32, outputs: u32) -> Tile {
        let large = Tile::LARGE;
        let groups = rows.div_ceil(large.rows()) * outputs.div_ceil(large.outputs());
        match on.subgroup {
            ..16 => Tile::SMALLEST,
            _ if groups >= MANY => large,
            _ => Tile::SMALL,
        }
    }

    /// For the rows of an expert.
    pub(crate) fn of_experts(on: Cooperative) -> Tile {
        match on.subgroup {
            ..16 => Tile::SMALLEST,
            _ => Tile::SMALL,
        }
    }

    pub(crate) fn rows(&self) -> u32 {
        self.subgroups[0] * self.each[0]
    }

    pub(crate) fn outputs(&self) -> u32 {
        self.subgroups[1] * self.each[1]
    }

    fn invocations(&self, on: Cooperative) -> u32 {
        self.subgroups[0] * self.subgroups[1] * on.subgroup
    }

    /// Workgroup memory.
    fn bytes(&self, on: Cooperative) -> u32 {
        let slices = (self.rows() + self.outputs()) * (on.slice + 8) * 2;
        let results = self.subgroups[0] * self.subgroups[1] * on.square * on.square * 4;
        slices + results + 16
    }

    pub(crate) fn kernel(&self, on: Cooperative, factors: Factors) -> Kernel {
        let Factors {
            format,
            k,
            aligned,
            adds,
            grouped,
        } = factors;
        let Tile {
            subgroups: [down, across],
            each: [rows, outputs],
        } = *self;
        let Cooperative { square, slice, .. } = on;
        let size = self.invocations(on);
        let (tall, wide) = (rows / square, outputs / square);
        let name = format!(
            "matmul_cooperative of {size}, {down} x {across} subgroups, {tall} x {wide} squares of {square}, slices of {slice}"
        );
        let (item, keep) = match unit_loader(format) {
            [] => (8, shader!("matmul_cooperative_eights")),
            _ => (32, shader!("matmul_cooperative_units")),
        };
        let pieces = [
            shader!("power"),
            shader!("matmul_store"),
            shader!("matmul_cooperative"),
            keep,
        ];
        let mut kernel = Kernel::of_workgroup(size, &name, &pieces);
        if aligned {
            kernel = kernel.in_quads();
        }
        let numbers = [
            ("SQUARE", square),
            ("SLICE", slice),
            ("DOWN", down),
            ("ACROSS", across),
            ("TALL", tall),
            ("WIDE", wide),
            ("ROWS", self.rows()),
            ("OUTPUTS", self.outputs()),
        ];
        for (name, number) in numbers {
            kernel.constants += &format!("const {name} = {number}u;\n");
        }
        kernel.constants = on.head() + &kernel.constants;
        kernel.loops = vec![
            ("s", slice / square),
            ("r", tall),
            ("c", wide),
            ("i", self.rows() * (slice / 8) / size),
            ("w", (self.outputs() * (slice / item)).div_ceil(size)),
            ("plain", u32::from(!grouped)),
            ("grouped", u32::from(grouped)),
        ];
        let kernel = kernel.with("ALIGNED", flag(aligned));
        let kernel = kernel.with("GROUPED", flag(grouped));
        let kernel = kernel.with("PADDED", flag(!k.is_multiple_of(slice)));
        in_order(kernel.with("ADDS", flag(adds)), format)
    }
}

/// What a workgroup of `attention_cooperative` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Together {
    head_dim: u32,
    /// Positions of the context at a time, and of a page.
    step: u32,
    page: u32,
}

impl Together {
    /// Subgroups of a workgroup.
    const SUBGROUPS: u32 = 4;
    /// The largest heads whose queries and sums fit registers.
    const LARGEST_HEAD: u32 = 256;
    /// The largest heads of which a subgroup has two squares of rows.
    const LARGEST_TALL: u32 = 128;

    /// None if the head has no whole squares, or if its arrays do not fit this much workgroup memory.
    pub(crate) fn of(on: Cooperative, head_dim: u32, page: u32, memory: u32) -> Option<Together> {
        // Tall heads of an odd number of squares would need more registers than there are.
        let squares = match head_dim {
            ..=Together::LARGEST_TALL => 1,
            _ => 2,
        };
        let fits = head_dim.is_multiple_of(squares * on.square)
            && head_dim <= Together::LARGEST_HEAD
            && on.subgroup.is_multiple_of(on.square);
        let sizes = [64, 32].map(|step| Together {
            head_dim,
            step,
            page,
        });
        let fitting = |one: &Together| fits && one.bytes(on) <= memory;
        sizes.into_iter().find(fitting)
    }

    /// Subgroups that share rows, and the squares of these rows. Pairs of subgroups read half as much of workgroup memory.
    fn shares(self, on: Cooperative) -> (u32, u32) {
        let pairs = (self.head_dim / on.square).is_multiple_of(2);
        match (pairs, self.head_dim <= Together::LARGEST_TALL) {
            (true, true) => (2, 2),
            (true, false) => (2, 1),
            (false, _) => (1, 1),
        }
    }

    pub(crate) fn rows(self, on: Cooperative) -> u32 {
        let (across, tall) = self.shares(on);
        Together::SUBGROUPS / across * tall * on.square
    }

    /// Rows of queries, keys or values in workgroup memory.
    fn entries(self, on: Cooperative) -> u32 {
        self.rows(on).max(self.step)
    }

    /// Workgroup memory.
    fn bytes(self, on: Cooperative) -> u32 {
        let quads = |count: u32| count / 4 + 2;
        let entries = (self.entries(on) * quads(self.head_dim) - 2) * 8;
        entries + self.rows(on) * quads(self.step) * (16 + 8) + 4 * Together::SUBGROUPS
    }

    /// Attention of the rows of prompts over an F16 cache.
    pub(crate) fn kernel(self, on: Cooperative) -> Kernel {
        let Cooperative {
            square, subgroup, ..
        } = on;
        let (across, tall) = self.shares(on);
        let size = Together::SUBGROUPS * subgroup;
        let pieces = [
            shader!("power"),
            shader!("attention_seen"),
            shader!("attention_cooperative"),
        ];
        let kernel = Kernel::of_workgroup(size, "attention_cooperative", &pieces);
        let numbers = [
            ("SUBGROUPS", Together::SUBGROUPS),
            ("SUBGROUP", subgroup),
            ("SQUARE", square),
            ("HEAD_DIM", self.head_dim),
            ("STEP", self.step),
            ("PAGE", self.page),
            ("ACROSS", across),
            ("TALL", tall),
            ("ENTRIES", self.entries(on)),
        ];
        let with = |kernel: Kernel, (name, number)| kernel.with(name, &format!("{number}u"));
        let mut kernel = numbers.into_iter().fold(kernel.caching(Format::F16), with);
        kernel.constants = on.head() + &kernel.constants;
        kernel.loops = vec![
            ("s", self.step / square),
            ("d", self.head_dim / square),
            ("r", tall),
            ("c", self.step / square / across),
            ("e", self.head_dim / square / across),
            ("q", self.step * self.rows(on) / (4 * size)),
            ("g", Together::SUBGROUPS),
            ("l", (self.step * self.head_dim / 8).div_ceil(size)),
        ];
        kernel
    }
}

/// With the loader of a weight format for cooperative products, and the order of its elements.
fn in_order(kernel: Kernel, format: Format) -> Kernel {
    let mut kernel = kernel.loading(format);
    match unit_loader(format) {
        [] => kernel
            .pieces
            .extend([waiting_floats(format), shader!("format/order")]),
        units => {
            kernel.pieces.push(shader!("unit/common"));
            kernel.pieces.extend_from_slice(units);
            kernel.pieces.push(shader!("unit/order"));
        }
    }
    kernel
}

/// Words of a row of `k` values that `round_rows` makes.
pub(crate) fn rounded_words(k: u32) -> u32 {
    k.next_multiple_of(SLICES[0]) / 2 + 4
}

/// Rounds rows of `k` values to F16 in the order of a format's items, after their norm if `normed`. `aligned`: they begin at multiples of
/// 16 bytes and are whole quads.
pub(crate) fn round_rows(format: Format, k: u32, normed: bool, aligned: bool) -> Kernel {
    let size = match k {
        ..1024 => WORKGROUP,
        _ => 256,
    };
    let pieces = [shader!("reduce"), shader!("power"), shader!("round_rows")];
    let mut kernel = Kernel::of_workgroup(size, &format!("round_rows of {size}"), &pieces);
    if aligned {
        kernel = kernel.in_quads();
    }
    let kernel = kernel.with("ALIGNED", flag(aligned));
    in_order(kernel.with("NORM", flag(normed)), format)
}

/// Groups the rows of prompts by expert.
pub(crate) fn experts_group(tile: Tile) -> Kernel {
    let kernel = Kernel::of_workgroup(256, "experts_group", &[shader!("experts_group")]);
    kernel
        .with("MOST_EXPERTS", &format!("{MOST_EXPERTS}u"))
        .with("TILE_ROWS", &format!("{}u", tile.rows()))
}

/// What follows the grouped products of `experts_act_mul`, and of `experts_add`.
pub(crate) fn experts_end(activates: bool) -> Kernel {
    if activates {
        Kernel::each("experts_activate", shader!("experts_activate"))
    } else {
        Kernel::each("experts_combine", shader!("experts_combine"))
    }
}

/// The power of two of every row of a matrix.
pub(crate) fn row_powers(format: Format) -> Kernel {
    let pieces = [shader!("reduce"), shader!("power"), shader!("row_powers")];
    Kernel::new("row_powers", &pieces).loading(format)
}

/// Every kernel that is plain WGSL, and those that are not: for tests of translations.
#[cfg(test)]
pub(crate) fn every(format: Format) -> (Vec<Kernel>, Vec<Kernel>) {
    if !Cooperative::takes(format) {
        return (Vec::new(), Vec::new());
    }
    let plain = vec![
        round_rows(format, 256, true, true),
        round_rows(format, 2048, false, false),
        row_powers(format),
    ];
    let sizes = [
        (Tile::LARGE, 16, 32, 64),
        (Tile::SMALL, 16, 32, 32),
        (Tile::SMALLEST, 8, 8, 64),
    ];
    let products = sizes.map(|(tile, square, subgroup, slice)| {
        let on = Cooperative {
            square,
            subgroup,
            slice,
        };
        let aligned = tile != Tile::SMALL;
        let factors = Factors {
            format,
            k: if aligned { 256 } else { 288 },
            aligned,
            adds: !aligned,
            grouped: tile == Tile::SMALLEST,
        };
        tile.kernel(on, factors)
    });
    (plain, products.into())
}

/// Attention, for heads and workgroup memory of several sizes.
#[cfg(test)]
pub(crate) fn attention() -> Vec<Kernel> {
    let sizes =
        [32, 64, 80, 128, 256].map(|size| [(size, 16, 32, 48 << 10), (size, 8, 32, 32 << 10)]);
    let kernel = |(size, square, subgroup, memory)| {
        let on = Cooperative {
            square,
            subgroup,
            slice: 64,
        };
        Together::of(on, size, if size == 64 { 24 } else { 64 }, memory)
            .expect("it fits")
            .kernel(on)
    };
    sizes.into_iter().flatten().map(kernel).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_matrices_of_f16_are_taken() {
        use CooperativeScalarType::{F16, F32};
        let of = |size: u32, ab_type, cr_type| CooperativeMatrixProperties {
            m_size: size,
            n_size: size,
            k_size: size,
            ab_type,
            cr_type,
            saturating_accumulation: false,
        };
        let wide = CooperativeMatrixProperties {
            n_size: 8,
            ..of(16, F16, F32)
        };
        assert_eq!(square(&[wide, of(16, F16, F16), of(8, F32, F32)]), None);
        assert_eq!(square(&[of(8, F16, F32), wide]), Some(8));
        assert_eq!(square(&[of(8, F16, F32), of(16, F16, F32)]), Some(16));
    }

    #[test]
    fn attention_takes_what_fits() {
        let on = |square, subgroup| Cooperative {
            square,
            subgroup,
            slice: 64,
        };
        let step = |on, head, memory| Some(Together::of(on, head, 64, memory)?.step);
        assert_eq!(step(on(16, 32), 128, 48 << 10), Some(64));
        assert_eq!(step(on(16, 32), 128, 32 << 10), Some(32));
        assert_eq!(step(on(16, 32), 128, 16 << 10), None);
        assert_eq!(step(on(16, 32), 72, 48 << 10), None, "no whole squares");
        assert_eq!(step(on(16, 32), 256, 48 << 10), Some(64));
        assert_eq!(
            step(on(16, 32), 240, 48 << 10),
            None,
            "an odd number of squares"
        );
        assert_eq!(step(on(16, 32), 320, 96 << 10), None, "too many registers");
        assert_eq!(
            step(on(16, 8), 64, 48 << 10),
            None,
            "half a square for each invocation"
        );
    }

    #[test]
    fn every_invocation_carries_as_many_inputs() {
        for (tile, subgroups) in [
            (Tile::LARGE, &[16, 32, 64][..]),
            (Tile::SMALL, &[16, 32, 64]),
            (Tile::SMALLEST, &[8]),
        ] {
            for &subgroup in subgroups {
                for (slice, memory) in SLICES.into_iter().zip([48 << 10, 32 << 10]) {
                    let on = Cooperative {
                        square: 16,
                        subgroup,
                        slice,
                    };
                    let size = tile.invocations(on);
                    assert!((tile.rows() * slice / 8).is_multiple_of(size), "{size}");
                    assert!(tile.bytes(on) <= memory, "{}", tile.bytes(on));
                }
            }
        }
    }
}
