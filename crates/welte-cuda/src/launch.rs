//! The result of lowering a command: kernels with resolved addresses, in the order in which they run.
#![allow(unsafe_code)]

use crate::cublas::Gemm;
use welte_table::Format;

/// CUDA C++ to compile: a file in `kernels/` with the macros that specialise it. Equal units are compiled once.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Unit {
    /// A file in `kernels/`, such as `matmul.cu`.
    pub(crate) file: &'static str,
    /// Macros, as in `-DNAME=value`.
    pub(crate) defines: Vec<(&'static str, String)>,
    /// A header that is written for one model, `generated.cuh`; empty where the file includes none.
    pub(crate) generated: String,
}

/// A unit that tests compile for every architecture. Compiling needs no GPU.
#[derive(Clone, Debug)]
pub(crate) struct Listed {
    /// The file and its macros.
    pub(crate) unit: Unit,
    /// Decoding spends its time here, so it may spill no register.
    pub(crate) hot: bool,
}

/// How a launch's grid depends on the number of live rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ByRows {
    /// It does not: the kernel reads the number of live rows itself, or there is only one.
    Fixed,
    /// `grid[axis] = ceil(rows / per)`.
    Axis { axis: usize, per: u32 },
}

impl ByRows {
    /// The grid for `live` rows, cut from the grid for the most rows.
    pub(crate) fn grid(self, most: [u32; 3], live: u32) -> [u32; 3] {
        let mut grid = most;
        if let ByRows::Axis { axis, per } = self {
            grid[axis] = live.div_ceil(per.max(1)).min(most[axis]);
        }
        grid
    }
}

/// One kernel launch. Every kernel takes exactly one parameter: its struct, by value.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    /// The unit that contains the function.
    pub(crate) unit: Unit,
    /// The `extern "C"` function.
    pub(crate) function: &'static str,
    /// Blocks for the pass's maximum number of rows.
    pub(crate) grid: [u32; 3],
    /// How the grid shrinks with the live rows, where a step is not replayed as a graph.
    pub(crate) by_rows: ByRows,
    /// Threads per block.
    pub(crate) block: u32,
    /// Bytes of dynamic shared memory per block.
    pub(crate) shared: u32,
    /// Bytes of the parameter struct.
    pub(crate) args: Vec<u8>,
}

/// One part of a lowered command.
pub(crate) enum Node {
    /// One of our kernels.
    Kernel(Launch),
    /// A matrix product by cuBLASLt.
    Gemm(Gemm),
    /// Nodes for steps with `least..=most` live rows.
    ForRows {
        least: u32,
        most: u32,
        nodes: Vec<Node>,
    },
    /// Two ways with the same bits.
    Either(Either<Node>),
}

/// A product by cuBLASLt and by our own kernels.
pub(crate) struct Either<T> {
    /// Runs where every product in it has an algorithm with the bits of our kernels.
    pub(crate) library: Vec<T>,
    pub(crate) own: Vec<T>,
    pub(crate) probe: Probe,
}

/// What a product reads and writes, for comparing the two ways.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Probe {
    /// Activations in f32.
    pub(crate) x: u64,
    pub(crate) x_stride: u32,
    pub(crate) k: u32,
    /// Results in f32, `columns` per row.
    pub(crate) y: u64,
    pub(crate) y_stride: u32,
    pub(crate) columns: u32,
}

impl Node {
    /// Adds the units of its kernels.
    pub(crate) fn add_units(&self, units: &mut Vec<Unit>) {
        match self {
            Node::Kernel(launch) => units.push(launch.unit.clone()),
            Node::Gemm(_) => {}
            Node::ForRows { nodes, .. } => nodes.iter().for_each(|node| node.add_units(units)),
            Node::Either(Either { library, own, .. }) => {
                let both = library.iter().chain(own);
                both.for_each(|node| node.add_units(units));
            }
        }
    }
}

/// A weight in device memory. Its planes are stored one after the other: see `layout`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceWeight {
    /// Address of the first plane.
    pub(crate) start: u64,
    /// The storage format.
    pub(crate) format: Format,
    /// Rows.
    pub(crate) n: u32,
    /// Elements per row.
    pub(crate) k: u32,
    /// Of FP8: whether all blocks of a row have the same scale.
    pub(crate) one_scale: bool,
}

/// The bytes of a parameter struct: `repr(C)`, made of `u32`, `i32`, `f32` and `u64`, without padding.
pub(crate) fn bytes_of<T: Copy>(value: &T) -> &[u8] {
    // SAFETY: parameter structs are plain numbers without padding, so every byte is initialised.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// The bytes of several parameter structs or numbers.
pub(crate) fn bytes_of_all<T: Copy>(values: &[T]) -> &[u8] {
    // SAFETY: as in `bytes_of`.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// An owned copy of [`bytes_of`].
pub(crate) fn args<T: Copy>(value: &T) -> Vec<u8> {
    bytes_of(value).to_vec()
}
