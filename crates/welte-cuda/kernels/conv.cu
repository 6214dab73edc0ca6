// Causal convolution of each channel over its own sequence. A thread takes one channel and walks the rows in order, because
// each row reads the inputs of the rows before it. The last taps - 1 inputs of a sequence are in its state.
#include "common.cuh"

struct ConvArgs {
    const Step *step;
    const RowState *states;
    const float *kernel; // [channel][tap], the last tap for the row itself
    const float *bias;   // may be null
    const float *x;
    float *y;
    float *state;     // of the layer: [page][taps - 1][n], oldest input first
    const u32 *pages; // the state's page of each slot
    u32 n;
    u32 taps;
    u32 act; // 0 none, 1 SiLU
    u32 x_stride;
    u32 y_stride;
    u32 pad;
};

extern "C" __global__ void __launch_bounds__(256) short_conv(const __grid_constant__ ConvArgs a) {
    grid_release();
    grid_wait();
    u32 c = blockIdx.x * 256 + threadIdx.x, kept = a.taps - 1;
    if (a.step->ended || c >= a.n) return;
    const float *kernel = a.kernel + (u64)c * a.taps;
    for (u32 r = 0; r < a.step->live; ++r) {
        if (has_stopped(a.step, a.states, r)) continue;
        Row row = a.step->rows[r];
        float *state = a.state + (u64)a.pages[row.slot] * kept * a.n + c;
        float x = a.x[(u64)r * a.x_stride + c], v = a.bias ? a.bias[c] : 0.0f;
        for (u32 j = 0; j < kept; ++j) {
            // Inputs before position 0 are zero, whatever the state holds.
            float before = row.position + j >= kept ? state[(u64)j * a.n] : 0.0f;
            v += kernel[j] * before;
            if (j > 0) state[(u64)(j - 1) * a.n] = before;
        }
        state[(u64)(kept - 1) * a.n] = x;
        v += kernel[kept] * x;
        a.y[(u64)r * a.y_stride + c] = a.act == 1 ? activate(0, v) : v;
    }
}
