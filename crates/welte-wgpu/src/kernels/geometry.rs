//! How products are laid out on an adapter, and how their vectors come.

/// How products are laid out on an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// Invocations of a workgroup.
    pub(super) workgroup: u32,
    /// The fewest and the most of a team. A row of few units has a small team. A team has no more
    /// outputs at a time than invocations, because an invocation of an experts' kernel stores one.
    pub(super) teams: (u32, u32),
    /// Vectors that a product takes at once in steps of several rows.
    pub(super) rows: u32,
    /// Matrix rows that a team has at a time then, if vectors are floats.
    pub(super) rows_of_floats: u32,
    /// Steps of one row have kernels of their own, which prepare it themselves. Otherwise one kernel is compiled for both.
    pub(crate) single: bool,
    /// Weights are loaded a unit ahead, which needs the code for it twice.
    pub(super) ahead: bool,
    /// Rows of a workgroup of `matmul_tile`.
    pub(crate) tile_rows: u32,
    /// Attention of prompts takes several rows together.
    pub(crate) together: bool,
    /// Invocations of a subgroup, if all subgroups have as many; otherwise 0, and sums go through workgroup memory.
    pub(crate) subgroup: u32,
    /// Bytes of workgroup memory.
    pub(crate) memory: u32,
    /// The most invocations of a workgroup.
    pub(crate) invocations: u32,
}

impl Geometry {
    pub(crate) const HARDWARE: Geometry = Geometry {
        workgroup: 256,
        teams: (8, 32),
        rows: 8,
        rows_of_floats: 4,
        single: true,
        ahead: true,
        tile_rows: 64,
        together: true,
        subgroup: 0,
        memory: 16 << 10,
        invocations: 256,
    };
    /// Every invocation that meets a barrier costs time here, so few do. Compiling a kernel takes longer than running it, so kernels
    /// are small and few.
    pub(crate) const SOFTWARE: Geometry = Geometry {
        workgroup: 64,
        teams: (2, 2),
        rows: 2,
        rows_of_floats: 2,
        single: false,
        ahead: false,
        tile_rows: 32,
        together: false,
        subgroup: 0,
        memory: 16 << 10,
        invocations: 256,
    };

    /// The vectors of a product in steps of one row, and in others if they have another kernel. The pass has at most `most` rows.
    pub(crate) fn vectors(&self, most: u32) -> (Vectors, Option<Vectors>) {
        match (most, self.single) {
            (1, true) => (Vectors::One, None),
            (_, true) => (Vectors::One, Some(Vectors::Rows(self.rows))),
            (_, false) => (Vectors::Rows(self.rows.min(most)), None),
        }
    }
}

/// The vectors of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vectors {
    /// One, which every workgroup prepares.
    One,
    /// At most this many at a time, which an earlier launch prepared.
    Rows(u32),
}

impl Vectors {
    /// Those of experts come one by one.
    pub(crate) fn of_experts(prepared: bool) -> Vectors {
        match prepared {
            true => Vectors::Rows(1),
            false => Vectors::One,
        }
    }

    pub(crate) fn rows(self) -> u32 {
        match self {
            Vectors::One => 1,
            Vectors::Rows(rows) => rows,
        }
    }
}
