// What a block of the persistent kernel knows, and how it waits.
//
// Consumer warps (WARPS of them) replay the instructions; one warp more streams weights ahead of them, another one tells
// the host of tokens. Every wait has a bound. Who runs out of patience raises the fault, and from then on nobody waits any
// more: every block runs through to the end of its turn with whatever numbers there are, and leaves. Nothing hangs.
// Macros: WARPS, SLOTS (of the ring, at most), RING_BYTES, KINDS, WORK_BYTES, OUTPUTS, INSTRUCTIONS, MOST_PAGES, ANGLES. For a step
// of several rows STEP_ROWS, how many at most; then RING_BYTES is what the ring has at least, and WORK_BYTES what workplace and ring
// have together.
#pragma once
#include "angle.cuh"
#include "kv.cuh"

#ifndef STEP_ROWS
#define STEP_ROWS 1
#endif

constexpr u32 CONSUMERS = WARPS * 32;
constexpr u32 THREADS = 256; // those that sample
constexpr u32 LAUNCHED = CONSUMERS + 64; // with the streaming warp and the clerk
constexpr u32 MOST_ENDS_KEPT = 256;

// One lowered command. `reads` and `writes` number the writes of those vectors within a turn (see exchange.cuh).
struct Instruction {
    u32 variant; // which specialised code
    u32 layer;
    u32 in;      // float of the exchange that its input begins at
    u32 out;
    u8 reads, reads_per_turn;   // the input is there when its vector was written so often in this turn
    u8 writes, writes_per_turn; // and this is the output's
    u32 flags;
    u64 weight;
    u64 vectors[2]; // weights of the norm, and bias; or norms of queries and keys
};

#define REUSES_INPUT 1u // the input lies staged already: the instruction before had the same

// A block's rows of an instruction's matrix.
struct Share {
    u32 first;
    u32 rows;
};

// Zero before each launch.
struct Sync {
    u64 best[4];      // largest logit of the turns, modulo 4
    u32 cancelled[4]; // what the host asked for, as block 0 saw it before the turn's end
    u32 arrived;      // blocks at the ends of turns
    u32 chosen;       // turns whose token the sampler has chosen
    u32 pad[2];
};

// What went wrong, for the host to read; zero before each launch.
struct Fault {
    u32 raised;
    u32 block;
    u32 instruction;
    u32 turn;
    u32 place; // PLACE_*
    u32 pad[3];
};
#define PLACE_INPUT 1u
#define PLACE_STREAM 2u
#define PLACE_TOKEN 3u

struct Clerk { // a token on its way to the host
    u32 turns; // that have a token
    u32 told;  // of them
    u32 token;
    u32 ended;
};

#define FOR_INPUT 1u     // that of a product
#define FOR_ATTENTION 2u // from the beginning of attention until its output has come in

struct alignas(16) Signals {
    u32 dead;   // not 0: nobody waits any more
    u32 hungry; // for what the first warp waits: FOR_INPUT, FOR_ATTENTION
    u32 done;   // not 0: the block leaves
    u32 pad;
};

struct Shared {
    u64 full[SLOTS];  // barriers of the ring's slots: the slot is there
    u64 empty[SLOTS]; // right behind them: it is given back
    Instruction program[INSTRUCTIONS];
    Share shares[INSTRUCTIONS];
    float squares[2 * STEP_ROWS][WARPS];
    u64 best[WARPS];
    volatile Signals signals;
    u32 begins[SLOTS]; // the streaming warp's own: where slots begin, counted on and on from lap to lap
    u32 token;
    u32 ended;
    volatile Clerk clerk;
    u32 ends_kept;
    u32 ends[MOST_ENDS_KEPT];
    u32 pages[MOST_PAGES];
#if STEP_ROWS > 1
    Row rows[STEP_ROWS];
    u32 live;     // of them
    u32 meetings; // of all blocks, this one's included
    u32 sequence; // the one whose pages are here
    u32 inputs;   // bytes of `work` that so many rows take
    u32 ring_bytes; // the rest
#else
    static constexpr u32 ring_bytes = RING_BYTES;
#endif
    alignas(16) float2 angles[STEP_ROWS * ANGLES];
    alignas(16) float parts[2 * STEP_ROWS][WARPS][OUTPUTS]; // of the matrix's rows, a slice each
    alignas(128) u8 work[WORK_BYTES];
#if STEP_ROWS > 1
    __device__ __forceinline__ u8 *ring() { return work + inputs; }
#else
    alignas(128) u8 brought[RING_BYTES];
    __device__ __forceinline__ u8 *ring() { return brought; }
#endif
};

// All consumers of the block meet.
__device__ __forceinline__ void consumers_meet() { bar_sync<1, CONSUMERS>(); }

// Those that sample meet; the second counts.
__device__ __forceinline__ void block_meets() { bar_sync<2, THREADS>(); }
__device__ __forceinline__ int block_counts(bool of) { return bar_count<2, THREADS>(of); }

// With TIMELINE: when a block began an instruction, had its input, had its results, and had handed them on.
#ifdef TIMELINE
#define STAMPS 4
__device__ __forceinline__ void stamp(u64 *times, u32 instructions, u32 instruction, u32 which) {
    if (threadIdx.x == 0) times[((u64)blockIdx.x * instructions + instruction) * STAMPS + which] = clock64();
}
#define STAMP(which) stamp(w.times, w.instructions, w.instruction, which)
#else
#define STAMP(which)
#endif

struct Watch {
    Shared *s;
    Fault *fault;
    long long patience; // clock ticks
    u32 instruction;
    u32 turn;
    u32 delay; // clock ticks after its last product for which a block does not ask for the next one's input
    u32 since; // when that was
#ifdef TIMELINE
    u64 *times;
    u32 instructions;
#endif
};

struct Wait {
    long long since = 0;
    u32 tries = 0;
};

// Once more? Looks at the clock and at the others only now and then.
__device__ __forceinline__ bool again(Watch &w, Wait &wait, u32 place) {
    if (w.s->signals.dead) return false;
    if (++wait.tries % 64) return true;
    if (wait.tries == 64) {
        wait.since = clock64();
        return true;
    }
    u32 raised = load_relaxed(&w.fault->raised);
    if (!raised && clock64() - wait.since < w.patience) return true;
    if (!raised && atomicCAS(&w.fault->raised, 0, 1) == 0) {
        w.fault->block = blockIdx.x;
        w.fault->instruction = w.instruction;
        w.fault->turn = w.turn;
        w.fault->place = place;
    }
    w.s->signals.dead = 1;
    return false;
}

__device__ __forceinline__ void wait_for(Watch &w, u32 barrier, u32 parity, u32 place) {
    if (mbarrier_passed(barrier, parity)) return;
    Wait wait;
    while (!mbarrier_passed(barrier, parity) && again(w, wait, place)) {
    }
}
