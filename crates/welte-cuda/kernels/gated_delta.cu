// The gated delta rule (state.cuh: how the work is cut). BY_CHANNEL: the rows of a state decay apart from each other.
#include "state.cuh"

struct DeltaArgs {
    const Step *step;
    const RowState *states;
    const float *decay;   // per value head
    const float *dt_bias; // per value head, or per element of its key
    const float *x;       // queries and keys of key_heads heads, values of heads heads
    const float *gates;   // b of heads heads, then a: of the heads, or of the elements of their keys
    float *y;
    float *state;     // of the layer: [page][head][KEY_DIM][value_dim]
    const u32 *pages; // the state's page of each slot
    u32 key_heads;
    u32 heads;
    u32 value_dim;
    u32 tiled;
    float eps;
    u32 x_stride;
    u32 gates_stride;
    u32 y_stride;
};

// Generated rows.
extern "C" __global__ void __launch_bounds__(THREADS) gated_delta(const __grid_constant__ DeltaArgs a) {
    __shared__ float key[KEY_DIM], query[KEY_DIM], keeps[BY_CHANNEL ? KEY_DIM : 1], sums[2][THREADS / 32];
    grid_release();
    grid_wait();
    if (a.step->ended) return;
    u32 t = threadIdx.x, part = t % PARTS, head = blockIdx.y, slot = blockIdx.z;
    u32 column = blockIdx.x * COLUMNS + t / PARTS;
    u32 key_head = a.tiled ? head % a.key_heads : head / (a.heads / a.key_heads);
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
        const float *x = a.x + (u64)r * a.x_stride, *q = x + (u64)key_head * KEY_DIM, *k = q + (u64)a.key_heads * KEY_DIM;
        float queries = 0, keys = 0;
        for (u32 i = t; i < KEY_DIM; i += THREADS) {
            queries += q[i] * q[i];
            keys += k[i] * k[i];
        }
        queries = warp_sum(queries);
        keys = warp_sum(keys);
        if (t % 32 == 0) sums[0][t / 32] = queries, sums[1][t / 32] = keys;
        __syncthreads(); // every thread has also done with the key and the query of the row before
        queries = keys = 0;
#pragma unroll
        for (u32 i = 0; i < THREADS / 32; ++i) queries += sums[0][i], keys += sums[1][i];
        float of_query = 1.0f / (sqrtf(queries + a.eps) * sqrtf((float)KEY_DIM)), of_key = 1.0f / sqrtf(keys + a.eps);
        const float *gates = a.gates + (u64)r * a.gates_stride;
        for (u32 i = t; i < KEY_DIM; i += THREADS) {
            query[i] = q[i] * of_query;
            key[i] = k[i] * of_key;
            u64 own = (u64)head * KEY_DIM + i;
            if (BY_CHANNEL) keeps[i] = expf(a.decay[head] * softplus(gates[a.heads + own] + a.dt_bias[own]));
        }
        __syncthreads();
        float kept = 0;
        if (!BY_CHANNEL) {
            float dt = gates[a.heads + head] + a.dt_bias[head];
            kept = expf(a.decay[head] * softplus(dt));
        }
        float rate = 1.0f / (1.0f + expf(-gates[head]));
        float value = own ? x[2 * (u64)a.key_heads * KEY_DIM + (u64)head * a.value_dim + column] : 0.0f;
        float recalled = 0, answer = 0;
#pragma unroll
        for (u32 i = 0; i < EACH; ++i) {
            u32 at = i * PARTS + part;
            s[i] *= !BY_CHANNEL ? kept : at < KEY_DIM ? keeps[at] : 0.0f;
            if (at < KEY_DIM) recalled += s[i] * key[at];
        }
        float change = rate * (value - column_sum(recalled));
#pragma unroll
        for (u32 i = 0; i < EACH; ++i) {
            u32 at = i * PARTS + part;
            if (at < KEY_DIM) {
                s[i] += key[at] * change;
                answer += s[i] * query[at];
            }
        }
        answer = column_sum(answer);
        if (own && part == 0) a.y[(u64)r * a.y_stride + (u64)head * a.value_dim + column] = answer;
    }
    if (own && held) store_column(s, state, a.value_dim, part);
}

// ---- prompt rows: the operands of some rows ahead are in shared memory ----

struct Operands {
    float keys[AHEAD][VECTOR], queries[AHEAD][VECTOR];
#if BY_CHANNEL
    float keeps[AHEAD][VECTOR]; // copied as a
#endif
    float values[AHEAD][COLUMNS], gates[AHEAD][2];
};

// Multiplies a vector by `factor` over its size. The lanes of a warp share it.
__device__ __forceinline__ void normalise(float (&vector)[VECTOR], float factor, float eps) {
    float sum = 0;
    for (u32 i = threadIdx.x % 32; i < VECTOR; i += 32) sum = fmaf(vector[i], vector[i], sum);
    factor /= sqrtf(warp_sum(sum) + eps);
    for (u32 i = threadIdx.x % 32; i < VECTOR; i += 32) vector[i] *= factor;
}

extern "C" __global__ void __launch_bounds__(THREADS) gated_delta_rows(const __grid_constant__ DeltaArgs a) {
    __shared__ __align__(16) Operands operands[2];
    __shared__ u32 chosen[2][AHEAD]; // rows of this slot
    __shared__ float keeps[AHEAD], rates[AHEAD];
    grid_release();
    u32 t = threadIdx.x, part = t % PARTS, head = blockIdx.y, slot = blockIdx.z;
    u32 column = blockIdx.x * COLUMNS + t / PARTS;
    u32 key_head = a.tiled ? head % a.key_heads : head / (a.heads / a.key_heads);
    // Elements beyond the key stay zero.
    for (u32 i = t; i < sizeof(operands) / 4; i += THREADS) ((float *)operands)[i] = 0.0f;
    float decay = a.decay[head], dt_bias = BY_CHANNEL ? 0.0f : a.dt_bias[head];
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
            const float *x = a.x + (u64)r * a.x_stride, *query = x + (u64)key_head * KEY_DIM, *key = query + (u64)a.key_heads * KEY_DIM;
            const float *value = x + 2 * (u64)a.key_heads * KEY_DIM + (u64)head * a.value_dim, *gates = a.gates + (u64)r * a.gates_stride;
            for (u32 e = t; e < KEY_DIM; e += THREADS) {
                u32 place = vector_place(e);
                copy_async<4>(shared_address(&to.keys[n][place]), key + e);
                copy_async<4>(shared_address(&to.queries[n][place]), query + e);
#if BY_CHANNEL
                copy_async<4>(shared_address(&to.keeps[n][place]), gates + a.heads + (u64)head * KEY_DIM + e);
#endif
            }
            u32 first = blockIdx.x * COLUMNS;
            if (t < COLUMNS && first + t < a.value_dim) copy_async<4>(shared_address(&to.values[n][t]), value + first + t);
            if (t / 2 == COLUMNS / 2) copy_async<4>(shared_address(&to.gates[n][t % 2]), gates + t % 2 * a.heads + head);
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
        Operands &from = operands[buffer];
        for (u32 n = t / 32; n < count; n += THREADS / 32) {
            normalise(from.keys[n], 1.0f, a.eps);
            normalise(from.queries[n], 1.0f / sqrtf((float)KEY_DIM), a.eps);
        }
#if BY_CHANNEL
        for (u32 n = t / 32; n < count; n += THREADS / 32)
            for (u32 e = t % 32; e < KEY_DIM; e += 32) {
                float &keep = from.keeps[n][vector_place(e)];
                keep = expf(decay * softplus(keep + a.dt_bias[(u64)head * KEY_DIM + e]));
            }
#endif
        if (t < count) {
            rates[t] = 1.0f / (1.0f + expf(-from.gates[t][0]));
            if (!BY_CHANNEL) keeps[t] = expf(decay * softplus(from.gates[t][1] + dt_bias));
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
            // Four sums each: a row waits for the sum of the row before.
            float recalled[4] = {}, answer[4] = {}, key[4], query[4];
#pragma unroll
            for (u32 i = 0; i < EACH4; i += 4) {
                four_of(from.keys[n], part, i, key);
#if BY_CHANNEL
                float keep[4];
                four_of(from.keeps[n], part, i, keep);
#pragma unroll
                for (u32 j = 0; j < 4; ++j) s[i + j] *= keep[j];
#endif
#pragma unroll
                for (u32 j = 0; j < 4; ++j) recalled[j] = fmaf(s[i + j], key[j], recalled[j]);
            }
            float known = column_sum((recalled[0] + recalled[1]) + (recalled[2] + recalled[3])), kept = BY_CHANNEL ? 1.0f : keeps[n];
            float change = rates[n] * (from.values[n][t / PARTS] - kept * known);
#pragma unroll
            for (u32 i = 0; i < EACH4; i += 4) {
                four_of(from.keys[n], part, i, key);
                four_of(from.queries[n], part, i, query);
#pragma unroll
                for (u32 j = 0; j < 4; ++j) {
                    s[i + j] = fmaf(key[j], change, kept * s[i + j]);
                    answer[j] = fmaf(s[i + j], query[j], answer[j]);
                }
            }
            float all = column_sum((answer[0] + answer[1]) + (answer[2] + answer[3]));
            if (own && part == 0) a.y[(u64)r * a.y_stride + (u64)head * a.value_dim + column] = all;
        }
        count = following;
        __syncthreads(); // before the operands are replaced
    }
    if (own && held) store_column(s, state, a.value_dim, part);
}
