// y = W x for one to sixteen rows: matmul, matmul_add, norm_matmul and norm_matmul_act_mul. For the experts that a row chose:
// experts_act_mul and experts_add.
//
// Macros: FORMAT_FILE; NORM, 0 or 1; OUTPUT, 0 for y = v, 1 for y += v, 2 for y = act(gate) * up, 3 for y = relu(v)^2; COLUMNS, the most rows;
// WARPS; STAGES; ROUNDS, padded k / (4 * threads) rounded up; WHOLE, 1 where k is a multiple of CHUNK; RESIDENT, the blocks
// per multiprocessor that the registers must allow; SHARES, per block; USED, experts per row, 0 without experts.
//
// There are one or a few blocks per multiprocessor. Each takes one or two even shares of the output rows, in groups of four. A share is
// cut into units of four rows by one chunk of k, and each warp takes a run of units. The number of shares and WARPS decide how the sums of
// a row are divided. The host chooses them for one row, so every row has the bits that it has alone. A run may begin and end within a group;
// the incomplete sums are added at the end, in the order of the warps. Weights reach a warp through its own ring in shared
// memory. The ring is filled before the kernel waits for its predecessor, so the memory does not idle between kernels.
//
// Experts: the matrix contains all experts, and the rows to read are known only after the wait. Each row of x has the blocks of
// one blockIdx.y to itself, so its bits do not depend on the other rows. Gate and up of the chosen experts act as one matrix
// with USED times as many rows. They release the next kernel only after their own wait, so the following `down` may read the
// choice and fetch weights before it waits (lowering checks the order). The `down` matrices act as one whose rows are USED times
// as long, in the order of the choice; each expert's x is multiplied by its share first.
#include "quantise.cuh"

constexpr bool ROWS_BY_EXPERT = USED > 0 && OUTPUT != 1, K_BY_EXPERT = USED > 0 && OUTPUT == 1;
constexpr int SLOTS = K_BY_EXPERT ? USED : 1; // experts that are concatenated along a row

struct MatmulArgs {
    const u8* weight;
    const float* x;
    float* y;
    const float* norm; // may be null
    const Step* step;
    u32 n; // values per row of y: with OUTPUT 2 the matrix has 2n rows, gate then up
    u32 k;
    u32 x_stride;
    u32 y_stride;
    u32 first; // row of x to start with
    float eps;
    u32 act;
    u32 shares; // in all, without experts
#if USED
    const float* choice; // expert numbers, then shares
    u32 choice_stride;
    u32 experts;
    const float* bias; // of all experts; may be null
#endif
};

constexpr int ROWS = 4; // per group: two for each half of a warp
constexpr int OUTPUTS = OUTPUT == 2 ? ROWS / 2 : ROWS;

// A unit's part of plane P, and the copies that fetch it.
template <int P> struct Part {
    static constexpr int BYTES = CHUNK / Format::elements(P) * Format::bytes(P); // per row
    static constexpr int PIECE = BYTES % 16 == 0 ? 16 : BYTES % 8 == 0 ? 8 : 4;  // bytes per copy
    static constexpr int PIECES = ROWS * BYTES / PIECE;
    static constexpr int AT = Part<P - 1>::AT + ROWS * Part<P - 1>::BYTES;       // offset in the stage
    static constexpr int COPY = Part<P - 1>::COPY + Part<P - 1>::COPIES;         // index of its first copy
    static constexpr int COPIES = (PIECES + 31) / 32;                            // per lane
};
template <> struct Part<-1> {
    static constexpr int BYTES = 0, AT = 0, COPY = 0, COPIES = 0;
};
constexpr int LAST = Format::PLANES - 1;
constexpr int STAGE = (Part<LAST>::AT + ROWS * Part<LAST>::BYTES + 15) / 16 * 16;
constexpr int COPIES = Part<LAST>::COPY + Part<LAST>::COPIES;

// Groups of the matrix, or of one expert's matrix.
__device__ __forceinline__ u32 groups_of(const MatmulArgs& a) { return (a.n + OUTPUTS - 1) / OUTPUTS; }

// The matrix row of row r of a group. Where experts are concatenated along k, `slot` selects the expert.
__device__ __forceinline__ u32 row_of(const MatmulArgs& a, const u32* chosen, u32 group, u32 slot, u32 r) {
    u32 first = 0;
    if (ROWS_BY_EXPERT) {
        slot = group / groups_of(a);
        group -= slot * groups_of(a);
    }
    if (USED) first = chosen[slot] * (OUTPUT == 2 ? 2 * a.n : a.n);
    if (OUTPUT == 2) return first + min(group * OUTPUTS + r / 2, a.n - 1) + (r & 1) * a.n;
    return first + min(group * OUTPUTS + r, a.n - 1);
}

struct Share {
    u32 first_group, chunks, units;

    __device__ __forceinline__ u32 begin(u32 warp) const { return (u32)((u64)units * warp / WARPS); }
};

// The stream of a warp's weights into its ring.
struct Stream {
    const u8* from[COPIES]; // sources of this lane's next pieces
    u32 units;              // not yet requested
    u32 group, chunk, chunks; // `chunks` in one expert's k
    u32 slot;
    const u32* chosen;
    u32 lane;
    u32 to, ring;           // shared addresses of the next stage and of the first one
    Share later;            // the share after this one, if `more`
    bool more;

    // Begins with a warp's run of units of a share.
    __device__ __forceinline__ void begin(const MatmulArgs& a, const Planes& planes, const Share& share) {
        u32 warp = threadIdx.x / 32, first = share.begin(warp);
        units = share.begin(warp + 1) - first;
        group = share.first_group + first / share.chunks;
        slot = first % share.chunks / chunks;
        chunk = first % chunks;
        aim(a, planes);
    }

    __device__ __forceinline__ void begin_later(const MatmulArgs& a, const Planes& planes) {
        if (SHARES == 1 || units > 0 || !more) return;
        more = false;
        begin(a, planes, later);
    }

    template <int P = 0> __device__ __forceinline__ void aim(const MatmulArgs& a, const Planes& planes) {
        using part = Part<P>;
#pragma unroll
        for (int c = 0; c < part::COPIES; c++) {
            u32 i = min(c * 32 + lane, (u32)part::PIECES - 1);
            u32 r = i / (part::BYTES / part::PIECE), at = i % (part::BYTES / part::PIECE) * part::PIECE;
            from[part::COPY + c] = planes.start[P] + (size_t)row_of(a, chosen, group, slot, r) * planes.stride[P] + at +
                                   (size_t)chunk * part::BYTES;
        }
        if constexpr (P < LAST) aim<P + 1>(a, planes);
    }

    template <int P = 0> __device__ __forceinline__ void copy_part(const Planes& planes) {
        using part = Part<P>;
#pragma unroll
        for (int c = 0; c < part::COPIES; c++) {
            u32 i = c * 32 + lane;
            // Elements beyond the end of a row are zero.
            u32 at = chunk * part::BYTES + i % (part::BYTES / part::PIECE) * part::PIECE;
            if (part::PIECES % 32 == 0 || i < part::PIECES)
                // (A cache policy here makes ptxas 13.0 address a wrong descriptor at times.)
                copy_async<part::PIECE>(to + part::AT + i * part::PIECE, from[part::COPY + c], WHOLE || at < planes.stride[P]);
            from[part::COPY + c] += part::BYTES;
        }
        if constexpr (P < LAST) copy_part<P + 1>(planes);
    }

    // Requests the next unit, if there is one.
    __device__ __forceinline__ void next(const MatmulArgs& a, const Planes& planes) {
        if (units > 0) {
            units--;
            copy_part(planes);
            to = to + STAGE == ring + STAGES * STAGE ? ring : to + STAGE;
            if (++chunk == chunks) {
                chunk = 0;
                if (++slot == SLOTS) {
                    slot = 0;
                    group++;
                }
                aim(a, planes);
            }
            begin_later(a, planes);
        }
        copy_commit();
    }
};

// The address of row r of a unit in every plane's part of a stage.
template <int P = 0> __device__ __forceinline__ void parts(const u8* stage, u32 r, const u8* to[MOST_PLANES]) {
    to[P] = stage + Part<P>::AT + r * Part<P>::BYTES;
    if constexpr (P < LAST) parts<P + 1>(stage, r, to);
}

#ifdef FLOATS
// Processes one unit: adds the products of this lane's part of two weight rows with M rows of x.
template <int M>
__device__ __forceinline__ void multiply(const u8* const p[2][MOST_PLANES], const u8* x, const u8*, u32 x_row, u32 lane,
                                         float acc[2][M]) {
#pragma unroll
    for (int s = 0; s < STRIPES; s++) {
        float w[2][8];
        Format::load8(p[0], s * LANES + lane, w[0]);
        Format::load8(p[1], s * LANES + lane, w[1]);
#pragma unroll
        for (int c = 0; c < M; c++) {
            const u8* column = x + c * x_row + s * 512;
            float4 a = *(const float4*)column, b = *(const float4*)(column + LANES * 16);
            float v[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
            for (int e = 0; e < 8; e++) {
                acc[0][c] = fmaf(w[0][e], v[e], acc[0][c]);
                acc[1][c] = fmaf(w[1][e], v[e], acc[1][c]);
            }
        }
    }
}
#else
template <int M>
__device__ __forceinline__ void multiply(const u8* const p[2][MOST_PLANES], const u8* x, const u8* side, u32 x_row,
                                         u32 lane, float acc[2][M]) {
    Block32 w[2] = {Format::load(p[0], lane), Format::load(p[1], lane)};
#pragma unroll
    for (int c = 0; c < M; c++) {
        int4 a = *(const int4*)(x + c * x_row), b = *(const int4*)(x + c * x_row + LANES * 16);
        int v[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
        float scale, sums[2];
        if (Format::HALVES) {
            float4 s = *(const float4*)(side + c * x_row);
            scale = s.x, sums[0] = s.y, sums[1] = s.z;
        } else {
            float2 s = *(const float2*)(side + c * x_row);
            scale = s.x, sums[0] = s.y, sums[1] = 0.0f;
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float& sum = acc[r][c];
            if (Format::HALVES) {
                int low = 0, high = 0;
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    low = __dp4a((int)w[r].q[j], v[j], low);
                    high = __dp4a((int)w[r].q[j + 4], v[j + 4], high);
                }
                sum = fmaf(scale, fmaf(w[r].d[0], (float)low, w[r].d[1] * (float)high), sum);
                sum = fmaf(w[r].m[0], sums[0], fmaf(w[r].m[1], sums[1], sum));
                continue;
            }
            int dot = 0;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                dot = __dp4a((int)w[r].q[j], v[j], dot);
                dot = __dp4a((int)w[r].q[j + 4], v[j + 4], dot);
            }
            if (Format::CENTRE) {
                sum = fmaf(w[r].d[0], fmaf(scale, (float)dot, sums[0]), sum);
            } else {
                sum = fmaf(w[r].d[0], scale * (float)dot, sum);
                if (Format::OFFSET) sum = fmaf(w[r].m[0], sums[0], sum);
            }
        }
    }
}
#endif

__device__ __forceinline__ u32 first_row(const MatmulArgs& a) { return USED ? blockIdx.y : a.first; }

#if USED
// Adds the biases of output `row`: to gate and up (or up alone) of the expert in `slot`, or to the sum of all experts, each times its share.
__device__ __forceinline__ void add_biases(const MatmulArgs& a, const u32* chosen, u32 slot, u32 row, float& v, float& up) {
    if (!a.bias) return;
    if (ROWS_BY_EXPERT) {
        const float* bias = a.bias + (size_t)chosen[slot] * (OUTPUT == 2 ? 2 : 1) * a.n + row;
        v += bias[0];
        if (OUTPUT == 2) up += bias[a.n];
        return;
    }
#pragma unroll
    for (u32 i = 0; i < USED; i++) v = fmaf(__uint_as_float(chosen[USED + i]), a.bias[(size_t)chosen[i] * a.n + row], v);
}
#endif

// Stores a complete value of row r of a group, for column c; with OUTPUT 2, gate and up.
__device__ __forceinline__ void finish(const MatmulArgs& a, const u32* chosen, u32 group, u32 r, u32 c, float v, float up, float by) {
    u32 slot = ROWS_BY_EXPERT ? group / groups_of(a) : 0;
    u32 row = (group - slot * groups_of(a)) * OUTPUTS + (OUTPUT == 2 ? r / 2 : r);
    if (row >= a.n) return;
    float* y = a.y + (size_t)(first_row(a) + c) * a.y_stride + slot * a.n + row;
    if (NORM) v *= by, up *= by;
#if USED
    add_biases(a, chosen, slot, row, v, up);
#endif
    if (OUTPUT == 0) *y = v;
    if (OUTPUT == 1) atomicAdd(y, v); // the only addition to this element, so the order cannot matter
    if (OUTPUT == 2) *y = gated(a.act, v, up);
    if (OUTPUT == 3) *y = squared_relu(v);
}

// Multiplies a share. `at` is where the ring's next stage begins.
template <int M>
__device__ __forceinline__ void run(const MatmulArgs& a, const Planes& planes, const Share& share, Stream& stream, const u8* ring,
                                    u32& at, const u8* x, const float* sums, float* open, u32 padded, u32 rows) {
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    u32 begin = share.begin(warp), end = share.begin(warp + 1), chunks = share.chunks;
    u32 group = begin / chunks, chunk = begin % chunks;
    u32 x_row = x_bytes(padded), lane_of_row = opaque(lane % LANES), row = opaque(lane / LANES * 2); // `opaque` keeps them in registers: recomputing them per unit costs more
    // Addresses of this lane's parts of two rows, and of x.
    const u8* p[2][MOST_PLANES];
    parts(ring, row, p[0]);
    parts(ring, row + 1, p[1]);
    u32 left = 0;
    float only = M == 1 ? norm_factor(sums, 0, a.eps, a.k) : 1.0f;
    for (u32 u = begin; u < end; u += left) {
        left = min(chunks - chunk, end - u);
        const u8* xs = x + chunk * (STRIPES * 512) + lane_of_row * 16;
        const u8* side = x + padded + (chunk * LANES + lane_of_row) * X_SIDE;
        float acc[2][M];
#pragma unroll
        for (int c = 0; c < M; c++) acc[0][c] = acc[1][c] = 0.0f;
        for (u32 i = left; i > 0; i--) {
            copy_wait<STAGES - 2>();
            __syncwarp(); // all lanes' copies have arrived, and all lanes have finished the previous stage
            stream.next(a, planes);
            const u8* now[2][MOST_PLANES];
#pragma unroll
            for (int i = 0; i < Format::PLANES; i++) now[0][i] = p[0][i] + at, now[1][i] = p[1][i] + at;
            multiply<M>(now, xs, side, x_row, lane_of_row, acc);
            at = at == (STAGES - 1) * STAGE ? 0 : at + STAGE;
            xs += STRIPES * 512;
            side += LANES * X_SIDE;
        }
        // The group, or this warp's part of it, is complete.
        bool began = chunk == 0, whole = left == chunks;
#pragma unroll
        for (int c = 0; c < M; c++) {
#pragma unroll
            for (int o = LANES / 2; o > 0; o >>= 1) {
                acc[0][c] += __shfl_xor_sync(~0u, acc[0][c], o);
                acc[1][c] += __shfl_xor_sync(~0u, acc[1][c], o);
            }
            if (lane_of_row == 0) {
                if (whole) {
                    if (c < rows) {
                        u32 of = share.first_group + group;
                        float by = M == 1 ? only : norm_factor(sums, c, a.eps, a.k);
                        finish(a, stream.chosen, of, row, c, acc[0][c], acc[1][c], by);
                        if (OUTPUT != 2) finish(a, stream.chosen, of, row + 1, c, acc[1][c], 0.0f, by);
                    }
                } else {
                    float* to = open + ((warp * 2 + began) * M + c) * ROWS + row;
                    to[0] = acc[0][c];
                    to[1] = acc[1][c];
                }
            }
        }
        chunk = 0;
        group++;
    }
    __syncthreads();
    // A warp that began a group but did not complete it adds the parts of the following warps.
    if (begin == end) return;
    group = (end - 1) / chunks;
    u32 group_end = (group + 1) * chunks;
    if (end == group_end || group * chunks < begin) return;
    for (u32 i = lane; i < M * OUTPUTS; i += 32) {
        u32 c = i / OUTPUTS, r = i % OUTPUTS * (ROWS / OUTPUTS);
        if (c >= rows) break;
        const float* mine = open + ((warp * 2 + 1) * M + c) * ROWS + r;
        float v = mine[0], up = OUTPUT == 2 ? mine[1] : 0.0f;
        for (u32 w = warp + 1; w < WARPS && share.begin(w) < group_end; w++) {
            if (share.begin(w) == share.begin(w + 1)) continue;
            const float* more = open + (w * 2 * M + c) * ROWS + r;
            v += more[0];
            if (OUTPUT == 2) up += more[1];
        }
        finish(a, stream.chosen, share.first_group + group, r, c, v, up, norm_factor(sums, c, a.eps, a.k));
    }
}

#if USED
// Loads the x of each of a row's experts, concatenated and multiplied by the expert's share.
__device__ __forceinline__ void prepare_each(u8* to, const float* x, const float* shares, u32 k, u32 padded) {
    constexpr u32 BATCH = 8; // loads in flight
    const u32 each = padded / 4, all = USED * each;
    for (u32 first = 0; first < all; first += BATCH * THREADS) {
        float4 kept[BATCH];
#pragma unroll
        for (u32 r = 0; r < BATCH; r++) {
            u32 i = first + r * THREADS + threadIdx.x, slot = min(i / each, USED - 1u);
            const float* row = x + (size_t)slot * k;
            kept[r] = load4(row, 4 * (i - slot * each), k, is_wide(row));
        }
#pragma unroll
        for (u32 r = 0; r < BATCH; r++) {
            u32 i = first + r * THREADS + threadIdx.x; // either all lanes of a warp are beyond the end, or none
            if (i >= all) break;
            float share = shares[i / each];
            float4 v = kept[r];
            put4(to, USED * padded, i, make_float4(v.x * share, v.y * share, v.z * share, v.w * share));
        }
    }
    __syncthreads();
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) matmul(const __grid_constant__ MatmulArgs a) {
    extern __shared__ __align__(16) u8 shared[];
    // Kernels that start after the experts' gate and up may rely on the choice being complete.
    if (!ROWS_BY_EXPERT) grid_release();
    u32 padded = round_up(a.k, CHUNK), whole = SLOTS * padded;
    u8* x = shared;
    float* sums = (float*)(shared + COLUMNS * x_bytes(whole));
    float* open = sums + WARPS * COLUMNS;
    u32* chosen = (u32*)(open + WARPS * 2 * COLUMNS * ROWS);
    u8* rings = shared + round_up((u32)((u8*)(chosen + 2 * USED) - shared), 16);
    u32 warp = threadIdx.x / 32;
    u8* ring = rings + warp * (STAGES * STAGE);
#if USED
    if (ROWS_BY_EXPERT) {
        grid_wait();
        grid_release();
        if (a.step->ended || blockIdx.y >= a.step->live) return;
    }
    for (u32 i = threadIdx.x; i < 2 * USED; i += THREADS) {
        u32 word = __float_as_uint(__ldcg(a.choice + (size_t)blockIdx.y * a.choice_stride + i));
        chosen[i] = i < USED ? min(word, a.experts - 1) : word;
    }
    __syncthreads();
    u32 matrices = a.experts * (OUTPUT == 2 ? 2 : 1);
#else
    u32 matrices = OUTPUT == 2 ? 2 : 1;
#endif

    u32 groups = groups_of(a) * (ROWS_BY_EXPERT ? USED : 1);
    Share share[SHARES];
#pragma unroll
    for (u32 i = 0; i < SHARES; i++) {
        // The last block may have one share fewer.
        u32 shares = SHARES == 1 ? gridDim.x : a.shares, nth = min(blockIdx.x * SHARES + i, shares);
        share[i].first_group = (u32)((u64)groups * nth / shares);
        share[i].chunks = whole / CHUNK;
        share[i].units = ((u32)((u64)groups * min(nth + 1, shares) / shares) - share[i].first_group) * share[i].chunks;
    }
    Planes planes(a.weight, matrices * a.n, a.k);
    Stream stream;
    stream.ring = shared_address(ring);
    stream.to = stream.ring;
    stream.lane = opaque(threadIdx.x % 32);
    stream.chunks = padded / CHUNK;
    stream.chosen = chosen;
    stream.later = share[SHARES - 1];
    stream.more = SHARES > 1;
    stream.begin(a, planes, share[0]);
    stream.begin_later(a, planes);
    u32 at = 0;
#pragma unroll 1
    for (int s = 0; s < STAGES - 1; s++) stream.next(a, planes);
#if USED
    if (K_BY_EXPERT) {
        grid_wait();
        if (a.step->ended || blockIdx.y >= a.step->live) {
            copy_wait<0>();
            return;
        }
    }
    const float* row = a.x + (size_t)blockIdx.y * a.x_stride;
    float4 w[ROUNDS];
    if (K_BY_EXPERT) prepare_each(x, row, (const float*)(chosen + USED), a.k, padded);
    else prepare(x, sums, row, a.x_stride, 1, w, a.k, padded);
    run<1>(a, planes, share[0], stream, ring, at, x, sums, open, whole, 1);
#else
    float4 w[ROUNDS];
    if (NORM) {
        bool wide = is_wide(a.norm);
#pragma unroll
        for (int r = 0; r < ROUNDS; r++) {
            w[r] = make_float4(1.0f, 1.0f, 1.0f, 1.0f);
            if (a.norm) w[r] = load4(a.norm, 4 * (threadIdx.x + r * THREADS), a.k, wide);
        }
    }

    grid_wait();
    u32 live = a.step->live, ended = a.step->ended, rows = 1;
    if (COLUMNS > 1) rows = live > a.first ? min(live - a.first, (u32)COLUMNS) : 0;
    // There is always at least one row in memory, so it is prepared before the step is known to be live.
    prepare(x, sums, a.x + (size_t)a.first * a.x_stride, a.x_stride, rows, w, a.k, padded);
    if (ended || live <= a.first) {
        copy_wait<0>();
        return;
    }
#define RUN(M) run<(M < COLUMNS ? M : COLUMNS)>(a, planes, now, stream, ring, at, x, sums, open, padded, rows)
#pragma unroll 1
    for (u32 i = 0; i < SHARES; i++) {
        const Share now = i == 0 ? share[0] : share[SHARES - 1];
        if (COLUMNS == 1) RUN(1);
        else if (rows <= 2) RUN(2);
        else if (rows <= 4) RUN(4);
        else if (rows <= 8) RUN(8);
        else RUN(16);
        if (i + 1 < SHARES) __syncthreads(); // `open` has been read
    }
#endif
}
