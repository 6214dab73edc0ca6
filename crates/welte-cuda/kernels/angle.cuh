// The angle of a rotation.
#pragma once
#include "common.cuh"

// The angle is rounded to f32, as on the CPU device. Whole turns are removed in f64, so large positions stay exact.
__device__ __forceinline__ void turn_by(float position, float freq, float magnitude, float &c, float &s) {
    double turns = (double)__fmul_rn(position, freq) * 0.15915494309189533577;
    float part = (float)(turns - rint(turns));
    sincospif(2.0f * part, &s, &c);
    c *= magnitude;
    s *= magnitude;
}
