// Copies hidden states out of the exchange of a persistent kernel, for commands that are launched after it.
#include "common.cuh"

struct HiddenArgs {
    const Step *step;
    const u32 *order; // the step's rows in the order in which launches compute them
    const float *exchange; // of the launch's first row, where the vector begins
    float *x;
    u32 first;   // the launch's first row in this order
    u32 n;       // floats of the vector
    u32 stride;  // from one row of x to the next
    u32 between; // floats from one row's exchange to the next
};

// Block (row, stretch) takes a float per thread. The two lowest bits are a tag (persistent/exchange.cuh).
extern "C" __global__ void __launch_bounds__(256) hidden(const __grid_constant__ HiddenArgs a) {
    grid_release();
    grid_wait();
    u32 nth = a.first + blockIdx.x, i = blockIdx.y * 256 + threadIdx.x;
    if (a.step->ended || nth >= a.step->live || i >= a.n) return;
    u32 v = __float_as_uint(a.exchange[(u64)blockIdx.x * a.between + i]);
    a.x[(u64)a.order[nth] * a.stride + i] = __uint_as_float(v & ~3u);
}
