// The decode pass for a step of one row or several: one launch runs the same instructions once and streams every weight once for all
// rows. Every row has the bits that chains (persistent.cu) give it. It chooses no token: logits go where the decode pass has them.
// generated.cuh is as for chains. Macros: STEP_ROWS (the most rows of a launch), EXCHANGE_FLOATS (of a row's exchange), and those of persistent/block.cuh.
#include "persistent/block.cuh"
#include "sample.cuh"
#include "persistent/copy.cuh"
#include "persistent/embed.cuh"
#include "persistent/rows_product.cuh"
#include "persistent/rows_attend.cuh"

#include "generated.cuh"
#include "persistent/start.cuh"

// The code that replays a variant.
#define REPLAY_EMBED(V) embed_rows<V>(s, a, in)
#define REPLAY_COPY(V) \
    for (u32 row = 0; row < s->live; row++) copy_vector<V>(w, exchange_of(a, row), in, 0, is_stalled(a))
#define REPLAY_PRODUCT(V) product_rows<V>(w, s, ring, a, in, share, parity, half)
#define REPLAY_LOGITS(V) REPLAY_PRODUCT(V)
#define REPLAY_ATTENTION(V) attend_rows<V>(w, s, a, in)
#define FILL_ROPE(V, rope) fill_angles<V>(s->angles + row * ANGLES, a.freqs[rope], V::by_axes ? s->rows[row].along : s->rows[row].position)

// A block of 32 elements of a row's embedding per warp.
template <class V> __device__ __forceinline__ void embed_rows(const Shared *s, const RowsArgs &a, const Instruction &in) {
    u32 tag = tag_of(0, in.writes_per_turn, in.writes);
    for (u32 n = blockIdx.x + threadIdx.x / 32 * gridDim.x; n < s->live * EMBEDDING_BLOCKS<V>; n += gridDim.x * WARPS) {
        u32 row = n / EMBEDDING_BLOCKS<V>;
        const float *given = given_to<V>(a.features, s->rows[row].feature);
        embed_block<V>(exchange_of(a, row) + in.output, in, tag, s->rows[row].token, given, n % EMBEDDING_BLOCKS<V>, is_stalled(a));
    }
}

__device__ __forceinline__ void replay(Shared *s, const RowsArgs &a) {
    WaitContext w = {s, a.fault, a.patience, 0, 0, a.params.poll_delay, 0};
    Ring ring;
    ring.begin(s);
    u32 parity = 0, half = 0;
    for (u32 row = 0; row < s->live; row++) { FILL_ROPES }
#pragma unroll 1
    for (u32 i = 0; i < a.instructions; i++) {
        const Instruction &in = s->program[i];
        const Share &share = s->shares[i];
        w.instruction = i;
        switch (in.variant) { REPLAY_VARIANTS }
    }
}

extern "C" __global__ void __launch_bounds__(LAUNCHED, 1) persistent_rows(const __grid_constant__ RowsArgs a) {
    extern __shared__ __align__(1024) u8 memory[];
    static_assert(sizeof(Shared) <= SHARED_BYTES, "too much shared memory");
    Shared *s = (Shared *)memory;
    if (a.step->ended || a.step->live <= a.first) return;
    u32 live = min(a.step->live - a.first, (u32)STEP_ROWS);
    load_program(s, a.program, a.shares, a.instructions);
    if (threadIdx.x < live) {
        u32 row = a.order[a.first + threadIdx.x];
        const Row &at = a.step->rows[row];
        s->rows[threadIdx.x] = {at.token, at.position, at.slot, at.axes[0], at.feature};
        s->outputs[threadIdx.x] = row;
    }
    if (threadIdx.x == 0) {
        s->live = live;
        s->meetings = 0;
        s->slot = ~0u;
        s->ring_bytes = SCRATCHPAD_BYTES - a.inputs;
        s->inputs = a.inputs;
        init_ring(s);
    }
    __syncthreads();
    u32 warp = threadIdx.x / 32;
    if (warp < WARPS) replay(s, a);
    else if (warp == WARPS) stream_weights(s, a, 1);
}
