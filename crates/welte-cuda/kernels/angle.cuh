// The angle of a rotation.
#pragma once
#include "common.cuh"

// Which of a row's axes a pair follows (welte_table::Sections::axis).
__device__ __forceinline__ u32 axis_of(u32 sections, u32 pair) {
    u32 time = sections & 255, height = sections >> 8 & 255;
    if (sections >> 24) {
        u32 turn = pair % 3;
        return turn && pair / 3 < (sections >> 8 * turn & 255) ? turn : 0;
    }
    return pair < time ? 0 : pair < time + height ? 1 : 2;
}

// The angle is rounded to f32, as on the CPU device. Whole turns are removed in f64, so large positions stay exact.
__device__ __forceinline__ void turn_by(float position, float freq, float magnitude, float &c, float &s) {
    double turns = (double)__fmul_rn(position, freq) * 0.15915494309189533577;
    float part = (float)(turns - rint(turns));
    sincospif(2.0f * part, &s, &c);
    c *= magnitude;
    s *= magnitude;
}
