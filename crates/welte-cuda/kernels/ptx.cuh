// Small functions around inline PTX, for instructions without a name in CUDA C++. All inline PTX is in this file and in
// wgmma.cuh. The pretend GPU (tests/pretend) replaces both files.
//
// Addresses in shared memory are 32-bit, as from shared_address().
#pragma once

// Hides a value from the optimiser, so that it stays in its register and nothing is precomputed from it.
__device__ __forceinline__ u32 opaque(u32 v) {
    asm volatile("" : "+r"(v));
    return v;
}

// An uninitialised value.
__device__ __forceinline__ uint4 anything() {
    uint4 v;
    asm("" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w));
    return v;
}

// ---- launches ----

// Programmatic dependent launch: a kernel may start while its predecessor still runs. Before grid_wait() it may read only
// weights and parameters. After grid_wait() it may read results of other commands, and write.
__device__ __forceinline__ void grid_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel start. That kernel waits in its own grid_wait() until this one is complete.
__device__ __forceinline__ void grid_release() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// ---- numbers ----

// The maximum; NaN if either operand is NaN.
__device__ __forceinline__ float max_nan(float a, float b) {
    float m;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(a), "f"(b));
    return m;
}

// 1 / x. Zero for very large x; tiny x are not supported.
__device__ __forceinline__ float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// 2^x. Tiny results become zero.
__device__ __forceinline__ float power(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Byte i of the result is the byte of b:a whose index is nibble i of `pick` (below 8).
__device__ __forceinline__ u32 select(u32 a, u32 b, u32 pick) {
    u32 v;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(v) : "r"(a), "r"(b), "r"(pick));
    return v;
}

// Converts two 8-bit floats to two f16.
#if __CUDA_ARCH__ >= 890
__device__ __forceinline__ u32 widen_e4m3(u16 two) {
    u32 bits;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(bits) : "h"(two));
    return bits;
}

// Converts two floats to 8-bit ones, the first in the lower byte. Values beyond the largest become that one.
__device__ __forceinline__ u32 narrow_e4m3(float a, float b) {
    u16 two;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %2, %1;" : "=h"(two) : "f"(a), "f"(b));
    return two;
}
#endif

// The largest value of all lanes.
__device__ __forceinline__ u32 warp_largest(u32 v) {
    u32 most;
    asm volatile("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(most) : "r"(v));
    return most;
}

// ---- memory that other threads write concurrently ----

__device__ __forceinline__ u32 load_relaxed(const void *from) {
    u32 v;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
    return v;
}

__device__ __forceinline__ uint2 load_relaxed2(const void *from) {
    uint2 v;
    asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(from) : "memory");
    return v;
}

__device__ __forceinline__ uint4 load_relaxed4(const void *from) {
    uint4 v;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from) : "memory");
    return v;
}

__device__ __forceinline__ u32 load_acquire(const u32 *from) {
    u32 v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
    return v;
}

__device__ __forceinline__ void store_relaxed(void *to, u32 v) { asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(v) : "memory"); }

__device__ __forceinline__ void store_relaxed4(void *to, uint4 v) {
    asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

// Increments a counter, after all earlier writes of this thread.
__device__ __forceinline__ void count_release(u32 *counter) { asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory"); }

// Memory that the host also reads or writes.
__device__ __forceinline__ u32 load_system(const u32 *from) {
    u32 v;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
    return v;
}

__device__ __forceinline__ u32 load_acquire_system(const u32 *from) {
    u32 v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
    return v;
}

// For writes to the memory of other GPUs.
__device__ __forceinline__ void store_relaxed_system(void *to, u32 v) { asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(to), "r"(v) : "memory"); }
__device__ __forceinline__ void store_relaxed4_system(void *to, uint4 v) {
    asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
__device__ __forceinline__ void count_release_system(u32 *counter) { asm volatile("red.release.sys.global.add.u32 [%0], 1;" ::"l"(counter) : "memory"); }
__device__ __forceinline__ void store_release_system(u32 *to, u32 v) { asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(v) : "memory"); }

__device__ __forceinline__ void store_system(u64 *to, u64 v) { asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(to), "l"(v) : "memory"); }

// Nanoseconds of a clock that all multiprocessors share.
__device__ __forceinline__ u64 now_ns() {
    u64 ns;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
    return ns;
}

// sum plus the dot product of four unsigned and four signed bytes.
__device__ __forceinline__ int dot_unsigned(u32 a, int b, int sum) {
    int v;
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(v) : "r"(a), "r"(b), "r"(sum));
    return v;
}

// Waits until `ticks` clock ticks after `since`, the low half of the clock.
__device__ __forceinline__ void wait_ticks(u32 since, u32 ticks) {
    while ((u32)clock64() - since < ticks) {
    }
}

// ---- barriers within a block ----

// COUNT threads of the block wait at barrier ID (0 is __syncthreads()).
template <u32 ID, u32 COUNT> __device__ __forceinline__ void bar_sync() { asm volatile("bar.sync %0, %1;" ::"n"(ID), "n"(COUNT) : "memory"); }
// The same, where the barrier's number is known at run time only.
template <u32 COUNT> __device__ __forceinline__ void bar_sync(u32 id) { asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(COUNT) : "memory"); }

// The same. Returns how many threads passed true.
template <u32 ID, u32 COUNT> __device__ __forceinline__ int bar_count(bool yes) {
    int n;
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; bar.red.popc.u32 %0, %2, %3, p; }" : "=r"(n) : "r"((u32)yes), "n"(ID), "n"(COUNT) : "memory");
    return n;
}

// Whether one thread can request a copy of any length into shared memory. mbarriers then count its bytes.
#if __CUDA_ARCH__ >= 900
#define BULK_COPIES 1
#else
#define BULK_COPIES 0
#endif

// Initialises an mbarrier (8 bytes of shared memory). A phase ends after `count` arrivals and all announced bytes.
__device__ __forceinline__ void mbarrier_init(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes initialised mbarriers visible to other threads and to copies.
__device__ __forceinline__ void mbarriers_ready() {
#if BULK_COPIES
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#else
    __threadfence_block();
#endif
}

__device__ __forceinline__ void mbarrier_arrive(u32 barrier) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory"); }

// The same without a branch. Branches between asynchronous products would make the compiler wait for them.
__device__ __forceinline__ void mbarrier_arrive_if(bool yes, u32 barrier) {
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %0, 0; @p mbarrier.arrive.shared::cta.b64 _, [%1]; }" ::"r"((u32)yes), "r"(barrier) : "memory");
}

// Arrives, and announces bytes.
__device__ __forceinline__ void mbarrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Whether the phase of that parity has ended. May wait briefly before it returns false.
__device__ __forceinline__ bool mbarrier_passed(u32 barrier, u32 parity) {
    u32 yes;
#if BULK_COPIES
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }" : "=r"(yes) : "r"(barrier), "r"(parity) : "memory");
#else
    asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }" : "=r"(yes) : "r"(barrier), "r"(parity) : "memory");
#endif
    return yes;
}

// ---- copies into shared memory ----

// Copies global memory; addresses and length are multiples of 16. Completed bytes count towards the mbarrier.
__device__ __forceinline__ void copy_bulk(u32 to, const void *from, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

// A cache policy for memory that is read once: L2 evicts it first.
__device__ __forceinline__ u64 read_once() {
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// copy_bulk() with a cache policy.
__device__ __forceinline__ void copy_bulk_by(u64 policy, u32 to, const void *from, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to), "l"(from), "r"(bytes),
                 "r"(barrier), "l"(policy)
                 : "memory");
}

// A cache policy for memory that is read again soon: L2 keeps it.
__device__ __forceinline__ u64 read_again() {
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// Copies a box of a matrix, whose first element is at `column` of `row`, as its tensor map says (sm_90).
__device__ __forceinline__ void copy_box(u64 policy, u32 to, const void *map, u32 column, u32 row, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
                 "l"(map), "r"(column), "r"(row), "r"(barrier), "l"(policy)
                 : "memory");
}

// The same, to the same place in every block of the cluster whose bit is set in `blocks`. Each counts the bytes at its own barrier.
__device__ __forceinline__ void copy_box_to(u16 blocks, u64 policy, u32 to, const void *map, u32 column, u32 row, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint [%0], [%1, {%2, %3}], [%4], "
                 "%5, %6;" ::"r"(to),
                 "l"(map), "r"(column), "r"(row), "r"(barrier), "h"(blocks), "l"(policy)
                 : "memory");
}

// Copies 16 bytes asynchronously, with a cache policy.
__device__ __forceinline__ void copy_async_by(u64 policy, u32 to, const void *from) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "l"(policy) : "memory");
}

// This thread arrives at an mbarrier once all its asynchronous copies so far are complete. The barrier counts it like other arrivals.
__device__ __forceinline__ void arrive_after_copies(u32 barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// Copies 4, 8 or 16 bytes asynchronously.
template <u32 BYTES> __device__ __forceinline__ void copy_async(u32 to, const void *from) {
    if (BYTES == 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
    else asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(BYTES) : "memory");
}

// The same; if not `wanted`, writes zeros and reads nothing.
template <u32 BYTES> __device__ __forceinline__ void copy_async(u32 to, const void *from, bool wanted) {
    u32 taken = wanted ? BYTES : 0;
    if (BYTES == 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(taken) : "memory");
    else asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(BYTES), "r"(taken) : "memory");
}

// Ends this thread's current group of copies.
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until all groups except the last PENDING are complete.
template <u32 PENDING> __device__ __forceinline__ void copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }

// Makes writes to shared memory visible to bulk copies and asynchronous products, which use the asynchronous proxy.
__device__ __forceinline__ void show_to_async() {
#if BULK_COPIES
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

__device__ __forceinline__ void store_shared(u32 to, uint4 v) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

__device__ __forceinline__ void store_shared(u32 to, float v) { asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(v) : "memory"); }

// Two neighbours that other threads wrote.
__device__ __forceinline__ float2 load_shared_pair(u32 from) {
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(from) : "memory");
    return v;
}

// A load that the compiler does not cache, because other threads write the value.
__device__ __forceinline__ uint4 load_shared(u32 from) {
    uint4 v;
    asm volatile("ld.volatile.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(from) : "memory");
    return v;
}

// ---- clusters (sm_90): blocks that reach each other's shared memory ----

// All threads of all blocks of the cluster wait for each other, and see each other's earlier writes.
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

// mbarrier_arrive_if() at the same barrier of another block.
__device__ __forceinline__ void mbarrier_arrive_at(bool yes, u32 barrier, u32 block) {
    asm volatile("{ .reg .pred p; .reg .b32 at; setp.ne.u32 p, %0, 0; mapa.shared::cluster.u32 at, %1, %2; @p mbarrier.arrive.shared::cluster.b64 _, [at]; }" ::"r"(
                     (u32)yes),
                 "r"(barrier), "r"(block)
                 : "memory");
}

// Loads from the shared memory of another block.
__device__ __forceinline__ float4 load_from_block(u32 address, u32 block) {
    float4 v;
    asm volatile("{ .reg .b32 at; mapa.shared::cluster.u32 at, %4, %5; ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [at]; }"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(address), "r"(block)
                 : "memory");
    return v;
}

// ---- products of a warp ----

// Loads four 8 x 8 matrices of 16-bit values. Lane i passes the address of row i % 8 of matrix i / 8.
__device__ __forceinline__ void load_matrices(u32 (&r)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}

__device__ __forceinline__ void load_matrices_turned(u32 (&r)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}

// c += a b: a 16 x 16 and b 16 x 8 of f16 or bf16, c of f32.
__device__ __forceinline__ void mma_f16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void mma_bf16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The same for signed bytes: 16 x 32 by 32 x 8. A word holds four bytes, consecutive in k.
__device__ __forceinline__ void mma_s8(int (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
