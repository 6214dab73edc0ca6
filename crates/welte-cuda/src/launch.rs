//! What lowering makes of a command: kernels with everything resolved, in the order in which they run.
#![allow(unsafe_code)]

use crate::ops::library::Gemm;
use welte_table::Format;

/// CUDA C++ to compile: a file of `kernels/` with the macros that specialise it. Equal units are compiled once.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Unit {
    /// A file of `kernels/`, such as `matmul.cu`.
    pub(crate) file: &'static str,
    /// Macros: `-DNAME=value`.
    pub(crate) defines: Vec<(&'static str, String)>,
    /// A header that is written for one model, `generated.cuh`; empty where the file includes none.
    pub(crate) generated: String,
}

/// A unit that is compiled for every architecture without a GPU, to see that it can be.
#[derive(Clone, Debug)]
pub(crate) struct Listed {
    /// What is compiled.
    pub(crate) unit: Unit,
    /// Decoding spends its time here: it may spill no register.
    pub(crate) hot: bool,
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

/// A step of a lowered command.
pub(crate) enum Node {
    /// A kernel of ours.
    Kernel(Launch),
    /// A product by cuBLASLt.
    Gemm(Gemm),
    /// These, where at least `least` and at most `most` rows are live.
    ForRows {
        least: u32,
        most: u32,
        nodes: Vec<Node>,
    },
}

impl Node {
    /// Adds what its kernels are compiled from.
    pub(crate) fn add_units(&self, units: &mut Vec<Unit>) {
        match self {
            Node::Kernel(launch) => units.push(launch.unit.clone()),
            Node::Gemm(_) => {}
            Node::ForRows { nodes, .. } => nodes.iter().for_each(|node| node.add_units(units)),
        }
    }
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

/// The bytes of a parameter struct: `repr(C)`, of `u32`, `i32`, `f32` and `u64`, without holes.
pub(crate) fn bytes_of<T: Copy>(value: &T) -> &[u8] {
    // SAFETY: parameter structs are plain numbers without padding, so each of their bytes is initialised.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// The same, to be kept.
pub(crate) fn args<T: Copy>(value: &T) -> Vec<u8> {
    bytes_of(value).to_vec()
}
