const UNIT_ELEMENTS = 1u;

fn head_units(head_dim: u32) -> u32 {
    return head_dim;
}
