// A step of several rows: each has an exchange of its own, EXCHANGED floats after that of the row before it, with the same
// vectors at the same places.
#pragma once
#include "persistent/exchange.cuh"

struct RowsArgs {
    const Step *step;
    Kv kv;
    const Instruction *program;
    const Share *shares; // [block][instruction]
    float *exchange;
    float *logits; // of row `first`, then of those after it
    Sync *sync;
    Fault *fault;
    const float *freqs[4];
    long long patience;
    u32 instructions;
    u32 delay, pauses; // see Watch and Streamer
    u8 ahead[KINDS];
    u32 mute; // a block that hands nothing on, for tests; none: all ones
    u32 first; // the first row whose logits are wanted
    u32 inputs; // bytes of the workplace for so many rows; the ring has the rest
};

__device__ __forceinline__ float *exchange_of(const RowsArgs &a, u32 row) { return a.exchange + row * EXCHANGED; }

__device__ __forceinline__ bool is_mute(const RowsArgs &a) { return blockIdx.x == a.mute; }
