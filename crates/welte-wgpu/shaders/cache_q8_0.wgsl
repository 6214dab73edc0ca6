const UNIT_ELEMENTS = 32u;

fn head_units(head_dim: u32) -> u32 {
    return head_dim / 32u * 17u;
}
