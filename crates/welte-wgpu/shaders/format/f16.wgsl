fn quads(unit: u32) -> vec2<u32> {
    return in_order(unit);
}

fn eight_of(w: vec4<u32>) -> Eight {
    return Eight(
        vec4(unpack2x16float(w.x), unpack2x16float(w.y)),
        vec4(unpack2x16float(w.z), unpack2x16float(w.w)),
    );
}

fn load(row: u32, unit: u32, k: u32) -> Eight {
    return eight_of(weight4[row / 4u + unit]);
}
