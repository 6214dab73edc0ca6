// Elements as matmul_float_rows.wgsl reads them. An invocation has four.
const PART = 4u;

fn prepare(x: u32, y: u32, quad: u32) {
    if 4u * quad < command.p.dim {
        prepared[y + quad] = weighed(x, 4u * quad);
    }
}
