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

__device__ __forceinline__ void place_of(const AdapterArgs &a, u32 row, u32 &place, float &scale) {
    u32 input = a.outputs ? ((const u32 *)a.outputs->rows)[row] : row;
    SlotAdapter adapter = a.slots[a.rows->rows[input].slot];
    place = adapter.place;
    scale = adapter.scale;
}

// The place of a row's adapter; null: it has none.
__device__ __forceinline__ const u8 *place_of(const AdapterArgs &a, u32 row, float &scale) {
    u32 place;
    place_of(a, row, place, scale);
    return place == NO_ADAPTER ? nullptr : a.bank + place * a.place_bytes;
}

__device__ __forceinline__ u32 live_rows(const AdapterArgs &a) { return a.step->ended ? 0 : a.single ? 1 : a.step->live; }

// Eight values of a row; zeros from `left` on. `wide`: all eight exist, and lie at a multiple of 16 bytes.
__device__ __forceinline__ void load8(const __half *p, bool wide, u32 left, float v[8]) {
    if (wide) {
        uint4 halves = *(const uint4 *)p;
        const __half2 *h = (const __half2 *)&halves;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float2 two = __half22float2(h[i]);
            v[2 * i] = two.x, v[2 * i + 1] = two.y;
        }
        return;
    }
#pragma unroll
    for (u32 i = 0; i < 8; i++) v[i] = i < left ? __half2float(p[i]) : 0.0f;
}

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

// Rows of one adapter read its matrices together. A window of rows is cut into teams: up to TEAM rows with the same adapter.
constexpr u32 WINDOW = 64, TEAM = 8;
constexpr u32 SHARE = 4;    // blocks per window: one for each SHARE of its rows (`SHARE` of ops/adapters.rs)
constexpr u32 RANKS = 4;    // values of h per block of `adapt_down` (`RANKS` there)

struct Window {
    u32 places[WINDOW];
    float scales[WINDOW];
    u64 same[WINDOW]; // rows with the adapter of this row
    u32 leaders[2];   // the first rows of teams
};

struct Team {
    const u8 *place;
    u32 count;
    u32 nth[TEAM]; // within the window
};

// Calls `work(team)` for each team that belongs to this block. The block's window is the first coordinate's.
template <typename Work>
__device__ __forceinline__ void for_teams(const AdapterArgs &a, Window &w, u32 first, u32 live, Work work) {
    const u32 thread = threadIdx.x;
    if (thread < WINDOW) {
        w.places[thread] = NO_ADAPTER;
        if (first + thread < live) place_of(a, first + thread, w.places[thread], w.scales[thread]);
    }
    __syncthreads();
    if (thread < WINDOW) {
        u64 same = 0;
#pragma unroll
        for (u32 i = 0; i < WINDOW; i++) same |= (u64)(w.places[i] == w.places[thread]) << i;
        w.same[thread] = same;
        u32 before = __popcll(same & ((1ull << thread) - 1));
        u32 leaders = __ballot_sync(~0u, w.places[thread] != NO_ADAPTER && before % TEAM == 0);
        if (thread % 32 == 0) w.leaders[thread / 32] = leaders;
    }
    __syncthreads();
    const u32 blocks = min(WINDOW / SHARE, gridDim.x - blockIdx.x / (WINDOW / SHARE) * (WINDOW / SHARE));
    u64 leaders = (u64)w.leaders[1] << 32 | w.leaders[0];
    for (u32 nth = 0; leaders; nth++, leaders &= leaders - 1) {
        if (nth % blocks != blockIdx.x % (WINDOW / SHARE)) continue;
        const u32 leader = __ffsll(leaders) - 1;
        Team team;
        team.place = a.bank + w.places[leader] * a.place_bytes;
        u64 rows = w.same[leader] >> leader << leader;
        team.count = min((u32)__popcll(rows), TEAM);
#pragma unroll
        for (u32 i = 0; i < TEAM; i++, rows &= rows - 1) team.nth[i] = rows ? __ffsll(rows) - 1 : leader;
        work(team);
    }
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

// h = scale * A x. Block (share of a window, every n-th tile of RANKS values of a part of h). The warps share k.
extern "C" __global__ void __launch_bounds__(256, 2) adapt_down(const __grid_constant__ AdapterArgs a) {
    __shared__ Window w;
    __shared__ float sums[8][32];
    grid_release();
    grid_wait();
    const u32 live = live_rows(a), first = blockIdx.x / (WINDOW / SHARE) * WINDOW;
    if (first >= live) return;
    const u32 tiles = (a.rank + RANKS - 1) / RANKS;
    auto multiply = [&](const Team &team, u32 part, u32 low, float *h) {
        const Set set = ((const Set *)team.place)[part];
        const u32 ranks = min(set.rank - min(set.rank, low), RANKS);
        const __half *m = (const __half *)(team.place + a.a_at) + ((u64)part * a.rank + low) * a.k;
        float acc[RANKS * TEAM];
#pragma unroll
        for (u32 i = 0; i < RANKS * TEAM; i++) acc[i] = 0.0f;
        for (u32 at = threadIdx.x * 8; ranks && at < a.k; at += 256 * 8) {
            float v[RANKS][8];
#pragma unroll
            for (u32 i = 0; i < RANKS; i++) load8(m + (u64)min(i, ranks - 1) * a.k + at, a.wide, a.k - at, v[i]);
#pragma unroll
            for (u32 r = 0; r < TEAM; r++) {
                if (r >= team.count) break;
                float x[8];
                load8(a.x + (u64)(first + team.nth[r]) * a.x_stride + at, a.wide, a.k - at, x);
#pragma unroll
                for (u32 i = 0; i < RANKS; i++) acc[i * TEAM + r] = dot8(v[i], x, acc[i * TEAM + r]);
            }
        }
        sums[threadIdx.x / 32][threadIdx.x % 32] = sum_each(acc);
        __syncthreads();
        const u32 i = threadIdx.x / TEAM, r = threadIdx.x % TEAM;
        if (i < RANKS && low + i < a.rank && r < team.count) {
            float sum = 0.0f;
#pragma unroll
            for (u32 warp = 0; warp < 8; warp++) sum += sums[warp][threadIdx.x];
            u32 nth = team.nth[0];
#pragma unroll
            for (u32 n = 1; n < TEAM; n++) nth = n == r ? team.nth[n] : nth;
            h[(u64)(first + nth) * a.y_stride + i] = i < ranks ? sum * (w.scales[nth] * set.scale) : 0.0f;
        }
        __syncthreads();
    };
    for_teams(a, w, first, live, [&](const Team &team) {
        for (u32 tile = blockIdx.y; tile < a.parts * tiles; tile += gridDim.y) {
            const u32 part = tile / tiles, low = tile % tiles * RANKS;
            multiply(team, part, low, a.y + part * a.rank + low);
        }
    });
    // Rows without an adapter.
    if (blockIdx.x % (WINDOW / SHARE) != 0 || blockIdx.y != 0) return;
    for (u32 row = 0; row < min(live - first, WINDOW); row++) {
        if (w.places[row] != NO_ADAPTER) continue;
        for (u32 i = threadIdx.x; i < a.parts * a.rank; i += 256) a.y[(u64)(first + row) * a.y_stride + i] = 0.0f;
    }
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

// y += B h. Block (share of a window, every n-th 256 outputs): a thread for each output.
extern "C" __global__ void __launch_bounds__(256, 4) adapt_up(const __grid_constant__ AdapterArgs a) {
    __shared__ Window w;
    grid_release();
    grid_wait();
    const u32 live = live_rows(a), first = blockIdx.x / (WINDOW / SHARE) * WINDOW;
    if (first >= live) return;
    auto add = [&](const Team &team, u32 j) {
        const u32 part = a.part_of ? (u32)a.part_of[j] : 0, rank = ((const Set *)team.place)[part].rank;
        const __half *m = (const __half *)(team.place + a.b_at) + (u64)j * a.rank;
        const float *h = a.x + (u64)first * a.x_stride + part * a.rank;
        float sum[TEAM];
#pragma unroll
        for (u32 r = 0; r < TEAM; r++) sum[r] = 0.0f;
        for (u32 i = 0; i < rank; i += 8) {
            // `wide`: beyond the adapter's rank both are 0.
            float v[8];
            load8(m + i, a.wide, rank - i, v);
#pragma unroll
            for (u32 r = 0; r < TEAM; r++) {
                if (r >= team.count) break;
                float x[8];
                load8(h + (u64)team.nth[r] * a.x_stride + i, a.wide, rank - i, x);
                sum[r] = dot8(v, x, sum[r]);
            }
        }
#pragma unroll
        for (u32 r = 0; r < TEAM; r++) {
            if (rank && r < team.count) a.y[(u64)(first + team.nth[r]) * a.y_stride + j] += sum[r];
        }
    };
    for_teams(a, w, first, live, [&](const Team &team) {
        for (u32 j = blockIdx.y * 256 + threadIdx.x; j < a.n; j += gridDim.y * 256) add(team, j);
    });
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
