//! The conformance suite on several reference devices, whose logits must be those of one device to the bit.

use std::sync::Arc;
use std::time::Duration;
use welte_device::Device;
use welte_reference::device;

/// Ranks that deal every matrix, however small.
fn ranks(count: usize) -> Arc<dyn Device> {
    let devices = (0..count).map(|_| device()).collect();
    welte_ranks::device_by(devices, 0, Duration::from_secs(20))
}

mod two {
    use super::{device, ranks};
    welte_conformance::conformance_tests!(
        ranks(2), device(),
        only batches outputs parts chains slots_in_a_chain stops control
            pages page_transfer windows recurrent
            sampling choices drafts masks masks_in_chains masks_of_guesses
            logprobs logprobs_of_chains faults limits allocated shared weights adapters
    );
}

/// Parts of several sizes.
mod three {
    use super::{device, ranks};
    welte_conformance::conformance_tests!(
        ranks(3), device(),
        only outputs slots_in_a_chain stops page_transfer windows recurrent allocated adapters
    );
}

/// More ranks than heads.
mod eight {
    use super::{device, ranks};
    welte_conformance::conformance_tests!(
        ranks(8), device(),
        only outputs page_transfer
    );
}
