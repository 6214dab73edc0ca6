//! Products of a matrix with few vectors, and with many on adapters without cooperative matrices.

use super::geometry::{Geometry, Vectors};
use super::{Kernel, flag};
use welte_table::Format;

/// Outputs of a workgroup of `matmul_tile`.
pub(crate) const TILE_OUTPUTS: u32 = 64;

/// What loads 32 weights as integers of 8 bits, if something does.
pub(super) fn unit_loader(format: Format) -> &'static [&'static str] {
    match format {
        Format::Q4_0 => &[shader!("unit/halves"), shader!("unit/q4_0")],
        Format::Q4_1 => &[shader!("unit/halves"), shader!("unit/q4_1")],
        Format::Q5_0 => &[shader!("unit/halves"), shader!("unit/q5_0")],
        Format::Q5_1 => &[shader!("unit/halves"), shader!("unit/q5_1")],
        Format::Q8_0 => &[shader!("unit/halves"), shader!("unit/q8_0")],
        Format::Q4_K => &[shader!("unit/scale_min"), shader!("unit/q4_k")],
        Format::Q5_K => &[shader!("unit/scale_min"), shader!("unit/q5_k")],
        Format::Q6_K => &[shader!("unit/q6_k")],
        _ => &[],
    }
}

/// How a unit of eight weights waits for its product: 16-bit floats as they are stored, others unpacked.
pub(super) fn waiting_floats(format: Format) -> &'static str {
    match format {
        Format::BF16 | Format::F16 => shader!("unit/as_stored"),
        _ => shader!("unit/as_floats"),
    }
}

/// Matrix rows that a team has at a time, for one vector.
const EACH: u32 = 2;

/// Units that an invocation has in flight for each of its matrix rows. More are slower on an H100. Their number changes no bits.
const BLOCKS_IN_FLIGHT: u32 = 1;
const FLOATS_IN_FLIGHT: u32 = 3;

/// Invocations of a workgroup that multiplies floats with a single vector, and the workgroup memory that it may need with short chunks. On
/// an H100 it is a fifth faster than 256 invocations; blocks are not.
const LARGE_WORKGROUP: u32 = 512;
const LARGE_MEMORY: u32 = 32 << 10;

/// Invocations of a workgroup that multiplies several vectors. Registers limit how many run at once, so it is small.
const ROWS_WORKGROUP: u32 = 128;

/// Workgroup memory that holds long vectors whole.
const ROOMY: u32 = 48 << 10;

/// A product of matrix rows of `k` weights with few vectors.
#[derive(Clone, Copy)]
pub(crate) struct Product {
    pub(crate) geometry: Geometry,
    pub(crate) format: Format,
    pub(crate) k: u32,
    /// Vectors are rounded to integers of 8 bits, if the format has a loader for that.
    pub(crate) packed: bool,
    /// Vectors and outputs begin at multiples of 16 bytes.
    pub(crate) aligned: bool,
    /// Two rows of the matrix make an output.
    pub(crate) paired: bool,
}

impl Product {
    fn team(&self) -> u32 {
        let unit = if self.is_packed() { 32 } else { 8 };
        let units = self.k.div_ceil(unit);
        let (fewest, most) = self.geometry.teams;
        units.next_power_of_two().clamp(fewest, most)
    }

    pub(crate) fn is_packed(&self) -> bool {
        self.packed && self.k.is_multiple_of(32) && !unit_loader(self.format).is_empty()
    }

    /// Outputs of a workgroup at a time.
    pub(crate) fn outputs(&self, vectors: Vectors) -> u32 {
        let own = match self.paired {
            true => self.each(vectors) / 2,
            false => self.each(vectors),
        };
        self.geometry.workgroup / self.team() * own
    }

    /// Matrix rows that a team has at a time.
    fn each(&self, vectors: Vectors) -> u32 {
        match vectors {
            // Floats are large beside the sums, so more of these share them.
            Vectors::Rows(2..) if !self.is_packed() => self.geometry.rows_of_floats,
            _ => EACH,
        }
    }

    /// Weights are floats, and a vector comes alone.
    fn floats_alone(&self, vectors: Vectors) -> bool {
        let floats = matches!(self.format, Format::F32 | Format::F16 | Format::BF16);
        floats && vectors == Vectors::One && self.geometry.ahead
    }

    /// The same product in the workgroups of its vectors.
    pub(crate) fn sized_for(&self, vectors: Vectors) -> Product {
        let mut product = *self;
        let Geometry {
            invocations,
            memory,
            ..
        } = self.geometry;
        if vectors != Vectors::One {
            product.geometry.workgroup = self.geometry.workgroup.min(ROWS_WORKGROUP);
        } else if self.floats_alone(vectors)
            && invocations >= LARGE_WORKGROUP
            && memory >= LARGE_MEMORY
        {
            product.geometry.workgroup = LARGE_WORKGROUP;
        }
        product
    }

    /// Elements of a vector that lie in workgroup memory. A multiple of what a team takes at a time, so the order of sums does not
    /// depend on it.
    fn chunk(&self, vector: u32, normed: bool) -> u32 {
        let large = self.geometry.workgroup >= LARGE_WORKGROUP;
        // Of every element: its value, sums of groups of 16, and scales; with a norm also a square.
        let most = match (self.is_packed(), self.geometry.memory) {
            (true, ROOMY..) => 12288,
            (true, _) => 4096,
            (false, _) if !self.geometry.single => return 512,
            (false, ROOMY..) if large && normed => 6144,
            (false, ROOMY..) => 8192,
            (false, _) => 2048,
        };
        let step = if self.is_packed() { 4096 } else { 2048 };
        vector.next_multiple_of(step).min(most)
    }

    /// Units in flight. Steps of several rows have one, because the sums of the rows need the registers.
    fn in_flight(&self, vectors: Vectors) -> u32 {
        if self.floats_alone(vectors) {
            FLOATS_IN_FLIGHT
        } else {
            BLOCKS_IN_FLIGHT
        }
    }

    /// Words of each prepared row of a step of several.
    pub(crate) fn prepared_words(&self) -> u32 {
        if self.is_packed() {
            4 + self.k / 8 * 3
        } else {
            most_prepared(self.k)
        }
    }

    /// What prepares the rows of a step of several, and its workgroups for a row.
    pub(crate) fn prepare_kernel(&self, normed: bool) -> (Kernel, u32) {
        let (name, main, pieces, each): (_, _, &[&str], _) = if self.is_packed() {
            (
                "prepare_packed",
                shader!("prepare_packed"),
                &[shader!("packed")],
                32,
            )
        } else {
            ("prepare_floats", shader!("prepare_floats"), &[], 4)
        };
        let size = self.geometry.workgroup;
        let mut kernel = Kernel::of_workgroup(size, &format!("{name} of {size}"), pieces);
        self.read_vectors(&mut kernel);
        kernel.pieces.extend([main, shader!("prepare")]);
        kernel.loops = vec![("v", 8)];
        let groups = self.k.next_multiple_of(8).div_ceil(each).div_ceil(size);
        (
            kernel.with("NORM", flag(normed)),
            groups + u32::from(normed),
        )
    }

    /// What reads vectors, weighs them for a norm, and adds up teams.
    fn read_vectors(&self, kernel: &mut Kernel) {
        let subgroup = self.geometry.subgroup;
        if self.aligned {
            kernel.name += " aligned";
            kernel.pieces[1] = shader!("arena_quads");
            kernel.pieces.push(shader!("norm_quads"));
        } else {
            kernel.pieces.push(shader!("norm_words"));
        }
        kernel
            .pieces
            .extend([shader!("squares"), shader!("team/tree")]);
        kernel.pieces.push(match subgroup {
            0 => shader!("team/memory"),
            _ => shader!("team/subgroup"),
        });
        // Rows of floats need not be whole units.
        let padded = !self.format.is_quantised();
        kernel.name += &format!(" for subgroups of {subgroup}, padded: {padded}");
        kernel.constants += &format!("const SUBGROUP = {subgroup}u;\nconst PADDED = {padded};\n");
    }

    /// A kernel whose vectors have `vector` elements each, at most.
    fn kernel(
        &self,
        (name, main): (&str, &'static str),
        vectors: Vectors,
        vector: u32,
        normed: bool,
    ) -> Kernel {
        let (team, each, size) = (self.team(), self.each(vectors), self.geometry.workgroup);
        let rows = vectors.rows();
        let slots = (each * rows).div_ceil(4);
        let (chunk, in_flight) = (self.chunk(vector, normed), self.in_flight(vectors));
        let name = format!(
            "{name} of {size}, {rows} rows, {each} outputs in teams of {team}, {in_flight} in flight"
        );
        let mut kernel = Kernel::of_workgroup(size, &name, &[]);
        self.read_vectors(&mut kernel);
        kernel.pieces.push(shader!("matmul"));
        let alone = vectors == Vectors::One;
        if self.is_packed() {
            kernel.name += " packed";
            kernel
                .pieces
                .extend([shader!("packed"), shader!("matmul_packed")]);
            kernel.pieces.push(shader!("unit/common"));
            kernel.pieces.extend_from_slice(unit_loader(self.format));
            if alone {
                kernel.pieces.push(shader!("matmul_packed_alone"));
                kernel.pieces.push(match self.geometry.subgroup {
                    0 => shader!("team/memory_pairs"),
                    _ => shader!("team/subgroup_pairs"),
                });
            } else {
                kernel.pieces.push(shader!("matmul_packed_rows"));
            }
        } else {
            kernel.pieces.push(shader!("matmul_float"));
            kernel.pieces.push(waiting_floats(self.format));
            kernel.pieces.push(match alone {
                true => shader!("matmul_float_alone"),
                false => shader!("matmul_float_rows"),
            });
        }
        if alone {
            kernel.pieces.push(shader!("matmul_alone"));
            kernel = kernel.with("CHUNK", &format!("{chunk}u"));
        } else {
            let words = self.prepared_words();
            kernel = kernel.with("PREPARED", &format!("{words}u"));
            kernel.pieces.push(shader!("prepared"));
        }
        kernel.pieces.push(main);
        // What an invocation brings into workgroup memory: groups of 16 elements that it rounds, or quads.
        let group = if self.is_packed() { 16 } else { 4 };
        kernel.loops.extend([
            ("d", in_flight),
            ("m", rows),
            ("r", each),
            ("s", slots),
            ("g", (chunk / group).div_ceil(size)),
            ("e", 4),
        ]);
        let own = if self.paired { each / 2 } else { each };
        let numbers = [
            ("ROWS", rows),
            ("EACH", each),
            ("OWN", own),
            ("TEAM", team),
            ("SLOTS", slots),
            ("IN_FLIGHT", in_flight),
        ];
        for (name, number) in numbers {
            kernel.constants += &format!("const {name} = {number}u;\n");
        }
        let list = ["0u", "1u", "2u", "3u"][..each as usize].join(", ");
        kernel.constants +=
            &format!("alias Bases = vec{each}<u32>;\nconst NUMBERS = Bases({list});\n");
        // Without units on their way more workgroups fit a multiprocessor, which is faster for several rows.
        let ahead = self.geometry.ahead && alone;
        kernel.constants += &format!("const AHEAD = {ahead};\n");
        let kernel = kernel
            .with("NORM", flag(normed))
            .with("PAIRED", flag(self.paired));
        kernel.loading(self.format)
    }

    /// `matmul` and its relatives. The bits of an output do not depend on the rows that are computed together.
    pub(crate) fn of_rows(&self, vectors: Vectors, normed: bool, adds: bool) -> Kernel {
        let (name, main) = match vectors {
            Vectors::One => ("matmul_row", shader!("matmul_row")),
            Vectors::Rows(_) => ("matmul_rows", shader!("matmul_rows")),
        };
        let product = self.sized_for(vectors);
        let mut kernel = product.kernel((name, main), vectors, self.k, normed);
        kernel.pieces.push(shader!("matmul_outputs"));
        kernel.rows_first = vectors != Vectors::One;
        kernel.with("ADDS", flag(adds))
    }

    /// `experts_act_mul`. Vectors come one by one; `prepared`: from where those of a step of several rows wait.
    pub(crate) fn of_pairs(&self, prepared: bool) -> Kernel {
        let main = ("experts_act_mul", shader!("experts_act_mul"));
        let product = self.sized_for(Vectors::of_experts(prepared));
        let mut kernel = product.kernel(main, Vectors::of_experts(prepared), self.k, false);
        kernel.loops.extend([
            ("alone", u32::from(!prepared)),
            ("prepared", u32::from(prepared)),
        ]);
        kernel
    }

    /// `experts_add` of `used` experts: their vectors lie in workgroup memory together if they fit, or were `prepared`.
    pub(crate) fn of_experts(&self, used: u32, prepared: bool) -> Kernel {
        let main = ("experts_add", shader!("experts_add"));
        let product = self.sized_for(Vectors::of_experts(prepared));
        let all = used.saturating_mul(self.k);
        let fits = all <= product.chunk(all, false) && self.k.is_multiple_of(4);
        let (together, apart) = (fits && !prepared, !fits && !prepared);
        let vector = if together { all } else { self.k };
        let mut kernel = product.kernel(main, Vectors::of_experts(prepared), vector, false);
        kernel.loops.extend([
            ("together", u32::from(together)),
            ("apart", u32::from(apart)),
            ("prepared", u32::from(prepared)),
        ]);
        kernel.name += if together { " together" } else { "" };
        kernel
    }
}

/// The most words of a prepared row of `k` elements: those of floats, which end with a whole unit.
pub(crate) fn most_prepared(k: u32) -> u32 {
    4 + k.next_multiple_of(8)
}

/// A product with many rows. `aligned`: vectors and outputs begin at multiples of 16 bytes and are whole quads.
pub(crate) fn matmul_tile(geometry: Geometry, format: Format, aligned: bool, adds: bool) -> Kernel {
    let pieces = [shader!("matmul_store"), shader!("matmul_tile")];
    let mut kernel = Kernel::new("matmul_tile", &pieces).loading(format);
    if aligned {
        kernel = kernel.in_quads();
    }
    kernel.loops = vec![("r", geometry.tile_rows / 8), ("h", TILE_OUTPUTS / 32)];
    let kernel = kernel.with("TALL", &format!("{}u", geometry.tile_rows / 8));
    let kernel = kernel.with("ALIGNED", flag(aligned));
    kernel.with("ADDS", flag(adds))
}

/// Products in a format, of a few sizes.
#[cfg(test)]
pub(super) fn every(format: Format, packed: bool) -> Vec<Kernel> {
    use Vectors::{One, Rows};
    let product = |geometry, k, aligned, paired| Product {
        geometry,
        format,
        k,
        packed,
        aligned,
        paired,
    };
    let on_hardware = |k, aligned, paired| product(Geometry::HARDWARE, k, aligned, paired);
    let on_software = product(Geometry::SOFTWARE, 256, false, true);
    let mut all = Vec::new();
    for prepared in [true, false] {
        all.push(on_hardware(256, false, true).of_pairs(prepared));
        all.extend([2, 64].map(|used| on_hardware(256, false, false).of_experts(used, prepared)));
    }
    all.push(on_hardware(2048, true, true).of_rows(One, true, false));
    all.push(on_hardware(2048, false, false).of_rows(One, false, true));
    all.push(on_hardware(256, true, false).of_rows(Rows(8), true, false));
    all.push(on_hardware(2048, false, true).of_rows(Rows(8), true, false));
    all.extend([1, 2].map(|rows| on_software.of_rows(Rows(rows), false, false)));
    all.extend(
        [true, false].map(|normed| on_hardware(256, normed, false).prepare_kernel(normed).0),
    );
    all.push(on_software.prepare_kernel(true).0);
    all
}

/// Products whose invocations exchange numbers within a subgroup.
#[cfg(test)]
pub(super) fn with_subgroups(geometry: Geometry) -> Vec<Kernel> {
    use Vectors::{One, Rows};
    let mut all = Vec::new();
    for format in [Format::F32, Format::BF16, Format::Q4_0, Format::Q6_K] {
        let product = |k, paired| Product {
            geometry,
            format,
            k,
            packed: true,
            aligned: true,
            paired,
        };
        all.push(product(9728, false).of_rows(One, false, true));
        all.push(product(9728, false).of_rows(One, true, false));
        all.push(product(2048, true).of_rows(One, true, false));
        all.push(product(2048, false).of_rows(Rows(8), true, false));
        all.push(product(2048, false).prepare_kernel(true).0);
        let apart = Product {
            aligned: false,
            ..product(512, true)
        };
        for prepared in [true, false] {
            all.push(apart.of_pairs(prepared));
            let single = Product {
                paired: false,
                ..apart
            };
            all.extend([2, 64].map(|used| single.of_experts(used, prepared)));
        }
        all.push(apart.prepare_kernel(false).0);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_of_sums_has_an_invocation_that_writes_it() {
        for geometry in [Geometry::HARDWARE, Geometry::SOFTWARE] {
            let (fewest, _) = geometry.teams;
            let slots = (geometry.rows * geometry.rows_of_floats.max(EACH)).div_ceil(4);
            assert!(slots <= fewest, "{slots}: {geometry:?}");
            assert!(EACH <= fewest, "{geometry:?}");
        }
    }
}
