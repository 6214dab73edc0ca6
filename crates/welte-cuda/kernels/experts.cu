// Mixtures of experts. `route` chooses the experts of a row. For many rows, `group` sorts entries (a row with one of its
// experts) by expert into tiles, and `combine` adds the outputs of a row's experts.
// Macro: PER_LANE, experts per lane; 32 * PER_LANE is at least the number of experts.
#define EXPERTS 1
#include "gemm.cuh"

constexpr u32 MOST_EXPERTS = 1024; // one thread each: 32 warps

struct RouteArgs {
    const Step* step;
    const float* x;
    float* y; // numbers, then shares
    const float* scales; // of all experts; may be null
    u32 experts;
    u32 used;
    u32 renormalise;
    float scale;
    u32 x_stride;
    u32 y_stride;
    const float* bias; // of the choice; may be null
    u32 scoring;       // 0: softmax, 1: sigmoid, 2: SparseMixer
    u32 groups;
    u32 used_groups;
    u32 group_top;
    float margin; // of SparseMixer
    u32 pad;
};

// The factor of an expert's share.
__device__ __forceinline__ float own_scale(const RouteArgs& a, float number) {
    return a.scales ? a.scales[min(__float_as_uint(number), a.experts - 1)] : 1.0f;
}

// A rank that is larger for experts chosen earlier: larger values first, then lower numbers.
__device__ __forceinline__ u64 rank_of(float x, u32 expert) {
    const u32 bits = __float_as_uint(x);
    const u32 order = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (u64)order << 32 | (0xffffffffu - expert);
}

#define LEAST __uint_as_float(0xff800000u) // minus infinity

// One warp per row.
extern "C" __global__ void __launch_bounds__(32) route(const __grid_constant__ RouteArgs a) {
    grid_release();
    grid_wait();
    const u32 row = blockIdx.x, lane = threadIdx.x;
    const float* x = a.x + (u64)row * a.x_stride;
    float values[PER_LANE];
#pragma unroll
    for (u32 i = 0; i < PER_LANE; i++) values[i] = i * 32 + lane < a.experts ? __ldcg(x + i * 32 + lane) : LEAST;
    if (a.step->ended || row >= a.step->live) return;
    float largest = LEAST;
    u64 ranks[PER_LANE]; // 0: already chosen, or no expert
#pragma unroll
    for (u32 i = 0; i < PER_LANE; i++) {
        largest = fmaxf(largest, values[i]);
        ranks[i] = i * 32 + lane < a.experts ? rank_of(values[i], i * 32 + lane) : 0;
    }
    largest = warp_max(largest);
    float sum = 0.0f;
    if (!a.renormalise) {
#pragma unroll
        for (u32 i = 0; i < PER_LANE; i++) {
            if (i * 32 + lane < a.experts) sum += expf(values[i] - largest);
        }
        sum = warp_sum(sum);
    }
    float* const numbers = a.y + (u64)row * a.y_stride;
    float* const shares = numbers + a.used;
    for (u32 slot = 0; slot < a.used; slot++) {
        u64 best = 0;
        float value = 0.0f;
#pragma unroll
        for (u32 i = 0; i < PER_LANE; i++) {
            if (ranks[i] > best) best = ranks[i], value = values[i];
        }
        const u64 mine = best;
#pragma unroll
        for (u32 o = 16; o > 0; o >>= 1) {
            const u64 other = __shfl_xor_sync(~0u, best, o);
            best = other > best ? other : best;
        }
        if (mine == best) {
#pragma unroll
            for (u32 i = 0; i < PER_LANE; i++) ranks[i] = ranks[i] == best ? 0 : ranks[i];
        }
        const u32 owner = __ffs(__ballot_sync(~0u, mine == best)) - 1;
        const float part = expf(__shfl_sync(~0u, value, owner) - largest);
        if (a.renormalise) sum += part;
        if (lane == 0) {
            numbers[slot] = __uint_as_float(0xffffffffu - (u32)best);
            shares[slot] = part;
        }
    }
    // The sum is complete only now.
    __syncwarp();
    for (u32 slot = lane; slot < a.used; slot += 32) {
        shares[slot] = shares[slot] / sum * (a.scale * own_scale(a, numbers[slot]));
    }
}

// The best rank of a warp.
__device__ __forceinline__ u64 warp_best(u64 best) {
#pragma unroll
    for (u32 o = 16; o > 0; o >>= 1) {
        const u64 other = __shfl_xor_sync(~0u, best, o);
        best = other > best ? other : best;
    }
    return best;
}

constexpr u32 MOST_GROUPS = 64;

// Scores by sigmoid or by SparseMixer, a bias of the choice, or groups. One warp per row.
extern "C" __global__ void __launch_bounds__(32) route_scored(const __grid_constant__ RouteArgs a) {
    __shared__ float logits[PER_LANE * 32], scores[PER_LANE * 32];
    __shared__ float choice[PER_LANE * 32]; // what the experts are chosen by
    __shared__ u32 open[MOST_GROUPS];
    grid_release();
    const u32 row = blockIdx.x, lane = threadIdx.x;
    float values[PER_LANE], biases[PER_LANE];
#pragma unroll
    for (u32 i = 0; i < PER_LANE; i++) biases[i] = a.bias && i * 32 + lane < a.experts ? a.bias[i * 32 + lane] : 0.0f;
    grid_wait();
    if (a.step->ended || row >= a.step->live) return;
    const float* x = a.x + (u64)row * a.x_stride;
    float largest = LEAST, sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < PER_LANE; i++) values[i] = i * 32 + lane < a.experts ? __ldcg(x + i * 32 + lane) : LEAST;
    if (a.scoring == 0) {
#pragma unroll
        for (u32 i = 0; i < PER_LANE; i++) largest = fmaxf(largest, values[i]);
        largest = warp_max(largest);
#pragma unroll
        for (u32 i = 0; i < PER_LANE; i++)
            if (i * 32 + lane < a.experts) sum += expf(values[i] - largest);
        sum = warp_sum(sum);
    }
    // Scores may round different logits to the same value.
    const bool by_logits = a.groups == 1 && !a.bias;
#pragma unroll
    for (u32 i = 0; i < PER_LANE; i++) {
        const u32 e = i * 32 + lane;
        logits[e] = values[i];
        scores[e] = a.scoring ? 1.0f / (1.0f + expf(-values[i])) : expf(values[i] - largest) / sum;
        choice[e] = by_logits ? values[i] : scores[e] + biases[i];
    }
    __syncwarp();
    const u32 size = a.experts / a.groups;
    if (a.groups > 1) {
        u64 ranks[MOST_GROUPS / 32]; // of this lane's groups; 0: already open, or no group
#pragma unroll
        for (u32 i = 0; i < MOST_GROUPS / 32; i++) {
            const u32 group = i * 32 + lane;
            ranks[i] = 0;
            open[group] = 0;
            if (group >= a.groups) continue;
            float first = LEAST, second = LEAST;
            for (u32 e = group * size; e < (group + 1) * size; e++) {
                const float v = choice[e];
                second = fmaxf(second, fminf(first, v));
                first = fmaxf(first, v);
            }
            ranks[i] = rank_of(a.group_top == 1 ? first : first + second, group);
        }
        __syncwarp();
        for (u32 n = 0; n < a.used_groups; n++) {
            u64 mine = 0;
#pragma unroll
            for (u32 i = 0; i < MOST_GROUPS / 32; i++) mine = ranks[i] > mine ? ranks[i] : mine;
            const u64 best = warp_best(mine);
#pragma unroll
            for (u32 i = 0; i < MOST_GROUPS / 32; i++) {
                if (best && ranks[i] == best) ranks[i] = 0, open[i * 32 + lane] = 1;
            }
        }
        __syncwarp();
    }
    u64 ranks[PER_LANE]; // 0: already chosen, or no expert of an open group
#pragma unroll
    for (u32 i = 0; i < PER_LANE; i++) {
        const u32 e = i * 32 + lane;
        const bool live = e < a.experts && (a.groups == 1 || open[e / size]);
        ranks[i] = live ? rank_of(choice[e], e) : 0;
    }
    float* const numbers = a.y + (u64)row * a.y_stride;
    float* const shares = numbers + a.used;
    float total = 0.0f;
    for (u32 slot = 0; slot < a.used; slot++) {
        u64 mine = 0;
#pragma unroll
        for (u32 i = 0; i < PER_LANE; i++) mine = ranks[i] > mine ? ranks[i] : mine;
        const u64 best = warp_best(mine);
        const u32 expert = min(0xffffffffu - (u32)best, a.experts - 1);
        float part;
        if (a.scoring == 2) {
            const float most = logits[expert];
            float near = 0.0f; // of the experts not yet chosen within the margin
#pragma unroll
            for (u32 i = 0; i < PER_LANE; i++) {
                const float v = ranks[i] ? values[i] : LEAST;
                if (ranks[i] && most - v <= a.margin * fmaxf(fabsf(v), most)) near += expf(v - most);
            }
            part = 1.0f / warp_sum(near);
        } else {
            part = scores[expert];
        }
#pragma unroll
        for (u32 i = 0; i < PER_LANE; i++) ranks[i] = ranks[i] == best ? 0 : ranks[i];
        total += part;
        if (lane == 0) {
            numbers[slot] = __uint_as_float(expert);
            shares[slot] = part;
        }
    }
    __syncwarp();
    const float by = a.renormalise ? a.scale / fmaxf(total, 1e-20f) : a.scale;
    for (u32 slot = lane; slot < a.used; slot += 32) shares[slot] *= by * own_scale(a, numbers[slot]);
}

struct GroupArgs {
    const Step* step;
    const float* choice;
    u32* groups; // number of tiles, `most` tiles, entries
    u32 choice_stride;
    u32 used;
    u32 experts;
    u32 tile_rows;
    u32 most; // tiles
    u32 pad;
};

// Exclusive prefix sum over the threads of the block. `total` is the sum over all threads.
__device__ __forceinline__ u64 before(u64 mine, u64* warps, u64& total) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u64 sum = mine;
#pragma unroll
    for (u32 o = 1; o < 32; o <<= 1) {
        const u64 other = __shfl_up_sync(~0u, sum, o);
        if (lane >= o) sum += other;
    }
    if (lane == 31) warps[warp] = sum;
    __syncthreads();
    // Each lane takes one warp's sum.
    total = warps[lane];
    u64 lower = lane < warp ? total : 0;
#pragma unroll
    for (u32 o = 16; o > 0; o >>= 1) {
        lower += __shfl_xor_sync(~0u, lower, o);
        total += __shfl_xor_sync(~0u, total, o);
    }
    return lower + sum - mine;
}

// Runs as one block. The order of an expert's entries is not deterministic, but no product depends on its neighbours.
extern "C" __global__ void __launch_bounds__(MOST_EXPERTS) group(const __grid_constant__ GroupArgs a) {
    __shared__ u32 counts[MOST_EXPERTS];
    __shared__ u64 warps[MOST_EXPERTS / 32];
    const u32 thread = threadIdx.x;
    grid_release();
    grid_wait();
    const u32 entries = a.step->live * a.used;
    // With NaN among its logits a row may hold any number.
    auto expert_of = [&](u32 entry) {
        const float* row = a.choice + (u64)(entry / a.used) * a.choice_stride;
        return min(__float_as_uint(__ldcg(row + entry % a.used)), a.experts - 1);
    };
    counts[thread] = 0;
    __syncthreads();
    for (u32 i = thread; i < entries; i += MOST_EXPERTS) atomicAdd(counts + expert_of(i), 1);
    __syncthreads();
    const u32 count = counts[thread], tiles = (count + a.tile_rows - 1) / a.tile_rows;
    u64 total;
    const u64 sums = before((u64)tiles << 32 | count, warps, total);
    const u32 first = (u32)sums, first_tile = (u32)(sums >> 32);
    counts[thread] = first; // index of the expert's next entry
    Entries* const list = (Entries*)(a.groups + 1);
    for (u32 i = 0; i < tiles; i++) {
        list[first_tile + i] = {thread, first + i * a.tile_rows, min(a.tile_rows, count - i * a.tile_rows)};
    }
    if (thread == 0) a.groups[0] = (u32)(total >> 32);
    __syncthreads();
    u32* const places = a.groups + 1 + 3 * a.most;
    for (u32 i = thread; i < entries; i += MOST_EXPERTS) places[atomicAdd(counts + expert_of(i), 1)] = i;
}

struct CombineArgs {
    const Step* step;
    const float* choice;
    const float* parts; // [row][used][n]
    float* y;
    u32 choice_stride;
    u32 used;
    u32 n;
    u32 y_stride;
};

#define STRETCH 1024 // values per block of 256 threads

// y += share * part, in the order of the choice.
extern "C" __global__ void __launch_bounds__(256) combine(const __grid_constant__ CombineArgs a) {
    grid_release();
    grid_wait();
    const u32 row = blockIdx.x;
    if (row >= a.step->live) return;
    const float* const shares = a.choice + (u64)row * a.choice_stride + a.used;
    const float* const parts = a.parts + (u64)row * a.used * a.n;
    float* const y = a.y + (u64)row * a.y_stride;
    const u32 from = blockIdx.y * STRETCH + threadIdx.x;
    float sums[STRETCH / 256];
#pragma unroll
    for (u32 i = 0; i < STRETCH / 256; i++) sums[i] = from + i * 256 < a.n ? y[from + i * 256] : 0.0f;
    for (u32 slot = 0; slot < a.used; slot++) {
        const float share = __ldcg(shares + slot);
#pragma unroll
        for (u32 i = 0; i < STRETCH / 256; i++) {
            const u32 at = from + i * 256;
            if (at < a.n) sums[i] = fmaf(share, __ldcg(parts + (u64)slot * a.n + at), sums[i]);
        }
    }
#pragma unroll
    for (u32 i = 0; i < STRETCH / 256; i++) {
        if (from + i * 256 < a.n) y[from + i * 256] = sums[i];
    }
}
