// Units of eight elements on their way to workgroup memory.

fn keep_item(to: u32, raw: Raw, item: u32, power: f32) {
    let values = unit_of(raw, item);
    weights[to] = vec4<f16>(power * values.a);
    weights[to + 1u] = vec4<f16>(power * values.b);
}
