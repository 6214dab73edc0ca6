//! The conformance suite on two reference devices, which share no memory: every value that one of them lacks is missed.

use welte_reference::device;

/// All experts.
mod experts {
    use super::device;
    welte_conformance::conformance_tests!(
        welte_split::device(device(), device(), u32::MAX), device(),
        only experts batches outputs parts chains slots_in_a_chain recurrent sampling logprobs
            faults limits allocated shared profiles weights
    );
}

/// Commands here and there, many more than a model would have. What only makes numbers, such as formats, is left out.
mod anything {
    use super::device;
    welte_conformance::conformance_tests!(
        welte_split::device_by(device(), device(), "some", |_, index| index * 7 % 5 < 2),
        device(),
        only ops experts batches outputs parts pooled encoders chains slots_in_a_chain stops control
            pages page_transfer windows recurrent per_layer_heads sampling choices drafts masks
            masks_in_chains masks_of_guesses logprobs logprobs_of_chains faults limits
            allocated shared profiles weights
    );
}
