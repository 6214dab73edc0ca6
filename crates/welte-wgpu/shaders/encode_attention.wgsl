struct Params { heads: u32, kv_heads: u32, head_dim: u32, scale: f32, window: u32, qkv_stride: u32, y_stride: u32, by_axis: u32, unseen: u32, by_reach: u32, places: u32, softcap: f32 }

// The first row of the run, its line and column, and with places the rectangle's lines and columns.
var<private> run_first: u32;
var<private> corner: vec2<u32>;
var<private> sides: vec2<u32>;

// A place with this bit is one of the weight of absent rows.
const ABSENT = 0x80000000u;

fn element(at: u32, i: u32) -> f32 {
    if PLACES && (at & ABSENT) != 0u {
        return vector0((at & ~ABSENT) + i);
    }
    return float_at(at + i);
}

// Line and column of a key, counted from the corner.
fn place_of(other: u32) -> vec2<u32> {
    if has(0u) {
        return vec2((other - run_first) / command.p.places, (other - run_first) % command.p.places);
    }
    return vec2(axis_of(other, 1u), axis_of(other, 2u)) - corner;
}

fn key_place(row: u32, kv_head: u32, other: u32) -> u32 {
    let own = (command.p.heads + kv_head) * HEAD_DIM;
    var seen = other;
    if PLACES && has(0u) {
        let place = place_of(other);
        if place.x >= sides.x || place.y >= sides.y {
            return ABSENT | own;
        }
        seen = run_first + place.x * sides.y + place.y;
    }
    return command.at.a + seen * command.p.qkv_stride + own;
}

// A value of a table of distances that is resized linearly to `count`.
fn resized(table: u32, count: u32, index: u32) -> f32 {
    let all = 2u * command.p.places - 1u;
    if count == all {
        return float_at(table + min(index, all - 1u));
    }
    let place = max((f32(index) + 0.5) * (f32(all) / f32(count)) - 0.5, 0.0);
    let low = u32(place);
    let part = place - f32(low);
    return float_at(table + min(low, all - 1u)) * (1.0 - part) + float_at(table + min(low + 1u, all - 1u)) * part;
}

// What a score adds for the distance.
fn near(row: u32, head: u32, other: u32) -> f32 {
    if !PLACES {
        if !has(1u) {
            return 0.0;
        }
        // The distance of two rows, whichever comes first.
        let away = max(row, other) - min(row, other);
        return -weight1[head] * f32(away);
    }
    let p = command.p;
    let all = 2u * p.places - 1u;
    let table = command.at.a + row * p.qkv_stride + (p.heads + 2u * p.kv_heads) * HEAD_DIM + head * 2u * all;
    let own = vec2(axis_of(row, 1u), axis_of(row, 2u)) - corner;
    let side = select(sides, vec2(p.places), has(0u));
    let index = own + side - 1u - place_of(other);
    return resized(table, 2u * side.x - 1u, index.x) + resized(table + all, 2u * side.y - 1u, index.y);
}

fn value_place(row: u32, kv_head: u32, other: u32) -> u32 {
    return key_place(row, kv_head + command.p.kv_heads, other);
}

// Whether neighbours belong to one run.
fn together(row: u32, other: u32) -> bool {
    let by_axis = command.p.by_axis != 0u;
    return slot_of(row) == slot_of(other) && (!by_axis || axis_of(row, 0u) == axis_of(other, 0u));
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let p = command.p;
    let row = id.z;
    var first = row;
    while first > 0u && together(row, first - 1u) {
        first--;
    }
    var end = row + 1u;
    while end < state[0] && together(row, end) {
        end++;
    }
    if end - first > p.unseen {
        end -= p.unseen;
    }
    run_first = first;
    corner = vec2(axis_of(first, 1u), axis_of(first, 2u));
    sides = vec2(axis_of(end - 1u, 1u), axis_of(end - 1u, 2u)) - corner + 1u;
    if PLACES && has(0u) {
        end = first + p.places * p.places;
    }
    if p.by_reach != 0u {
        end = min(end, row + reach_of(row) - position_of(row) + 1u);
    }
    if p.window != 0u {
        end = min(end, row + p.window + 1u);
        if row > p.window {
            first = max(first, row - p.window);
        }
    }
    let q = command.at.a + row * p.qkv_stride + id.x * HEAD_DIM;
    let y = command.at.b + row * p.y_stride + id.x * HEAD_DIM;
    attend(row, id.x, id.x / (p.heads / p.kv_heads), q, y, t, first, end, p.scale, p.softcap, LOWEST);
}
