// Elements as matmul_float_rows.wgsl reads them, with zeros up to a whole unit. An invocation has four.
const PART = 4u;

fn prepare(x: u32, y: u32, quad: u32) {
    let dim = command.p.dim;
    var values = vec4(0.0);
    if 4u * quad < dim {
        values = weighed(x, 4u * quad);
    }
    if quad < (dim + 7u) / 8u * 2u {
        prepared[y + quad] = bitcast<vec4<u32>>(values);
    }
}
