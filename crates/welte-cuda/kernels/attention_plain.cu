// Attention for any head size and page size. A block takes one head of one row, position by position.
// Macros: HEAD_DIM, PAGE, KV_Q8.
#include "attention.cuh"

#define THREADS 128
constexpr u32 PER_THREAD = (HEAD_DIM + THREADS - 1) / THREADS;

extern "C" __global__ void __launch_bounds__(THREADS) attention_plain(const __grid_constant__ AttentionArgs a) {
    __shared__ float q[HEAD_DIM];
    __shared__ float weights[THREADS];
    __shared__ float reduced[THREADS / 32];
    grid_release();
    grid_wait();
    u32 head = blockIdx.y, row = blockIdx.x, t = threadIdx.x;
    if (a.step->ended || row >= (a.single ? 1 : a.step->live)) return;
    Row at = a.step->rows[row];
    u32 kv_of_head = head / (a.heads / a.kv.heads);
    for (u32 i = t; i < HEAD_DIM; i += THREADS)
        q[i] = a.q[(u64)row * a.q_stride + head * HEAD_DIM + i] * q_factor(a);
    float sums[PER_THREAD] = {}, largest = NEVER, total = 0;
    u32 first = first_position(a, at.position), last = a.positions ? a.positions - 1 : last_position(a, at);
    for (u32 from = first; from <= last; from += THREADS) {
        __syncthreads();
        u32 position = from + t;
        float score = NEVER;
        if (position <= last) {
            Row other = {0, position, at.slot};
            const u8 *k = kv_at(a.kv, 0, kv_of_head, other);
            score = 0;
            for (u32 i = 0; i < HEAD_DIM; ++i) score += q[i] * kv_element(k, i);
            score = capped(a, score);
        }
        float m = warp_max(score);
        if (t % 32 == 0) reduced[t / 32] = m;
        __syncthreads();
        float before = largest;
#pragma unroll
        for (u32 i = 0; i < THREADS / 32; ++i) largest = fmaxf(largest, reduced[i]);
        float shrink = exp2f(before - largest);
        weights[t] = exp2f(score - largest);
        __syncthreads();
        total *= shrink;
#pragma unroll
        for (u32 j = 0; j < PER_THREAD; ++j) sums[j] *= shrink;
        u32 count = min((u32)THREADS, last + 1 - from);
        for (u32 i = 0; i < count; ++i) {
            Row other = {0, from + i, at.slot};
            const u8 *v = kv_at(a.kv, 1, kv_of_head, other);
            total += weights[i];
#pragma unroll
            for (u32 j = 0; j < PER_THREAD; ++j)
                if (t + j * THREADS < HEAD_DIM) sums[j] += weights[i] * kv_element(v, t + j * THREADS);
        }
    }
    total += sink_weight(a.sinks, head, largest);
#pragma unroll
    for (u32 j = 0; j < PER_THREAD; ++j)
        if (t + j * THREADS < HEAD_DIM) a.y[(u64)row * a.y_stride + head * HEAD_DIM + t + j * THREADS] = sums[j] / total;
}
