// Units of eight elements that are one word of 16 bytes.
alias Raw = vec4<u32>;

fn load_raw(row: u32, unit: u32, k: u32) -> Raw {
    return weight4[row / 4u + unit];
}

fn unit_of(raw: Raw, unit: u32) -> Eight {
    return eight_of(raw);
}
