// The decode table, replayed by one kernel for a whole chain of tokens: every block goes through the same instructions, each
// for its share of the rows, while its stream of weights runs ahead (persistent/stream.cuh), and hands activations to the
// others without barriers (persistent/exchange.cuh). VARIANTS defines a struct per kind of instruction with its constants,
// STREAMED and REPLAYED are the cases of the two switches: all three are generated from the table's own parameters.
#include "persistent/block.cuh"
#include "sample.cuh"
#define STORE 0
#define ADD 1
#define ACT_MUL 2
#define LOGITS 3
#include "persistent/product.cuh"
#include "persistent/attend.cuh"
#include "persistent/choose.cuh"

VARIANTS

struct PersistentArgs {
    SampleArgs sample;
    Kv kv;
    const Instruction *program;
    const Share *shares; // [block][instruction]
    float *exchange;
    float *logits;
    Sync *sync;
    Fault *fault;
    const float *freqs[4];
    long long patience;
    u64 *times; // with TIMELINE: [block][instruction][STAMPS], of the last turn
    u32 instructions;
    u32 delay, pauses, more; // see Watch and Streamer: what is best depends on model and GPU
    u32 mute; // a block that hands nothing on, for tests; none: all ones
};

// The embedding of the token, a block of 32 elements per warp.
template <class V>
__device__ __forceinline__ void embed(Watch &w, float *exchange, const Instruction &in, u32 turn, u32 token, bool mute) {
    using F = typename V::Format;
    using L = Slot<V>;
    u32 lane = threadIdx.x % 32, tag = tag_of(turn, in.writes_per_turn, in.writes);
    STAMP(0);
    for (u32 block = blockIdx.x + threadIdx.x / 32 * gridDim.x; block * 32 < V::k; block += gridDim.x * WARPS) {
        const u8 *p[MOST_PLANES];
#pragma unroll
        for (int i = 0; i < F::PLANES; i++) p[i] = (const u8 *)in.weight + (u64)V::n * L::before(i) + (u64)token * L::stride(i);
        float v = 0.0f;
        u32 at = block * 32 + lane;
        if constexpr (F::BLOCKS) {
            Block32 b = F::load(p, block);
            u32 word = 0;
#pragma unroll
            for (u32 j = 0; j < 8; j++)
                if (lane / 4 == j) word = b.q[j];
            float q = (float)(i8)(word >> 8 * (lane % 4));
            v = fmaf(lane < 16 ? b.d[0] : b.d[1], q, lane < 16 ? b.m[0] : b.m[1]);
        } else if (at < V::k) {
            float eight[8];
            F::load8(p, at / 8, eight);
#pragma unroll
            for (u32 j = 0; j < 8; j++)
                if (lane % 8 == j) v = eight[j];
        }
        if (at < V::k && !mute) publish(exchange + in.out + at, V::scale * v, tag);
    }
    STAMP(3);
}

__device__ __forceinline__ void begin(Shared *s, const PersistentArgs &a) {
    u32 tid = threadIdx.x;
    const u32 *from = (const u32 *)a.program, *shares = (const u32 *)(a.shares + (u64)blockIdx.x * a.instructions);
    for (u32 i = tid; i < a.instructions * sizeof(Instruction) / 4; i += LAUNCHED) ((u32 *)s->program)[i] = from[i];
    for (u32 i = tid; i < a.instructions * sizeof(Share) / 4; i += LAUNCHED) ((u32 *)s->shares)[i] = shares[i];
    const u32 *pages = a.kv.pages + (u64)a.sample.step->rows[0].sequence * a.kv.per_sequence;
    for (u32 i = tid; i < a.kv.per_sequence; i += LAUNCHED) s->pages[i] = pages[i];
    const u32 *ends = (const u32 *)(a.sample.sampler + 1);
    u32 kept = min(a.sample.sampler->ends, MOST_ENDS_KEPT);
    for (u32 i = tid; i < kept; i += LAUNCHED) s->ends[i] = ends[i];
    if (tid == 0) {
        s->ends_kept = kept;
        s->dead = 0;
        s->hungry = 0;
        s->clerk.turns = s->clerk.told = s->clerk.done = 0;
        for (u32 i = 0; i < SLOTS; i++) {
            mbarrier_init(shared_address(&s->full[i]), 1);
            mbarrier_init(shared_address(&s->empty[i]), WARPS);
        }
        mbarriers_ready();
        show_to_async();
    }
}

__device__ __forceinline__ void stream(Shared *s, const PersistentArgs &a, u32 turns) {
    Streamer streamer;
    streamer.begin(s, a.fault, a.patience, a.pauses, a.more);
    u32 lane = threadIdx.x % 32;
    for (u32 turn = 0; turn < turns; turn++)
        for (u32 i = 0; i < a.instructions; i++) {
            const Instruction &in = s->program[i];
            const Share &share = s->shares[i];
            bool on = true;
            switch (in.variant) { STREAMED }
            if (!on) {
                streamer.drain();
                return;
            }
        }
    streamer.drain();
}

__device__ __forceinline__ void replay(Shared *s, const PersistentArgs &a, u32 turns) {
    Watch w = {s, a.fault, a.patience, 0, 0, a.delay, 0};
#ifdef TIMELINE
    w.times = a.times;
    w.instructions = a.instructions;
#endif
    Ring ring;
    ring.begin(s);
    Step *step = a.sample.step;
    u32 position = step->rows[0].position, token = step->rows[0].token, parity = 0, half = 0;
    bool greedy = asks_for_the_largest(*a.sample.sampler), mute = blockIdx.x == a.mute;
    for (u32 turn = 0; turn < turns; turn++, position++) {
        w.turn = turn;
        u32 cancelled = 0;
        // The flag lies in the host's memory, a long way off: asked for now, needed at the turn's end.
        if (blockIdx.x == 0 && threadIdx.x == 0) cancelled = load_system(a.sample.cancel);
        FILL_ANGLES
        u64 best = 0;
#pragma unroll 1
        for (u32 i = 0; i < a.instructions; i++) {
            const Instruction &in = s->program[i];
            const Share &share = s->shares[i];
            w.instruction = i;
            switch (in.variant) { REPLAYED }
        }
        choose(w, s, a.sample, a.sync, best, greedy, turn, turns, cancelled);
        token = s->token;
        if (s->ended || s->dead) break;
    }
    consumers_meet();
    if (threadIdx.x == 0) s->clerk.done = 1;
}

extern "C" __global__ void __launch_bounds__(LAUNCHED, 1) persistent(const __grid_constant__ PersistentArgs a) {
    extern __shared__ __align__(1024) u8 memory[];
    static_assert(sizeof(Shared) <= SHARED_BYTES, "too much shared memory");
    Shared *s = (Shared *)memory;
    u32 turns = a.sample.step->ended ? 0 : a.sample.step->left;
    if (turns == 0) return;
    begin(s, a);
    __syncthreads();
    u32 warp = threadIdx.x / 32;
    if (warp < WARPS) replay(s, a, turns);
    else if (warp == WARPS) stream(s, a, turns);
    else if (blockIdx.x == 0 && threadIdx.x % 32 == 0) keep_books(s, a.sample);
}
