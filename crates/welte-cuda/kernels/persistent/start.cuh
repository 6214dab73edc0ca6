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
    s->dead = 0;
    s->hungry = 0;
    s->clerk.turns = s->clerk.told = s->clerk.done = 0;
    for (u32 i = 0; i < s->slots; i++) {
        mbarrier_init(shared_address(&s->full[i]), 1);
        mbarrier_init(shared_address(&s->empty[i]), WARPS);
    }
    mbarriers_ready();
    show_to_async();
}

template <class Args> __device__ __forceinline__ void stream(Shared *s, const Args &a, u32 turns) {
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
