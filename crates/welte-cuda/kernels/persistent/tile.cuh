// Lines of the ring in a block format, multiplied with the slices of up to eight rows of a step at once, on tensor cores.
//
// A tile is eight lines: the columns of the second operand. Lane (g, t) = (lane / 4, lane % 4) loads units t, t + 4, t + 8, ... of
// line g's slice. Four neighbouring units of all lines are a *chunk*. The first operand is the step's rows; both operands use the
// lanes' order of k within a chunk. A slot may have fewer lines than a tile, so V::span slots are multiplied together.
//
// A sum over the lanes t would mix four units with different scales. So a row of the operand stands for one row of the step
// and one of the four units, and is zero for the others. Row m has unit m % 4, of row m / 4 * 2 of the step for m below 8, and of row
// m / 4 * 2 - 3 above. These are four rows of the step, a *group*.
//
// The sums are those of product.cuh, bit for bit. There V::lanes lanes share a line; each adds its units in order, and then lanes are
// added in pairs. Here a chunk has the units of four of these lanes. With more lanes, every V::lanes / 4-th chunk is added up at a time.
// With two lanes, the line is one chunk, whose second half continues the sums of the first.
#pragma once
#include "persistent/product.cuh"
#include "persistent/rows.cuh"

// Units of a staged slice: whole chunks. The last one is filled up with zeros.
template <class V> constexpr u32 STAGED_UNITS = round_up(Partition<V>::EACH, 4);
// For block formats two rows are stored together, word by word, as the operand needs them.
template <class V> constexpr u32 ROWS_TOGETHER = V::Format::BLOCKS ? 2 : 1;
// Bytes beside a block of a row: its scale and sum, or its scale and the sums of its halves.
template <class F> constexpr u32 BLOCK_META_BYTES = F::HALVES ? 16 : 8;
// Distance of two slices in bytes: neighbouring ones use different banks.
template <class V, bool BLOCKS, bool TENSOR> constexpr u32 SLICE_BYTES_OF = (STAGED_UNITS<V> * 32 + 63) / 128 * 128 + 64;
template <class V> constexpr u32 SLICE_BYTES_OF<V, false, true> = Staging<V>::BYTES;
template <class V> constexpr u32 SLICE_BYTES_OF<V, true, false> = (STAGED_UNITS<V> * (64 + 2 * BLOCK_META_BYTES<typename V::Format>) + 63) / 128 * 128 + 64;
template <class V> constexpr u32 SLICE_BYTES = SLICE_BYTES_OF<V, V::Format::BLOCKS, V::chunks != 0>;

constexpr u32 TILE = 8;
constexpr u32 GROUP_ROWS = 4;

template <class V> struct Tiles {
    using L = Slot<V>;
    using P = Partition<V>;
    using F = typename V::Format;
    static constexpr u32 LINES = V::span * P::LINES, STEP = V::span * V::rows; // of all sets, and of each set
    static constexpr u32 CHUNKS = STAGED_UNITS<V> / 4;
    static constexpr u32 AT_ONCE = LINES > TILE ? 2 : 1; // tiles: the operand is read once for both

    // The planes of a line.
    __device__ static __forceinline__ void planes(const Ring &ring, u32 line, const u8 *(&p)[MOST_PLANES]) {
        const u8 *slot = V::span == 1 ? ring.slot<V>() : ring.slot<V>(line / P::LINES);
        u32 within = V::span == 1 ? line : line % P::LINES;
#pragma unroll
        for (int i = 0; i < F::PLANES; i++) p[i] = slot + P::LINES * L::before(i) + within * L::stride(i);
    }

    // The row of the matrix, among those of the slots, and the set that a line belongs to.
    __device__ static __forceinline__ u32 row(u32 line) { return line / P::LINES * V::rows + line % V::rows; }
    __device__ static __forceinline__ u32 set(u32 line) { return line % P::LINES / V::rows; }

    // The unit that a lane loads of chunk c. Past the end of the slice any unit will do: the operand is zero there.
    __device__ static __forceinline__ u32 unit(u32 warp, u32 c, u32 t) {
        u32 unit = warp * P::EACH + 4 * c + t;
        return P::EACH % 4 || !P::EVEN ? min(unit, P::UNITS - 1) : unit;
    }

    // Whether all lines from this one on are beyond the first `here` rows.
    __device__ static __forceinline__ bool beyond(u32 line, u32 here) {
        if constexpr (L::SETS == 1) return line >= here;
        return V::span > 1 && line / P::LINES * V::rows >= here;
    }
};

// A warp's part of a product, and where its results go.
template <class V> struct WarpTask {
    const u8 *slices;   // of this warp
    u32 rows;           // of the step
    float *parts;       // of this warp, for the first row
    u32 done, here;     // rows of the matrix that are in `parts` already, and those wanted from the slots
    u32 slots;          // that have arrived
    u32 chunk;          // of BF16 rows
    u32 warp, lane;

    static constexpr u32 ROW_PARTS = WARPS * OUTPUTS;

    // Rows beyond the step read any slice: their results are dropped.
    __device__ __forceinline__ const u8 *slice(u32 row) const { return slices + min(row, rows - 1) / ROWS_TOGETHER<V> * SLICE_BYTES<V>; }

    // The planes of this lane's line of a tile. Beyond the last line it is the last one: the results are dropped.
    __device__ __forceinline__ void planes(const Ring &ring, u32 tile, const u8 *(&p)[MOST_PLANES]) const {
        Tiles<V>::planes(ring, min(tile + lane / 4, slots * Partition<V>::LINES - 1), p);
    }

    __device__ __forceinline__ void store(u32 row, u32 line, float sum) const {
        using T = Tiles<V>;
        if (row < rows && line < T::LINES && T::row(line) < here) parts[row * ROW_PARTS + T::set(line) * OUTPUTS / Slot<V>::SETS + done + T::row(line)] = sum;
    }
};

// Stores the quantised quads of a row. Words 2j and 2j + 1 of all units come together, for two rows; then the scales and sums of
// one row and of the other.
template <class V, u32 ROUNDS> __device__ __forceinline__ void store_words(u8 *slice, u32 second, u32 lane, const float (&v)[ROUNDS][4]) {
    using F = typename V::Format;
    QuantisedQuads<ROUNDS> quantised(v);
#pragma unroll
    for (u32 r = 0; r < ROUNDS; r++) {
        u32 block = (lane + 32 * r) / 8, e = lane % 8;
        *(u32 *)(slice + (e / 2 * STAGED_UNITS<V> + block) * 16 + e % 2 * 8 + second * 4) = quantised.q[r];
        u8 *side = slice + STAGED_UNITS<V> * 64 + (second * STAGED_UNITS<V> + block) * BLOCK_META_BYTES<F>;
        float4 all = quantised.side[r];
        if (F::HALVES && e == 0) *(float4 *)side = all;
        if (!F::HALVES && e == 0) *(float2 *)side = make_float2(all.x, all.w);
    }
}

// A lane's part of the activations of a chunk: words of two rows, if the lane's row of the operand stands for the lane's unit; and the
// scales and sums for the unit of its results.
template <class V> struct ActivationChunk {
    using F = typename V::Format;
    u32 words[4][4]; // zero, and never loaded, in lanes that do not have the unit
    float scale[2], sum[2], low[2], high[2];

    __device__ __forceinline__ void begin() {
#pragma unroll
        for (u32 i = 0; i < 16; i++) words[i / 4][i % 4] = 0;
    }

    // `slice` and `sides` point to the start of the chunk.
    __device__ __forceinline__ void read(const u8 *slice, const u8 *sides, u32 g, u32 t) {
        if (g % 4 == t)
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                uint4 w = *(const uint4 *)(slice + (j * STAGED_UNITS<V> + t) * 16);
                words[j][0] = w.x, words[j][1] = w.y, words[j][2] = w.z, words[j][3] = w.w;
            }
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            const u8 *side = sides + (i * STAGED_UNITS<V> + g % 4) * BLOCK_META_BYTES<F>;
            if constexpr (F::HALVES) {
                float4 all = *(const float4 *)side;
                scale[i] = all.x, low[i] = all.y, high[i] = all.z;
            } else {
                float2 all = *(const float2 *)side;
                scale[i] = all.x, sum[i] = F::CENTRE ? (float)-F::CENTRE * all.y : all.y;
            }
        }
    }

    // Adds the block's part for row i and line j of this lane to sums[i][j]. `lane` has the part of block `lane` / 4 % 4, and `from` is
    // the lane that has the first line's block.
    template <u32 LANES> __device__ __forceinline__ void add(const Block32 &w, u32 lane, u32 from, float (&sums)[2][2]) const {
        constexpr u32 PARTS = F::HALVES ? 2 : 1;
        int dots[PARTS][4] = {};
#pragma unroll
        for (u32 j = 0; j < 4; j++)
            mma_s8(dots[j * PARTS / 4], words[j], w.q[2 * j], w.q[2 * j + 1]);
#pragma unroll
        for (u32 j = 0; j < 2; j++) {
            float d[PARTS], m[PARTS];
#pragma unroll
            for (u32 h = 0; h < PARTS; h++) {
                d[h] = __shfl_sync(~0u, w.d[h], from + 4 * j);
                m[h] = F::OFFSET && !F::CENTRE ? __shfl_sync(~0u, w.m[h], from + 4 * j) : 0.0f;
            }
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                auto with = [&](float sum_before) {
                    float dot = (float)dots[0][2 * i + j], to = sum_before;
                    if constexpr (F::HALVES) {
                        to = fmaf(scale[i], fmaf(d[0], dot, d[1] * (float)dots[PARTS - 1][2 * i + j]), to);
                        to = fmaf(m[0], low[i], fmaf(m[PARTS - 1], high[i], to));
                    } else if constexpr (F::CENTRE != 0) {
                        to = fmaf(d[0], fmaf(scale[i], dot, sum[i]), to);
                    } else {
                        to = fmaf(d[0], scale[i] * dot, to);
                        if constexpr (F::OFFSET) to = fmaf(m[0], sum[i], to);
                    }
                    return to;
                };
                sums[i][j] = with(sums[i][j]);
                if constexpr (LANES == 2) {
                    // The first half of the line is complete; the second half adds to it.
                    float first = __shfl_xor_sync(~0u, sums[i][j], 8);
                    sums[i][j] = lane & 8 ? with(first) : 0.0f;
                }
            }
        }
    }
};

// Adds over four lanes that are 4 apart, first over neighbours. Lane n of them returns v[n / 2][n % 2].
__device__ __forceinline__ float sum_over_units(const float (&v)[2][2], u32 lane) {
    bool odd = lane & 4, second = lane & 8;
    float a = odd ? v[0][1] : v[0][0], b = odd ? v[1][1] : v[1][0];
    a += __shfl_xor_sync(~0u, odd ? v[0][0] : v[0][1], 4);
    b += __shfl_xor_sync(~0u, odd ? v[1][0] : v[1][1], 4);
    return (second ? b : a) + __shfl_xor_sync(~0u, second ? a : b, 8);
}

// The sums of four lanes of product.cuh at a time, as they are added in pairs.
struct PairedSums {
    float one, two, four;

    // Adds the n-th sum. After the last one, whose number must be below 8, the result is the whole sum.
    __device__ __forceinline__ float add(u32 n, float sum) {
        if (n & 1) sum += one;
        if ((n & 3) == 3) sum += two;
        if ((n & 7) == 7) sum += four;
        if (!(n & 1)) one = sum;
        else if (!(n & 2)) two = sum;
        else if (!(n & 4)) four = sum;
        return sum;
    }
};

// The operand for up to GROUPS groups of rows. It stays in registers for all tiles of a product if a slice is short enough. Otherwise
// it is read for each tile: two chunks of one group at a time, or one chunk of two groups.
template <class V, u32 GROUPS> struct BlockMultiplier {
    using T = Tiles<V>;
    using Operand = ActivationChunk<V>[GROUPS];
    using Sums = float[T::AT_ONCE][GROUPS][2][2];
    // Formats with offsets need registers for these.
    static constexpr u32 CHUNKS = T::CHUNKS, MOST_KEPT = T::F::OFFSET && !T::F::CENTRE ? 3 : 4;
    static constexpr bool KEEPS = CHUNKS * GROUPS <= MOST_KEPT;
    static constexpr u32 KEPT = KEEPS ? CHUNKS : GROUPS == 1 ? 2 : 1;
    static constexpr u32 LANES = Partition<V>::LANES, STRIDE = LANES > 4 ? LANES / 4 : 1; // of chunks that are added up at a time
    static_assert(LANES > 2 || CHUNKS == 1, "two lanes per line are for lines of one chunk");
    Operand x[KEPT];

    __device__ __forceinline__ void begin(const WarpTask<V> &task) {
#pragma unroll
        for (u32 i = 0; i < KEPT; i++) {
#pragma unroll
            for (u32 q = 0; q < GROUPS; q++) x[i][q].begin();
            if (KEEPS) read(task, i, x[i]);
        }
    }

    __device__ static __forceinline__ void read(const WarpTask<V> &task, u32 c, Operand &to) {
        u32 lane = opaque(task.lane), g = lane / 4, t = lane % 4;
#pragma unroll
        for (u32 q = 0; q < GROUPS; q++) {
            const u8 *slice = task.slice(q * GROUP_ROWS + g / 4 * 2);
            to[q].read(slice + c * 64, slice + STAGED_UNITS<V> * 64 + c * 4 * BLOCK_META_BYTES<typename V::Format>, g, t);
        }
    }

    // Adds the products of chunk c with the tiles whose planes are `p`.
    __device__ static __forceinline__ void add(const WarpTask<V> &task, const Operand &x, u32 c, const u8 *(&p)[T::AT_ONCE][MOST_PLANES], Sums &sums) {
        u32 lane = opaque(task.lane), g = lane / 4, t = lane % 4;
#pragma unroll
        for (u32 m = 0; m < T::AT_ONCE; m++) {
            Block32 w = V::Format::load(p[m], T::unit(task.warp, c, t));
#pragma unroll
            for (u32 q = 0; q < GROUPS; q++) x[q].template add<LANES>(w, lane, 8 * t + g % 4, sums[m][q]);
        }
    }

    // Adds up every STRIDE-th chunk from the first on.
    __device__ __forceinline__ void add_up(const WarpTask<V> &task, u32 first, const u8 *(&p)[T::AT_ONCE][MOST_PLANES], Sums &sums) {
        if constexpr (KEEPS) {
#pragma unroll
            for (u32 c = 0; c < CHUNKS; c++)
                if (c % STRIDE == first) add(task, x[c], c, p, sums);
        } else {
            u32 c = first;
#pragma unroll 1
            for (; c + (KEPT - 1) * STRIDE < CHUNKS; c += KEPT * STRIDE) {
#pragma unroll
                for (u32 i = 0; i < KEPT; i++) read(task, c + i * STRIDE, x[i]);
#pragma unroll
                for (u32 i = 0; i < KEPT; i++) add(task, x[i], c + i * STRIDE, p, sums);
            }
            if (KEPT > 1 && c < CHUNKS) {
                read(task, c, x[0]);
                add(task, x[0], c, p, sums);
            }
        }
    }

    __device__ __forceinline__ void multiply(const Ring &ring, const WarpTask<V> &task) {
        u32 g = task.lane / 4, t = task.lane % 4;
#pragma unroll 1
        for (u32 base = 0; base < T::LINES; base += T::AT_ONCE * TILE) {
            if (T::beyond(base, task.here)) break;
            const u8 *p[T::AT_ONCE][MOST_PLANES];
#pragma unroll
            for (u32 m = 0; m < T::AT_ONCE; m++) task.planes(ring, base + m * TILE, p[m]);
            PairedSums all[T::AT_ONCE][GROUPS] = {};
#pragma unroll (KEEPS ? STRIDE : 1)
            for (u32 n = 0; n < STRIDE; n++) {
                Sums sums = {};
                add_up(task, n, p, sums);
#pragma unroll
                for (u32 m = 0; m < T::AT_ONCE; m++)
#pragma unroll
                    for (u32 q = 0; q < GROUPS; q++) {
                        float sum = all[m][q].add(n, sum_over_units(sums[m][q], task.lane));
                        if (n + 1 == STRIDE) task.store(q * GROUP_ROWS + g / 4 * 2 + g % 4 / 2, base + m * TILE + 2 * t + g % 2, sum);
                    }
            }
        }
    }
};
