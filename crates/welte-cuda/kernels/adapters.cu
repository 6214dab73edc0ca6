// Low-rank parts of products: the adapter of each row's slot. A bank has a place for each adapter (`Bank` of welte-table): ranks and scales
// of its sets, A, then B, in halves. A sum has one order, whatever the number of rows.
#include "common.cuh"

// The adapter of a slot.
struct SlotAdapter {
    u32 place; // NO_ADAPTER: none
    float scale;
};

#define NO_ADAPTER 0xffffffffu

struct AdapterArgs {
    const Step *step;       // of the rows that the command runs on
    const Step *rows;       // of the input rows
    const Step *outputs;    // not null: the command runs on these output rows
    const SlotAdapter *slots;
    const struct Teams *teams; // of the rows that the command runs on
    const u8 *bank;
    const float *x;         // up: h
    float *y;               // down: h
    const float *part_of;   // up: the part of each row of the matrix; null: one
    const u32 *tokens;      // lookup
    u64 place_bytes;
    u64 a_at;               // bytes before A in a place
    u64 b_at;               // bytes before B
    u32 n;
    u32 k;
    u32 parts;
    u32 rank;
    u32 x_stride;
    u32 y_stride;
    u32 single; // not 0: only one row is live
    u32 wide;   // not 0: rows of A and x are read 8 values at a time
    float scale; // lookup: of the embedding
    u32 choice_stride;
    const float *choice; // experts: their numbers, then their shares
    u32 used;
    u32 experts;
    u32 each; // down: each expert has its own x; up: each has its own y
    u32 pad;
};

struct Set {
    u32 rank;
    float scale;
};

// The place of a row's adapter; null: it has none.
__device__ __forceinline__ const u8 *place_of(const AdapterArgs &a, u32 row, float &scale) {
    u32 input = a.outputs ? ((const u32 *)a.outputs->rows)[row] : row;
    SlotAdapter adapter = a.slots[a.rows->rows[input].slot];
    scale = adapter.scale;
    return adapter.place == NO_ADAPTER ? nullptr : a.bank + adapter.place * a.place_bytes;
}

__device__ __forceinline__ u32 live_rows(const AdapterArgs &a) { return a.step->ended ? 0 : a.single ? 1 : a.step->live; }

// Eight values of a row; zeros from `left` on. `wide`: all eight exist, and lie at a multiple of 16 bytes.
__device__ __forceinline__ uint4 halves8(const __half *p, bool wide, u32 left) {
    if (wide) return *(const uint4 *)p;
    uint4 halves;
    __half *h = (__half *)&halves;
#pragma unroll
    for (u32 i = 0; i < 8; i++) h[i] = i < left ? p[i] : __float2half_rn(0.0f);
    return halves;
}

__device__ __forceinline__ void widen8(const uint4 &halves, float v[8]) {
    const __half2 *h = (const __half2 *)&halves;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 two = __half22float2(h[i]);
        v[2 * i] = two.x, v[2 * i + 1] = two.y;
    }
}

__device__ __forceinline__ void load8(const __half *p, bool wide, u32 left, float v[8]) { widen8(halves8(p, wide, left), v); }

__device__ __forceinline__ void load8(const float *p, bool wide, u32 left, float v[8]) {
    if (wide) {
        float4 a = ((const float4 *)p)[0], b = ((const float4 *)p)[1];
        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
        return;
    }
#pragma unroll
    for (u32 i = 0; i < 8; i++) v[i] = i < left ? p[i] : 0.0f;
}

__device__ __forceinline__ float dot8(const float a[8], const float b[8], float sum) {
#pragma unroll
    for (int i = 0; i < 8; i++) sum = fmaf(a[i], b[i], sum);
    return sum;
}

// Rows of one adapter read its matrices together: the host cuts the rows of a step into teams (`Teams` of ops/adapters.rs), and a block
// takes every n-th team. Neither teams nor banks change while a step runs, so both are read before `grid_wait`.
constexpr u32 TEAM = 8;
constexpr u32 RANKS = 4; // values of h per block of `adapt_down` (`RANKS` there)

struct Team {
    u32 place; // NO_ADAPTER: rows without one
    u32 count;
    u32 rows[TEAM];
    float scales[TEAM];
};

static_assert(sizeof(Team) == 4 * (2 + 2 * TEAM), "Team has other words than those that the host writes");

struct Teams {
    u32 count;
    u32 pad;
    Team teams[1];
};

// Copies a team into shared memory.
__device__ __forceinline__ void read_team(const AdapterArgs &a, u32 nth, Team &team) {
    __syncthreads();
    if (threadIdx.x < sizeof(Team) / 4) ((u32 *)&team)[threadIdx.x] = ((const u32 *)&a.teams->teams[nth])[threadIdx.x];
    __syncthreads();
}

// Adds up 32 values over the lanes of a warp. Lane i gets the sum of value i.
__device__ __forceinline__ float sum_each(float v[32]) {
    const u32 lane = threadIdx.x % 32;
#pragma unroll
    for (u32 step = 0; step < 5; step++) {
        const u32 half = 16 >> step;
        const bool upper = lane & half;
#pragma unroll
        for (u32 i = 0; i < 16; i++) {
            if (i >= half) break;
            float kept = upper ? v[i + half] : v[i], sent = upper ? v[i] : v[i + half];
            v[i] = kept + __shfl_xor_sync(~0u, sent, half);
        }
    }
    return v[0];
}

// h = scale * A x. Block (every n-th team, every n-th tile of RANKS values of a part of h). The warps share k.
extern "C" __global__ void __launch_bounds__(256, 2) adapt_down(const __grid_constant__ AdapterArgs a) {
    __shared__ Team team;
    __shared__ float sums[8][32];
    grid_release();
    const u32 count = a.teams->count, tiles = (a.rank + RANKS - 1) / RANKS;
    bool waited = false;
    for (u32 nth = blockIdx.x; nth < count; nth += gridDim.x) {
        read_team(a, nth, team);
        const u8 *place = a.bank + team.place * a.place_bytes;
        for (u32 tile = blockIdx.y; tile < a.parts * tiles; tile += gridDim.y) {
            const u32 part = tile / tiles, low = tile % tiles * RANKS;
            const Set set = team.place == NO_ADAPTER ? Set{0, 0.0f} : ((const Set *)place)[part];
            const u32 ranks = min(set.rank - min(set.rank, low), RANKS);
            const __half *m = (const __half *)(place + a.a_at) + ((u64)part * a.rank + low) * a.k;
            u32 at = threadIdx.x * 8;
            uint4 v[RANKS];
            auto fetch = [&]() {
#pragma unroll
                for (u32 i = 0; i < RANKS; i++) v[i] = halves8(m + (u64)min(i, ranks - 1) * a.k + at, a.wide, a.k - at);
            };
            if (ranks && at < a.k) fetch();
            if (!waited) {
                grid_wait();
                waited = true;
                if (a.step->ended) return;
            }
            float acc[RANKS * TEAM];
#pragma unroll
            for (u32 i = 0; i < RANKS * TEAM; i++) acc[i] = 0.0f;
            while (ranks && at < a.k) {
                float w[RANKS][8];
#pragma unroll
                for (u32 i = 0; i < RANKS; i++) widen8(v[i], w[i]);
                const float *x = a.x + at;
                const u32 left = a.k - at;
                at += 256 * 8;
                if (at < a.k) fetch();
#pragma unroll
                for (u32 r = 0; r < TEAM; r++) {
                    if (r >= team.count) break;
                    float values[8];
                    load8(x + (u64)team.rows[r] * a.x_stride, a.wide, left, values);
#pragma unroll
                    for (u32 i = 0; i < RANKS; i++) acc[i * TEAM + r] = dot8(w[i], values, acc[i * TEAM + r]);
                }
            }
            sums[threadIdx.x / 32][threadIdx.x % 32] = sum_each(acc);
            __syncthreads();
            const u32 i = threadIdx.x / TEAM, r = threadIdx.x % TEAM;
            if (i < RANKS && low + i < a.rank && r < team.count) {
                float sum = 0.0f;
#pragma unroll
                for (u32 warp = 0; warp < 8; warp++) sum += sums[warp][threadIdx.x];
                float *h = a.y + (u64)team.rows[r] * a.y_stride + part * a.rank + low;
                h[i] = i < ranks ? sum * (team.scales[r] * set.scale) : 0.0f;
            }
            __syncthreads();
        }
    }
    // A later grid that waits for this one must come after its predecessors, too: wait even without work.
    if (!waited) grid_wait();
}

// h = scale * A[token]. Block (row).
extern "C" __global__ void __launch_bounds__(256) adapt_lookup(const __grid_constant__ AdapterArgs a) {
    grid_release();
    grid_wait();
    u32 row = blockIdx.x;
    if (a.step->ended || row >= (a.single ? 1 : a.step->live)) return;
    float scale;
    const u8 *place = place_of(a, row, scale);
    bool reads = place && a.rows->rows[row].feature == NO_FEATURE;
    Set set = reads ? *(const Set *)place : Set{0, 0.0f};
    for (u32 i = threadIdx.x; i < a.rank; i += 256) {
        float v = 0;
        if (i < set.rank) {
            const __half *m = (const __half *)(place + a.a_at) + (u64)a.tokens[row] * a.rank;
            v = scale * set.scale * a.scale * __half2float(m[i]);
        }
        a.y[(u64)row * a.y_stride + i] = v;
    }
}

// y += B h. Block (every n-th team, every n-th 256 outputs): a thread for each output.
extern "C" __global__ void __launch_bounds__(256, 4) adapt_up(const __grid_constant__ AdapterArgs a) {
    __shared__ Team team;
    grid_release();
    const u32 count = a.teams->count;
    bool waited = false;
    for (u32 nth = blockIdx.x; nth < count; nth += gridDim.x) {
        read_team(a, nth, team);
        if (team.place == NO_ADAPTER) continue;
        const u8 *place = a.bank + team.place * a.place_bytes;
        for (u32 j = blockIdx.y * 256 + threadIdx.x; j < a.n; j += gridDim.y * 256) {
            const u32 part = a.part_of ? (u32)a.part_of[j] : 0, rank = ((const Set *)place)[part].rank;
            const __half *m = (const __half *)(place + a.b_at) + (u64)j * a.rank;
            // `wide`: beyond the adapter's rank both are 0.
            uint4 v = rank ? halves8(m, a.wide, rank) : uint4();
            if (!waited) {
                grid_wait();
                waited = true;
                if (a.step->ended) return;
            }
            float sum[TEAM];
#pragma unroll
            for (u32 r = 0; r < TEAM; r++) sum[r] = 0.0f;
            for (u32 i = 0; i < rank; i += 8) {
                float w[8];
                widen8(v, w);
                if (i + 8 < rank) v = halves8(m + i + 8, a.wide, rank - i - 8);
                const float *h = a.x + part * a.rank + i;
#pragma unroll
                for (u32 r = 0; r < TEAM; r++) {
                    if (r >= team.count) break;
                    float x[8];
                    load8(h + (u64)team.rows[r] * a.x_stride, a.wide, rank - i, x);
                    sum[r] = dot8(w, x, sum[r]);
                }
            }
#pragma unroll
            for (u32 r = 0; r < TEAM; r++) {
                if (rank && r < team.count) a.y[(u64)team.rows[r] * a.y_stride + j] += sum[r];
            }
        }
    }
    if (!waited) grid_wait();
}

// A row's expert. With NaN among its logits a row may hold any number.
__device__ __forceinline__ u32 expert_of(const AdapterArgs &a, u32 row, u32 which) {
    return min(__float_as_uint(a.choice[(u64)row * a.choice_stride + which]), a.experts - 1);
}

// h = scale * A x of an expert. Block (row, 8 values of a part of an expert's h): a warp for each value.
extern "C" __global__ void __launch_bounds__(256) adapt_experts_down(const __grid_constant__ AdapterArgs a) {
    grid_release();
    grid_wait();
    const u32 row = blockIdx.x, tiles = (a.rank + 7) / 8, lane = threadIdx.x % 32;
    const u32 i = blockIdx.y % tiles * 8 + threadIdx.x / 32, part = blockIdx.y / tiles % a.parts, which = blockIdx.y / tiles / a.parts;
    if (row >= live_rows(a) || i >= a.rank) return;
    float scale, sum = 0.0f;
    const u8 *place = place_of(a, row, scale);
    if (place) {
        const u64 nth = (u64)expert_of(a, row, which) * a.parts + part;
        const Set set = ((const Set *)place)[nth];
        const __half *m = (const __half *)(place + a.a_at) + (nth * a.rank + i) * a.k;
        const float *x = a.x + (u64)row * a.x_stride + (a.each ? (u64)which * a.k : 0);
        for (u32 at = lane * 8; i < set.rank && at < a.k; at += 256) {
            float v[8], w[8];
            load8(m + at, a.wide, a.k - at, w);
            load8(x + at, a.wide, a.k - at, v);
            sum = dot8(w, v, sum);
        }
        sum = warp_sum(sum) * (scale * set.scale);
    }
    if (lane == 0) a.y[(u64)row * a.y_stride + (which * a.parts + part) * a.rank + i] = sum;
}

// y += B h of an expert, or of all, times their shares. Block (row, 256 outputs, expert or 1): a thread for each output.
extern "C" __global__ void __launch_bounds__(256) adapt_experts_up(const __grid_constant__ AdapterArgs a) {
    grid_release();
    grid_wait();
    const u32 row = blockIdx.x, j = blockIdx.y * 256 + threadIdx.x;
    if (row >= live_rows(a) || j >= a.n) return;
    float scale;
    const u8 *place = place_of(a, row, scale);
    if (!place) return;
    const u32 part = a.part_of ? (u32)a.part_of[j] : 0, first = blockIdx.z, end = a.each ? first + 1 : a.used;
    float *const y = a.y + (u64)row * a.y_stride + (a.each ? (u64)first * a.n : 0) + j;
    float value = *y;
    for (u32 which = first; which < end; which++) {
        const u32 expert = expert_of(a, row, which), rank = ((const Set *)place)[(u64)expert * a.parts + part].rank;
        const __half *m = (const __half *)(place + a.b_at) + ((u64)expert * a.n + j) * a.rank;
        const float *h = a.x + (u64)row * a.x_stride + (which * a.parts + part) * a.rank;
        const float share = a.each ? 1.0f : a.choice[(u64)row * a.choice_stride + a.used + which];
        float sum = 0.0f;
        for (u32 i = 0; i < rank; i += 8) {
            float v[8], w[8];
            load8(m + i, a.wide, rank - i, w);
            load8(h + i, a.wide, rank - i, v);
            sum = dot8(w, v, sum);
        }
        if (rank) value = fmaf(share, sum, value);
    }
    *y = value;
}
