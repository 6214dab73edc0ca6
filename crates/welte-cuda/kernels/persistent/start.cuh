// What a block does before its first instruction, and all that its streaming warp does. Included behind the VARIANTS, of which
// STREAMED says how their weights are brought.
#pragma once
#include "persistent/stream.cuh"

// By all threads.
__device__ __forceinline__ void take_program(Shared *s, const Instruction *program, const Share *shares, u32 instructions) {
    u32 tid = threadIdx.x;
    const u32 *from = (const u32 *)program, *dealt = (const u32 *)(shares + (u64)blockIdx.x * instructions);
    for (u32 i = tid; i < instructions * sizeof(Instruction) / 4; i += LAUNCHED) ((u32 *)s->program)[i] = from[i];
    for (u32 i = tid; i < instructions * sizeof(Share) / 4; i += LAUNCHED) ((u32 *)s->shares)[i] = dealt[i];
}

// By one thread.
__device__ __forceinline__ void open_ring(Shared *s) {
    s->signals.dead = s->signals.hungry = s->signals.done = 0;
    s->clerk.turns = s->clerk.told = 0;
    for (u32 i = 0; i < SLOTS; i++) {
        mbarrier_init(shared_address(&s->full[i]), 1);
        mbarrier_init(shared_address(&s->empty[i]), WARPS);
    }
    mbarriers_ready();
    show_to_async();
}

template <class Args> __device__ __forceinline__ void stream(Shared *s, const Args &a, u32 turns) {
    if (threadIdx.x % 32) return;
    Streamer streamer;
    streamer.begin(s, a.pauses);
    bool on = true;
    for (u32 turn = 0; turn < turns && on; turn++)
        for (u32 i = 0; i < a.instructions && on; i++) {
            const Instruction &in = s->program[i];
            Share share = s->shares[i];
            switch (in.variant) { STREAMED }
        }
    streamer.drain();
}
