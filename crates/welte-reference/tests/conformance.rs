//! The suite's programs, requests and literal expectations on the reference device, which is its own oracle here.

use welte_reference::device;

// What only compares numbers with the oracle, which it is itself, is left out.
welte_conformance::conformance_tests!(
    device(), device(),
    only batches outputs parts pooled decode_arithmetic prompt_arithmetic mixed_arithmetic
        chains slots_in_a_chain stops control pages page_transfer windows recurrent per_layer_heads
        sampling extended_sampling choices drafts masks masks_in_chains masks_of_guesses
        logprobs logprobs_of_chains faults limits allocated shared profiles weights
);
