// A matrix for each head. y of a head is its products, after a copy of its tail.
// Macros: FORMAT_FILE; LANES, the lanes that share an output (a power of two); HELD, the loads of a lane and output that are in
// flight before the inputs are there.
#include "weights.cuh"

struct HeadsArgs {
    const Step *step;
    const u8 *matrices; // [head][n] rows of k
    const float *x;
    float *y;
    u32 n;
    u32 k;
    u32 tail;
    u32 x_head;
    u32 y_head;
    u32 x_stride;
    u32 y_stride;
    u32 pad;
};

#define THREADS 256
constexpr u32 UNIT = Elements::COUNT;

__device__ __forceinline__ const float *head_of_x(const HeadsArgs &a, u32 row) { return a.x + (u64)row * a.x_stride + (u64)blockIdx.y * a.x_head; }
__device__ __forceinline__ float *head_of_y(const HeadsArgs &a, u32 row) { return a.y + (u64)row * a.y_stride + (u64)blockIdx.y * a.y_head; }

// Loads a unit of a row of the matrices, or zeros past its end.
__device__ __forceinline__ void load(const HeadsArgs &a, Elements &to, const u8 *const row[], u32 unit, bool there) {
    if (there && unit * UNIT < a.k) to.load(row, a.k, unit);
    else to.clear();
}

// ---- a row per block ----

#define EACH 2 // outputs of a group of lanes
constexpr u32 GROUPS = THREADS / LANES;

extern "C" __global__ void __launch_bounds__(THREADS) heads_matmul(const __grid_constant__ HeadsArgs a) {
    // A float is left out after each unit, so that lanes read different banks.
    extern __shared__ __align__(16) float inputs[];
    grid_release();
    const Planes planes(a.matrices, gridDim.y * a.n, a.k);
    const u32 lane = threadIdx.x % LANES, first = (blockIdx.z * GROUPS + threadIdx.x / LANES) * EACH;
    const u32 units = (a.k + UNIT - 1) / UNIT;
    const u8 *rows[EACH][MOST_PLANES];
    Elements held[EACH][HELD];
#pragma unroll
    for (u32 o = 0; o < EACH; ++o) {
        planes.row(blockIdx.y * a.n + min(first + o, a.n - 1), rows[o]);
#pragma unroll
        for (u32 i = 0; i < HELD; ++i) load(a, held[o][i], rows[o], i * LANES + lane, first + o < a.n);
    }
    grid_wait();
    if (a.step->ended || blockIdx.x >= a.step->live) return;
    const float *x = head_of_x(a, blockIdx.x);
    float *y = head_of_y(a, blockIdx.x);
    for (u32 i = threadIdx.x; i < units * UNIT; i += THREADS) inputs[i + i / UNIT] = i < a.k ? x[i] : 0.0f;
    if (blockIdx.z == 0)
        for (u32 i = threadIdx.x; i < a.tail; i += THREADS) y[i] = x[a.k + i];
    __syncthreads();
#pragma unroll
    for (u32 o = 0; o < EACH; ++o) {
        float sum = 0;
        auto add = [&](const Elements &w, u32 unit) {
            const float *from = inputs + unit * (UNIT + 1);
#pragma unroll
            for (int e = 0; e < UNIT; ++e) sum = fmaf(w.at(e), from[e], sum);
        };
#pragma unroll
        for (u32 i = 0; i < HELD; ++i)
            if (i * LANES + lane < units) add(held[o][i], i * LANES + lane);
        for (u32 unit = HELD * LANES + lane; unit < units; unit += LANES) {
            Elements more;
            load(a, more, rows[o], unit, first + o < a.n);
            add(more, unit);
        }
#pragma unroll
        for (u32 i = LANES / 2; i > 0; i /= 2) sum += __shfl_xor_sync(~0u, sum, i);
        if (lane == 0 && first + o < a.n) y[a.tail + first + o] = sum;
    }
}

// ---- many rows: a tile of rows and outputs per block, four by four per thread ----

#define TILE 64
#define DEPTH 32 // inputs per step
#define PART 8   // of them, those that a thread loads of a row and of an output

extern "C" __global__ void __launch_bounds__(THREADS) heads_matmul_rows(const __grid_constant__ HeadsArgs a) {
    __shared__ __align__(16) float x[DEPTH][TILE + 4], m[DEPTH][TILE + 4];
    grid_release();
    grid_wait();
    const u32 t = threadIdx.x, live = a.step->live, first_row = blockIdx.x * TILE, first = blockIdx.z * TILE;
    if (a.step->ended || first_row >= live) return;
    if (blockIdx.z == 0)
        for (u32 i = t; i < TILE * a.tail; i += THREADS) {
            u32 row = first_row + i / a.tail, at = i % a.tail;
            if (row < live) head_of_y(a, row)[at] = head_of_x(a, row)[a.k + at];
        }
    const u32 own = t / (DEPTH / PART), part = t % (DEPTH / PART);
    const float *from = head_of_x(a, min(first_row + own, live - 1));
    const Planes planes(a.matrices, gridDim.y * a.n, a.k);
    const u8 *weights[MOST_PLANES];
    planes.row(blockIdx.y * a.n + min(first + own, a.n - 1), weights);
    float next_x[PART];
    Elements next_m;
    auto load_step = [&](u32 k) {
#pragma unroll
        for (u32 i = 0; i < PART; ++i) {
            u32 at = k + part * PART + i;
            next_x[i] = first_row + own < live && at < a.k ? from[at] : 0.0f;
        }
        // A block is loaded by all threads that use a part of it.
        load(a, next_m, weights, UNIT == PART ? k / PART + part : k / DEPTH, first + own < a.n);
    };
    float sums[4][4] = {};
    const u32 own_rows = t / 16 * 4, own_outputs = t % 16 * 4;
    load_step(0);
    for (u32 k = 0; k < a.k; k += DEPTH) {
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < PART; ++i) x[part * PART + i][own] = next_x[i];
#pragma unroll
        for (int e = 0; e < UNIT; ++e)
            if (UNIT == PART || part == e / PART) m[part * PART + e % PART][own] = next_m.at(e);
        __syncthreads();
        if (k + DEPTH < a.k) load_step(k + DEPTH);
#pragma unroll
        for (u32 d = 0; d < DEPTH; ++d) {
            float4 left = *(const float4 *)&x[d][own_rows], right = *(const float4 *)&m[d][own_outputs];
            float l[4] = {left.x, left.y, left.z, left.w}, r[4] = {right.x, right.y, right.z, right.w};
#pragma unroll
            for (u32 i = 0; i < 4; ++i)
#pragma unroll
                for (u32 j = 0; j < 4; ++j) sums[i][j] = fmaf(l[i], r[j], sums[i][j]);
        }
    }
#pragma unroll
    for (u32 i = 0; i < 4; ++i)
#pragma unroll
        for (u32 j = 0; j < 4; ++j)
            if (first_row + own_rows + i < live && first + own_outputs + j < a.n) head_of_y(a, first_row + own_rows + i)[a.tail + first + own_outputs + j] = sums[i][j];
}
