// The decode pass, replayed by one kernel for a whole chain of tokens, or for one row of a step. Every block runs the same instructions, each for its
// share of the rows, while its stream of weights runs ahead (persistent/stream.cuh). Blocks pass activations to each other
// without barriers (persistent/exchange.cuh).
//
// generated.cuh is written by the host for one model. It defines a struct of constants for each variant of an instruction, and
// the cases of three switches: STREAM_VARIANTS, REPLAY_VARIANTS and FILL_ROPES.
#include "persistent/block.cuh"
#include "sample.cuh"
#include "persistent/copy.cuh"
#include "persistent/embed.cuh"
#include "persistent/tensor.cuh"
#include "persistent/experts.cuh"
#include "persistent/attend.cuh"
#include "persistent/recurrent.cuh"
#include "persistent/scores.cuh"

struct ChainArgs {
    SampleArgs sample;
    Kv caches[MAX_CACHES];
    const Instruction *program;
    const Share *shares; // [block][instruction]
    float *exchange;
    float *logits;
    Sync *sync;
    Fault *fault;
    const float *freqs[4];
    const float *features; // that rows may read in place of tokens
    long long patience;
    u64 *times; // with TIMELINE: [block][instruction][STAMPS], of the last turn
    const u32 *order; // of a step: its rows in the order in which launches compute them; of a chain null
    LogprobAnswer *answers; // a ring: the answer about a token is where the mailbox has the token
    u64 *candidates; // for probabilities: [turn modulo 2][block][likeliest token]
    u32 instructions;
    KernelParams params;
    u32 stalled_block; // for tests: a block that publishes nothing; none is all ones
    u32 nth; // of a step: which row of that order this launch computes
    u32 pad;
    RanksArgs ranks;
};

#include "generated.cuh"
#include "persistent/start.cuh"

// The code that replays a variant.
// A chain reads tokens, a step may read a feature.
#define REPLAY_EMBED(V) embed<V>(w, a.exchange, in, turn, token, given_to<V>(a.features, a.order ? step->rows[row].feature : NO_FEATURE), stalled)
#define REPLAY_LAYER_INPUTS(V) layer_inputs<V>(w, a.exchange, in, turn, token, stalled)
#define REPLAY_PRODUCT(V) product<V, ChainMultiplier<V>>(w, s, ring, a.exchange, a.logits + (u64)row * a.sample.n, in, share, sequence, turn, parity, half, stalled)
// The host's flag is slow to read. It is requested here, as late as possible, and needed at the end of the turn.
#define REPLAY_LOGITS(V)                                                                    \
    if (blockIdx.x == 0 && threadIdx.x == 0 && (RANKS == 1 || a.ranks.rank == 0)) cancelled = load_system(a.sample.cancel); \
    if (scores) await_scores(w, s);                                                         \
    best = REPLAY_PRODUCT(V)
#define REPLAY_ATTENTION(V) attention<V>(w, s, a.caches[V::cache], a.exchange, in, turn, position, stalled)
#define REPLAY_ADD_NORMED(V) add_normed<V>(w, s, a.exchange, in, turn, parity ^= 1)
#define REPLAY_COPY(V) copy_vector<V>(w, a.exchange, in, turn, stalled)
#define REPLAY_ROUTE(V) route<V>(w, s, a.exchange, in, turn, routed++)
#define REPLAY_EXPERTS_UP(V) experts_up<V>(w, s, ring, a.exchange, in, share, turn, s->choices[(routed - 1) & 1], parity ^= 1, half, stalled)
#define REPLAY_EXPERTS_DOWN(V) experts_down<V>(w, s, ring, a.exchange, in, share, turn, s->choices[(routed - 1) & 1], half, stalled)
#define REPLAY_RECURRENT(V) recurrent<V>(w, s, a.exchange, in, sequence, turn, parity ^= 1, stalled)
#define REPLAY_GATED_CONV(V) gated_conv<V>(w, s, a.exchange, in, sequence, turn, stalled)
#define FILL_ROPE(V, rope) fill_angles<V>(s->angles, a.freqs[rope], V::by_axes ? position + shift : position)

__device__ __forceinline__ void begin(Shared *s, const ChainArgs &a, u32 row) {
    u32 tid = threadIdx.x;
    load_program(s, a.program, a.shares, a.instructions);
    load_pages(s, a.caches, a.sample.step->rows[row].slot, tid, LAUNCHED);
    const Sampler *sampler = sampler_of(a.sample);
    const u32 *ends = (const u32 *)(sampler + 1);
    u32 count = min(sampler->ends, MAX_ENDS);
    for (u32 i = tid; i < count; i += LAUNCHED) s->ends[i] = ends[i];
    if (tid == 0) {
        s->end_count = count;
        init_ring(s);
#if RANKS > 1
        for (u32 r = 0; r < RANKS - 1; r++) s->away[r] = a.ranks.away[r], s->logits_away[r] = a.ranks.logits[r];
        s->sends_logits = a.order || !wants_largest_logit(*sampler);
        WaitContext w = {s, a.fault, a.patience, 0, 0, 0, 0};
        await_ranks(w, a.ranks);
#endif
    }
}

__device__ __forceinline__ void replay(Shared *s, const ChainArgs &a, u32 row, u32 turns) {
    WaitContext w = {s, a.fault, a.patience, 0, 0, a.params.poll_delay, 0};
#ifdef TIMELINE
    w.times = a.times;
    w.instructions = a.instructions;
#endif
    Ring ring;
    ring.begin(s);
    Step *step = a.sample.step;
    u32 position = step->rows[row].position, token = step->rows[row].token, parity = 0, half = 0;
    u32 shift = step->rows[row].axes[0] - position; // of text after a picture
#if CHOSEN
    u32 routed = 0; // choices of experts so far
#endif
    bool greedy = wants_largest_logit(*sampler_of(a.sample)), scores = !a.order && sampler_of(a.sample)->logprobs, stalled = blockIdx.x == a.stalled_block;
    for (u32 turn = 0; turn < turns; turn++, position++) {
        w.turn = turn;
        const Sequence sequence = {a.caches, position};
        u32 cancelled = 0;
        FILL_ROPES
        u64 best = 0;
#pragma unroll 1
        for (u32 i = 0; i < a.instructions; i++) {
            const Instruction &in = s->program[i];
            const Share &share = s->shares[i];
            w.instruction = i;
            switch (in.variant) { REPLAY_VARIANTS }
        }
        if (a.order) {
            // A step chooses no token. It ends when all ranks' logits are here.
            if (RANKS > 1) {
                consumers_meet();
                if (threadIdx.x == 0 && !s->signals.gave_up) arrive_everywhere(s, &a.sync->arrived);
                if (threadIdx.x == 0) wait_for_all(w, &a.sync->arrived, 1);
            }
            break;
        }
        choose_token(w, s, a.sample, a.sync, best, greedy, scores, turn, turns, cancelled);
        token = s->token;
        if (s->ended || s->signals.gave_up) break;
    }
    consumers_meet();
    if (threadIdx.x == 0) {
        __threadfence_block(); // for the bookkeeper: see keep_books
        s->signals.done = 1;
    }
}

extern "C" __global__ void __launch_bounds__(LAUNCHED, 1) persistent(const __grid_constant__ ChainArgs a) {
    extern __shared__ __align__(1024) u8 memory[];
    static_assert(sizeof(Shared) <= SHARED_BYTES, "too much shared memory");
    Shared *s = (Shared *)memory;
    const Step *step = a.sample.step;
    if (step->ended || (a.order && a.nth >= step->live)) return;
    u32 row = a.order ? a.order[a.nth] : 0, turns = a.order ? 1 : a.sample.states->left;
    if (turns == 0) return;
    u32 serial = a.sample.states->serial, logprobs = a.order ? 0 : sampler_of(a.sample)->logprobs;
    begin(s, a, row);
    __syncthreads();
    u32 warp = threadIdx.x / 32;
    if (warp < WARPS) replay(s, a, row, turns);
    else if (warp == WARPS) stream_weights(s, a, turns);
    else if (logprobs) {
        const SampleArgs &sample = a.sample;
        // The last instruction computes the logits.
        const Share &share = s->shares[a.instructions - 1];
        LogprobPlaces places = {a.sync, a.logits, a.candidates, a.answers, sample.mailbox_slots, sample.n, sample.shift, min(logprobs - 1, sample.n)};
        keep_scores(s, sample, places, share, serial);
    } else if (blockIdx.x == 0 && threadIdx.x % 32 == 0) keep_books(s, a.sample);
}
