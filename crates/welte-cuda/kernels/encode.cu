// Encoders: attention of heads of any size, convolutions and learned positions.
#include "encode.cuh"

#define THREADS 128

struct PositionArgs {
    const Step *step;
    float *x;
    const float *positions;
    const float *types; // may be null
    u32 k;
    u32 period;
    u32 offset;
    u32 x_stride;
};

struct EncodeConvArgs {
    const Step *step;
    const float *x;
    float *y;
    const float *kernel; // [channel][tap]
    const float *bias;   // may be null
    u32 n;
    u32 taps;
    u32 before;
    u32 x_stride;
    u32 y_stride;
    u32 pad;
};

#ifdef HEAD_DIM
constexpr u32 PER_THREAD = (HEAD_DIM + THREADS - 1) / THREADS;

// A block takes one head of one row, and walks the rows of its text, THREADS at a time. Grid: (rows, heads).
extern "C" __global__ void __launch_bounds__(THREADS) encode_attention(const __grid_constant__ EncodeArgs a) {
    __shared__ float q[HEAD_DIM];
    __shared__ float weights[THREADS];
    __shared__ float reduced[THREADS / 32];
    grid_release();
    grid_wait();
    u32 head = blockIdx.y, row = blockIdx.x, t = threadIdx.x;
    if (a.step->ended || row >= a.step->live) return;
    u32 tile = 0;
    for (u32 beyond = a.tiles->count; beyond - tile > 1;) {
        u32 middle = (tile + beyond) / 2;
        if (a.tiles->tile[middle].row <= row) tile = middle;
        else beyond = middle;
    }
    u32 first = a.tiles->tile[tile].first, end = seen_end(a, first, a.tiles->tile[tile].end);
    Rectangle places = rectangle_of(a, first, end);
    if (a.absent) end = first + a.places * a.places;
    if (a.window > 0) {
        first = max(first, row > a.window ? row - a.window : 0);
        end = min(end, row + a.window + 1);
    }
    const Row &own = a.step->rows[row];
    if (a.by_reach) end = min(end, row + own.reach - own.position + 1);
    u32 kv_head = head / (a.heads / a.kv_heads), k = (a.heads + kv_head) * HEAD_DIM, v = k + a.kv_heads * HEAD_DIM;
    for (u32 i = t; i < HEAD_DIM; i += THREADS)
        q[i] = a.qkv[(u64)row * a.qkv_stride + head * HEAD_DIM + i] * a.scale * LOG2E;
    float slope = slope_of(a, head);
    float sums[PER_THREAD] = {}, largest = NEVER, total = 0;
    for (u32 from = first; from < end; from += THREADS) {
        __syncthreads();
        u32 other = from + t;
        float score = NEVER;
        if (other < end) {
            const float *key = key_of(a, places, other) + k;
            score = 0;
            for (u32 i = 0; i < HEAD_DIM; ++i) score += q[i] * key[i];
            score = capped(a, score);
            score -= slope * away(row, other);
            if (a.places) score += near(a, places, HEAD_DIM, head, row, other) * LOG2E;
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
        u32 count = min((u32)THREADS, end - from);
        for (u32 i = 0; i < count; ++i) {
            const float *value = key_of(a, places, from + i) + v;
            total += weights[i];
#pragma unroll
            for (u32 j = 0; j < PER_THREAD; ++j)
                if (t + j * THREADS < HEAD_DIM) sums[j] += weights[i] * value[t + j * THREADS];
        }
    }
#pragma unroll
    for (u32 j = 0; j < PER_THREAD; ++j)
        if (t + j * THREADS < HEAD_DIM) a.y[(u64)row * a.y_stride + head * HEAD_DIM + t + j * THREADS] = sums[j] / total;
}
#else
// Grid: (rows, parts of a row).
extern "C" __global__ void __launch_bounds__(THREADS) add_position(const __grid_constant__ PositionArgs a) {
    grid_release();
    grid_wait();
    u32 row = blockIdx.x, i = blockIdx.y * THREADS + threadIdx.x;
    if (a.step->ended || row >= a.step->live || i >= a.k) return;
    u32 position = a.step->rows[row].position;
    float v = a.x[(u64)row * a.x_stride + i] + a.positions[(u64)(a.offset + position % a.period) * a.k + i];
    if (a.types) v += a.types[(u64)(position / a.period) * a.k + i];
    a.x[(u64)row * a.x_stride + i] = v;
}

// Grid: (rows, parts of a row).
extern "C" __global__ void __launch_bounds__(THREADS) encode_conv(const __grid_constant__ EncodeConvArgs a) {
    grid_release();
    grid_wait();
    u32 row = blockIdx.x, c = blockIdx.y * THREADS + threadIdx.x;
    if (a.step->ended || row >= a.step->live || c >= a.n) return;
    u32 slot = a.step->rows[row].slot, first = row, end = row + 1;
    while (first > 0 && row - first < a.before && a.step->rows[first - 1].slot == slot) --first;
    while (end < a.step->live && end - row < a.taps - a.before && a.step->rows[end].slot == slot) ++end;
    float sum = a.bias ? a.bias[c] : 0.0f;
    for (u32 other = first; other < end; ++other) sum += a.kernel[(u64)c * a.taps + (other + a.before - row)] * a.x[(u64)other * a.x_stride + c];
    a.y[(u64)row * a.y_stride + c] = sum;
}
#endif
