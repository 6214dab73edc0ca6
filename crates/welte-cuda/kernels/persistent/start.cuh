// What a block does before its first instruction, and the whole of its streaming warp. Included after generated.cuh, which defines
// STREAM_VARIANTS.
#pragma once
#include "persistent/stream.cuh"

// Called by all threads.
__device__ __forceinline__ void load_program(Shared *s, const Instruction *program, const Share *shares, u32 instructions) {
    u32 tid = threadIdx.x;
    const u32 *from = (const u32 *)program, *divided = (const u32 *)(shares + (u64)blockIdx.x * instructions);
    for (u32 i = tid; i < instructions * sizeof(Instruction) / 4; i += LAUNCHED) ((u32 *)s->program)[i] = from[i];
    for (u32 i = tid; i < instructions * sizeof(Share) / 4; i += LAUNCHED) ((u32 *)s->shares)[i] = divided[i];
}

// Called by one thread.
__device__ __forceinline__ void init_ring(Shared *s) {
    s->signals.gave_up = s->signals.awaiting = s->signals.done = 0;
    s->bookkeeping.handed = s->bookkeeping.recorded = 0;
    s->scores.handed = s->scores.done = 0;
    for (u32 i = 0; i < SLOTS; i++) {
        mbarrier_init(shared_address(&s->full[i]), COPYING_LANES);
        mbarrier_init(shared_address(&s->empty[i]), WARPS);
    }
#if CHOSEN
    mbarrier_init(shared_address(&s->chosen), 1);
#endif
    mbarriers_ready();
    show_to_async();
}

template <class Args> __device__ __forceinline__ void stream_weights(Shared *s, const Args &a, u32 turns) {
    if (threadIdx.x % 32 >= COPYING_LANES) return;
    Streamer streamer;
    streamer.begin(s, a.params.pause);
    bool more = true;
    for (u32 turn = 0; turn < turns && more; turn++)
        for (u32 i = 0; i < a.instructions && more; i++) {
            const Instruction &in = s->program[i];
            Share share = s->shares[i];
            switch (in.variant) { STREAM_VARIANTS }
        }
    streamer.drain();
}
