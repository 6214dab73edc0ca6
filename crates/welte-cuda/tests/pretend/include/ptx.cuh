// The functions of kernels/ptx.cuh in plain C++.
#pragma once
#include <time.h>

inline u32 opaque(u32 v) { return v; }
// NaN, as halves too.
inline uint4 anything() { return {0x7fff7fff, 0x7fff7fff, 0x7fff7fff, 0x7fff7fff}; }

#if __CUDA_ARCH__ >= 900
inline void grid_wait() { pretend->grid_wait(); }
inline void grid_release() { pretend->grid_release(); }
#else
inline void grid_wait() {}
inline void grid_release() {}
#endif

inline float max_nan(float a, float b) { return a != a ? a : b != b ? b : a > b ? a : b; }
inline float reciprocal(float x) { return 1.0f / x; }
inline float power(float x) {
    float y = exp2f(x);
    return y < 1.17549435e-38f ? 0.0f : y;
}
inline u32 select(u32 a, u32 b, u32 pick) {
    u64 both = (u64)b << 32 | a;
    u32 v = 0;
    for (int i = 0; i < 4; i++) {
        u32 byte = (u32)(both >> 8 * (pick >> 4 * i & 7)) & 255;
        if (pick >> 4 * i & 8) byte = byte & 128 ? 255 : 0;
        v |= byte << 8 * i;
    }
    return v;
}
inline u32 widen_e4m3(u16 two) {
    __half2 h;
    for (int i = 0; i < 2; i++) {
        u32 byte = two >> 8 * i & 255;
        u16 bits = (u16)((byte & 128) << 8 | (byte & 127) << 7);
        float v = (byte & 127) == 127 ? NAN : 256.0f * __half2float(__ushort_as_half(bits));
        (i ? h.y : h.x) = __float2half_rn(v);
    }
    return pretend_gpu::bits_as<u32>(h);
}

inline int dot_unsigned(u32 a, int b, int sum) {
    for (int i = 0; i < 4; i++) sum += (int)(a >> 8 * i & 255) * (i8)(b >> 8 * i & 255);
    return sum;
}

inline u32 warp_largest(u32 v) {
    for (int o = 16; o > 0; o >>= 1) {
        u32 other = __shfl_xor_sync(~0u, v, o);
        v = other > v ? other : v;
    }
    return v;
}

inline u32 load_relaxed(const void *from) {
    pretend->yield("a load of", from);
    return *(const volatile u32 *)from;
}
inline uint2 load_relaxed2(const void *from) {
    pretend->yield("a load of", from);
    if ((u64)from % 8) pretend->die("a load of 8 bytes from an address that is not a multiple of 8");
    const volatile u32 *p = (const volatile u32 *)from;
    return {p[0], p[1]};
}
inline uint4 load_relaxed4(const void *from) {
    pretend->yield("a load of", from);
    if ((u64)from % 16) pretend->die("a load of 16 bytes from an address that is not a multiple of 16");
    const volatile u32 *p = (const volatile u32 *)from;
    return {p[0], p[1], p[2], p[3]};
}
inline u32 load_acquire(const u32 *from) { return load_relaxed(from); }
inline void store_relaxed(void *to, u32 v) { *(volatile u32 *)to = v; }
inline void store_relaxed4(void *to, uint4 v) {
    if ((u64)to % 16) pretend->die("a store of 16 bytes to an address that is not a multiple of 16");
    volatile u32 *p = (volatile u32 *)to;
    p[0] = v.x, p[1] = v.y, p[2] = v.z, p[3] = v.w;
}
inline void count_release(u32 *counter) { ++*counter; }
// Other devices run at the same moment.
inline u32 load_acquire_system(const u32 *from) {
    pretend->yield("a load of", from);
    return __atomic_load_n(from, __ATOMIC_ACQUIRE);
}
inline void store_relaxed_system(void *to, u32 v) { __atomic_store_n((u32 *)to, v, __ATOMIC_RELAXED); }
inline void store_relaxed4_system(void *to, uint4 v) { store_relaxed4(to, v); }
inline void store_release_system(u32 *to, u32 v) { __atomic_store_n(to, v, __ATOMIC_RELEASE); }
inline void count_release_system(u32 *counter) { __atomic_fetch_add(counter, 1, __ATOMIC_RELEASE); }
inline u32 load_system(const u32 *from) { return __atomic_load_n(from, __ATOMIC_RELAXED); }
inline u64 now_ns() {
    pretend->yield("now_ns", nullptr);
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}
inline void store_system(u64 *to, u64 v) { __atomic_store_n(to, v, __ATOMIC_RELEASE); }

template <u32 ID, u32 COUNT> inline void bar_sync() { pretend->barrier(ID, COUNT, false); }
template <u32 COUNT> inline void bar_sync(u32 id) { pretend->barrier(id, COUNT, false); }
template <u32 ID, u32 COUNT> inline int bar_count(bool yes) { return pretend->barrier(ID, COUNT, yes); }
#define BULK_COPIES (__CUDA_ARCH__ >= 900)
inline void mbarrier_init(u32 barrier, u32 arrivals) { pretend->mbarrier_init(barrier, arrivals); }
inline void mbarriers_ready() {}
inline void mbarrier_arrive(u32 barrier) { pretend->mbarrier_arrive(barrier, 0); }
inline void mbarrier_expect(u32 barrier, u32 bytes) { pretend->mbarrier_arrive(barrier, bytes); }
inline void mbarrier_arrive_if(bool yes, u32 barrier) {
    if (yes) pretend->mbarrier_arrive(barrier, 0);
}
inline void mbarrier_arrive_at(bool yes, u32 barrier, u32 block) {
    if (yes) pretend->mbarrier_arrive_at(block, barrier);
}
inline void cluster_sync() { pretend->cluster_sync(); }
inline float4 load_from_block(u32 address, u32 block) { return *(const float4 *)pretend->shared_of(block, address, 16); }
inline bool mbarrier_passed(u32 barrier, u32 parity) { return pretend->mbarrier_passed(barrier, parity); }

inline void wait_ticks(u32, u32) {}
inline u64 read_once() { return 0; }
inline void copy_bulk_by(u64, u32 to, const void *from, u32 bytes, u32 barrier) { pretend->copy_bulk(to, from, bytes, barrier); }
inline void copy_bulk(u32 to, const void *from, u32 bytes, u32 barrier) { pretend->copy_bulk(to, from, bytes, barrier); }
inline u64 read_again() { return 0; }
// Box of a matrix by its map (driver.cpp); elements beyond the matrix become zero.
inline void copy_box_to(u16 blocks, u64, u32 to, const void *map, u32 column, u32 row, u32 barrier) {
    const u64 *m = (const u64 *)map;
    if (to % 1024 || column % 8) pretend->die("a box that is not aligned");
    for (u32 r = 0; r < m[4]; r++)
        for (u32 piece = 0; piece < 8; piece++) {
            u64 at = column + piece * 8, here = row + r < m[2] && at < m[1] ? (m[1] - at < 8 ? m[1] - at : 8) : 0;
            const u8 *from = here ? (const u8 *)m[0] + (row + r) * m[3] + at * 2 : nullptr;
            pretend->copy_to(blocks, to + r * 128 + ((piece ^ (r & 7)) << 4), from, 16, (u32)here * 2, barrier);
        }
}
inline void copy_box(u64 policy, u32 to, const void *map, u32 column, u32 row, u32 barrier) { copy_box_to(0, policy, to, map, column, row, barrier); }
inline void copy_async_by(u64, u32 to, const void *from) { pretend->copy_async(to, from, 16, 16); }
inline void arrive_after_copies(u32 barrier) { pretend->arrive_after_copies(barrier); }
template <u32 BYTES> inline void copy_async(u32 to, const void *from) { pretend->copy_async(to, from, BYTES, BYTES); }
template <u32 BYTES> inline void copy_async(u32 to, const void *from, bool wanted) { pretend->copy_async(to, from, BYTES, wanted ? BYTES : 0); }
inline void copy_commit() { pretend->copy_commit(); }
template <u32 PENDING> inline void copy_wait() { pretend->copy_wait(PENDING); }
inline void show_to_async() {}
inline uint4 load_shared(u32 from) { return *(const uint4 *)pretend->shared(from, 16); }
inline void store_shared(u32 to, uint4 v) { *(uint4 *)pretend->shared(to, 16) = v; }

inline void load_matrices(u32 (&r)[4], u32 at) { memcpy(r, pretend->meet(~0u, pretend_gpu::LOAD_MATRICES, &at, 4) + threadIdx.x % 32, 16); }
inline void load_matrices_turned(u32 (&r)[4], u32 at) { memcpy(r, pretend->meet(~0u, pretend_gpu::LOAD_MATRICES_TURNED, &at, 4) + threadIdx.x % 32, 16); }
inline void mma(pretend_gpu::Meeting kind, float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    u32 in[6] = {a[0], a[1], a[2], a[3], b0, b1};
    const u32 *sums = pretend->meet(~0u, kind, in, sizeof in)[threadIdx.x % 32].w;
    for (int i = 0; i < 4; i++) c[i] += __uint_as_float(sums[i]);
}
inline void mma_f16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) { mma(pretend_gpu::MMA_F16, c, a, b0, b1); }
inline void mma_bf16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) { mma(pretend_gpu::MMA_BF16, c, a, b0, b1); }
inline void mma_s8(int (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    u32 in[6] = {a[0], a[1], a[2], a[3], b0, b1};
    const u32 *sums = pretend->meet(~0u, pretend_gpu::MMA_S8, in, sizeof in)[threadIdx.x % 32].w;
    for (int i = 0; i < 4; i++) c[i] += (int)sums[i];
}
