// Causal convolution of each channel over its own sequence. The last taps - 1 inputs of a sequence are in its state.
// Macro: TAPS.
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
    u32 act; // 0 none, 1 SiLU
    u32 x_stride;
    u32 y_stride;
};

constexpr u32 KEPT = TAPS - 1;

// The last inputs of one channel of a sequence, oldest first.
struct Window {
    float x[KEPT + 1]; // and the row's own input

    // The window of row r: of earlier rows of its slot, and of the state before the step.
    __device__ __forceinline__ void gather(const ConvArgs &a, u32 r, u32 slot, u32 c) {
        u32 found = 0;
        for (u32 q = r; q-- > 0 && found < KEPT;) {
            if (a.step->rows[q].slot != slot) continue;
            ++found;
#pragma unroll
            for (u32 j = 0; j < KEPT; ++j)
                if (j + found == KEPT) x[j] = a.x[(u64)q * a.x_stride + c];
        }
        const float *state = a.state + (u64)a.pages[slot] * KEPT * a.n + c;
#pragma unroll
        for (u32 j = 0; j < KEPT; ++j)
            if (j + found < KEPT) x[j] = state[(u64)(j + found) * a.n];
    }

    // Inputs before position 0 are zero, even if the state holds other numbers.
    __device__ __forceinline__ void take(u32 position, float own) {
#pragma unroll
        for (u32 j = 0; j < KEPT; ++j)
            if (position + j < KEPT) x[j] = 0.0f;
        x[KEPT] = own;
    }

    __device__ __forceinline__ float sum(const float (&kernel)[TAPS], float bias) const {
#pragma unroll
        for (u32 j = 0; j < TAPS; ++j) bias = fmaf(kernel[j], x[j], bias);
        return bias;
    }

    __device__ __forceinline__ void shift() {
#pragma unroll
        for (u32 j = 0; j < KEPT; ++j) x[j] = x[j + 1];
    }

    // Stores the window after a shift.
    __device__ __forceinline__ void store(const ConvArgs &a, u32 slot, u32 c) const {
        float *state = a.state + (u64)a.pages[slot] * KEPT * a.n + c;
#pragma unroll
        for (u32 j = 0; j < KEPT; ++j) state[(u64)j * a.n] = x[j];
    }
};

struct Kernel {
    float taps[TAPS], bias;

    __device__ __forceinline__ void load(const ConvArgs &a, u32 c) {
#pragma unroll
        for (u32 j = 0; j < TAPS; ++j) taps[j] = a.kernel[(u64)c * TAPS + j];
        bias = a.bias ? a.bias[c] : 0.0f;
    }
};

__device__ __forceinline__ void put(const ConvArgs &a, u32 r, u32 c, float v) { a.y[(u64)r * a.y_stride + c] = a.act == 1 ? activate(0, v) : v; }

// Generated rows: a thread takes one channel of all rows, in order.
extern "C" __global__ void __launch_bounds__(256) short_conv(const __grid_constant__ ConvArgs a) {
    grid_release();
    u32 c = blockIdx.x * 256 + threadIdx.x;
    Kernel kernel;
    if (c < a.n) kernel.load(a, c);
    grid_wait();
    if (a.step->ended || c >= a.n) return;
    for (u32 r = 0; r < a.step->live; ++r) {
        if (has_stopped(a.step, a.states, r)) continue;
        Row row = a.step->rows[r];
        Window window;
        window.gather(a, 0, row.slot, c);
        window.take(row.position, a.x[(u64)r * a.x_stride + c]);
        put(a, r, c, window.sum(kernel.taps, kernel.bias));
        window.shift();
        window.store(a, row.slot, c);
    }
}

#define CHANNELS 32
#define RUNS 16 // of rows

// Prompt rows: a warp takes a run of rows of 32 channels. The block has all runs, so that no state changes before all have read it.
extern "C" __global__ void __launch_bounds__(CHANNELS *RUNS) short_conv_rows(const __grid_constant__ ConvArgs a) {
    grid_release();
    u32 c = min(blockIdx.x * CHANNELS + threadIdx.x % CHANNELS, a.n - 1);
    bool own = blockIdx.x * CHANNELS + threadIdx.x % CHANNELS < a.n;
    Kernel kernel;
    kernel.load(a, c);
    grid_wait();
    if (a.step->ended) return;
    u32 live = a.step->live, run = (live + RUNS - 1) / RUNS, begin = threadIdx.x / CHANNELS * run, end = min(begin + run, live);
    Window window;
    for (u32 r = begin; r < end; ++r) {
        Row row = a.step->rows[r];
        if (r == begin || row.slot != a.step->rows[r - 1].slot) window.gather(a, r, row.slot, c);
        window.take(row.position, a.x[(u64)r * a.x_stride + c]);
        if (own) put(a, r, c, window.sum(kernel.taps, kernel.bias));
        window.shift();
    }
    __syncthreads();
    // The last row of each slot stores the state.
    for (u32 r = begin; r < end && own; ++r) {
        Row row = a.step->rows[r];
        u32 next = r + 1;
        while (next < live && a.step->rows[next].slot != row.slot) ++next;
        if (next < live) continue;
        Window last = window; // of the run's last row
        if (r + 1 < end) {
            last.gather(a, r, row.slot, c);
            last.take(row.position, a.x[(u64)r * a.x_stride + c]);
            last.shift();
        }
        last.store(a, row.slot, c);
    }
}
