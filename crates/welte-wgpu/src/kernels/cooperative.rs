//! Products and attention of prompt rows on cooperative matrices: squares of numbers that a subgroup multiplies by one instruction.

use super::{Kernel, WORKGROUP, flag};
use welte_table::Format;
use wgpu::{Adapter, CooperativeMatrixProperties, CooperativeScalarType, Features};

/// The cooperative matrices of an adapter: F16, with sums in F32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cooperative {
    /// Rows and columns of a matrix.
    pub(crate) square: u32,
    /// Invocations of a subgroup.
    pub(crate) subgroup: u32,
}

impl Cooperative {
    /// What the kernels need of an adapter.
    pub(crate) const FEATURES: Features = Features::EXPERIMENTAL_COOPERATIVE_MATRIX
        .union(Features::SHADER_F16)
        .union(Features::SUBGROUP);

    /// None if the adapter lacks a feature or has no such matrices, or if the size of its subgroups varies.
    pub(crate) fn of(adapter: &Adapter) -> Option<Cooperative> {
        let (info, limits) = (adapter.get_info(), adapter.limits());
        let found = Cooperative {
            square: square(&adapter.cooperative_matrix_properties())?,
            subgroup: info.subgroup_min_size,
        };
        let fits = info.subgroup_min_size == info.subgroup_max_size
            && (8..=64).contains(&found.subgroup)
            && Tile::LARGE.invocations(found) <= limits.max_compute_invocations_per_workgroup
            && Tile::LARGE.bytes(found) <= limits.max_compute_workgroup_storage_size
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

/// Elements of k that lie in workgroup memory at a time.
const SLICE: u32 = 32;

/// The fewest workgroups of large tiles that occupy a GPU.
const MANY: u32 = 256;

impl Tile {
    const LARGE: Tile = Tile {
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
        let slices = (self.rows() + self.outputs()) * (SLICE + 8) * 2;
        slices + self.subgroups[0] * self.subgroups[1] * on.square * on.square * 4
    }

    /// The product, whose outputs begin at multiples of 16 bytes and are whole quads if they are `aligned`.
    pub(crate) fn kernel(
        &self,
        on: Cooperative,
        format: Format,
        aligned: bool,
        adds: bool,
    ) -> Kernel {
        let Tile {
            subgroups: [down, across],
            each: [rows, outputs],
        } = *self;
        let (square, size) = (on.square, self.invocations(on));
        let (tall, wide) = (rows / square, outputs / square);
        let name = format!(
            "matmul_cooperative of {size}, {down} x {across} subgroups, {tall} x {wide} squares of {square}"
        );
        let pieces = [
            shader!("power"),
            shader!("matmul_store"),
            shader!("matmul_cooperative"),
        ];
        let mut kernel = Kernel::of_workgroup(size, &name, &pieces);
        if aligned {
            kernel = kernel.in_quads();
        }
        let numbers = [
            ("SQUARE", square),
            ("SLICE", SLICE),
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
        let units = |rows: u32| rows * (SLICE / 8) / size;
        kernel.loops = vec![
            ("s", SLICE / square),
            ("r", tall),
            ("c", wide),
            ("i", units(self.rows())),
            ("w", units(self.outputs())),
        ];
        let kernel = kernel.with("ALIGNED", flag(aligned));
        kernel.with("ADDS", flag(adds)).loading(format)
    }
}

/// What a workgroup of `attention_cooperative` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Together {
    head_dim: u32,
    /// Positions of the context at a time.
    step: u32,
}

impl Together {
    /// Subgroups of a workgroup. Each has a square of rows.
    const SUBGROUPS: u32 = 4;
    /// The largest heads whose queries and sums fit registers.
    const LARGEST_HEAD: u32 = 128;

    /// None if the head has no whole squares, or if its arrays do not fit this much workgroup memory.
    pub(crate) fn of(on: Cooperative, head_dim: u32, memory: u32) -> Option<Together> {
        let fits = head_dim.is_multiple_of(on.square)
            && head_dim <= Together::LARGEST_HEAD
            && on.subgroup.is_multiple_of(on.square);
        let sizes = [64, 32].map(|step| Together { head_dim, step });
        let fitting = |one: &Together| fits && one.bytes(on) <= memory;
        sizes.into_iter().find(fitting)
    }

    pub(crate) fn rows(on: Cooperative) -> u32 {
        Together::SUBGROUPS * on.square
    }

    /// Rows of queries, keys or values in workgroup memory.
    fn entries(self, on: Cooperative) -> u32 {
        Together::rows(on).max(self.step)
    }

    /// Workgroup memory.
    fn bytes(self, on: Cooperative) -> u32 {
        let quads = |count: u32| count / 4 + 2;
        let entries = (self.entries(on) * quads(self.head_dim) - 2) * 8;
        entries + Together::rows(on) * quads(self.step) * (16 + 8) + 4 * Together::SUBGROUPS
    }

    /// Attention of the rows of prompts over an F16 cache.
    pub(crate) fn kernel(self, on: Cooperative) -> Kernel {
        let Cooperative { square, subgroup } = on;
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
            ("ENTRIES", self.entries(on)),
        ];
        let with = |kernel: Kernel, (name, number)| kernel.with(name, &format!("{number}u"));
        let mut kernel = numbers.into_iter().fold(kernel.caching(Format::F16), with);
        kernel.constants = on.head() + &kernel.constants;
        kernel.loops = vec![
            ("s", self.step / square),
            ("d", self.head_dim / square),
            ("q", self.step * square / (4 * subgroup)),
            ("g", Together::SUBGROUPS),
            ("l", (self.step * self.head_dim / 8).div_ceil(size)),
        ];
        kernel
    }
}

/// Words of a row of `k` values that `round_rows` makes.
pub(crate) fn rounded_words(k: u32) -> u32 {
    k.next_multiple_of(SLICE) / 2 + 4
}

/// Rounds rows of `k` values to F16 in the order of a format's units, after their norm if `normed`.
pub(crate) fn round_rows(format: Format, k: u32, normed: bool) -> Kernel {
    let size = match k {
        ..1024 => WORKGROUP,
        _ => 256,
    };
    let pieces = [shader!("reduce"), shader!("power"), shader!("round_rows")];
    let kernel = Kernel::of_workgroup(size, &format!("round_rows of {size}"), &pieces);
    kernel.with("NORM", flag(normed)).loading(format)
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
        round_rows(format, 256, true),
        round_rows(format, 2048, false),
        row_powers(format),
    ];
    let sizes = [
        (Tile::LARGE, 16, 32),
        (Tile::SMALL, 16, 32),
        (Tile::SMALLEST, 8, 8),
    ];
    let products = sizes.map(|(tile, square, subgroup)| {
        let aligned = tile != Tile::SMALL;
        tile.kernel(Cooperative { square, subgroup }, format, aligned, !aligned)
    });
    (plain, products.into())
}

/// Attention, for heads and workgroup memory of several sizes.
#[cfg(test)]
pub(crate) fn attention() -> Vec<Kernel> {
    let sizes = [32, 64, 80, 128].map(|size| [(size, 16, 32, 48 << 10), (size, 8, 32, 32 << 10)]);
    let kernel = |(size, square, subgroup, memory)| {
        let on = Cooperative { square, subgroup };
        Together::of(on, size, memory).expect("it fits").kernel(on)
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
        let on = |square, subgroup| Cooperative { square, subgroup };
        let step = |on, head, memory| Some(Together::of(on, head, memory)?.step);
        assert_eq!(step(on(16, 32), 128, 48 << 10), Some(64));
        assert_eq!(step(on(16, 32), 128, 32 << 10), Some(32));
        assert_eq!(step(on(16, 32), 128, 16 << 10), None);
        assert_eq!(step(on(16, 32), 72, 48 << 10), None, "no whole squares");
        assert_eq!(step(on(16, 32), 256, 64 << 10), None, "too many registers");
        assert_eq!(
            step(on(16, 8), 64, 48 << 10),
            None,
            "half a square for each invocation"
        );
    }

    #[test]
    fn every_invocation_carries_as_much() {
        for (tile, subgroups) in [
            (Tile::LARGE, &[16, 32, 64][..]),
            (Tile::SMALL, &[16, 32, 64]),
            (Tile::SMALLEST, &[8]),
        ] {
            for &subgroup in subgroups {
                let on = Cooperative {
                    square: 16,
                    subgroup,
                };
                let size = tile.invocations(on);
                assert!((tile.rows() * SLICE / 8).is_multiple_of(size), "{size}");
                assert!((tile.outputs() * SLICE / 8).is_multiple_of(size), "{size}");
                assert!(tile.bytes(on) <= 32 << 10, "{}", tile.bytes(on));
            }
        }
    }
}
