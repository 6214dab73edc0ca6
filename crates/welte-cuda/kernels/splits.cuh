// Flash decoding: how contexts are cut into splits, which blocks share, and how their results become one.
// Macros: HEAD_DIM, PAGE, KV_Q8, TILE (positions), HEADS (a multiple of 8: the most heads of a job), GROUP (heads per kv head),
// WARPS, LEAST_TILES (of a split).
#pragma once
#include "attention.cuh"

constexpr u32 UNITS = (GROUP + HEADS - 1) / HEADS; // jobs that share a kv head
struct Split {
    u32 first; // positions
    u32 last;
    u32 begin; // tiles
    u32 end;
    u32 active; // splits that are not empty
};

__device__ __forceinline__ Split split_of(const AttentionArgs &a, const Row &at, u32 index) {
    Split s;
    s.first = first_position(a, at.position);
    s.last = last_position(a, at);
    u32 from = s.first / TILE, to = s.last / TILE + 1, tiles = to - from;
    u32 wanted = min(a.splits, (tiles + LEAST_TILES - 1) / LEAST_TILES);
    u32 per = (tiles + wanted - 1) / wanted;
    s.active = (tiles + per - 1) / per;
    s.begin = from + index * per;
    s.end = min(s.begin + per, to);
    return s;
}

constexpr u32 THREADS = WARPS * 32;

__device__ __forceinline__ void add_to(float4 &y, float weight, const float4 &x) {
    y.x += weight * x.x;
    y.y += weight * x.y;
    y.z += weight * x.z;
    y.w += weight * x.w;
}

__device__ __forceinline__ void put(float *y, const float4 &x, float factor) {
    y[0] = x.x * factor;
    y[1] = x.y * factor;
    y[2] = x.z * factor;
    y[3] = x.w * factor;
}

// Partial results of all splits, for one block of heads.
struct Partials {
    float4 *sums;  // [head][split][HEAD_DIM / 4]
    float2 *heads; // [head][split]: maximum, sum of weights
    const float *sinks; // of these heads; may be null
};

// Adds the splits in order; the last block calls it. The threads form `parts` groups. Each group takes every parts-th split
// of a column of four values. All loads of a thread are in flight at once.
__device__ void merge(const Partials &p, u32 mine, u32 splits, u32 active, float *shared, float *y) {
    constexpr u32 D4 = HEAD_DIM / 4;
    u32 t = threadIdx.x, columns = mine * D4, parts = max(1u, THREADS / columns);
    float *weights = shared;                            // [head][split], then [head]: one over the sum of weights
    float *shares = shared + HEADS * splits;
    float4 *sums = (float4 *)(shared + HEADS * (splits + 4)); // [part][column]
    for (u32 h = t / 32; h < mine; h += WARPS) {
        float2 of[4]; // this lane's splits, of at most 128
        float largest = NEVER, total = 0;
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            u32 s = t % 32 + i * 32;
            of[i] = s < active ? __ldcg(p.heads + h * splits + s) : make_float2(NEVER, 0);
            largest = fmaxf(largest, of[i].x);
        }
        largest = warp_max(largest);
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            u32 s = t % 32 + i * 32;
            float weight = power(of[i].x - largest);
            total += weight * of[i].y;
            if (s < active) weights[h * splits + s] = weight;
        }
        total = warp_sum(total);
        if (t % 32 == 0) shares[h] = 1.0f / (total + sink_weight(p.sinks, h, largest));
    }
    for (u32 base = 0; base < columns; base += THREADS) {
        u32 column = base + t % (columns < THREADS ? columns : THREADS), part = parts > 1 ? t / columns : 0;
        bool there = column < columns && part < parts && (columns >= THREADS || t < parts * columns);
        u32 h = column / D4;
        const float4 *from = p.sums + (u64)h * splits * D4 + column % D4;
        float4 sum = make_float4(0, 0, 0, 0);
        constexpr u32 FLIGHT = 16;
        for (u32 s = part; s < active || s == part; s += FLIGHT * parts) {
            float4 x[FLIGHT];
#pragma unroll
            for (u32 i = 0; i < FLIGHT; ++i)
                if (there && s + i * parts < active) x[i] = __ldcg(from + (u64)(s + i * parts) * D4);
            if (s == part) __syncthreads(); // the weights are complete
#pragma unroll
            for (u32 i = 0; i < FLIGHT; ++i)
                if (there && s + i * parts < active) add_to(sum, weights[h * splits + s + i * parts], x[i]);
        }
        if (parts == 1) {
            if (there) put(y + column * 4, sum, shares[h]);
            continue;
        }
        if (there) sums[part * columns + column] = sum;
        __syncthreads();
        if (t < columns) {
            for (u32 i = 1; i < parts; ++i) add_to(sum, 1.0f, sums[i * columns + column]);
            put(y + column * 4, sum, shares[h]);
        }
    }
}

constexpr u32 MOST_ROWS = 512; // of a launch

// The groups of heads that share a job.
__device__ __forceinline__ u32 groups_of(u32 heads) { return heads / GROUP * UNITS; }

// For each row, the number of splits of all rows up to it. Returns the number of all.
static __device__ u32 count_splits(const AttentionArgs &a, u32 rows, u32 *ends) {
    constexpr u32 EACH = MOST_ROWS / THREADS;
    __shared__ u32 of_warps[WARPS];
    u32 t = threadIdx.x, counts[EACH], sum = 0;
#pragma unroll
    for (u32 i = 0; i < EACH; ++i) {
        u32 row = t * EACH + i;
        sum += row < rows ? split_of(a, a.step->rows[a.first + row], 0).active : 0;
        counts[i] = sum;
    }
    u32 before = sum;
#pragma unroll
    for (u32 o = 1; o < 32; o <<= 1) {
        u32 other = __shfl_up_sync(~0u, before, o);
        if (t % 32 >= o) before += other;
    }
    if (t % 32 == 31) of_warps[t / 32] = before;
    before -= sum;
    __syncthreads();
    u32 all = 0;
#pragma unroll
    for (u32 w = 0; w < WARPS; ++w) {
        if (w < t / 32) before += of_warps[w];
        all += of_warps[w];
    }
#pragma unroll
    for (u32 i = 0; i < EACH; ++i) ends[t * EACH + i] = before + counts[i];
    __syncthreads();
    return all;
}

// One split of one row, for a group of heads.
struct Job {
    Row at;
    u32 row;
    u32 group;
    u32 index; // of the split

    __device__ __forceinline__ u32 kv_head() const { return group / UNITS; }
    __device__ __forceinline__ u32 first_head() const { return group / UNITS * GROUP + group % UNITS * HEADS; }
    __device__ __forceinline__ u32 heads() const { return min((u32)HEADS, GROUP - group % UNITS * HEADS); }
};

// Takes the jobs of all rows in turn, in all blocks.
template <class F> static __device__ __forceinline__ void for_each_job(const AttentionArgs &a, F attend) {
    __shared__ u32 ends[MOST_ROWS];
    u32 live = a.single ? 1 : a.step->live, groups = groups_of(a.heads);
    if (a.step->ended || a.first >= live) return;
    u32 rows = min(live - a.first, a.most);
    bool one = rows == 1;
    u32 jobs = groups * (one ? split_of(a, a.step->rows[a.first], 0).active : count_splits(a, rows, ends));
    for (u32 job = blockIdx.x; job < jobs; job += gridDim.x) {
        u32 group = job % groups, index = job / groups, row = 0;
        if (!one) {
            u32 beyond = rows; // the first row whose end is beyond the index
            while (row < beyond) {
                u32 middle = (row + beyond) / 2;
                if (ends[middle] > index) beyond = middle;
                else row = middle + 1;
            }
            if (row > 0) index -= ends[row - 1];
        }
        Row at = a.step->rows[a.first + row];
        __syncthreads(); // shared memory is free
        attend(Job{at, a.first + row, group, index});
    }
}

__device__ __forceinline__ Partials partials_of(const AttentionArgs &a, const Job &job) {
    u32 head = job.first_head();
    u64 first = ((u64)job.row * a.heads + head) * a.splits, all = (u64)a.rows * a.heads * a.splits;
    return {(float4 *)a.partials + first * (HEAD_DIM / 4), (float2 *)(a.partials + all * HEAD_DIM) + first, a.sinks ? a.sinks + head : nullptr};
}

// Called by all threads when the results of a split are stored. The last block of a row's group of heads merges them into y.
static __device__ __forceinline__ void merge_if_last(const AttentionArgs &a, const Job &job, const Partials &p, u32 active, float *shared, float *y) {
    __shared__ u32 arrived;
    __threadfence();
    __syncthreads();
    u32 *counter = a.counters + job.row * groups_of(a.heads) + job.group;
    if (threadIdx.x == 0) arrived = atomicAdd(counter, 1);
    __syncthreads();
    if (arrived + 1 != active) return;
    __threadfence();
    merge(p, job.heads(), a.splits, active, shared, y);
    if (threadIdx.x == 0) *counter = 0;
}
