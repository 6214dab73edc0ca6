// The end of a turn of the decode loop: another one, unless the chain is over.
#include "common.cuh"

// Known to the driver, which binds it when the module is loaded.
extern "C" __device__ void cudaGraphSetConditional(u64 handle, u32 value);

struct TurnArgs {
    u64 step;
    u64 handle;
};

extern "C" __global__ void turn(const __grid_constant__ TurnArgs a) {
    grid_wait();
    if (threadIdx.x == 0) cudaGraphSetConditional(a.handle, ((const Step*)a.step)->ended == 0);
}
