// Products of many rows on GPUs with warp-group products (sm_90a). Computes the same bits as gemm.cu. One or two warp groups widen
// weights into a ring of tiles in shared memory, and two warp groups multiply the tiles.
// Macros: FORMAT_FILE, BFLOAT (1: weights and x are bf16, else x is f16), TILE_ROWS (64, 128, 256), STAGES, RING (encoded chunks in
// flight).
#define EXPERTS 0
#define TILE_N 128
#include "dequant.cuh"
#include "gemm.cuh"
#include "tile.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL // other GPUs have no warp-group products
#include "wgmma.cuh"

#define W_BYTES (TILE_N * 128)
#define X_BYTES (TILE_ROWS * 128)
#define STAGE_BYTES (W_BYTES + X_BYTES)
#define SUMS (TILE_ROWS / 2) // per thread
#define RAW_BYTES (256 * raw_bytes())
// Widening threads: two per matrix row, or one where the sums need more registers and fewer threads fit.
#define WIDENERS (TILE_ROWS > 128 ? 128 : 256)
#define UNITS (256 / WIDENERS) // per thread and chunk

// Copies one piece of global memory into shared memory and announces its bytes to the barrier.
__device__ __forceinline__ void copy_piece(u32 to, const void* from, u32 bytes, u32 barrier) {
    mbarrier_expect(barrier, bytes);
    copy_bulk(to, from, bytes, barrier);
}

// The descriptor of a tile of 128-byte rows in the layout of tile.cuh: eight rows are 1024 bytes.
__device__ __forceinline__ u64 tile_descriptor(u32 at) {
    return wgmma_operand(at, 16, 1024);
}

// The producers: widen the tile's weights chunk by chunk, and start the copies of the activations.
__device__ __forceinline__ void produce(const GemmArgs& a, u8* raw, u32 stages, u32 full, u32 empty, u32 first_n,
                                        u32 first_row, u32 chunks) {
    const u32 thread = threadIdx.x, row = thread * UNITS / 2;
    const u8* planes[MOST_PLANES];
    Planes(a.weight, a.n, a.k).row(matrix_row(a, first_n, row), planes);
    // The half of the row's 64 elements that a unit covers.
    auto half = [&](u32 unit) { return UNITS == 2 ? unit : thread % 2; };
    auto fetch = [&](u32 chunk) {
        u8* const slot = raw + chunk % RING * RAW_BYTES;
#pragma unroll
        for (u32 u = 0; u < UNITS; u++) {
            if (chunk < chunks) copy_unit(slot, u * WIDENERS + thread, 256, planes, a.k, 2 * chunk + half(u));
        }
        copy_commit();
    };
#pragma unroll
    for (u32 i = 0; i < RING - 1; i++) fetch(i);
    grid_wait();
    if (first_row >= a.step->live) return;
    const u8* x = (const u8*)a.x + (u64)first_row * 128;
    u32 stage = 0, turn = 0;
    for (u32 chunk = 0; chunk < chunks; chunk++) {
        const u32 tile = stages + stage * STAGE_BYTES;
        copy_wait<RING - 2>();
        const u8* const slot = raw + chunk % RING * RAW_BYTES;
        uint4 wide[4 * UNITS];
#pragma unroll
        for (u32 u = 0; u < UNITS; u++) {
            widen(take_unit(slot, u * WIDENERS + thread, 256, a.k, 2 * chunk + half(u)), wide + 4 * u);
        }
        fetch(chunk + RING - 1);
        barrier_wait(empty + 8 * stage, turn ^ 1);
        if (thread == 0) copy_piece(tile + W_BYTES, x + (u64)chunk * a.x_rows * 128, X_BYTES, full + 8 * stage);
#pragma unroll
        for (u32 i = 0; i < 4 * UNITS; i++) {
            store_shared(tile + tile_at(row, half(i / 4) * 4 + i % 4), wide[i]);
        }
        // The products read through the asynchronous proxy, so these writes must be made visible to it.
        show_to_async();
        mbarrier_arrive(full + 8 * stage);
        if (++stage == STAGES) stage = 0, turn ^= 1;
    }
}

extern "C" __global__ void __launch_bounds__(256 + WIDENERS, 1) gemm_wide(const __grid_constant__ GemmArgs a) {
    extern __shared__ __align__(1024) u8 shared[];
    __shared__ __align__(8) u64 barriers[2 * STAGES];
    const u32 first_row = blockIdx.x * TILE_ROWS;
    const u32 first_n = blockIdx.y * (a.epilogue == ACT_MUL ? TILE_N / 2 : TILE_N);
    const u32 chunks = (a.k + 63) / 64;
    const u32 full = shared_address(barriers), empty = full + 8 * STAGES;
    const u32 stages = (shared_address(shared) + 1023) / 1024 * 1024;
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < STAGES; i++) {
            mbarrier_init(full + 8 * i, WIDENERS + 1); // the producers, and one more arrival that announces bytes
            mbarrier_init(empty + 8 * i, 8);  // one lane of every multiplying warp
        }
        mbarriers_ready();
    }
    __syncthreads();
    grid_release();
    if (threadIdx.x < WIDENERS) {
        u8* const raw = shared + (stages - shared_address(shared)) + STAGES * STAGE_BYTES;
        produce(a, raw, stages, full, empty, first_n, first_row, chunks);
        return;
    }
    grid_wait();
    const u32 live = a.step->live;
    if (first_row >= live) return;
    const u32 thread = threadIdx.x - WIDENERS, warp = thread / 32, lane = thread % 32;
    float s[SUMS];
#pragma unroll
    for (u32 i = 0; i < SUMS; i++) s[i] = 0;
    u32 stage = 0, turn = 0, before = 0;
    for (u32 chunk = 0; chunk < chunks; chunk++) {
        const u32 tile = stages + stage * STAGE_BYTES;
        barrier_wait(full + 8 * stage, turn);
        const u64 w = tile_descriptor(tile + warp / 4 * (W_BYTES / 2)), x = tile_descriptor(tile + W_BYTES);
        wgmma_begin();
#pragma unroll
        for (u32 k = 0; k < 4; k++) wgmma<BFLOAT>(s, w + 2 * k, x + 2 * k);
        wgmma_commit();
        // The previous chunk's products are complete, so its stage may be refilled.
        wgmma_wait<1>();
        if (chunk > 0 && lane == 0) mbarrier_arrive(empty + 8 * before);
        before = stage;
        if (++stage == STAGES) stage = 0, turn ^= 1;
    }
    wgmma_wait<0>();
#pragma unroll
    for (u32 i = 0; i < SUMS; i++) wgmma_settled(s[i]);

#pragma unroll
    for (u32 j = 0; j < SUMS / 4; j++) finish(a, nullptr, nullptr, first_n, 16 * warp, first_row + 8 * j + 2 * (lane % 4), live, s + 4 * j);
}

#endif
