// Units of eight elements, unpacked as soon as they are loaded.
alias Raw = Eight;

fn load_raw(row: u32, unit: u32, k: u32) -> Raw {
    return load(row, unit, k);
}

fn unit_of(raw: Raw, unit: u32) -> Eight {
    return raw;
}
