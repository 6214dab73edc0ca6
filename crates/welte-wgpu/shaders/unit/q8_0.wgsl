fn load_unit(row: u32, unit: u32, k: u32) -> Unit {
    let at = row / 4u + 2u * unit;
    return Unit(weight4[at], weight4[at + 1u], vec2(tail16(row, unit, k)), vec2(0.0));
}
