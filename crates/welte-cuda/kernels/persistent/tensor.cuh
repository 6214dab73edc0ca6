// Products of BF16 weights with one vector, on tensor cores. Lines of the matrix are columns of the second operand. The vector is split
// into two BF16 parts whose sum has 16 bits of precision: rows of the first operand.
//
// A row of weights has V::chunks chunks, and each warp has an eighth of every chunk, its *piece*. Runs of 32 elements of a piece are even
// or odd. A column of the operand is a line, a chunk, and whether its runs are even or odd; a row of the first operand is likewise a chunk
// and the parity of runs. Only results whose row and column have the same chunk and parity are used. So one instruction takes
// eight different runs of one line, or two of four lines.
//
// The definition of a sum, for steps of several rows too (rows_tensor.cuh): the first and second half of each eight elements have a sum
// each for both parts of the vector, in the order of the runs. These four are added, then even and odd runs, then chunks in order.
#pragma once
#include "persistent/product.cuh"

// The words of eight elements of both parts of a vector, in the order of the first operand: for the first half and for the second half.
struct SplitEight {
    u32 first[4], second[4];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (u32 i = 0; i < 4; i++) first[i] = second[i] = 0;
    }

    // From a staged piece (store_split).
    template <class V> __device__ __forceinline__ void read(const u8 *piece, u32 unit) {
        uint4 a = *(const uint4 *)(piece + unit * 16), b = *(const uint4 *)(piece + (Pieces<V>::EACH + unit) * 16);
        first[0] = a.x, first[1] = a.y, first[2] = a.z, first[3] = a.w;
        second[0] = b.x, second[1] = b.y, second[2] = b.z, second[3] = b.w;
    }
};

// The sums of a tile: of the first and second halves of each eight elements.
struct TensorSums {
    float first[4] = {0.0f, 0.0f, 0.0f, 0.0f}, second[4] = {0.0f, 0.0f, 0.0f, 0.0f};

    __device__ __forceinline__ void add(const SplitEight &x, uint4 w) {
        mma_bf16(first, x.first, w.x, w.y);
        mma_bf16(second, x.second, w.z, w.w);
    }

    // The sum of even and odd runs, for row `lane` / 8 and column pair `lane` % 4 of the operands.
    __device__ __forceinline__ float sum(u32 lane) const {
        bool odd = lane & 4;
        float a = odd ? first[1] + first[3] : first[0] + first[2], b = odd ? second[1] + second[3] : second[0] + second[2];
        float sum = a + b;
        return sum + __shfl_xor_sync(~0u, sum, 4);
    }
};

// A warp's part of the vector, in registers, and the places of the weights.
template <class V> struct TensorMultiplier {
    using L = Slot<V>;
    using T = Pieces<V>;
    static constexpr u32 CHUNKS = T::CHUNKS, LINES = L::SETS * V::rows;
    static constexpr u32 TILE_LINES = 4 / CHUNKS, TILES = (LINES + TILE_LINES - 1) / TILE_LINES, AT_ONCE = TILES % 2 == 0 && T::STEPS <= 3 ? 2 : 1;
    SplitEight x[T::STEPS];
    u32 start, at[T::STEPS]; // of the weights: bytes of the line, and from there on
    u32 chunk, unit, units; // of the first and second operand: lane's chunk, first unit in its piece, units of the piece

    __device__ __forceinline__ void begin(u32 warp, u32 lane) {
        chunk = lane / 8 % CHUNKS, unit = lane % 8, units = T::units(chunk, warp);
        u32 first = T::first(chunk, warp) + unit;
        start = opaque(T::FULL ? 16 * first : 0);
#pragma unroll
        for (u32 s = 0; s < T::STEPS; s++) {
            // Past the end of the piece a lane takes other weights of the line, and multiplies them by zero.
            at[s] = T::FULL ? 128 * s : opaque(16 * min(first + 8 * s, T::UNITS - 1));
        }
    }

    __device__ __forceinline__ void load(const u8 *slice, u32 lane) {
#pragma unroll
        for (u32 s = 0; s < T::STEPS; s++) {
            x[s].clear();
            // The remaining rows of the operand stay zero.
            bool live = T::FULL || 8 * s + unit < units;
            if (lane < 8 * CHUNKS && live) x[s].template read<V>(slice + chunk * T::BYTES, 8 * s + unit);
        }
    }

    // Adds this warp's sums for the `here` rows of a slot to `parts`, from row `done` on.
    __device__ __forceinline__ void multiply(const u8 *slot, float *parts, u32 done, u32 here, u32 lane) const {
#pragma unroll 1
        for (u32 base = 0; base < LINES; base += AT_ONCE * TILE_LINES) {
            if (L::SETS == 1 && base >= here) break;
            uint4 taken[AT_ONCE][T::STEPS];
            TensorSums sums[AT_ONCE];
#pragma unroll
            for (u32 m = 0; m < AT_ONCE; m++) {
                u32 line = base + m * TILE_LINES + lane / (8 * CHUNKS);
                if (LINES % (AT_ONCE * TILE_LINES)) line = min(line, LINES - 1);
                const u8 *p = slot + line * L::ROW + start;
#pragma unroll
                for (u32 s = 0; s < T::STEPS; s++) taken[m][s] = *(const uint4 *)(p + at[s]);
            }
#pragma unroll
            for (u32 s = 0; s < T::STEPS; s++)
#pragma unroll
                for (u32 m = 0; m < AT_ONCE; m++) sums[m].add(x[s], taken[m][s]);
#pragma unroll
            for (u32 m = 0; m < AT_ONCE; m++) {
                float one = sums[m].sum(lane), sum = one;
                // The results of chunk c are in lanes with this chunk both as row and as column.
                if constexpr (CHUNKS > 1) {
                    u32 from = lane % 4 / CHUNKS * CHUNKS;
                    sum = __shfl_sync(~0u, one, from);
#pragma unroll
                    for (u32 c = 1; c < CHUNKS; c++) sum += __shfl_sync(~0u, one, from + 9 * c);
                }
                u32 line = base + m * TILE_LINES + lane / CHUNKS, set = line / V::rows, row = line % V::rows;
                if (lane < 4 && lane % CHUNKS == 0 && row < here && line < LINES) parts[set * OUTPUTS / L::SETS + done + row] = sum;
            }
        }
    }
};

template <class V, bool TENSOR = V::chunks != 0> struct ChainMultiplierOf { using Type = LaneMultiplier<V>; };
template <class V> struct ChainMultiplierOf<V, true> { using Type = TensorMultiplier<V>; };
// The multiplier of a format in chains.
template <class V> using ChainMultiplier = typename ChainMultiplierOf<V>::Type;
