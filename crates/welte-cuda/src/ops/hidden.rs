//! Hidden states that a persistent kernel has left in its exchange, for the commands that are launched after it.
#![allow(unsafe_code)]

use crate::Error;
use crate::gpu::{Gpu, Kernel};
use crate::launch::{ByRows, Launch, Listed, Unit, args, bytes_of};
use crate::loaded::LoadedProgram;
use crate::lower::Lowering;
use crate::mirror::{Layout, mirrored};
use crate::persistent::Recording;

/// Threads per block.
const THREADS: u32 = 256;

mirrored! {
    /// `HiddenArgs` of `hidden.cu`.
    struct Args = "HiddenArgs" {
        step: u64,
        order: u64,
        exchange: u64,
        x: u64,
        first: u32,
        n: u32,
        stride: u32,
        between: u32,
    }
}

/// The structs that the kernels check.
pub(crate) const MIRRORS: &[Layout] = &[Args::LAYOUT];

/// The copy after launches of one kernel.
pub(crate) struct HiddenCopy {
    kernel: Kernel,
    args: Args,
}

impl HiddenCopy {
    /// `None` where no command needs it. `exchange` is the address of the kernel's.
    pub(crate) fn new(
        loaded: &LoadedProgram,
        cx: &Lowering<'_>,
        recording: &Recording,
        exchange: u64,
    ) -> Result<Option<HiddenCopy>, Error> {
        let Some(tap) = &recording.tap else {
            return Ok(None);
        };
        let args = Args {
            step: cx.step,
            order: cx.places.order,
            exchange: exchange + 4 * u64::from(tap.start),
            x: cx.buffer(tap.x),
            first: 0,
            n: tap.n,
            stride: tap.stride,
            between: recording.exchange,
        };
        let kernel = loaded.kernel(&launch(&args))?;
        Ok(Some(HiddenCopy { kernel, args }))
    }

    /// Enqueues the copy of `count` rows of a launch that began with row `first` of the step's order.
    pub(crate) fn launch(&self, gpu: &Gpu, first: u32, count: u32) -> Result<(), Error> {
        let args = Args { first, ..self.args };
        let [_, blocks, _] = launch(&args).grid;
        // SAFETY: the context owns everything that the arguments point to, and the vectors have this many floats.
        unsafe { gpu.launch(&self.kernel, [count, blocks, 1], bytes_of(&args)) }
    }
}

fn launch(a: &Args) -> Launch {
    Launch {
        unit: hidden_unit(),
        function: "hidden",
        grid: [1, a.n.div_ceil(THREADS), 1],
        by_rows: ByRows::Axis { axis: 0, per: 1 },
        block: THREADS,
        shared: 0,
        args: args(a),
    }
}

/// The unit of the kernel.
pub(crate) fn hidden_unit() -> Unit {
    Unit {
        file: "hidden.cu",
        generated: String::new(),
        defines: Vec::new(),
    }
}

/// The units that tests compile.
pub(crate) fn catalogue() -> Vec<Listed> {
    vec![Listed {
        unit: hidden_unit(),
        hot: true,
    }]
}
