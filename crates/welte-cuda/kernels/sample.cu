// Chooses the next token and advances the step: the last command of a decode table (sample.cuh).
#define THREADS 512
__device__ __forceinline__ void block_meets() { __syncthreads(); }
__device__ __forceinline__ int block_counts(bool of) { return __syncthreads_count(of); }
#include "sample.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1) sample(const __grid_constant__ SampleArgs a) {
    extern __shared__ __align__(16) u8 shared[];
    u32 cancelled = 0;
    // The flag is in host memory, which is slow to read. It is requested before the wait and needed at the end.
    if (blockIdx.x == 0 && threadIdx.x == 0) cancelled = load_system(a.cancel);
    grid_release();
    grid_wait();
    if (a.step->ended) return;
    sample_block(a, shared, cancelled);
}
