// The gated delta rule (state.cuh: how the work is cut).
#include "state.cuh"

struct DeltaArgs {
    const Step *step;
    const RowState *states;
    const float *decay;   // per value head
    const float *dt_bias; // per value head
    const float *x;       // queries and keys of key_heads heads, values of heads heads
    const float *gates;   // b, then a, of heads heads
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

extern "C" __global__ void __launch_bounds__(THREADS) gated_delta(const __grid_constant__ DeltaArgs a) {
    __shared__ float key[KEY_DIM], query[KEY_DIM], sums[2][THREADS / 32];
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
        // The state before position 0 is zero, whatever the page holds.
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
        for (u32 i = t; i < KEY_DIM; i += THREADS) {
            query[i] = q[i] * of_query;
            key[i] = k[i] * of_key;
        }
        __syncthreads();
        const float *gates = a.gates + (u64)r * a.gates_stride;
        float dt = gates[a.heads + head] + a.dt_bias[head];
        float kept = expf(a.decay[head] * softplus(dt));
        float rate = 1.0f / (1.0f + expf(-gates[head]));
        float value = own ? x[2 * (u64)a.key_heads * KEY_DIM + (u64)head * a.value_dim + column] : 0.0f;
        float recalled = 0, answer = 0;
#pragma unroll
        for (u32 i = 0; i < EACH; ++i) {
            u32 at = i * PARTS + part;
            s[i] *= kept;
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
