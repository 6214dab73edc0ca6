// Products of a matrix with up to ROWS vectors, for decode steps. matmul_packed.wgsl and matmul_float.wgsl say what a vector is and multiply
// a unit of UNIT weights (`add_unit`); vectors lie in workgroup memory (`*_alone`, one vector) or were prepared before (`*_rows`). A format
// says how a unit is loaded (`load_raw`) and unpacked (`unit_of`). An invocation has IN_FLIGHT units in flight, as they were loaded:
// unpacking would wait for them. A team of TEAM invocations computes EACH sums for every vector, of OWN outputs: neighbours load neighbouring
// words of the matrix. An invocation adds up every TEAM-th unit of k; then the team's sums are added as a tree. So the order of a sum
// depends on k alone. Every multiplication before an addition is an `fma`, so that kernels for one vector and for many cannot be contracted
// differently.

const TEAMS = WG / TEAM;

// Output r of vector m is element `m * EACH + r`.
var<private> sums: array<vec4<f32>, SLOTS>;
var<workgroup> partial: array<vec4<f32>, WG>;

// The next units of the team's matrix rows.
//for d
//for r
var<private> next$d_$r: Raw;
//end r
//end d

// Requests the first units of the rows at words `bases`.
fn fetch(bases: Bases, first: u32, end: u32, k: u32) {
    if AHEAD {
        //for d
        if first + $du * TEAM < end {
            //for r
            next$d_$r = load_raw(bases[$r], first + $du * TEAM, k);
            //end r
        }
        //end d
    }
}

// Adds the products of every TEAM-th unit from `begin` to `end` with `rows` vectors, after `fetch`. Place 0 of a vector has the element
// `chunk`, and the vector begins at place `origin`.
fn accumulate(rows: u32, k: u32, chunk: u32, origin: u32, bases: Bases, begin: u32, end: u32) {
    for (var first = begin; first < end; first += TEAM * IN_FLIGHT) {
        //for d
        let unit$d = first + $du * TEAM;
        if unit$d < end {
            let places = places_of(unit$d, chunk) + vec2(origin);
            //for r
            if !AHEAD {
                next$d_$r = load_raw(bases[$r], unit$d, k);
            }
            let w$r = unit_of(next$d_$r, unit$d);
            //end r
            if AHEAD && unit$d + TEAM * IN_FLIGHT < end {
                //for r
                next$d_$r = load_raw(bases[$r], unit$d + TEAM * IN_FLIGHT, k);
                //end r
            }
            //for m
            if ROWS == 1u || $mu < rows {
                let x = vector_of($mu, places, k);
                //for r
                sums[($m * EACH + $r) / 4][($m * EACH + $r) % 4] = add_unit(w$r, x, sums[($m * EACH + $r) / 4][($m * EACH + $r) % 4]);
                //end r
            }
            //end m
        }
        //end d
    }
}
