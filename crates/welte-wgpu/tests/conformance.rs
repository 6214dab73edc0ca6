//! The conformance suite on the first adapter that Vulkan, Metal or DirectX 12 has, software included.

use std::sync::{Arc, LazyLock};
use welte_device::{Device, DeviceOptions};
use welte_wgpu::Api;

/// All tests share it, and so its compiled kernels.
static DEVICE: LazyLock<Arc<dyn Device>> = LazyLock::new(|| {
    let device = welte_wgpu::device(Api::Gpu, 0, &DeviceOptions::default());
    device.expect("an adapter; without a GPU, Mesa's lavapipe is one")
});

welte_device::conformance_tests!(DEVICE.clone(), welte_reference::device());
