// y = W x for one to sixteen rows: matmul, matmul_add, norm_matmul and norm_matmul_act_mul.
//
// Macros: FORMAT_FILE; NORM 0 or 1; OUTPUT 0 y = v, 1 y += v, 2 y = act(gate) * up; COLUMNS the most rows; WARPS,
// STAGES; ROUNDS = padded k / (4 * threads) rounded up.
//
// One block per multiprocessor takes an even share of the output rows, in groups of four. The share is cut into units,
// four rows by one chunk of k, and each warp takes a run of units: it may begin and end amid a group, and what it
// leaves open is added up at the end, in the order of the warps. Weights reach a warp through its own ring in shared
// memory, which is filled before the kernel waits for the one that makes x: at a boundary the memory does not idle.
#include "quantise.cuh"

struct MatmulArgs {
    const u8* weight;
    const float* x;
    float* y;
    const float* norm;
    const Step* step;
    u32 n; // values per row of y: with OUTPUT 2 the matrix has 2n rows, gate then up
    u32 k;
    u32 x_stride;
    u32 y_stride;
    u32 first; // row of x to start with
    float eps;
    u32 act;
    u32 pad;
};

constexpr int ROWS = 4; // of a group: two for each half of a warp
constexpr int OUTPUTS = OUTPUT == 2 ? ROWS / 2 : ROWS;

// What a unit takes of plane P, and the copies that bring it.
template <int P> struct Part {
    static constexpr int BYTES = CHUNK / Format::elements(P) * Format::bytes(P); // of a row
    static constexpr int PIECE = BYTES % 16 == 0 ? 16 : BYTES % 8 == 0 ? 8 : 4;  // of a copy
    static constexpr int PIECES = ROWS * BYTES / PIECE;
    static constexpr int AT = Part<P - 1>::AT + ROWS * Part<P - 1>::BYTES;       // in the stage
    static constexpr int COPY = Part<P - 1>::COPY + Part<P - 1>::COPIES;         // number of its first copy
    static constexpr int COPIES = (PIECES + 31) / 32;                            // a lane's
};
template <> struct Part<-1> {
    static constexpr int BYTES = 0, AT = 0, COPY = 0, COPIES = 0;
};
constexpr int LAST = Format::PLANES - 1;
constexpr int STAGE = (Part<LAST>::AT + ROWS * Part<LAST>::BYTES + 15) / 16 * 16;
constexpr int COPIES = Part<LAST>::COPY + Part<LAST>::COPIES;

// `bytes` is known when this is compiled.
__device__ __forceinline__ void copy_async(int bytes, u32 to, const u8* from, bool there, u64 policy) {
    u32 taken = there ? bytes : 0;
    if (bytes == 16)
        asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to), "l"(from), "r"(taken),
                     "l"(policy) : "memory");
    if (bytes == 8)
        asm volatile("cp.async.ca.shared.global.L2::cache_hint [%0], [%1], 8, %2, %3;" ::"r"(to), "l"(from), "r"(taken),
                     "l"(policy) : "memory");
    if (bytes == 4)
        asm volatile("cp.async.ca.shared.global.L2::cache_hint [%0], [%1], 4, %2, %3;" ::"r"(to), "l"(from), "r"(taken),
                     "l"(policy) : "memory");
}
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void arrived() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Weights are read once per token: they shall not push activations and keys out of L2.
__device__ __forceinline__ u64 evict_first() {
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// A warp's weights on their way.
struct Stream {
    const u8* from[COPIES]; // of this lane's pieces, for the group's first chunk
    u32 group, chunk, chunks;
    u32 ring; // shared address of the warp's stages
    u64 policy;

    // The row of the matrix that is row r of the group.
    static __device__ __forceinline__ u32 row(const MatmulArgs& a, u32 group, u32 r) {
        if (OUTPUT == 2) return min(group * OUTPUTS + r / 2, a.n - 1) + (r & 1) * a.n;
        return min(group * OUTPUTS + r, a.n - 1);
    }

    template <int P = 0> __device__ __forceinline__ void aim(const MatmulArgs& a, const Planes& planes) {
        using part = Part<P>;
        u32 lane = threadIdx.x % 32;
#pragma unroll
        for (int c = 0; c < part::COPIES; c++) {
            u32 i = min(c * 32 + lane, (u32)part::PIECES - 1);
            u32 r = i / (part::BYTES / part::PIECE), at = i % (part::BYTES / part::PIECE) * part::PIECE;
            from[part::COPY + c] = planes.start[P] + (size_t)row(a, group, r) * planes.stride[P] + at;
        }
        if constexpr (P < LAST) aim<P + 1>(a, planes);
    }

    // Brings the unit to a stage. Beyond the end of a row come zeros.
    template <int P = 0> __device__ __forceinline__ void copy_part(const Planes& planes, u32 to) {
        using part = Part<P>;
        u32 lane = threadIdx.x % 32, skip = chunk * part::BYTES;
#pragma unroll
        for (int c = 0; c < part::COPIES; c++) {
            u32 i = c * 32 + lane;
            u32 at = i % (part::BYTES / part::PIECE) * part::PIECE;
            if (part::PIECES % 32 == 0 || i < part::PIECES)
                copy_async(part::PIECE, to + part::AT + i * part::PIECE, from[part::COPY + c] + skip,
                           skip + at < planes.stride[P], policy);
        }
        if constexpr (P < LAST) copy_part<P + 1>(planes, to);
    }

    __device__ __forceinline__ void next(const MatmulArgs& a, const Planes& planes, u32 stage) {
        copy_part(planes, ring + stage * STAGE);
        if (++chunk == chunks) {
            chunk = 0;
            group++;
            aim(a, planes);
        }
    }
};

// Where row r of a unit lies in every plane's part of a stage.
template <int P = 0> __device__ __forceinline__ void parts(const u8* stage, u32 r, const u8* to[MOST_PLANES]) {
    to[P] = stage + Part<P>::AT + r * Part<P>::BYTES;
    if constexpr (P < LAST) parts<P + 1>(stage, r, to);
}

// One unit: adds the products of this lane's part of two rows of weights with M rows of x.
template <int M>
__device__ __forceinline__ void multiply(const u8* stage, const u8* x, u32 padded, u32 chunk, float acc[2][M]) {
    u32 lane = threadIdx.x % LANES, first = threadIdx.x % 32 / LANES * 2;
    const u8* p[2][MOST_PLANES];
    parts(stage, first, p[0]);
    parts(stage, first + 1, p[1]);
    const u8* xs = x + chunk * (Format::BLOCKS ? CHUNK : 4 * CHUNK) + lane * 16;
#ifdef FLOATS
    float w[2][8];
    Format::load8(p[0], lane, w[0]);
    Format::load8(p[1], lane, w[1]);
#pragma unroll
    for (int c = 0; c < M; c++) {
        float4 a = *(const float4*)(xs + c * x_bytes(padded));
        float4 b = *(const float4*)(xs + c * x_bytes(padded) + LANES * 16);
        float v[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
        for (int e = 0; e < 8; e++) {
            acc[0][c] = fmaf(w[0][e], v[e], acc[0][c]);
            acc[1][c] = fmaf(w[1][e], v[e], acc[1][c]);
        }
    }
#else
    Block32 w[2] = {Format::load(p[0], lane), Format::load(p[1], lane)};
#pragma unroll
    for (int c = 0; c < M; c++) {
        const u8* column = xs + c * x_bytes(padded);
        int4 a = *(const int4*)column, b = *(const int4*)(column + LANES * 16);
        int v[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
        const u8* side = x + c * x_bytes(padded) + padded + (chunk * LANES + lane) * X_SIDE;
        if (Format::HALVES) {
            float4 s = *(const float4*)side; // scale, sums of the halves
#pragma unroll
            for (int r = 0; r < 2; r++) {
                int low = 0, high = 0;
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    low = __dp4a((int)w[r].q[j], v[j], low);
                    high = __dp4a((int)w[r].q[j + 4], v[j + 4], high);
                }
                float both = fmaf(w[r].d[0], (float)low, w[r].d[1] * (float)high);
                float sum = fmaf(s.x, both, acc[r][c]);
                acc[r][c] = fmaf(w[r].m[0], s.y, fmaf(w[r].m[1], s.z, sum));
            }
        } else {
            float2 s = *(const float2*)side; // scale, sum
#pragma unroll
            for (int r = 0; r < 2; r++) {
                int low = 0, high = 0;
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    low = __dp4a((int)w[r].q[j], v[j], low);
                    high = __dp4a((int)w[r].q[j + 4], v[j + 4], high);
                }
                acc[r][c] = fmaf(w[r].d[0], s.x * (float)(low + high), acc[r][c]);
                if (Format::OFFSET) acc[r][c] = fmaf(w[r].m[0], s.y, acc[r][c]);
            }
        }
    }
#endif
}

// Values of one group that are complete: `sums` has the four rows of column c.
__device__ __forceinline__ void finish(const MatmulArgs& a, u32 group, u32 r, u32 c, float v, float up) {
    u32 row = group * OUTPUTS + (OUTPUT == 2 ? r / 2 : r);
    if (row >= a.n) return;
    float* y = a.y + (size_t)(a.first + c) * a.y_stride + row;
    if (OUTPUT == 0) *y = v;
    if (OUTPUT == 1) atomicAdd(y, v); // the only addition to this element: nothing depends on an order
    if (OUTPUT == 2) *y = activate(a.act, v) * up;
}

struct Share {
    u32 first_group, chunks, units;

    __device__ __forceinline__ u32 begin(u32 warp) const { return (u32)((u64)units * warp / WARPS); }
};

template <int M>
__device__ __forceinline__ void run(const MatmulArgs& a, const Planes& planes, const Share& share, Stream& stream,
                                    const u8* ring, const u8* x, float* open, u32 padded, u32 rows) {
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    u32 begin = share.begin(warp), end = share.begin(warp + 1), chunks = share.chunks;
    u32 group = begin / chunks, chunk = begin % chunks;
    float acc[2][M];
#pragma unroll
    for (int c = 0; c < M; c++) acc[0][c] = acc[1][c] = 0.0f;
    u32 stage = 0, refill = STAGES - 1;
    for (u32 u = begin; u < end; u++) {
        arrived<STAGES - 2>();
        __syncwarp(); // every lane's copies are there, and every lane has done with the stage before
        if (u + STAGES - 1 < end) stream.next(a, planes, refill);
        commit();
        multiply<M>(ring + stage * STAGE, x, padded, chunk, acc);
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        refill = refill + 1 == STAGES ? 0 : refill + 1;
        chunk++;
        if (chunk < chunks && u + 1 < end) continue;
        // The group, or this warp's part of it, is done.
        bool began = group * chunks >= begin, whole = began && chunk == chunks;
#pragma unroll
        for (int c = 0; c < M; c++) {
#pragma unroll
            for (int o = LANES / 2; o > 0; o >>= 1) {
                acc[0][c] += __shfl_xor_sync(~0u, acc[0][c], o);
                acc[1][c] += __shfl_xor_sync(~0u, acc[1][c], o);
            }
            if (lane % LANES == 0) {
                u32 r = lane / LANES * 2;
                if (whole) {
                    if (c < rows) {
                        u32 of = share.first_group + group;
                        finish(a, of, r, c, acc[0][c], acc[1][c]);
                        if (OUTPUT != 2) finish(a, of, r + 1, c, acc[1][c], 0.0f);
                    }
                } else {
                    float* to = open + ((warp * 2 + began) * M + c) * ROWS + r;
                    to[0] = acc[0][c];
                    to[1] = acc[1][c];
                }
            }
            acc[0][c] = acc[1][c] = 0.0f;
        }
        chunk = 0;
        group++;
    }
    __syncthreads();
    // The warp that began a group which it did not end adds up what the following warps did of it.
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
        finish(a, share.first_group + group, r, c, v, up);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) matmul(const __grid_constant__ MatmulArgs a) {
    extern __shared__ __align__(16) u8 shared[];
    grid_release();
    u32 padded = round_up(a.k, CHUNK);
    u8* x = shared;
    float* open = (float*)(shared + COLUMNS * x_bytes(padded)); // also the norm's sums
    u8* rings = (u8*)(open + WARPS * 2 * COLUMNS * ROWS);
    u32 warp = threadIdx.x / 32;
    u8* ring = rings + warp * (STAGES * STAGE);

    u32 groups = (a.n + OUTPUTS - 1) / OUTPUTS;
    Share share;
    share.first_group = (u32)((u64)groups * blockIdx.x / gridDim.x);
    share.chunks = padded / CHUNK;
    share.units = ((u32)((u64)groups * (blockIdx.x + 1) / gridDim.x) - share.first_group) * share.chunks;
    Planes planes(a.weight, OUTPUT == 2 ? 2 * a.n : a.n, a.k);
    u32 begin = share.begin(warp), end = share.begin(warp + 1);
    Stream stream;
    stream.ring = (u32)__cvta_generic_to_shared(ring);
    stream.policy = evict_first();
    stream.chunks = share.chunks;
    stream.group = share.first_group + begin / share.chunks;
    stream.chunk = begin % share.chunks;
    stream.aim(a, planes);
    for (int s = 0; s < STAGES - 1; s++) {
        if (begin + s < end) stream.next(a, planes, s);
        commit();
    }
    float4 w[ROUNDS];
    if (NORM) {
        bool wide = is_wide(a.norm);
#pragma unroll
        for (int r = 0; r < ROUNDS; r++) w[r] = load4(a.norm, 4 * (threadIdx.x + r * THREADS), a.k, wide);
    }

    grid_wait();
    u32 live = a.step->live;
    if (a.step->ended || live <= a.first) {
        arrived<0>();
        return;
    }
    u32 rows = min(live - a.first, (u32)COLUMNS);
    const float* rows_of_x = a.x + (size_t)a.first * a.x_stride;
    prepare(x, open, rows_of_x, a.x_stride, rows, w, a.eps, a.k, padded);
    if (COLUMNS == 1) return run<1>(a, planes, share, stream, ring, x, open, padded, rows);
    if (COLUMNS == 2 || rows <= 2) return run<2>(a, planes, share, stream, ring, x, open, padded, rows);
    if (COLUMNS == 4 || (COLUMNS > 4 && rows <= 4)) return run<(COLUMNS >= 4 ? 4 : 1)>(a, planes, share, stream, ring, x, open, padded, rows);
    if (COLUMNS == 8 || (COLUMNS > 8 && rows <= 8)) return run<(COLUMNS >= 8 ? 8 : 1)>(a, planes, share, stream, ring, x, open, padded, rows);
    run<(COLUMNS >= 16 ? 16 : 1)>(a, planes, share, stream, ring, x, open, padded, rows);
}
