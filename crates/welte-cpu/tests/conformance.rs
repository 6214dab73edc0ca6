//! The conformance suite on every kind of instruction set: the best of this machine, the narrower ones, plain code.

use std::sync::Arc;
use welte_conformance::conformance_tests;
use welte_device::{Device, DeviceOptions};

/// The CPU with these instructions, or the best ones if this machine lacks them.
fn device(instructions: &str) -> Arc<dyn Device> {
    let mut options = DeviceOptions::default();
    options.threads = Some(3);
    if welte_cpu::instruction_sets().contains(&instructions) {
        options.instructions = Some(instructions.to_string());
    }
    welte_cpu::device(&options).expect("instructions of this machine")
}

mod best {
    super::conformance_tests!(super::device("best"), welte_reference::device());
}

#[cfg(target_arch = "aarch64")]
mod neon {
    super::conformance_tests!(super::device("neon"), welte_reference::device());
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    super::conformance_tests!(super::device("avx2"), welte_reference::device());
}

mod scalar {
    super::conformance_tests!(super::device("scalar"), welte_reference::device());
}

/// This device with the experts on another one: the tests that reach the work between the parts of a step.
mod near {
    super::conformance_tests!(
        welte_split::device(super::device("best"), welte_reference::device(), u32::MAX),
        welte_reference::device(),
        only experts batches outputs parts mixed_arithmetic slots_in_a_chain recurrent faults shared profiles
    );
}

/// Another device with the experts on this one.
mod far {
    super::conformance_tests!(
        welte_split::device(welte_reference::device(), super::device("best"), u32::MAX),
        welte_reference::device(),
        only experts batches outputs parts mixed_arithmetic slots_in_a_chain recurrent faults shared profiles
    );
}
