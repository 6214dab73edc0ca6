//! The `welte` binary.
fn main() {}
