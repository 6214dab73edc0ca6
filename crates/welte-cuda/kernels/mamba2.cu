// The state space model of Mamba-2 (state.cuh: how the work is cut).
#include "state.cuh"

struct MambaArgs {
    const Step *step;
    const RowState *states;
    const float *decay; // per head, like the next two
    const float *dt_bias;
    const float *skip;
    const float *x;  // inputs of all heads, keys of all groups, queries of all groups
    const float *dt; // per head
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
    float s[EACH];
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
        float dt = a.dt[(u64)r * a.dt_stride + head] + a.dt_bias[head];
        float time = softplus(dt), kept = expf(a.decay[head] * time);
        float input = own ? x[(u64)head * a.value_dim + column] : 0.0f, answer = 0;
#pragma unroll
        for (u32 i = 0; i < EACH; ++i) {
            u32 at = i * PARTS + part;
            if (at < KEY_DIM) {
                s[i] = fmaf(s[i], kept, key[at] * (time * input));
                answer = fmaf(s[i], query[at], answer);
            }
        }
        answer = column_sum(answer);
        if (own && part == 0) a.y[(u64)r * a.y_stride + (u64)head * a.value_dim + column] = fmaf(a.skip[head], input, answer);
    }
    if (own && held) store_column(s, state, a.value_dim, part);
}

// ---- prompt rows: the same sums, with the operands of some rows ahead in shared memory ----

struct Operands {
    float keys[AHEAD][VECTOR], queries[AHEAD][VECTOR];
    float inputs[AHEAD][COLUMNS], dts[AHEAD];
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
    float decay = a.decay[head], dt_bias = a.dt_bias[head], skip = a.skip[head];
    grid_wait();
    if (a.step->ended) return;
    bool own = column < a.value_dim, held = false;
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
            if (t == COLUMNS) copy_async<4>(shared_address(&to.dts[n]), a.dt + (u64)r * a.dt_stride + head);
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
        if (t < count) {
            float time = softplus(from.dts[t] + dt_bias);
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
            float time = times[n], kept = keeps[n], input = from.inputs[n][t / PARTS], answer = 0;
#pragma unroll
            for (u32 i = 0; i < EACH4; i += 4) {
                float key[4], query[4];
                four_of(from.keys[n], part, i, key);
                four_of(from.queries[n], part, i, query);
#pragma unroll
                for (u32 j = 0; j < 4; ++j) {
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
