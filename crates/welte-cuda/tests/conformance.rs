//! The device contract, checked against the reference device.

use std::sync::Arc;
use welte_conformance as conformance;
use welte_device::{Device, DeviceOptions, Replay};

/// The first GPU. `WELTE_TEST_REPLAY` names the way of replaying chains, the persistent kernel unless set.
fn device() -> Arc<dyn Device> {
    let named = std::env::var("WELTE_TEST_REPLAY").ok();
    device_with(named.map_or(Replay::Persistent, |name| Replay::from_name(&name).unwrap()))
}

fn device_with(replay: Replay) -> Arc<dyn Device> {
    let mut options = DeviceOptions::default();
    options.replay = Some(replay);
    welte_cuda::device(0, &options).unwrap()
}

fn oracle() -> Arc<dyn Device> {
    welte_reference::device()
}

/// In a module, so that its tests can be named apart from those of other devices.
mod cuda {
    welte_conformance::conformance_tests!([#[ignore = "needs a GPU"]] super::device(), super::oracle());
}

/// The first GPU with the experts on another device.
mod near {
    use super::{device_with, oracle};
    use welte_device::Replay;

    welte_conformance::conformance_tests!(
        [#[ignore = "needs a GPU"]]
        welte_split::device(device_with(Replay::Launches), oracle(), u32::MAX),
        oracle()
    );
}

#[test]
#[ignore = "needs a GPU"]
fn every_way_of_replaying_decodes_alike() {
    for replay in Replay::ALL {
        let device = device_with(replay);
        conformance::chains(&*device, &*oracle());
        conformance::stops(&*device, &*oracle());
        conformance::control(&*device, &*oracle());
    }
}
