// Chooses the next token of every row and advances the step: the last command of a decode pass (sample.cuh). The blocks of one
// blockIdx.y have a row to themselves.
#define THREADS 512
__device__ __forceinline__ void block_meets() { __syncthreads(); }
__device__ __forceinline__ int block_counts(bool of) { return __syncthreads_count(of); }
#include "sample.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 2) sample(const __grid_constant__ SampleArgs a) {
    extern __shared__ __align__(16) u8 shared[];
    u32 cancelled = 0;
    // The flag is in host memory, which is slow to read. It is requested before the wait and needed at the end.
    if (blockIdx.x == 0 && threadIdx.x == 0) cancelled = load_system(a.cancel);
    grid_release();
    grid_wait();
    if (a.step->ended) return;
    if (a.fault && *a.fault) {
        a.step->ended = 1;
        return;
    }
    const SampleArgs row = of_row(a, blockIdx.y);
    if (row.states[row.row].left == 0) return;
    sample_block(row, shared, cancelled);
}
