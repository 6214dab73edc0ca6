// The state space model of Mamba-2 (state.cuh: how the work is cut). BY_COLUMN: that of Mamba-1, where every column of a state has a time
// step of its own, and every element a decay.
#include "state.cuh"

struct MambaArgs {
    const Step *step;
    const RowState *states;
    const float *decay; // per head, like the next two; or per element of the state, and the next two per column
    const float *dt_bias;
    const float *skip;
    const float *x;  // inputs of all heads, keys of all groups, queries of all groups
    const float *dt; // per head, or per column
    float *y;
    float *state;     // of the layer: [page][head][KEY_DIM][value_dim]
    const u32 *pages; // the state's page of each slot
    u32 groups;
    u32 heads;
    u32 value_dim;
    u32 x_stride;
    u32 dt_stride;
    u32 y_stride;
};

// Generated rows.
extern "C" __global__ void __launch_bounds__(THREADS) mamba2(const __grid_constant__ MambaArgs a) {
    grid_release();
    grid_wait();
    if (a.step->ended) return;
    u32 t = threadIdx.x, part = t % PARTS, head = blockIdx.y, slot = blockIdx.z;
    u32 column = blockIdx.x * COLUMNS + t / PARTS, values = a.heads * a.value_dim;
    bool own = column < a.value_dim, held = false;
    float *state = a.state + ((u64)a.pages[slot] * a.heads + head) * KEY_DIM * a.value_dim + column;
    float s[EACH], decays[EACH];
    u32 time_at = BY_COLUMN ? head * a.value_dim + (own ? column : 0) : head;
    if (BY_COLUMN) load_column(decays, a.decay + (u64)head * KEY_DIM * a.value_dim + column, a.value_dim, part, own);
    for (u32 r = 0; r < a.step->live; ++r) {
        Row row = a.step->rows[r];
        if (row.slot != slot || has_stopped(a.step, a.states, r)) continue;
        // The state before position 0 is zero, even if the page holds other numbers.
        bool zero = row.position == 0;
        if (zero || !held) {
            load_column(s, state, a.value_dim, part, own && !zero);
            held = true;
        }
        const float *x = a.x + (u64)r * a.x_stride, *key = x + values + (u64)(head / (a.heads / a.groups)) * KEY_DIM;
        const float *query = key + (u64)a.groups * KEY_DIM;
        float dt = a.dt[(u64)r * a.dt_stride + time_at] + a.dt_bias[time_at];
        float time = softplus(dt), kept = BY_COLUMN ? 0.0f : expf(a.decay[head] * time);
        float input = own ? x[(u64)head * a.value_dim + column] : 0.0f, answer = 0;
#pragma unroll
        for (u32 i = 0; i < EACH; ++i) {
            u32 at = i * PARTS + part;
            if (at < KEY_DIM) {
                if (BY_COLUMN) kept = expf(decays[i] * time);
                s[i] = fmaf(s[i], kept, key[at] * (time * input));
                answer = fmaf(s[i], query[at], answer);
            }
        }
        answer = column_sum(answer);
        if (own && part == 0) a.y[(u64)r * a.y_stride + (u64)head * a.value_dim + column] = fmaf(a.skip[time_at], input, answer);
    }
    if (own && held) store_column(s, state, a.value_dim, part);
}

// ---- prompt rows: the same sums, with the operands of some rows ahead in shared memory ----

struct Operands {
    float keys[AHEAD][VECTOR], queries[AHEAD][VECTOR];
    float inputs[AHEAD][COLUMNS], dts[AHEAD][BY_COLUMN ? COLUMNS : 1];
};

extern "C" __global__ void __launch_bounds__(THREADS) mamba2_rows(const __grid_constant__ MambaArgs a) {
    __shared__ __align__(16) Operands operands[2];
    __shared__ u32 chosen[2][AHEAD]; // rows of this slot
    __shared__ float times[AHEAD], keeps[AHEAD];
    grid_release();
    u32 t = threadIdx.x, part = t % PARTS, head = blockIdx.y, slot = blockIdx.z;
    u32 column = blockIdx.x * COLUMNS + t / PARTS, values = a.heads * a.value_dim;
    // Elements beyond the key stay zero.
    for (u32 i = t; i < sizeof(operands) / 4; i += THREADS) ((float *)operands)[i] = 0.0f;
    bool own = column < a.value_dim, held = false;
    u32 time_at = BY_COLUMN ? head * a.value_dim + (own ? column : 0) : head;
    float decay = BY_COLUMN ? 0.0f : a.decay[head], dt_bias = a.dt_bias[time_at], skip = a.skip[time_at], decays[EACH4] = {};
    if (BY_COLUMN) load_column(decays, a.decay + (u64)head * KEY_DIM * a.value_dim + column, a.value_dim, part, own);
    grid_wait();
    if (a.step->ended) return;
    float *state = a.state + ((u64)a.pages[slot] * a.heads + head) * KEY_DIM * a.value_dim + column;
    u32 seen = 0; // rows that were looked at
    // Starts copying the operands of the next rows of this slot. Returns their number, the same in all threads.
    auto fetch = [&](u32 buffer) {
        u32 count = choose_rows(a.step, slot, seen, chosen[buffer]);
        __syncthreads();
        Operands &to = operands[buffer];
        for (u32 n = 0; n < count; ++n) {
            u32 r = chosen[buffer][n];
            const float *x = a.x + (u64)r * a.x_stride, *key = x + values + (u64)(head / (a.heads / a.groups)) * KEY_DIM;
            const float *query = key + (u64)a.groups * KEY_DIM;
            for (u32 e = t; e < KEY_DIM; e += THREADS) {
                u32 place = vector_place(e);
                copy_async<4>(shared_address(&to.keys[n][place]), key + e);
                copy_async<4>(shared_address(&to.queries[n][place]), query + e);
            }
            u32 first = blockIdx.x * COLUMNS;
            if (t < COLUMNS && first + t < a.value_dim) copy_async<4>(shared_address(&to.inputs[n][t]), x + (u64)head * a.value_dim + first + t);
            const float *dt = a.dt + (u64)r * a.dt_stride;
            if (BY_COLUMN) {
                u32 c = t - COLUMNS;
                if (t / COLUMNS == 1 && first + c < a.value_dim) copy_async<4>(shared_address(&to.dts[n][c]), dt + head * a.value_dim + first + c);
            } else if (t == COLUMNS)
                copy_async<4>(shared_address(&to.dts[n][0]), dt + head);
        }
        copy_commit();
        return count;
    };
    float s[EACH4];
#pragma unroll
    for (u32 i = 0; i < EACH4; ++i) s[i] = 0;
    u32 count = fetch(0);
    for (u32 buffer = 0; count > 0; buffer ^= 1) {
        u32 following = fetch(buffer ^ 1);
        copy_wait<1>();
        __syncthreads();
        const Operands &from = operands[buffer];
        if (!BY_COLUMN && t < count) {
            float time = softplus(from.dts[t][0] + dt_bias);
            times[t] = time;
            keeps[t] = expf(decay * time);
        }
        __syncthreads();
        for (u32 n = 0; n < count; ++n) {
            u32 r = chosen[buffer][n];
            // The state before position 0 is zero, even if the page holds other numbers.
            bool zero = a.step->rows[r].position == 0;
            if (zero || !held) {
                load_column(s, state, a.value_dim, part, own && !zero);
                held = true;
            }
            float time = BY_COLUMN ? softplus(from.dts[n][t / PARTS] + dt_bias) : times[n], kept = BY_COLUMN ? 0.0f : keeps[n], input = from.inputs[n][t / PARTS], answer = 0;
#pragma unroll
            for (u32 i = 0; i < EACH4; i += 4) {
                float key[4], query[4];
                four_of(from.keys[n], part, i, key);
                four_of(from.queries[n], part, i, query);
#pragma unroll
                for (u32 j = 0; j < 4; ++j) {
                    if (BY_COLUMN) kept = expf(decays[i + j] * time);
                    s[i + j] = fmaf(s[i + j], kept, key[j] * (time * input));
                    answer = fmaf(s[i + j], query[j], answer);
                }
            }
            answer = column_sum(answer);
            if (own && part == 0) a.y[(u64)r * a.y_stride + (u64)head * a.value_dim + column] = fmaf(skip, input, answer);
        }
        count = following;
        __syncthreads(); // before the operands are replaced
    }
    if (own && held) store_column(s, state, a.value_dim, part);
}
