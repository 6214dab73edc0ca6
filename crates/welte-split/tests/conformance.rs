//! The conformance suite on two reference devices, which share no memory: every value that one of them lacks is missed.

use welte_reference::device;

/// All experts.
mod experts {
    use super::device;
    welte_device::conformance_tests!(welte_split::device(device(), device(), u32::MAX), device());
}

/// Commands here and there, many more than a model would have.
mod anything {
    use super::device;
    welte_device::conformance_tests!(
        welte_split::device_by(device(), device(), "some", |_, index| index * 7 % 5 < 2),
        device()
    );
}
