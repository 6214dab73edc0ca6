// A recurrent matrix for each head: its rows belong to keys, its columns to values. A workgroup takes COLUMNS columns of a head of a slot,
// and keeps them in registers while it walks over the slot's rows; LANES neighbours share a column. LOOKS: `change_of` needs the
// product of the column with the keys.

const COLUMNS = WG / LANES;
// Quads of a part's numbers, of which every LANES-th belongs to an invocation, with zeros at the end.
const PADDED = EACH * LANES;

// Two copies, for a row and the next one: keys, queries, and what else is a number for each row of the state.
var<workgroup> shared_quads: array<vec4<f32>, 2u * PARTS * PADDED>;
var<workgroup> partial: array<vec4<f32>, WG>;

// The i-th quad of a row's numbers.
fn quad_of_row(row: u32, head: u32, group: u32, i: u32) -> vec4<f32> {
    var quad = vec4(0.0);
    let first = 4u * (i % PADDED);
    for (var j = 0u; j < 4u; j++) {
        if i < PARTS * PADDED && first + j < KEY_DIM {
            quad[j] = element(i / PADDED, row, head, group, first + j);
        }
    }
    return quad;
}

// The cells of a quad of a column at `place`.
fn cells_at(place: u32, quad: u32) -> vec4<f32> {
    var cells = vec4(0.0);
    for (var i = 0u; i < 4u; i++) {
        if 4u * quad + i < KEY_DIM {
            cells[i] = cache[place + (4u * quad + i) * command.p.value_dim];
        }
    }
    return cells;
}

fn keep_cells(place: u32, quad: u32, cells: vec4<f32>) {
    for (var i = 0u; i < 4u; i++) {
        if 4u * quad + i < KEY_DIM {
            cache[place + (4u * quad + i) * command.p.value_dim] = cells[i];
        }
    }
}

// Sums over the invocations of a column, of the elements of two quads.
fn column_sums(t: u32, first: vec4<f32>, second: vec4<f32>) -> vec2<f32> {
    var sums = vec4(dot(first, vec4(1.0)), dot(second, vec4(1.0)), 0.0, 0.0);
    if LANES > 1u {
        sums = sum_of_team(t, sums, LANES);
    }
    return sums.xy;
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) id: vec3<u32>, invocation: Invocation) {
    let t = number_of(invocation);
    let p = command.p;
    let head = id.x;
    let group = group_of(head);
    let live = state[0];
    var row = id.z;
    if !is_first_of_slot(row) {
        return;
    }
    let lane = t % LANES;
    let column = min(id.y * COLUMNS + t / LANES, p.value_dim - 1u);
    let is_own = id.y * COLUMNS + t / LANES < p.value_dim;
    let own = head * KEY_DIM * p.value_dim + column;
    let place = state_place(row, p.heads * KEY_DIM * p.value_dim) + own;
    // The state before position 0 is zero, even if the page holds other numbers.
    let fresh = position_of(row) == 0u;
    //for j
    var cells$j = vec4(0.0);
    if !fresh {
        cells$j = cells_at(place, lane + LANES * $ju);
    }
    //end j
    // The next row's numbers are under way while a row is computed.
    //for l
    var quad$l = quad_of_row(row, head, group, $lu * WG + t);
    //end l
    var next_step = step_of(row, head, column);
    var keys = PARTS * PADDED;
    while row < live {
        keys = PARTS * PADDED - keys;
        //for l
        if $lu * WG + t < PARTS * PADDED {
            shared_quads[keys + $lu * WG + t] = quad$l;
        }
        //end l
        workgroupBarrier();
        let step = next_step;
        let y = command.at.c + row * p.y_stride + head * p.value_dim + column;
        row = next_of_slot(row);
        if row < live {
            //for l
            quad$l = quad_of_row(row, head, group, $lu * WG + t);
            //end l
            next_step = step_of(row, head, column);
        }
        var products = vec4(0.0);
        var squares = vec4(0.0);
        //for j
        cells$j *= kept_cells(step, keys, lane + LANES * $ju, own);
        if LOOKS {
            let key = shared_quads[keys + lane + LANES * $ju];
            products = fma(cells$j, key, products);
            squares = fma(key, key, squares);
        }
        //end j
        var sums = vec2(0.0);
        if LOOKS {
            sums = column_sums(t, products, squares);
        }
        let change = change_of(step, sums);
        products = vec4(0.0);
        squares = vec4(0.0);
        //for j
        {
            let query = shared_quads[keys + PADDED + lane + LANES * $ju];
            cells$j = fma(shared_quads[keys + lane + LANES * $ju], vec4(change), cells$j);
            products = fma(cells$j, query, products);
            if LOOKS {
                squares = fma(query, query, squares);
            }
        }
        //end j
        sums = column_sums(t, products, squares);
        if is_own && lane == 0u {
            put(y, answer_of(step, sums, head, column));
        }
    }
    if is_own {
        //for j
        keep_cells(place, lane + LANES * $ju, cells$j);
        //end j
    }
}
