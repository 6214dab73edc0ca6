// Keeps a vector that later commands overwrite, for commands that are launched after the kernel.
#pragma once
#include "persistent/exchange.cuh"

template <class V> __device__ __forceinline__ void copy_vector(WaitContext &w, float *exchange, const Instruction &in, u32 turn, bool stalled) {
    u32 read = tag_of(turn, in.reads_per_turn, in.reads), written = tag_of(turn, in.writes_per_turn, in.writes);
    STAMP(0);
    for (u32 i = (blockIdx.x + threadIdx.x / 32 * gridDim.x) * 32 + threadIdx.x % 32; i < V::n; i += gridDim.x * WARPS * 32) {
        const float *from = exchange + in.input + i;
        float v = await_value(w, from, peek(from), read);
        if (!stalled) publish(exchange + in.output + i, v, written);
    }
    STAMP(3);
}
