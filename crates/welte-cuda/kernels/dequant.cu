// Widens a slab of a matrix to 16-bit floats, for a product by cuBLASLt. The slab is small enough to stay in the L2 cache
// until the product has read it.
// Macros: FORMAT_FILE.
#include "dequant.cuh"

struct DequantArgs {
    const u8* weight;
    void* out; // [rows][stride]
    u32 n;     // of the whole matrix
    u32 k;
    u32 first_row;
    u32 rows;
    u32 second_row; // if `both` is not 0, as many rows from here follow (gate, then up)
    u32 both;
    u32 stride; // elements, a multiple of 32
    u32 pad;
};

// Each thread widens units of 32 weights; neighbouring threads take neighbouring units. The lanes of a warp exchange their
// results through shared memory, so that every store of the warp writes whole cache lines.
extern "C" __global__ void __launch_bounds__(256) dequant(const __grid_constant__ DequantArgs a) {
    __shared__ uint4 exchange[8][128];
    const u32 units = a.stride / 32, lane = threadIdx.x % 32;
    const u32 all = units * (a.both ? 2 * a.rows : a.rows);
    uint4* const mine = exchange[threadIdx.x / 32];
    const Planes planes(a.weight, a.n, a.k);
    grid_release();
    grid_wait();
    for (u32 first = blockIdx.x * 256 + threadIdx.x - lane; first < all; first += gridDim.x * 256) {
        const u32 i = min(first + lane, all - 1);
        const u32 r = i / units;
        const u8* row[MOST_PLANES];
        planes.row(r < a.rows ? a.first_row + r : a.second_row + (r - a.rows), row);
        uint4 out[4];
        widen(load_unit(row, a.k, i % units), out);
#pragma unroll
        for (u32 p = 0; p < 4; p++) mine[lane * 4 + (p ^ (lane / 2 % 4))] = out[p];
        __syncwarp();
#pragma unroll
        for (u32 p = 0; p < 4; p++) {
            const u32 unit = p * 8 + lane / 4;
            const uint4 v = mine[unit * 4 + (lane % 4 ^ (unit / 2 % 4))];
            if (first + unit < all) ((uint4*)a.out)[(u64)(first + unit) * 4 + lane % 4] = v;
        }
        __syncwarp();
    }
}
