//! Project chores: the rules of the house, run as a test.
fn main() {}
