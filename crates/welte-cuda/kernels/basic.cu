// The small ops: norm, layer_norm, position_scale, bias, act, act_mul, gate, add, add_feature, spread, scale, select_rows, pool. Block (row,
// stretch) takes a stretch of one row.
#include "common.cuh"

struct BasicArgs {
    const Step *step;
    const float *x;
    float *y;
    const float *weight; // norm: may be null; bias
    u32 n;               // values per row; norm: per group
    u32 groups; // gate: values per gate; position_scale: the original length
    u32 x_stride;
    u32 y_stride;
    u32 single; // not 0: only one row is live
    u32 act; // position_scale: added to the position
    float a; // norm: eps; scale: factor; position_scale: beta; act: constants of xIELU and of limits in a to d
    float b; // scale: cap
    float c;
    float d;
    const float *bias; // layer_norm: may be null
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

// x: the part of feature 0.
extern "C" __global__ void __launch_bounds__(256) add_feature(const __grid_constant__ BasicArgs a) {
    each(a, [&](const float *, float *y, u32 i) {
        u32 feature = a.step->rows[blockIdx.x].feature;
        if (feature != NO_FEATURE) y[i] += a.x[(u64)feature * a.x_stride + i];
    });
}

// weight: where in x each value is; negative: nowhere.
extern "C" __global__ void __launch_bounds__(256) spread(const __grid_constant__ BasicArgs a) {
    each(a, [&](const float *x, float *y, u32 i) { y[i] = a.weight[i] >= 0.0f ? x[(u32)a.weight[i]] : -3.402823466e38f; });
}

extern "C" __global__ void __launch_bounds__(256) scale(const __grid_constant__ BasicArgs a) {
    each(a, [&](const float *, float *y, u32 i) {
        float v = a.a == 0.0f ? 0.0f : y[i] * a.a; // unwritten memory may hold anything
        y[i] = a.b != 0.0f ? a.b * tanhf(v / a.b) : v;
    });
}

extern "C" __global__ void __launch_bounds__(256) act_mul(const __grid_constant__ BasicArgs a) {
    each(a, [&](const float *x, float *y, u32 i) { y[i] = gated(a.act, x[i], x[a.n + i]); });
}

extern "C" __global__ void __launch_bounds__(256) act(const __grid_constant__ BasicArgs a) {
    each(a, [&](const float *, float *y, u32 i) {
        float v = y[i];
        if (a.act == 5) y[i] = v > 0.0f ? a.a * v * v + a.c * v : a.b * (expm1f(fminf(v, a.d)) - v) + a.c * v;
        else if (a.act == 7) y[i] = fminf(fmaxf(v, a.a), a.b);
        else y[i] = a.act == 6 ? tanhf(v) : activate(a.act, v);
    });
}

extern "C" __global__ void __launch_bounds__(256) position_scale(const __grid_constant__ BasicArgs a) {
    each(a, [&](const float *, float *y, u32 i) {
        u32 whole = (a.step->rows[blockIdx.x].position + a.act) / a.groups;
        y[i] *= 1.0f + a.a * logf(1.0f + (float)whole);
    });
}

// Activations 0, 1 and 2, 4 sigmoid, 5 none, 6 softplus.
__device__ __forceinline__ float gate_value(u32 act, float x) {
    if (act == 4) return sigmoid(x);
    if (act == 6) return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));
    return act == 5 ? x : activate(act, x);
}

extern "C" __global__ void __launch_bounds__(256) gate(const __grid_constant__ BasicArgs a) {
    each(a, [&](const float *x, float *y, u32 i) { y[i] *= gate_value(a.act, x[i / a.groups]); });
}

// The sum of a value over all threads of a block of 256.
__device__ __forceinline__ float block_sum(float v, float *sums) {
    v = warp_sum(v);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = v;
    __syncthreads();
    v = 0;
#pragma unroll
    for (u32 i = 0; i < 8; ++i) v += sums[i];
    return v;
}

struct OutputArgs {
    const Step *step;
    const Step *outputs; // of the output rows; the numbers of the chosen rows follow its head
    const float *x;
    float *y;
    u32 n;
    u32 kind;      // pool: 0 last, 1 mean, 2 first, 5 the largest; with a group also 3 one after the other, 4 value by value
    u32 normalise; // pool
    u32 x_stride;
    u32 y_stride;
    u32 group; // pool: if not 0, the number of neighbours
};

__device__ __forceinline__ u32 chosen_row(const OutputArgs &a, u32 output) { return ((const u32 *)a.outputs->rows)[output]; }

// Copies the chosen rows of x to the first rows of y.
extern "C" __global__ void __launch_bounds__(256) select_rows(const __grid_constant__ OutputArgs a) {
    grid_release();
    grid_wait();
    if (a.step->ended || blockIdx.x >= a.outputs->live) return;
    const float *x = a.x + (u64)chosen_row(a, blockIdx.x) * a.x_stride;
    float *y = a.y + (u64)blockIdx.x * a.y_stride;
    u32 from = blockIdx.y * STRETCH + threadIdx.x;
#pragma unroll
    for (u32 i = 0; i < STRETCH / 256; ++i) {
        u32 at = from + i * 256;
        if (at < a.n) y[at] = x[at];
    }
}

// A value of the neighbours that end with row `last`. Row 0 is repeated for rows before it.
__device__ __forceinline__ float of_group(const OutputArgs &a, u32 last, u32 i) {
    auto x = [&](u32 nth, u32 at) {
        u32 end = last + 1 + nth;
        return a.x[(u64)(end > a.group ? end - a.group : 0) * a.x_stride + at];
    };
    if (a.kind == 3) return x(i / a.n, i % a.n);
    if (a.kind == 4) return x(i % a.group, i / a.group);
    if (a.kind != 1) return x(a.kind == 0 ? a.group - 1 : 0, i);
    float sum = 0;
    for (u32 nth = 0; nth < a.group; ++nth) sum += x(nth, i);
    return sum / (float)a.group;
}

// Pools the rows that share the slot of the chosen row, up to that row, or a group of neighbours. One block per output row.
extern "C" __global__ void __launch_bounds__(256) pool(const __grid_constant__ OutputArgs a) {
    __shared__ float sums[8];
    grid_release();
    grid_wait();
    if (a.step->ended || blockIdx.x >= a.outputs->live) return;
    u32 last = chosen_row(a, blockIdx.x), slot = a.step->rows[last].slot, first = 0;
    while (a.step->rows[first].slot != slot) ++first;
    u32 width = a.group && a.kind >= 3 ? a.n * a.group : a.n;
    u32 from = a.kind == 0 ? last : first, to = a.kind == 2 ? first : last, count = 0;
    for (u32 r = from; r <= to && !a.group; ++r) count += a.step->rows[r].slot == slot;
    float *y = a.y + (u64)blockIdx.x * a.y_stride, squares = 0;
    for (u32 i = threadIdx.x; i < width; i += 256) {
        float v = 0;
        if (a.group) {
            v = of_group(a, last, i);
        } else if (a.kind == 5) {
            v = a.x[(u64)first * a.x_stride + i];
            for (u32 r = from + 1; r <= to; ++r)
                if (a.step->rows[r].slot == slot) v = fmaxf(v, a.x[(u64)r * a.x_stride + i]);
        } else {
            for (u32 r = from; r <= to; ++r)
                if (a.step->rows[r].slot == slot) v += a.x[(u64)r * a.x_stride + i];
            v /= (float)count;
        }
        y[i] = v;
        squares += v * v;
    }
    if (!a.normalise) return;
    float length = fmaxf(sqrtf(block_sum(squares, sums)), 1e-12f);
    for (u32 i = threadIdx.x; i < width; i += 256) y[i] = y[i] / length;
}

// Layer norm: one block per vector.
extern "C" __global__ void __launch_bounds__(256) layer_norm(const __grid_constant__ BasicArgs a) {
    __shared__ float sums[8], squares[8];
    grid_release();
    grid_wait();
    if (a.step->ended || blockIdx.x >= live_rows(a)) return;
    const float *x = a.x + (u64)blockIdx.x * a.x_stride + (u64)blockIdx.y * a.n;
    float *y = a.y + (u64)blockIdx.x * a.y_stride + (u64)blockIdx.y * a.n;
    float sum = 0;
    for (u32 i = threadIdx.x; i < a.n; i += 256) sum += x[i];
    float mean = block_sum(sum, sums) / (float)a.n, square = 0;
    for (u32 i = threadIdx.x; i < a.n; i += 256) square += (x[i] - mean) * (x[i] - mean);
    float factor = 1.0f / sqrtf(block_sum(square, squares) / (float)a.n + a.a);
    for (u32 i = threadIdx.x; i < a.n; i += 256) y[i] = (x[i] - mean) * factor * a.weight[i] + (a.bias ? a.bias[i] : 0.0f);
}

// The values of a vector that a thread of many takes: all of its loads are in flight at once. Weights may be read before the
// previous kernel has ended, values may not.
struct NormPart {
    static constexpr u32 HELD = 16;
    u32 n, first, step;
    float v[HELD], w[HELD];

    __device__ __forceinline__ void load_weights(const float *weight) {
#pragma unroll
        for (u32 i = 0; i < HELD; ++i) w[i] = weight && first + i * step < n ? weight[first + i * step] : 1.0f;
    }

    // Returns the sum of the squares.
    __device__ __forceinline__ float load(const float *x) {
#pragma unroll
        for (u32 i = 0; i < HELD; ++i) v[i] = first + i * step < n ? x[first + i * step] : 0.0f;
        float sum = 0;
#pragma unroll
        for (u32 i = 0; i < HELD; ++i) sum += v[i] * v[i];
        for (u32 i = first + HELD * step; i < n; i += step) sum += x[i] * x[i];
        return sum;
    }

    __device__ __forceinline__ void store(const float *x, const float *weight, float *y, float factor) const {
#pragma unroll
        for (u32 i = 0; i < HELD; ++i)
            if (first + i * step < n) y[first + i * step] = v[i] * factor * w[i];
        for (u32 i = first + HELD * step; i < n; i += step) y[i] = x[i] * factor * (weight ? weight[i] : 1.0f);
    }
};

// Norm of long vectors: one block each.
extern "C" __global__ void __launch_bounds__(256) norm_long(const __grid_constant__ BasicArgs a) {
    __shared__ float sums[8];
    grid_release();
    NormPart part = {a.n, threadIdx.x, 256};
    part.load_weights(a.weight);
    grid_wait();
    if (a.step->ended || blockIdx.x >= live_rows(a)) return;
    const float *x = a.x + (u64)blockIdx.x * a.x_stride + (u64)blockIdx.y * a.n;
    float *y = a.y + (u64)blockIdx.x * a.y_stride + (u64)blockIdx.y * a.n;
    float sum = block_sum(part.load(x), sums);
    part.store(x, a.weight, y, 1.0f / sqrtf(sum / (float)a.n + a.a));
}

// Norm of short vectors: one warp each, eight per block.
extern "C" __global__ void __launch_bounds__(256) norm_short(const __grid_constant__ BasicArgs a) {
    grid_release();
    NormPart part = {a.n, threadIdx.x % 32, 32};
    part.load_weights(a.weight);
    grid_wait();
    u32 group = blockIdx.y * 8 + threadIdx.x / 32;
    if (a.step->ended || blockIdx.x >= live_rows(a) || group >= a.groups) return;
    const float *x = a.x + (u64)blockIdx.x * a.x_stride + (u64)group * a.n;
    float *y = a.y + (u64)blockIdx.x * a.y_stride + (u64)group * a.n;
    float sum = warp_sum(part.load(x));
    part.store(x, a.weight, y, 1.0f / sqrtf(sum / (float)a.n + a.a));
}
