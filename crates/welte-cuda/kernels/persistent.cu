// The decode table, replayed by one kernel for a whole chain of tokens: every block goes through the same instructions, each
// for its share of the rows, while its stream of weights runs ahead (persistent/stream.cuh), and hands activations to the
// others without barriers (persistent/exchange.cuh). VARIANTS defines a struct per kind of instruction with its constants,
// STREAMED and REPLAYED are the cases of the two switches: all three are generated from the table's own parameters.
#include "persistent/block.cuh"
#include "sample.cuh"
#include "persistent/embed.cuh"
#include "persistent/product.cuh"
#include "persistent/attend.cuh"
#include "persistent/choose.cuh"

VARIANTS

#include "persistent/start.cuh"

// What each kind of instruction comes to.
#define EMBED_BY(V) embed<V>(w, a.exchange, in, turn, token, mute)
#define MULTIPLY_BY(V) product<V>(w, s, ring, a.exchange, a.logits, in, share, turn, parity, half, mute)
#define LOGITS_BY(V) best = MULTIPLY_BY(V)
#define ATTEND_BY(V) attention<V>(w, s, a.kv, a.exchange, in, turn, position, mute)
#define TURN_BY(V, rope) fill_angles<V>(s->angles, a.freqs[rope], position)

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
    u32 delay, pauses; // see Watch and Streamer: what is best depends on model and GPU
    u8 ahead[KINDS];   // slots of the stream that may be on their way, by kind of instruction
    u32 mute; // a block that hands nothing on, for tests; none: all ones
};

__device__ __forceinline__ void begin(Shared *s, const PersistentArgs &a) {
    u32 tid = threadIdx.x;
    take_program(s, a.program, a.shares, a.instructions);
    const u32 *pages = a.kv.pages + (u64)a.sample.step->rows[0].sequence * a.kv.per_sequence;
    for (u32 i = tid; i < a.kv.per_sequence; i += LAUNCHED) s->pages[i] = pages[i];
    const u32 *ends = (const u32 *)(a.sample.sampler + 1);
    u32 kept = min(a.sample.sampler->ends, MOST_ENDS_KEPT);
    for (u32 i = tid; i < kept; i += LAUNCHED) s->ends[i] = ends[i];
    if (tid == 0) {
        s->ends_kept = kept;
        open_ring(s);
    }
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
        if (s->ended || s->signals.dead) break;
    }
    consumers_meet();
    if (threadIdx.x == 0) s->signals.done = 1;
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
