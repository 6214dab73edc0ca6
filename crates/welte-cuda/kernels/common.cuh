// Shared by all kernels: the step state and reductions.
#pragma once
#include <cuda_fp16.h>
#include <cuda_bf16.h>

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;

#include "ptx.cuh"

// offsetof, which NVRTC lacks, for the checks of structs that the host mirrors.
#ifdef __CUDACC_RTC__
#define OFFSET_OF(type, field) ((u64)__INTADDR__(&((type *)0)->field))
#else
#define OFFSET_OF(type, field) __builtin_offsetof(type, field)
#endif

constexpr u32 NO_FEATURE = ~0u;

// One row in flight (welte_table::Row).
struct Row {
    u32 token;
    u32 position;
    u32 slot;
    u32 reach;   // the last position that it attends to
    u32 axes[3]; // coordinates of multimodal rotary positions
    u32 feature; // the number of the feature that it reads; NO_FEATURE: it reads its token

    __device__ __forceinline__ void read(u32 next) {
        token = next;
        feature = NO_FEATURE;
    }
    // Becomes the row of the next token.
    __device__ __forceinline__ void advance(u32 next) {
        read(next);
        position += 1;
        reach += 1;
#pragma unroll
        for (u32 i = 0; i < 3; ++i) axes[i] += 1;
    }
};

// The few numbers that change from step to step, at a fixed address in device memory.
struct Step {
    u32 live;    // rows in flight
    u32 ended;   // not 0: the chain is over, and every kernel returns at once
    u32 stopped; // rows of a chain that make no more tokens
    u32 chained; // not 0: a step of a chain, whose rows have a RowState
    u32 pad[4];
    Row rows[1]; // actually as many as the largest pass takes
};

// The tokens of a row of a chain.
struct RowState {
    u32 serial; // of the next token; numbers the mailbox's entries
    u32 left;   // tokens that the row may still make. At 0 it has stopped: its last step is repeated, without effect
    u32 token;  // the last token, or what is in its place
    u32 is_new; // not 0: no probability of it was computed
};

// True if the row of a chain has stopped. Its last step is repeated, so it must not advance the state of its sequence again.
__device__ __forceinline__ bool has_stopped(const Step *step, const RowState *states, u32 row) {
    return step->chained && states[row].left == 0;
}

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
    return v;
}

__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) v = fmaxf(v, __shfl_xor_sync(~0u, v, o));
    return v;
}

// A block whose largest magnitude is below this counts as zero, because the inverse would overflow.
constexpr float TINY = 1e-30f;

__device__ __forceinline__ u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

// Waits until the phase of that parity is complete. Traps after too many tries, because that is a bug.
__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
#pragma unroll 1
    for (u32 tries = 0; tries < 1u << 24; tries++) {
        if (mbarrier_passed(barrier, parity)) return;
    }
    __trap();
}

__device__ __forceinline__ float squared_relu(float v) { return __fmul_rn(fmaxf(v, 0.0f), fmaxf(v, 0.0f)); }

// Act: 0 SiLU, 1 GELU (tanh), 2 GELU (erf). `gated` knows a clamped one as well. 4, without a gate, is the square of ReLU.
constexpr u32 CLAMPED = 3;

__device__ __forceinline__ float activate(u32 act, float x) {
    if (act == 4) return squared_relu(x);
    if (act == 0) return x / (1.0f + __expf(-x));
    if (act == 1) return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
    return 0.5f * x * (1.0f + erff(x * 0.7071067812f));
}

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + __expf(-x)); }

// ln(1 + e^x)
__device__ __forceinline__ float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }

// The sum over the threads that share a column of a state, four neighbours.
__device__ __forceinline__ float column_sum(float v) {
    v += __shfl_xor_sync(~0u, v, 1);
    return v + __shfl_xor_sync(~0u, v, 2);
}

// act(gate) * up. Explicit rounding keeps the compiler from fusing the product with an addition.
__device__ __forceinline__ float gated(u32 act, float gate, float up) {
    if (act == CLAMPED) {
        gate = fminf(gate, 7.0f);
        up = fminf(fmaxf(up, -7.0f), 7.0f);
        return __fmul_rn(gate / (1.0f + __expf(-1.702f * gate)), __fadd_rn(up, 1.0f));
    }
    return __fmul_rn(activate(act, gate), up);
}
