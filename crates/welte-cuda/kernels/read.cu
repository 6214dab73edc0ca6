// Measures the read bandwidth of device memory, which bounds the time of a token from below. From sm_90 on, one thread of
// each block keeps all stages of a ring in shared memory in flight with bulk copies. Older GPUs use wide loads.
#include "common.cuh"

struct ReadArgs {
    const uint4* data;
    u64 chunks; // of CHUNK bytes
    u32* sink;  // practically never written; keeps the compiler from removing the loads
};

#define CHUNK (32u << 10)
#define STAGES 6u

#if __CUDA_ARCH__ >= 900

__device__ __forceinline__ void fetch(u32 stage, u32 bar, const u8* from) {
    mbarrier_expect(bar, CHUNK);
    copy_bulk(stage, from, CHUNK, bar);
}

__device__ __forceinline__ void arrived(u32 bar, u32 phase) {
    while (!mbarrier_passed(bar, phase)) {
    }
}

extern "C" __global__ void read_all(const __grid_constant__ ReadArgs a) {
    extern __shared__ __align__(128) u8 ring[];
    __shared__ __align__(8) u64 bars[STAGES];
    if (threadIdx.x != 0) return;
    const u8* data = (const u8*)a.data;
    u32 start = shared_address(ring), bar = shared_address(bars);
    for (u32 s = 0; s < STAGES; s++) mbarrier_init(bar + 8 * s, 1);
    mbarriers_ready();
    u64 next = blockIdx.x;
    for (u32 s = 0; s < STAGES && next < a.chunks; s++, next += gridDim.x)
        fetch(start + s * CHUNK, bar + 8 * s, data + next * CHUNK);
    u32 s = 0, phase = 0;
    for (u64 c = blockIdx.x; c < a.chunks; c += gridDim.x) {
        arrived(bar + 8 * s, phase);
        if (next < a.chunks) fetch(start + s * CHUNK, bar + 8 * s, data + next * CHUNK);
        next += gridDim.x;
        if (++s == STAGES) s = 0, phase ^= 1;
    }
}

#else

extern "C" __global__ void read_all(const __grid_constant__ ReadArgs a) {
    const u32 per = CHUNK / 16;
    u32 sum = 0;
    for (u64 c = blockIdx.x; c < a.chunks; c += gridDim.x) {
        const uint4* chunk = a.data + c * per;
#pragma unroll 4
        for (u32 i = threadIdx.x; i < per; i += blockDim.x) {
            uint4 v = __ldcs(chunk + i);
            sum ^= v.x ^ v.y ^ v.z ^ v.w;
        }
    }
    if (sum == 0x9e3779b9u) *a.sink = sum;
}

#endif
