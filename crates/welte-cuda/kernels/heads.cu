// A matrix for each head. Block (row, head, stretch) makes OUTPUTS values of one head of one row. The first stretch copies
// the head's tail.
#include "common.cuh"

#define OUTPUTS 64

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
    u32 pad;
};

__device__ __forceinline__ const float *head_of_x(const HeadsArgs &a) {
    return a.x + (u64)blockIdx.x * a.x_stride + (u64)blockIdx.y * a.x_head;
}

// Copies the tail. Returns where the products of the head begin.
__device__ __forceinline__ float *head_of_y(const HeadsArgs &a, const float *x) {
    float *y = a.y + (u64)blockIdx.x * a.y_stride + (u64)blockIdx.y * a.y_head;
    if (blockIdx.z == 0)
        for (u32 i = threadIdx.x; i < a.tail; i += 256) y[i] = x[a.k + i];
    return y + a.tail;
}

// A warp per output.
extern "C" __global__ void __launch_bounds__(256) heads_matmul(const __grid_constant__ HeadsArgs a) {
    grid_release();
    grid_wait();
    if (a.step->ended || blockIdx.x >= a.step->live) return;
    const float *x = head_of_x(a);
    float *y = head_of_y(a, x);
    u32 lane = threadIdx.x % 32, end = min(a.n, (blockIdx.z + 1) * OUTPUTS);
    for (u32 i = blockIdx.z * OUTPUTS + threadIdx.x / 32; i < end; i += 8) {
        const float *row = a.matrices + ((u64)blockIdx.y * a.n + i) * a.k;
        float sum = 0;
        for (u32 j = lane; j < a.k; j += 32) sum += row[j] * x[j];
        sum = warp_sum(sum);
        if (lane == 0) y[i] = sum;
    }
}

// Four threads per output, each with a quarter of the inputs.
extern "C" __global__ void __launch_bounds__(256) heads_matmul_transposed(const __grid_constant__ HeadsArgs a) {
    __shared__ float parts[4][OUTPUTS];
    grid_release();
    grid_wait();
    if (a.step->ended || blockIdx.x >= a.step->live) return;
    const float *x = head_of_x(a);
    float *y = head_of_y(a, x);
    u32 column = threadIdx.x % OUTPUTS, part = threadIdx.x / OUTPUTS, i = blockIdx.z * OUTPUTS + column;
    float sum = 0;
    if (i < a.n)
        for (u32 j = part; j < a.k; j += 4) sum += a.matrices[((u64)blockIdx.y * a.k + j) * a.n + i] * x[j];
    parts[part][column] = sum;
    __syncthreads();
    if (part == 0 && i < a.n) y[i] = parts[0][column] + parts[1][column] + parts[2][column] + parts[3][column];
}
