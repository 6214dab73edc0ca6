// Products of BF16 weights with the vectors of up to eight rows of a step, on tensor cores. The sums are those of tensor.cuh, bit for bit.
//
// Slots have four lines, or a multiple, of one chunk. A column of the second operand is one of four lines, and whether its runs are even
// or odd; a row of the first operand is one of four rows of the step, a *group*, and the parity of runs.
#pragma once
#include "persistent/tensor.cuh"
#include "persistent/tile.cuh"

// The first operand stays in registers for all lines, or that of the first groups, as far as there are registers. The rest is read for
// each tile.
template <class V, u32 GROUPS> struct RowsTensorMultiplier {
    using L = Slot<V>;
    using T = Pieces<V>;
    static constexpr u32 LINES = L::SETS * V::rows, TILE_LINES = 4, MOST_KEPT = 12;
    static constexpr u32 KEPT = GROUPS * T::STEPS <= MOST_KEPT ? GROUPS : MOST_KEPT / T::STEPS; // groups
    SplitEight x[T::STEPS][KEPT ? KEPT : 1];
    u32 first, last, units; // of the weights: this lane's first unit in the slot's lines, and the last unit; units of the piece

    __device__ __forceinline__ void begin(const WarpTask<V> &) {}

    // Begins a chunk.
    __device__ __forceinline__ void load(const WarpTask<V> &task) {
        u32 unit = task.lane % 8;
        units = T::units(task.chunk, task.warp);
        first = task.warp * T::EACH + unit;
        last = (task.chunk + 1 == T::CHUNKS ? T::LAST : T::CHUNK) - 1;
#pragma unroll
        for (u32 s = 0; s < T::STEPS; s++)
#pragma unroll
            for (u32 q = 0; q < KEPT; q++) read(task, s, q, x[s][q]);
    }

    __device__ __forceinline__ void read(const WarpTask<V> &task, u32 s, u32 group, SplitEight &to) const {
        u32 unit = 8 * s + task.lane % 8, row = group * GROUP_ROWS + task.lane / 8;
        to.clear();
        if (row < task.rows && (T::FULL || unit < units)) to.template read<V>(task.slice(row) + task.chunk % Staging<V>::PIECES * T::BYTES, unit);
    }

    __device__ __forceinline__ void multiply(const Ring &ring, const WarpTask<V> &task) {
        u32 lane = task.lane;
        const u8 *slot = ring.slot<V>();
#pragma unroll 1
        for (u32 base = 0; base < LINES; base += TILE_LINES) {
            if (L::SETS == 1 && base >= task.here) break;
            u32 line = base + lane / 8;
            if (LINES % TILE_LINES) line = min(line, LINES - 1);
            const u8 *p = slot + line * L::ROW;
            TensorSums sums[GROUPS];
            uint4 taken[T::STEPS];
#pragma unroll
            for (u32 s = 0; s < T::STEPS; s++) taken[s] = weights(p, s);
#pragma unroll
            for (u32 s = 0; s < T::STEPS; s++)
#pragma unroll
                for (u32 q = 0; q < GROUPS; q++) {
                    if (q < KEPT) {
                        sums[q].add(x[s][q < KEPT ? q : 0], taken[s]);
                    } else {
                        SplitEight other;
                        read(task, s, q, other);
                        sums[q].add(other, taken[s]);
                    }
                }
#pragma unroll
            for (u32 q = 0; q < GROUPS; q++) {
                float sum = sums[q].sum(lane);
                u32 result = base + lane % 4, row = q * GROUP_ROWS + lane / 8, n = result % V::rows;
                float *to = task.parts + row * WarpTask<V>::ROW_PARTS + result / V::rows * (OUTPUTS / L::SETS) + task.done + n;
                bool mine = !(lane & 4) && row < task.rows && result < LINES && n < task.here;
                if (mine) *to = task.chunk == 0 ? sum : *to + sum;
            }
        }
    }

    // The weights of a step. Past the end of the piece these are other weights of the line.
    __device__ __forceinline__ uint4 weights(const u8 *line, u32 s) const {
        u32 unit = first + 8 * s;
        return *(const uint4 *)(line + 16 * (T::FULL ? unit : min(unit, last)));
    }
};
