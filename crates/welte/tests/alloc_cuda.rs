//! After load, prompts and decoding on a GPU allocate nothing on the host.

#[path = "common/allocations.rs"]
mod allocations;
mod common;

#[test]
#[ignore = "needs a GPU"]
fn prefill_and_decode_allocate_nothing() {
    allocations::allocates_nothing(common::gpu());
}
