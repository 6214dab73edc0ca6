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
        // The state before position 0 is zero, whatever the page holds.
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
                s[i] = s[i] * kept + key[at] * (time * input);
                answer += s[i] * query[at];
            }
        }
        answer = column_sum(answer);
        if (own && part == 0) a.y[(u64)r * a.y_stride + (u64)head * a.value_dim + column] = answer + a.skip[head] * input;
    }
    if (own && held) store_column(s, state, a.value_dim, part);
}
