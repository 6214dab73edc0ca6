// A step of several rows, or some rows of it. Each row has an exchange of its own, EXCHANGE_FLOATS floats after that of the previous row, with the
// same vectors at the same places.
#pragma once
#include "persistent/exchange.cuh"

struct RowsArgs {
    const Step *step;
    Kv caches[MAX_CACHES];
    const Instruction *program;
    const Share *shares; // [block][instruction]
    float *exchange;
    float *logits; // of all rows of the step
    Sync *sync;
    Fault *fault;
    const float *freqs[4];
    const float *features; // that rows may read in place of tokens
    long long patience;
    u32 instructions;
    KernelParams params;
    u32 stalled_block; // for tests: a block that publishes nothing; none is all ones
    const u32 *order; // the step's rows in the order in which launches compute them
    u32 first;  // this launch computes STEP_ROWS rows of that order from here on, or those that there are
    u32 inputs; // bytes of the scratchpad that the rows' inputs take; the ring has the rest
};

__device__ __forceinline__ float *exchange_of(const RowsArgs &a, u32 row) { return a.exchange + row * EXCHANGE_FLOATS; }

__device__ __forceinline__ bool is_stalled(const RowsArgs &a) { return blockIdx.x == a.stalled_block; }
