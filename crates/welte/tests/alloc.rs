//! After load, prompts and decoding on the CPU allocate nothing.

#[path = "common/allocations.rs"]
mod allocations;
mod common;

#[test]
fn prefill_and_decode_allocate_nothing() {
    allocations::allocates_nothing(welte::DeviceChoice::CPU);
}
