// The small ops: norm, bias, act_mul, add, scale, copy_last. Block (row, stretch) takes a stretch of one row.
#include "common.cuh"

struct BasicArgs {
    const Step *step;
    const float *x;
    float *y;
    const float *weight; // norm: may be null; bias
    u32 n;               // values per row; norm: per group
    u32 groups;
    u32 x_stride;
    u32 y_stride;
    u32 single; // not 0: only one row is live
    u32 act;
    float a; // norm: eps; scale: factor
    float b; // scale: cap
};

#define STRETCH 1024 // values per block of 256 threads

__device__ __forceinline__ u32 live_rows(const BasicArgs &a) { return a.single ? 1 : a.step->live; }

// Calls f(x, y, i) for this thread's four values.
template <typename F> __device__ __forceinline__ void each(const BasicArgs &a, F f) {
    grid_release();
    grid_wait();
    if (a.step->ended || blockIdx.x >= live_rows(a)) return;
    const float *x = a.x + (u64)blockIdx.x * a.x_stride;
    float *y = a.y + (u64)blockIdx.x * a.y_stride;
    u32 from = blockIdx.y * STRETCH + threadIdx.x;
#pragma unroll
    for (u32 i = 0; i < STRETCH / 256; ++i) {
        u32 at = from + i * 256;
        if (at < a.n) f(x, y, at);
    }
}

extern "C" __global__ void __launch_bounds__(256) bias(const __grid_constant__ BasicArgs a) {
    each(a, [&](const float *, float *y, u32 i) { y[i] += a.weight[i]; });
}

extern "C" __global__ void __launch_bounds__(256) add(const __grid_constant__ BasicArgs a) {
    each(a, [&](const float *x, float *y, u32 i) { y[i] += x[i]; });
}

extern "C" __global__ void __launch_bounds__(256) scale(const __grid_constant__ BasicArgs a) {
    each(a, [&](const float *, float *y, u32 i) {
        float v = y[i] * a.a;
        y[i] = a.b != 0.0f ? a.b * tanhf(v / a.b) : v;
    });
}

extern "C" __global__ void __launch_bounds__(256) act_mul(const __grid_constant__ BasicArgs a) {
    each(a, [&](const float *x, float *y, u32 i) { y[i] = activate(a.act, x[i]) * x[a.n + i]; });
}

// Copies the last live row of x to the first row of y.
extern "C" __global__ void __launch_bounds__(256) copy_last(const __grid_constant__ BasicArgs a) {
    grid_release();
    grid_wait();
    if (a.step->ended || a.step->live == 0) return;
    const float *x = a.x + (u64)(a.step->live - 1) * a.x_stride;
    for (u32 i = blockIdx.y * 256 + threadIdx.x; i < a.n; i += gridDim.y * 256) a.y[i] = x[i];
}

// Norm of long vectors: one block each.
extern "C" __global__ void __launch_bounds__(256) norm_long(const __grid_constant__ BasicArgs a) {
    __shared__ float sums[8];
    grid_release();
    grid_wait();
    if (a.step->ended || blockIdx.x >= live_rows(a)) return;
    const float *x = a.x + (u64)blockIdx.x * a.x_stride + (u64)blockIdx.y * a.n;
    float *y = a.y + (u64)blockIdx.x * a.y_stride + (u64)blockIdx.y * a.n;
    float sum = 0;
    for (u32 i = threadIdx.x; i < a.n; i += 256) sum += x[i] * x[i];
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
#pragma unroll
    for (u32 i = 0; i < 8; ++i) sum += sums[i];
    float factor = 1.0f / sqrtf(sum / (float)a.n + a.a);
    for (u32 i = threadIdx.x; i < a.n; i += 256) y[i] = x[i] * factor * (a.weight ? a.weight[i] : 1.0f);
}

// Norm of short vectors: one warp each, eight per block.
extern "C" __global__ void __launch_bounds__(256) norm_short(const __grid_constant__ BasicArgs a) {
    grid_release();
    grid_wait();
    u32 group = blockIdx.y * 8 + threadIdx.x / 32;
    if (a.step->ended || blockIdx.x >= live_rows(a) || group >= a.groups) return;
    const float *x = a.x + (u64)blockIdx.x * a.x_stride + (u64)group * a.n;
    float *y = a.y + (u64)blockIdx.x * a.y_stride + (u64)group * a.n;
    u32 lane = threadIdx.x % 32;
    float sum = 0;
    for (u32 i = lane; i < a.n; i += 32) sum += x[i] * x[i];
    float factor = 1.0f / sqrtf(warp_sum(sum) / (float)a.n + a.a);
    for (u32 i = lane; i < a.n; i += 32) y[i] = x[i] * factor * (a.weight ? a.weight[i] : 1.0f);
}
