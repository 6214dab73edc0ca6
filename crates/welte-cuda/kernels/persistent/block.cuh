// The state of one block of the persistent kernel, and how its threads wait.
//
// WARPS consumer warps replay the instructions. One more warp streams weights ahead of them, and another one, the bookkeeper, reports
// tokens (in block 0) and their probabilities to the host. A *turn* is one pass over all instructions: one token.
//
// Every wait has a bound. A thread that waits longer raises the fault, and from then on no thread waits: every block finishes
// its turn with the values that it has, and leaves. So nothing hangs.
//
// Macros, given by the host: WARPS, SLOTS (of the ring, at most), RING_BYTES, TUNED_VARIANTS, SCRATCHPAD_BYTES, OUTPUTS,
// INSTRUCTIONS, CACHES, MAX_PAGES (of a slot, in each cache), ANGLES, HIDDEN (floats, see add_normed.cuh; or 0), CHOSEN
// (experts of a choice at most; or 0), HELD (rows whose sums wait; or 0), RANKS (of a model on several GPUs; else 1). The kernel for steps also has STEP_ROWS, the most rows; then RING_BYTES is the smallest ring, and SCRATCHPAD_BYTES is the size of scratchpad and ring together.
#pragma once
#include "angle.cuh"
#include "kv.cuh"

#ifndef RANKS
#define RANKS 1
#endif
#ifdef STEP_ROWS
#define IS_STEP 1
#else
#define IS_STEP 0
#define STEP_ROWS 1
#endif

constexpr u32 CONSUMERS = WARPS * 32;
constexpr u32 THREADS = 256;             // that sample
constexpr u32 LAUNCHED = CONSUMERS + 64; // with the streaming warp and the bookkeeper's
constexpr u32 MAX_ENDS = 256;            // end tokens in shared memory
constexpr u32 MAX_CACHES = 4;            // of a model

// One lowered command. `reads` and `writes` count the writes of a vector within a turn, from 1 (exchange.cuh).
struct Instruction {
    u32 variant; // which specialised code
    u32 layer;
    u32 input;  // float of the exchange that its input begins at
    u32 output; // the same of its output
    u8 reads, reads_per_turn;   // the write of the input's vector that it needs, and the writes in a whole turn
    u8 writes, writes_per_turn; // the write of the output's vector that it is
    u32 flags;      // REUSES_INPUT, AWAITS_CHOICE; of attention, its number among equal ones in the low half and their count in the high half
    u64 weight;     // address of the matrix, or of attention's sinks
    u64 vectors[2]; // weights of the norm, and bias; or norms of queries and keys; or bias of the choice and scales of experts
};

#define REUSES_INPUT 1u  // the input is staged already: the instruction before had the same
#define AWAITS_CHOICE 2u // the first product with the experts of a choice

// A block's rows of an instruction's matrix.
struct Share {
    u32 first;
    u32 rows;
};

// What blocks meet at. Zero before each launch.
struct Sync {
    u64 best[4];      // the largest logit of a turn, by turn modulo 4
    u64 sums[2];      // of exp(logit - largest), in fixed point: of a turn, by turn modulo 2
    float chosen_logits[2]; // of the turn's token
    u32 scored[2];    // blocks that have added theirs to the sum
    u32 cancelled[4]; // the host's flag, as block 0 saw it before the turn's end
    u32 arrived;      // blocks at the ends of turns
    u32 chosen;       // turns whose token the sampler has chosen
    u32 pad[2];
};

// What went wrong, for the host to read. Zero before each launch.
struct Fault {
    u32 raised;
    u32 block;
    u32 instruction;
    u32 turn;
    u32 place; // PLACE_*
    u32 pad[3];
};
#define PLACE_INPUT 1u
#define PLACE_WEIGHTS 2u
#define PLACE_TOKEN 3u
#define PLACE_RANKS 4u

// What a consumer waits for.
#define AWAITS_INPUT 1u     // the input of a product
#define AWAITS_ATTENTION 2u // from the beginning of attention until its output has arrived

// Tuning parameters: the best values depend on model and GPU. They change no result.
struct KernelParams {
    u32 poll_delay; // clock ticks after a product before the block polls for the next one's input
    u32 pause;      // AWAITS_*: while the block waits for this, its weights pause
    u8 in_flight[TUNED_VARIANTS]; // slots of the ring that may be in flight, by variant
};

// A token on its way to the bookkeeper.
struct Bookkeeping {
    u32 handed;   // turns whose token was handed over
    u32 recorded; // of them, those that are done
    u32 token;
    u32 ended;
};

// The same for its probability.
struct Scores {
    u32 handed; // turns whose token was handed over
    u32 done;   // of them, those whose logits have been read
    u32 token;
    float largest; // of all logits
};

struct alignas(16) Signals {
    u32 gave_up;  // not 0: no thread waits any more
    u32 awaiting; // what the first warp waits for: AWAITS_*
    u32 done;     // not 0: the block leaves
    u32 pad;
};

#if CHOSEN
// The experts that a router has chosen, best first, and their shares (route.cuh).
struct Choice {
    u32 experts[CHOSEN];
    float shares[CHOSEN];
};
#endif

// A row of a step.
struct StepRow {
    u32 token;
    u32 position;
    u32 slot;
    u32 along;   // its coordinate, where ropes follow axes
    u32 feature; // what it reads in place of the token, or NO_FEATURE
};

constexpr u32 MOST_RANKS = 8;

// A launch's place among the ranks. The memory of every rank is laid out alike, so a distance in bytes leads to the same place of another
// one: they come in the order of ranks, without this one.
struct RanksArgs {
    u64 away[MOST_RANKS - 1];   // from what a launch writes and meets at
    u64 logits[MOST_RANKS - 1]; // from the logits
    u32 *begun; // by rank: its last launch that has begun. All ranks write their own
    u32 rank;
    u32 launch; // counted from 1
};

struct Shared {
    u64 full[SLOTS];  // barriers of the ring's slots: the copies have arrived
    u64 empty[SLOTS]; // directly after them: the consumers have released the slot
    Instruction program[INSTRUCTIONS];
    Share shares[INSTRUCTIONS];
    float squares[2 * STEP_ROWS][WARPS]; // sums of squares, for norms
    u64 best[WARPS];
#if CHOSEN
    u64 chosen;        // a barrier: a choice is complete
    Choice choices[2]; // used in turn
#endif
    volatile Signals signals;
#if RANKS > 1
    u64 away[RANKS - 1], logits_away[RANKS - 1]; // RanksArgs
    u32 sends_logits; // not 0: every rank needs all logits
#endif
    u32 slot_starts[SLOTS]; // used by the streaming warp alone: unwrapped offsets (stream.cuh)
    u32 token;
    u32 ended;
    volatile Bookkeeping bookkeeping;
    volatile Scores scores;
    u32 end_count;
    u32 ends[MAX_ENDS];
    u32 pages[CACHES * MAX_PAGES];
#if IS_STEP
    StepRow rows[STEP_ROWS];
    u32 outputs[STEP_ROWS]; // which row of the step each of them is
    u32 live;       // rows of the launch
    u32 meetings;   // of all blocks, that this block has joined
    u32 slot;       // whose pages are in `pages`
    u32 inputs;     // bytes of the scratchpad for these rows
    u32 ring_bytes; // the rest
#else
    static constexpr u32 ring_bytes = RING_BYTES;
#endif
    alignas(16) float2 angles[STEP_ROWS * ANGLES];
#if HIDDEN
    alignas(16) float hidden[HIDDEN]; // the block's copy of the hidden vector (add_normed.cuh)
#endif
#if HELD
    float held[HELD]; // sums of the block's rows, for the product with the next columns
#endif
    alignas(16) float parts[2 * STEP_ROWS][WARPS][OUTPUTS]; // the slices' sums of the matrix's rows
    alignas(128) u8 scratchpad[SCRATCHPAD_BYTES];
#if IS_STEP
    __device__ __forceinline__ u8 *ring() { return scratchpad + inputs; }
#else
    alignas(128) u8 ring_memory[RING_BYTES];
    __device__ __forceinline__ u8 *ring() { return ring_memory; }
#endif
};

// Copies the page lists of a slot to shared memory. Thread `first` of `threads` takes its part.
__device__ __forceinline__ void load_pages(Shared *s, const Kv (&caches)[MAX_CACHES], u32 slot, u32 first, u32 threads) {
#pragma unroll
    for (u32 c = 0; c < CACHES; c++) {
        const u32 *pages = caches[c].pages + (u64)slot * caches[c].entries;
        for (u32 i = first; i < caches[c].entries; i += threads) s->pages[c * MAX_PAGES + i] = __ldg(pages + i);
    }
}

// All consumers of the block meet.
__device__ __forceinline__ void consumers_meet() { bar_sync<1, CONSUMERS>(); }

// The sampling threads meet; the second form also counts.
__device__ __forceinline__ void block_meets() { bar_sync<2, THREADS>(); }
__device__ __forceinline__ int block_counts(bool of) { return bar_count<2, THREADS>(of); }

// With TIMELINE: when a block began an instruction (0), had its input (1), had its results (2) and had published them (3).
#ifdef TIMELINE
#define STAMPS 4
__device__ __forceinline__ void stamp(u64 *times, u32 instructions, u32 instruction, u32 which) {
    if (threadIdx.x == 0) times[((u64)blockIdx.x * instructions + instruction) * STAMPS + which] = clock64();
}
#define STAMP(which) stamp(w.times, w.instructions, w.instruction, which)
#else
#define STAMP(which)
#endif

// What a thread needs to wait, and to report where it waited too long.
struct WaitContext {
    Shared *s;
    Fault *fault;
    long long patience; // clock ticks
    u32 instruction;
    u32 turn;
    u32 poll_delay;  // KernelParams
    u32 product_end; // clock at the end of the last product
#ifdef TIMELINE
    u64 *times;
    u32 instructions;
#endif
};

struct WaitState {
    long long since = 0;
    u32 tries = 0;
};

// Whether to try once more. Looks at the clock and at the fault only in every 64th try.
__device__ __forceinline__ bool keep_waiting(WaitContext &w, WaitState &wait, u32 place) {
    if (w.s->signals.gave_up) return false;
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
    w.s->signals.gave_up = 1;
    return false;
}

__device__ __forceinline__ void wait_barrier(WaitContext &w, u32 barrier, u32 parity, u32 place) {
    if (mbarrier_passed(barrier, parity)) return;
    WaitState wait;
    while (!mbarrier_passed(barrier, parity) && keep_waiting(w, wait, place)) {
    }
}
