// BF16, as far as the kernels use it.
#pragma once

struct __align__(4) __nv_bfloat162 {
    unsigned short x, y;
};

namespace pretend_gpu {
inline unsigned short to_bf16(float f) {
    unsigned bits = __float_as_uint(f);
    if (f != f) return 0x7fff;
    return (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
} // namespace pretend_gpu
inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) { return {pretend_gpu::to_bf16(a), pretend_gpu::to_bf16(b)}; }
inline float2 __bfloat1622float2(__nv_bfloat162 two) { return {__uint_as_float((unsigned)two.x << 16), __uint_as_float((unsigned)two.y << 16)}; }
