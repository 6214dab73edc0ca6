// CUDA C++ as plain C++: what the kernels use of the language and of its functions. In front of every compiled file.
#pragma once
#include "pretend.h"
#include <math.h>
#include <string.h>

#define SEEN __attribute__((visibility("default")))
extern "C" {
SEEN pretend_gpu::Place *pretend_place;
SEEN const pretend_gpu::Services *pretend;
// The ends of all static shared memory of the file; it holds that of the block whose turn it is.
extern char __start_pretend_shared[] __attribute__((weak, visibility("hidden")));
extern char __stop_pretend_shared[] __attribute__((weak, visibility("hidden")));
SEEN char *pretend_ends[2] = {__start_pretend_shared, __stop_pretend_shared};
}

#define __global__ SEEN
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __shared__ static __attribute__((section("pretend_shared")))
#define threadIdx (pretend_place->thread)
#define blockIdx (pretend_place->block)
#define blockDim (pretend_place->threads)
#define gridDim (pretend_place->blocks)
// The compiler puts this before a kernel: what a launch has to know of it.
#define PRETEND_KERNEL(name, args, most) \
    extern "C" SEEN const unsigned pretend_args_##name = sizeof(args); \
    extern "C" SEEN const unsigned pretend_threads_##name = most;

#define VECTOR2(type, name, bytes) \
    struct __align__(bytes) name { type x, y; }; \
    inline name make_##name(type x, type y) { return {x, y}; }
#define VECTOR4(type, name, bytes) \
    struct __align__(bytes) name { type x, y, z, w; }; \
    inline name make_##name(type x, type y, type z, type w) { return {x, y, z, w}; }
VECTOR2(float, float2, 8)
VECTOR2(unsigned, uint2, 8)
VECTOR4(float, float4, 16)
VECTOR4(unsigned, uint4, 16)
VECTOR4(int, int4, 16)

// ---- numbers ----

namespace pretend_gpu {
template <class To, class From> inline To bits_as(From v) {
    static_assert(sizeof(To) == sizeof(From), "as many bits");
    To to;
    memcpy(&to, &v, sizeof(To));
    return to;
}

} // namespace pretend_gpu

inline unsigned __float_as_uint(float v) { return pretend_gpu::bits_as<unsigned>(v); }
inline float __uint_as_float(unsigned v) { return pretend_gpu::bits_as<float>(v); }
inline float __int_as_float(int v) { return pretend_gpu::bits_as<float>(v); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline void sincospif(float x, float *s, float *c) {
    *s = (float)sin(3.14159265358979323846 * x);
    *c = (float)cos(3.14159265358979323846 * x);
}
inline int __float2int_rn(float x) { return x != x ? 0 : x >= 2147483648.0f ? 2147483647 : x <= -2147483648.0f ? -2147483647 - 1 : (int)rintf(x); }
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __ffs(unsigned v) { return __builtin_ffs((int)v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
inline int __ffsll(long long v) { return __builtin_ffsll(v); }
inline int __clz(unsigned v) { return v ? __builtin_clz(v) : 32; }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned pick) {
    unsigned long long both = (unsigned long long)b << 32 | a;
    unsigned v = 0;
    for (int i = 0; i < 4; i++) v |= (unsigned)(both >> 8 * (pick >> 4 * i & 7) & 255) << 8 * i;
    return v;
}
inline int __dp4a(int a, int b, int sum) {
    for (int i = 0; i < 32; i += 8) sum += (signed char)(a >> i) * (signed char)(b >> i);
    return sum;
}

#define SMALLER_LARGER(type) \
    inline type min(type a, type b) { return b < a ? b : a; } \
    inline type max(type a, type b) { return a < b ? b : a; }
SMALLER_LARGER(int)
SMALLER_LARGER(unsigned)
SMALLER_LARGER(long long)
SMALLER_LARGER(unsigned long long)
SMALLER_LARGER(float)
SMALLER_LARGER(double)
inline unsigned min(int a, unsigned b) { return min((unsigned)a, b); }
inline unsigned min(unsigned a, int b) { return min(a, (unsigned)b); }

// ---- memory ----

template <class T> inline T __ldg(const T *p) { return *p; }
template <class T> inline T __ldcg(const T *p) { return *p; }
template <class T> inline T __ldcs(const T *p) { return *p; }
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
template <class T, class V> inline T atomicAdd(T *p, V v) {
    T before = *p;
    *p = before + (T)v;
    return before;
}
template <class T> inline T atomicMax(T *p, T v) {
    T before = *p;
    if (v > before) *p = v;
    return before;
}
template <class T> inline T atomicMax_system(T *p, T v) {
    T before = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (before < v && !__atomic_compare_exchange_n(p, &before, v, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return before;
}
inline unsigned atomicCAS(unsigned *p, unsigned expected, unsigned v) {
    unsigned before = *p;
    if (before == expected) *p = v;
    return before;
}
inline unsigned long long __cvta_generic_to_shared(const void *p) { return pretend->shared_address(p); }

// ---- meetings ----

inline void __syncthreads() { pretend->barrier(0, 0, false); }
inline int __syncthreads_count(bool yes) { return pretend->barrier(0, 0, yes); }
inline void __syncwarp(unsigned mask = ~0u) { pretend->meet(mask, pretend_gpu::SYNC, nullptr, 0); }

namespace pretend_gpu {
template <class T> inline T shuffle(unsigned mask, T v, unsigned from) {
    static_assert(sizeof(T) <= 8, "a word or two");
    const Slot *all = pretend->meet(mask, SHUFFLE, &v, sizeof(T));
    T got;
    memcpy(&got, all + from, sizeof(T));
    return got;
}
template <class F> inline void each_vote(unsigned mask, unsigned v, F f) {
    const Slot *all = pretend->meet(mask, VOTE, &v, 4);
    for (unsigned i = 0; i < 32; i++)
        if (mask >> i & 1) f(i, all[i].w[0]);
}
} // namespace pretend_gpu

template <class T> inline T __shfl_sync(unsigned mask, T v, int from) { return pretend_gpu::shuffle(mask, v, from & 31); }
template <class T> inline T __shfl_xor_sync(unsigned mask, T v, int with) { return pretend_gpu::shuffle(mask, v, (threadIdx.x ^ with) & 31); }
template <class T> inline T __shfl_up_sync(unsigned mask, T v, unsigned by) {
    unsigned lane = threadIdx.x % 32;
    return pretend_gpu::shuffle(mask, v, lane >= by ? lane - by : lane);
}

inline unsigned __ballot_sync(unsigned mask, bool yes) {
    unsigned votes = 0;
    pretend_gpu::each_vote(mask, yes, [&](unsigned i, unsigned v) { votes |= v << i; });
    return votes;
}
inline bool __any_sync(unsigned mask, bool yes) { return __ballot_sync(mask, yes); }
inline bool __all_sync(unsigned mask, bool yes) { return __ballot_sync(mask, !yes) == 0; }
inline unsigned __match_any_sync(unsigned mask, unsigned mine) {
    unsigned same = 0;
    pretend_gpu::each_vote(mask, mine, [&](unsigned i, unsigned v) { same |= (v == mine) << i; });
    return same;
}
template <class T> inline T __reduce_min_sync(unsigned mask, T mine) {
    pretend_gpu::each_vote(mask, (unsigned)mine, [&](unsigned, unsigned v) { mine = min(mine, (T)v); });
    return mine;
}
template <class T> inline T __reduce_max_sync(unsigned mask, T mine) {
    pretend_gpu::each_vote(mask, (unsigned)mine, [&](unsigned, unsigned v) { mine = max(mine, (T)v); });
    return mine;
}

// ---- the rest ----

inline long long clock64() { return pretend->clock(); }
inline void __nanosleep(unsigned) { pretend->yield("__nanosleep", nullptr); }
inline void __trap() { pretend->die("__trap()"); }
extern "C" inline void cudaGraphSetConditional(unsigned long long handle, unsigned value) { pretend->set_condition(handle, value); }
