// The stream of weights: one warp of a block copies the rows that the block multiplies, in the order of the instructions and
// turn after turn, into a ring in shared memory. It waits for room and for nothing else: weights depend on no activation.
#pragma once
#include "persistent/formats.cuh"
#include "persistent/exchange.cuh"

// How a product's rows lie in a slot of the ring: plane after plane, V::rows rows of each; then, where a gate has its `up`,
// the same of those.
template <class V> struct Slot {
    using F = typename V::Format;
    static constexpr u32 SETS = V::output == ACT_MUL ? 2 : 1;
    __host__ __device__ static constexpr u32 stride(int p) { return round_up((V::k + F::elements(p) - 1) / F::elements(p) * F::bytes(p), 16); }
    __host__ __device__ static constexpr u32 before(int p) {
        u32 sum = 0;
        for (int i = 0; i < p; i++) sum += stride(i);
        return sum;
    }
    static constexpr u32 ROW = before(F::PLANES);
    static constexpr u32 BYTES = SETS * V::rows * ROW;
    static_assert(BYTES <= SLOT_BYTES, "a slot is too small");
    // Rows of the other matrix lie n rows further on.
    static constexpr u64 MATRIX_ROWS = (u64)V::n * SETS;
};

// The streaming warp. Lane i brings copy i of a slot: plane i modulo the planes, of the first or second set.
struct Streamer {
    Watch watch;
    u32 ring, full, empty;
    u32 slot, lap;           // where the next copy goes, and how often the ring went round (its parity counts)
    u32 oldest, oldest_lap;  // of what may be on its way
    u32 ahead;               // slots asked for and not known to be there

    __device__ __forceinline__ void begin(Shared *s, Fault *fault, long long patience) {
        watch = {s, fault, patience, 0, 0};
        ring = shared_address(s->ring);
        full = shared_address(s->full);
        empty = shared_address(s->empty);
        slot = lap = oldest = oldest_lap = ahead = 0;
    }

    __device__ __forceinline__ void past_oldest() {
        if (++oldest == SLOTS) oldest = 0, oldest_lap++;
        ahead--;
    }

    // What was asked for first is there.
    __device__ __forceinline__ void settle() {
        wait_for(watch, full + oldest * 8, oldest_lap & 1, PLACE_STREAM);
        past_oldest();
    }

    // A free slot. False: the chain is over.
    __device__ __forceinline__ bool room(u32 most_ahead) {
        Wait wait;
        while (!mbarrier_passed(empty + slot * 8, (lap & 1) ^ 1)) {
            if (watch.s->clerk.done || watch.s->dead) return false;
            // How long consumers wait is their affair.
            if (++wait.tries % 16 == 0) __nanosleep(100);
        }
        // More on its way would only delay what others ask for.
        while (ahead >= most_ahead) settle();
        return !watch.s->dead;
    }

    template <class V> __device__ __forceinline__ bool feed(const Instruction &in, const Share &share, u32 lane) {
        using L = Slot<V>;
        constexpr u32 PLANES = L::F::PLANES, COPIES = L::SETS * PLANES;
        constexpr u32 FIT = IN_FLIGHT / L::BYTES, MOST_AHEAD = FIT < 2 ? 2 : FIT < SLOTS ? FIT : SLOTS;
        // This lane's plane.
        u32 stride = 0, to = 0, set = lane / PLANES;
        u64 from = in.weight;
#pragma unroll
        for (u32 p = 0; p < PLANES; p++)
            if (lane % PLANES == p) {
                stride = L::stride(p);
                to = V::rows * (L::before(p) + set * L::ROW);
                from += L::MATRIX_ROWS * L::before(p) + (u64)(set * V::n + share.first) * L::stride(p);
            }
        for (u32 row = 0; row < share.rows; row += V::rows) {
            u32 rows = min((u32)V::rows, share.rows - row);
            if (!room(MOST_AHEAD)) return false;
            u32 barrier = full + slot * 8;
            if (lane == 0) mbarrier_expect(barrier, rows * L::SETS * L::ROW);
            __syncwarp();
            if (lane < COPIES) copy_bulk(ring + slot * SLOT_BYTES + to, (const void *)from, rows * stride, barrier);
            from += rows * stride;
            ahead++;
            if (++slot == SLOTS) slot = 0, lap++;
        }
        return true;
    }

    // Nothing may be on its way into the memory of a block that has left. Copies need nobody else: they arrive.
    __device__ __forceinline__ void drain() {
        while (ahead) {
            while (!mbarrier_passed(full + oldest * 8, oldest_lap & 1)) {
            }
            past_oldest();
        }
    }
};

// The consumers' end of it, in each warp. Slots are numbered on and on.
struct Ring {
    u32 full, empty;
    const u8 *start;
    u32 next; // the number of the instruction's first slot

    __device__ __forceinline__ void begin(Shared *s) {
        full = shared_address(s->full);
        empty = shared_address(s->empty);
        start = s->ring;
        next = 0;
    }

    __device__ __forceinline__ const u8 *take(Watch &w, u32 number) const {
        u32 slot = number % SLOTS;
        wait_for(w, full + slot * 8, number / SLOTS & 1, PLACE_STREAM);
        return start + slot * SLOT_BYTES;
    }

    // This warp has read it.
    __device__ __forceinline__ void give(u32 number, u32 lane) const {
        __syncwarp();
        if (lane == 0) mbarrier_arrive(empty + number % SLOTS * 8);
    }
};
