//! What lowering makes of a command: kernels with everything resolved, in the order in which they run.

use welte_table::Format;

/// CUDA C++ to compile: a file of `kernels/` with the macros that specialise it. Equal units are compiled once.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Unit {
    /// A file of `kernels/`, such as `matmul.cu`.
    pub(crate) file: &'static str,
    /// Macros: `-DNAME=value`.
    pub(crate) defines: Vec<(&'static str, String)>,
}

/// Which part of a launch's grid follows the number of live rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ByRows {
    /// None: the kernel reads the number of live rows itself, or there is only one.
    Fixed,
    /// `grid[axis] = ceil(rows / per)`.
    Axis { axis: usize, per: u32 },
}

/// One kernel with everything resolved. Every kernel takes exactly one parameter: its struct, by value.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    /// Where it is compiled from.
    pub(crate) unit: Unit,
    /// The `extern "C"` function.
    pub(crate) function: &'static str,
    /// Blocks, for the most rows of the table.
    pub(crate) grid: [u32; 3],
    /// What of it depends on the live rows when a step is not replayed as a graph.
    pub(crate) by_rows: ByRows,
    /// Threads of a block.
    pub(crate) block: u32,
    /// Bytes of dynamic shared memory.
    pub(crate) shared: u32,
    /// The parameter struct.
    pub(crate) args: Vec<u8>,
}

/// A weight in device memory. Its planes lie one after the other: see `layout`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceWeight {
    /// Address of the first plane.
    pub(crate) start: u64,
    /// How it is stored.
    pub(crate) format: Format,
    /// Rows.
    pub(crate) n: u32,
    /// Elements per row.
    pub(crate) k: u32,
}
