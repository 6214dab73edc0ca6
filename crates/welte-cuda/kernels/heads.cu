// A matrix for each head. y of a head is its products, after a copy of its tail.
// Macro: VEC, the values of a load: 4 if the matrices' rows have a multiple of 4 values, otherwise 1.
#include "common.cuh"

struct HeadsArgs {
    const Step *step;
    const float *matrices; // [head][n][k], or [head][k][n] if transposed
    const float *x;
    float *y;
    u32 n;
    u32 k;
    u32 tail;
    u32 x_head;
    u32 y_head;
    u32 x_stride;
    u32 y_stride;
    u32 transposed;
};

#define THREADS 256

__device__ __forceinline__ const float *head_of_x(const HeadsArgs &a, u32 row) { return a.x + (u64)row * a.x_stride + (u64)blockIdx.y * a.x_head; }
__device__ __forceinline__ float *head_of_y(const HeadsArgs &a, u32 row) { return a.y + (u64)row * a.y_stride + (u64)blockIdx.y * a.y_head; }

// VEC values of a matrix.
struct Values {
    float v[VEC];

    __device__ __forceinline__ void load(const float *from, bool there) {
        if constexpr (VEC == 4) {
            float4 x = there ? __ldg((const float4 *)from) : make_float4(0, 0, 0, 0);
            v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w;
        } else {
            v[0] = there ? __ldg(from) : 0.0f;
        }
    }
};

// ---- a row per block ----

// Copies the head's inputs to shared memory and its tail to y.
__device__ __forceinline__ void take_inputs(const HeadsArgs &a, float *inputs) {
    const float *x = head_of_x(a, blockIdx.x);
    for (u32 i = threadIdx.x; i < a.k; i += THREADS) inputs[i] = x[i];
    float *y = head_of_y(a, blockIdx.x);
    if (blockIdx.z == 0)
        for (u32 i = threadIdx.x; i < a.tail; i += THREADS) y[i] = x[a.k + i];
    __syncthreads();
}

#define OUTPUTS 16 // of a block, two per warp
#define HELD 4     // loads of a lane and output that are in flight before the inputs are there

extern "C" __global__ void __launch_bounds__(THREADS) heads_matmul(const __grid_constant__ HeadsArgs a) {
    extern __shared__ __align__(16) float inputs[];
    grid_release();
    u32 lane = threadIdx.x % 32, first = blockIdx.z * OUTPUTS + threadIdx.x / 32 * 2;
    const float *rows = a.matrices + ((u64)blockIdx.y * a.n + first) * a.k;
    Values held[2][HELD];
#pragma unroll
    for (u32 o = 0; o < 2; ++o)
#pragma unroll
        for (u32 i = 0; i < HELD; ++i) {
            u32 at = (i * 32 + lane) * VEC;
            held[o][i].load(rows + (u64)o * a.k + at, first + o < a.n && at < a.k);
        }
    grid_wait();
    if (a.step->ended || blockIdx.x >= a.step->live) return;
    take_inputs(a, inputs);
#pragma unroll
    for (u32 o = 0; o < 2; ++o) {
        if (first + o >= a.n) break;
        float sum = 0;
#pragma unroll
        for (u32 i = 0; i < HELD; ++i)
#pragma unroll
            for (u32 v = 0; v < VEC; ++v) {
                u32 at = (i * 32 + lane) * VEC + v;
                if (at < a.k) sum += held[o][i].v[v] * inputs[at];
            }
        for (u32 at = (HELD * 32 + lane) * VEC; at < a.k; at += 32 * VEC) {
            Values more;
            more.load(rows + (u64)o * a.k + at, true);
#pragma unroll
            for (u32 v = 0; v < VEC; ++v) sum += more.v[v] * inputs[at + v];
        }
        sum = warp_sum(sum);
        if (lane == 0) head_of_y(a, blockIdx.x)[a.tail + first + o] = sum;
    }
}

#define COLUMNS 64 // of a block
#define HELD_TURNED 12
constexpr u32 PARTS = THREADS / (COLUMNS / VEC); // of the inputs

extern "C" __global__ void __launch_bounds__(THREADS) heads_matmul_transposed(const __grid_constant__ HeadsArgs a) {
    extern __shared__ __align__(16) float inputs[];
    __shared__ float parts[PARTS][COLUMNS];
    grid_release();
    u32 own = threadIdx.x % (COLUMNS / VEC) * VEC, part = threadIdx.x / (COLUMNS / VEC), column = blockIdx.z * COLUMNS + own;
    const float *matrix = a.matrices + (u64)blockIdx.y * a.k * a.n + column;
    Values held[HELD_TURNED];
#pragma unroll
    for (u32 i = 0; i < HELD_TURNED; ++i) {
        u32 j = i * PARTS + part;
        held[i].load(matrix + (u64)j * a.n, j < a.k && column < a.n);
    }
    grid_wait();
    if (a.step->ended || blockIdx.x >= a.step->live) return;
    take_inputs(a, inputs);
    float sum[VEC] = {};
#pragma unroll
    for (u32 i = 0; i < HELD_TURNED; ++i) {
        u32 j = i * PARTS + part;
#pragma unroll
        for (u32 v = 0; v < VEC; ++v)
            if (j < a.k) sum[v] += held[i].v[v] * inputs[j];
    }
    for (u32 j = HELD_TURNED * PARTS + part; j < a.k && column < a.n; j += PARTS) {
        Values more;
        more.load(matrix + (u64)j * a.n, true);
#pragma unroll
        for (u32 v = 0; v < VEC; ++v) sum[v] += more.v[v] * inputs[j];
    }
#pragma unroll
    for (u32 v = 0; v < VEC; ++v) parts[part][own + v] = sum[v];
    __syncthreads();
    u32 i = blockIdx.z * COLUMNS + threadIdx.x;
    if (threadIdx.x >= COLUMNS || i >= a.n) return;
    float all = 0;
#pragma unroll
    for (u32 p = 0; p < PARTS; ++p) all += parts[p][threadIdx.x];
    head_of_y(a, blockIdx.x)[a.tail + i] = all;
}

// ---- many rows: a tile of rows and outputs per block, four by four per thread ----

#define TILE 64
#define DEPTH 16 // inputs per step

extern "C" __global__ void __launch_bounds__(THREADS) heads_matmul_rows(const __grid_constant__ HeadsArgs a) {
    __shared__ __align__(16) float x[DEPTH][TILE + 4], m[DEPTH][TILE + 4];
    grid_release();
    grid_wait();
    u32 t = threadIdx.x, live = a.step->live, first_row = blockIdx.x * TILE, first = blockIdx.z * TILE;
    if (a.step->ended || first_row >= live) return;
    const float *matrix = a.matrices + (u64)blockIdx.y * a.n * a.k;
    if (blockIdx.z == 0)
        for (u32 i = t; i < TILE * a.tail; i += THREADS) {
            u32 row = first_row + i / a.tail, at = i % a.tail;
            if (row < live) head_of_y(a, row)[at] = head_of_x(a, row)[a.k + at];
        }
    // What this thread loads in a step: four inputs of a row, and as many values of the matrix.
    u32 row = first_row + t / 4, output = first + t / 4, depth = t % 4 * 4, turned_depth = t / 16, turned = t % 16 * 4;
    const float *from = head_of_x(a, min(row, live - 1));
    float next_x[4], next_m[4];
    auto load = [&](u32 k) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            u32 at = k + depth + i;
            next_x[i] = row < live && at < a.k ? from[at] : 0.0f;
            if (a.transposed) {
                u32 j = k + turned_depth, column = first + turned + i;
                next_m[i] = j < a.k && column < a.n ? __ldg(matrix + (u64)j * a.n + column) : 0.0f;
            } else {
                next_m[i] = output < a.n && at < a.k ? __ldg(matrix + (u64)output * a.k + at) : 0.0f;
            }
        }
    };
    float sums[4][4] = {};
    u32 own_rows = t / 16 * 4, own_outputs = t % 16 * 4;
    load(0);
    for (u32 k = 0; k < a.k; k += DEPTH) {
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            x[depth + i][t / 4] = next_x[i];
            if (a.transposed) m[turned_depth][turned + i] = next_m[i];
            else m[depth + i][t / 4] = next_m[i];
        }
        __syncthreads();
        if (k + DEPTH < a.k) load(k + DEPTH);
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
