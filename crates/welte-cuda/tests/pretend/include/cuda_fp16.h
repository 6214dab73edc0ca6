// 16-bit floats, as far as the kernels use them.
#pragma once

struct __half {
    _Float16 v;
};
struct __align__(4) __half2 {
    __half x, y;
};
typedef __half half;
typedef __half2 half2;

inline float __half2float(__half h) { return (float)h.v; }
inline __half __float2half_rn(float f) { return {(_Float16)f}; }
inline __half __ushort_as_half(unsigned short bits) { return pretend_gpu::bits_as<__half>(bits); }
inline float2 __half22float2(__half2 h) { return {(float)h.x.v, (float)h.y.v}; }
inline __half2 __floats2half2_rn(float a, float b) { return {{(_Float16)a}, {(_Float16)b}}; }
inline __half2 __float2half2_rn(float f) { return __floats2half2_rn(f, f); }
inline __half2 __half2half2(__half h) { return {h, h}; }
// A product of two has 22 bits, which a float holds; a rounded sum is rounded once more, which changes nothing.
inline __half2 __hmul2(__half2 a, __half2 b) { return __floats2half2_rn((float)a.x.v * (float)b.x.v, (float)a.y.v * (float)b.y.v); }
inline __half2 __hsub2(__half2 a, __half2 b) { return __floats2half2_rn((float)a.x.v - (float)b.x.v, (float)a.y.v - (float)b.y.v); }
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
    return __floats2half2_rn(fmaf((float)a.x.v, (float)b.x.v, (float)c.x.v), fmaf((float)a.y.v, (float)b.y.v, (float)c.y.v));
}
