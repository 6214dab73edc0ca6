// Rope, KV append, and both fused with the q and k norms. Each warp takes one head of one row.
// Macros: HEAD_DIM, PAGE, KV_Q8.
#include "angle.cuh"
#include "kv.cuh"

struct RopeArgs {
    const Step *step;
    float *x;       // rope: heads; rope_append: q, k, v one after the other; kv_append: keys
    const float *v; // kv_append: values
    const float *freqs;
    const float *q_norm; // may be null
    const float *k_norm; // may be null
    Kv kv;
    u32 heads;
    u32 rot;
    u32 interleaved;
    float magnitude;
    float eps;
    u32 x_stride;
    u32 v_stride;
    u32 single;   // not 0: only one row is live
    u32 sections; // which axis each pair follows; 0: all follow the position
    u32 pad;
};

#define WARPS 4
constexpr u32 PER_LANE = (HEAD_DIM + 31) / 32;

// The weights of one lane's values, which do not change from step to step.
struct Weights {
    float freqs[PER_LANE];
    u32 axes[PER_LANE];
    float norm[PER_LANE];

    __device__ __forceinline__ void load(const RopeArgs &a, const float *weight, bool turns, u32 lane) {
        u32 half = a.rot / 2;
#pragma unroll
        for (u32 i = 0; i < PER_LANE; ++i) {
            u32 at = lane + i * 32, pair = a.interleaved ? at / 2 : at < half ? at : at - half;
            freqs[i] = turns && at < 2 * half ? a.freqs[pair] : 0.0f;
            axes[i] = axis_of(a.sections, pair);
            norm[i] = weight && at < HEAD_DIM ? weight[at] : 0.0f;
        }
    }
};

// One head's values. Lane l holds values l, l + 32, ...
struct Head {
    float v[PER_LANE];

    __device__ __forceinline__ void load(const float *x, u32 lane) {
#pragma unroll
        for (u32 i = 0; i < PER_LANE; ++i) v[i] = lane + i * 32 < HEAD_DIM ? x[lane + i * 32] : 0.0f;
    }

    __device__ __forceinline__ void save(float *x, u32 lane) const {
#pragma unroll
        for (u32 i = 0; i < PER_LANE; ++i)
            if (lane + i * 32 < HEAD_DIM) x[lane + i * 32] = v[i];
    }

    __device__ __forceinline__ void normalise(const float (&weight)[PER_LANE], float eps) {
        float sum = 0;
#pragma unroll
        for (u32 i = 0; i < PER_LANE; ++i) sum += v[i] * v[i];
        float factor = 1.0f / sqrtf(warp_sum(sum) / (float)HEAD_DIM + eps);
#pragma unroll
        for (u32 i = 0; i < PER_LANE; ++i) v[i] = v[i] * factor * weight[i];
    }

    // Any lane may hold a value's partner, so values are exchanged through shared memory.
    __device__ __forceinline__ void rotate(const RopeArgs &a, const Weights &w, const Row &row, float *shared, u32 lane) {
        __syncwarp();
        save(shared, lane);
        __syncwarp();
        u32 half = a.rot / 2;
#pragma unroll
        for (u32 i = 0; i < PER_LANE; ++i) {
            u32 at = lane + i * 32;
            if (at >= 2 * half) continue;
            bool first = a.interleaved ? at % 2 == 0 : at < half;
            float other = shared[a.interleaved ? at ^ 1 : first ? at + half : at - half];
            u32 axis = w.axes[i], along = axis == 0 ? row.axes[0] : axis == 1 ? row.axes[1] : row.axes[2];
            float c, s;
            turn_by((float)(a.sections ? along : row.position), w.freqs[i], a.magnitude, c, s);
            v[i] = first ? v[i] * c - other * s : other * s + v[i] * c;
        }
    }

    __device__ __forceinline__ void store(u8 *y, u32 lane) const {
        if constexpr (KV_Q8) { // a block of 32 is one value per lane
            float largest[PER_LANE];
#pragma unroll
            for (u32 i = 0; i < PER_LANE; ++i) largest[i] = fabsf(v[i]);
#pragma unroll
            for (int o = 16; o > 0; o >>= 1)
#pragma unroll
                for (u32 i = 0; i < PER_LANE; ++i) largest[i] = fmaxf(largest[i], __shfl_xor_sync(~0u, largest[i], o));
#pragma unroll
            for (u32 i = 0; i < PER_LANE; ++i) {
                float scale = __fdiv_rn(largest[i], 127.0f);
                float inverse = scale > 0.0f ? __fdiv_rn(1.0f, scale) : 0.0f;
                int q = (int)fminf(fmaxf(roundf(v[i] * inverse), -128.0f), 127.0f);
                if (lane == 0) *(__half *)(y + i * 34) = __float2half_rn(scale);
                y[i * 34 + 2 + lane] = (u8)(i8)q;
            }
        } else {
#pragma unroll
            for (u32 i = 0; i < PER_LANE; ++i)
                if (lane + i * 32 < HEAD_DIM) ((__half *)y)[lane + i * 32] = __float2half_rn(v[i]);
        }
    }
};

// Loads this warp's row, and its head from `x`. The loads are issued before the row is known to be live. False if it is not.
__device__ __forceinline__ bool begin(const RopeArgs &a, Head &h, const float *x, Row &row) {
    grid_wait();
    h.load(x, threadIdx.x % 32);
    row = a.step->rows[blockIdx.x];
    return !a.step->ended && blockIdx.x < (a.single ? 1 : a.step->live);
}

__device__ __forceinline__ u32 warp_head() { return blockIdx.y * WARPS + threadIdx.x / 32; }

extern "C" __global__ void __launch_bounds__(WARPS * 32) rope(const __grid_constant__ RopeArgs a) {
    __shared__ float shared[WARPS][HEAD_DIM];
    u32 head = warp_head(), lane = threadIdx.x % 32;
    float *x = a.x + (u64)blockIdx.x * a.x_stride + head * HEAD_DIM;
    if (head >= a.heads) return;
    Weights w;
    w.load(a, nullptr, true, lane);
    grid_release();
    Head h;
    Row row;
    if (!begin(a, h, x, row)) return;
    h.rotate(a, w, row, shared[threadIdx.x / 32], lane);
    h.save(x, lane);
}

extern "C" __global__ void __launch_bounds__(WARPS * 32) kv_append(const __grid_constant__ RopeArgs a) {
    u32 part = warp_head() / a.kv.heads, head = warp_head() % a.kv.heads;
    const float *x = part ? a.v + (u64)blockIdx.x * a.v_stride : a.x + (u64)blockIdx.x * a.x_stride;
    grid_release();
    Head h;
    Row row;
    if (part >= 2 || !begin(a, h, x + head * HEAD_DIM, row)) return;
    h.store(kv_at(a.kv, part, head, row), threadIdx.x % 32);
}

extern "C" __global__ void __launch_bounds__(WARPS * 32) rope_append(const __grid_constant__ RopeArgs a) {
    __shared__ float shared[WARPS][HEAD_DIM];
    u32 head = warp_head(), lane = threadIdx.x % 32;
    if (head >= a.heads + 2 * a.kv.heads) return;
    float *x = a.x + (u64)blockIdx.x * a.x_stride + head * HEAD_DIM;
    bool turns = head < a.heads + a.kv.heads;
    const float *norm = !turns ? nullptr : head < a.heads ? a.q_norm : a.k_norm;
    Weights w;
    w.load(a, norm, turns, lane);
    grid_release();
    Head h;
    Row row;
    if (!begin(a, h, x, row)) return;
    if (norm) h.normalise(w.norm, a.eps);
    if (turns) {
        h.rotate(a, w, row, shared[threadIdx.x / 32], lane);
        h.save(x, lane);
    }
    if (head < a.heads) return;
    u32 part = !turns;
    u32 kv_head = head - a.heads - part * a.kv.heads;
    h.store(kv_at(a.kv, part, kv_head, row), lane);
}
