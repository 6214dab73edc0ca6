//! What an adapter says of itself.

use welte_device::DeviceOptions;
use welte_wgpu::{Api, device};

#[test]
fn bandwidth_is_measured() {
    let Ok(device) = device(Api::Gpu, 0, &DeviceOptions::default()) else {
        eprintln!("skipped: no adapter");
        return;
    };
    let speed = device.read_bandwidth(0.01).expect("a speed");
    assert!(speed.is_finite() && speed > 0.0, "{speed}");
}

#[test]
fn options_of_the_cpu_are_refused() {
    let mut options = DeviceOptions::default();
    options.instructions = Some("avx2".to_string());
    let error = device(Api::Vulkan, 3, &options)
        .err()
        .map(|e| e.to_string());
    let wanted = "vulkan:3: instruction sets are an option of the CPU";
    assert_eq!(error.as_deref(), Some(wanted));
}
