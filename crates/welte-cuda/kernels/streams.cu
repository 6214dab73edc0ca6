// Several streams of hidden states (AltUp), factors of elements, and sparse activations. Block (row, stretch) takes STRETCH elements of
// one row, of all its streams; `cutoff` a row, `match_squares` a vector.
#include "common.cuh"

struct StreamArgs {
    const Step *step;
    const float *now; // altup_correct: what the layer yields
    const float *x;   // altup: a value per stream
    float *y;
    const float *weight; // multiply: may be null; altup: the coefficients
    u32 dim;
    u32 streams;
    u32 now_stride;
    u32 x_stride;
    u32 y_stride;
    float scale; // cutoff: deviations
};

#define STRETCH 256 // a thread each
#define MOST_STREAMS 8

// The sum of a value over all threads of a block of 256.
__device__ __forceinline__ float sum_of_block(float v, float *sums) {
    v = warp_sum(v);
    __syncthreads();
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = v;
    __syncthreads();
    v = 0;
#pragma unroll
    for (u32 i = 0; i < 8; ++i) v += sums[i];
    return v;
}

extern "C" __global__ void __launch_bounds__(256) multiply(const __grid_constant__ StreamArgs a) {
    grid_release();
    grid_wait();
    if (a.step->ended || blockIdx.x >= a.step->live) return;
    u32 i = blockIdx.y * STRETCH + threadIdx.x;
    if (i >= a.dim) return;
    float x = a.x[(u64)blockIdx.x * a.x_stride + i];
    a.y[(u64)blockIdx.x * a.y_stride + i] = a.weight ? x * a.weight[i] : x;
}

extern "C" __global__ void __launch_bounds__(256) cutoff(const __grid_constant__ StreamArgs a) {
    __shared__ float sums[8];
    grid_release();
    grid_wait();
    if (a.step->ended || blockIdx.x >= a.step->live) return;
    float *y = a.y + (u64)blockIdx.x * a.y_stride, sum = 0, squares = 0;
    for (u32 i = threadIdx.x; i < a.dim; i += 256) sum += y[i];
    float mean = sum_of_block(sum, sums) / (float)a.dim;
    for (u32 i = threadIdx.x; i < a.dim; i += 256) squares += (y[i] - mean) * (y[i] - mean);
    float limit = a.scale * sqrtf(sum_of_block(squares, sums) / (float)a.dim);
    for (u32 i = threadIdx.x; i < a.dim; i += 256) y[i] = fmaxf(y[i] - mean - limit, 0.0f);
}

extern "C" __global__ void __launch_bounds__(256) match_squares(const __grid_constant__ StreamArgs a) {
    __shared__ float sums[8];
    grid_release();
    grid_wait();
    if (a.step->ended || blockIdx.x >= a.step->live) return;
    const float *x = a.x + (u64)blockIdx.x * a.x_stride;
    float *y = a.y + (u64)blockIdx.x * a.y_stride + (u64)blockIdx.y * a.dim, of_x = 0, of_y = 0;
    for (u32 i = threadIdx.x; i < a.dim; i += 256) {
        of_x += x[i] * x[i];
        of_y += y[i] * y[i];
    }
    of_x = sum_of_block(of_x, sums) / (float)a.dim;
    of_y = sum_of_block(of_y, sums) / (float)a.dim;
    float factor = sqrtf(of_x) / sqrtf(fmaxf(of_y, 1e-5f));
    for (u32 i = threadIdx.x; i < a.dim; i += 256) y[i] *= factor;
}

// c = coefficients * tanh(scale * x), for the row of this block: `count` values.
__device__ __forceinline__ void coefficients(const StreamArgs &a, u32 count, float *c) {
    if (threadIdx.x < count) {
        const float *x = a.x + (u64)blockIdx.x * a.x_stride, *row = a.weight + threadIdx.x * a.streams;
        float sum = 0;
        for (u32 j = 0; j < a.streams; ++j) sum += row[j] * tanhf(a.scale * x[j]);
        c[threadIdx.x] = sum;
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(256) altup_predict(const __grid_constant__ StreamArgs a) {
    __shared__ float c[MOST_STREAMS * MOST_STREAMS];
    grid_release();
    grid_wait();
    if (a.step->ended || blockIdx.x >= a.step->live) return;
    coefficients(a, a.streams * a.streams, c);
    u32 d = blockIdx.y * STRETCH + threadIdx.x;
    if (d >= a.dim) return;
    float *y = a.y + (u64)blockIdx.x * a.y_stride + d, old[MOST_STREAMS];
#pragma unroll
    for (u32 j = 0; j < MOST_STREAMS; ++j) old[j] = j < a.streams ? y[(u64)j * a.dim] : 0.0f;
    for (u32 i = 0; i < a.streams; ++i) {
        float sum = 0;
#pragma unroll
        for (u32 j = 0; j < MOST_STREAMS; ++j)
            if (j < a.streams) sum += c[i * a.streams + j] * old[j];
        y[(u64)i * a.dim] += sum;
    }
}

extern "C" __global__ void __launch_bounds__(256) altup_correct(const __grid_constant__ StreamArgs a) {
    __shared__ float c[MOST_STREAMS];
    grid_release();
    grid_wait();
    if (a.step->ended || blockIdx.x >= a.step->live) return;
    coefficients(a, a.streams, c);
    u32 d = blockIdx.y * STRETCH + threadIdx.x;
    if (d >= a.dim) return;
    float *y = a.y + (u64)blockIdx.x * a.y_stride + d;
    float news = a.now[(u64)blockIdx.x * a.now_stride + d] - y[0];
    for (u32 i = 0; i < a.streams; ++i) y[(u64)i * a.dim] += (1.0f + c[i]) * news;
}
