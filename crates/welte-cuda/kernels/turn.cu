// The end of an iteration of the decode loop: it repeats unless the chain is over.
#include "common.cuh"

// A function of the driver, bound when the module is loaded.
extern "C" __device__ void cudaGraphSetConditional(u64 handle, u32 value);

struct TurnArgs {
    u64 step;
    u64 handle;
};

extern "C" __global__ void turn(const __grid_constant__ TurnArgs a) {
    grid_wait();
    if (threadIdx.x == 0) cudaGraphSetConditional(a.handle, ((const Step*)a.step)->ended == 0);
}
