// Softmax weights are powers of two: scores carry a factor of log2(e).
#pragma once
#include "common.cuh"

#define LOG2E 1.4426950408889634f
#define NEVER (-__int_as_float(0x7f800000)) // minus infinity

// Two floats as f16.
__device__ __forceinline__ u32 pack(float a, float b) {
    __half2 h = __floats2half2_rn(a, b);
    return *(u32 *)&h;
}
