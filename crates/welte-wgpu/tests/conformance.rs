//! The conformance suite on the first adapter that Vulkan, Metal or DirectX 12 has, software included.

use std::sync::{Arc, LazyLock};
use welte_device::{Device, DeviceOptions};
use welte_wgpu::{Abilities, Api};

/// All tests share it, and so its compiled kernels. On a machine without an adapter the suite runs on the reference device instead,
/// unless `WELTE_GPU_REQUIRED` is set.
static DEVICE: LazyLock<Arc<dyn Device>> = LazyLock::new(|| with(Abilities::ALL));

fn with(abilities: Abilities) -> Arc<dyn Device> {
    match welte_wgpu::device_with(Api::Gpu, 0, &DeviceOptions::default(), abilities) {
        Ok(device) => device,
        Err(why) if std::env::var_os("WELTE_GPU_REQUIRED").is_none() => {
            eprintln!("{why}; without a GPU, Mesa's lavapipe is an adapter. Nothing is tested.");
            welte_reference::device()
        }
        Err(why) => panic!("{why}"),
    }
}

/// In a module, so that its tests can be named apart from those of other devices.
mod gpu {
    welte_conformance::conformance_tests!(super::DEVICE.clone(), welte_reference::device());
}

/// This device with the experts on another one.
mod near {
    welte_conformance::conformance_tests!(
        welte_split::device(super::DEVICE.clone(), welte_reference::device(), u32::MAX),
        welte_reference::device(),
        only experts chains slots_in_a_chain masks_in_chains logprobs_of_chains drafts allocated profiles
    );
}

/// Products laid out as on hardware, also where the adapter is software. Their kernels take long to compile there, so few tests run.
mod on_hardware {
    use super::*;

    static HARDWARE: LazyLock<Arc<dyn Device>> = LazyLock::new(|| {
        with(Abilities {
            barriers: Some(true),
            ..Abilities::ALL
        })
    });

    welte_conformance::conformance_tests!(HARDWARE.clone(), welte_reference::device(), only outputs contexts_in_brief batches recurrent);
}
