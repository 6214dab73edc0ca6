// The stream of weights: one warp of a block copies the rows that the block multiplies, in the order of the instructions and
// turn after turn, into a ring in shared memory. Weights depend on no activation: it waits for room, and where that helps leaves
// the way to the block's input while that is awaited.
#pragma once
#include "persistent/formats.cuh"
#include "persistent/exchange.cuh"

// What becomes of a product's results.
#define STORE 0
#define ADD 1
#define ACT_MUL 2
#define LOGITS 3

// How a product's rows lie in a slot of the ring: plane after plane, V::rows rows of each and, where a gate has its `up`, as
// many of that.
template <class V> struct Slot {
    using F = typename V::Format;
    static constexpr u32 SETS = V::output == ACT_MUL ? 2 : 1;
    __host__ __device__ static constexpr u32 stride(int p) { return round_up((V::k + F::elements(p) - 1) / F::elements(p) * F::bytes(p), 16); }
    // No loop: that would be gone through for every row, at run time.
    __host__ __device__ static constexpr u32 before(int p) { return upto<0>(p) + upto<1>(p) + upto<2>(p) + upto<3>(p); }
    template <int PLANE> __host__ __device__ static constexpr u32 upto(int p) {
        if constexpr (PLANE < F::PLANES) return p > PLANE ? stride(PLANE) : 0;
        return 0;
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
    u64 policy; // read_once()
    u32 ring, full, empty, slots;
    u32 slot, lap;           // where the next copy goes, and how often the ring went round (its parity counts)
    u32 oldest, oldest_lap;  // of what may be on its way
    u32 ahead;               // slots asked for and not known to be there
    bool pauses;             // while the block waits for its input
    u32 more;                // slots that may be on their way beyond the usual number

    __device__ __forceinline__ void begin(Shared *s, Fault *fault, long long patience, bool pauses_then, u32 slots_more) {
        watch = {s, fault, patience, 0, 0, 0, 0};
        pauses = pauses_then;
        more = slots_more;
        policy = read_once();
        ring = shared_address(s->ring());
        full = shared_address(s->full);
        empty = shared_address(s->empty);
        slots = s->slots;
        slot = lap = oldest = oldest_lap = ahead = 0;
    }

    __device__ __forceinline__ void past_oldest() {
        if (++oldest == slots) oldest = 0, oldest_lap++;
        ahead--;
    }

    // What was asked for first is there. Copies need nobody else: they arrive, whoever has run out of patience.
    __device__ __forceinline__ void settle() {
        while (!mbarrier_passed(full + oldest * 8, oldest_lap & 1)) {
        }
        past_oldest();
    }

    // The slot is free. False: the chain is over.
    __device__ __forceinline__ bool room() {
        Wait wait;
        while (!mbarrier_passed(empty + slot * 8, (lap & 1) ^ 1)) {
            if (watch.s->clerk.done || watch.s->dead) return false;
            // How long consumers wait is their affair.
            if (++wait.tries % 16 == 0) __nanosleep(100);
        }
        // When nobody waits any more, slots are given back whose copies are still on their way.
        return !watch.s->dead;
    }

    // More on its way would only delay what others ask for; and while this block waits for its input, anything may.
    __device__ __forceinline__ void await_turn(u32 most_ahead) {
        while (ahead >= most_ahead) settle();
        while (pauses && watch.s->hungry && !watch.s->dead) {
            if (ahead) settle();
            else __nanosleep(20);
        }
    }

    // Where plane P of an instruction's rows comes from and goes to, for the lanes that bring it.
    template <class V, int P> __device__ __forceinline__ void plane(const Instruction &in, const Share &share, u32 lane, u32 &stride, u32 &to, u64 &from) {
        using L = Slot<V>;
        if constexpr (P < L::F::PLANES) {
            constexpr u32 STRIDE = L::stride(P), BEFORE = L::before(P);
            if (lane % L::F::PLANES != P) return;
            u32 set = lane / L::F::PLANES;
            stride = STRIDE;
            to = V::rows * (L::SETS * BEFORE + set * STRIDE);
            from = in.weight + L::MATRIX_ROWS * BEFORE + (u64)(set * V::n + share.first) * STRIDE;
        }
    }

    template <class V> __device__ __forceinline__ bool feed(const Instruction &in, const Share &share, u32 lane) {
        using L = Slot<V>;
        constexpr u32 COPIES = L::SETS * L::F::PLANES;
        // No more than the ring has: a barrier's parity does not tell a copy from the last but one into the same slot.
        constexpr u32 FIT = IN_FLIGHT / L::BYTES, USUAL = FIT < 2 ? 2 : FIT;
        u32 most_ahead = min(USUAL + more, slots);
        u32 stride = 0, to = 0;
        u64 from = 0;
        plane<V, 0>(in, share, lane, stride, to, from);
        plane<V, 1>(in, share, lane, stride, to, from);
        plane<V, 2>(in, share, lane, stride, to, from);
        plane<V, 3>(in, share, lane, stride, to, from);
        for (u32 row = 0; row < share.rows; row += V::rows) {
            u32 rows = min((u32)V::rows, share.rows - row), barrier = full + slot * 8;
            if (!__all_sync(~0u, room())) return false;
            // Nothing but the copies comes behind the wait for their turn: until they are asked for there is too little on its way.
            if (lane == 0) mbarrier_expect(barrier, rows * L::SETS * L::ROW);
            __syncwarp();
            await_turn(most_ahead);
            if (lane < COPIES) copy_bulk_by(policy, ring + slot * SLOT_BYTES + to, (const void *)from, rows * stride, barrier);
            from += rows * stride;
            ahead++;
            if (++slot == slots) slot = 0, lap++;
        }
        return true;
    }

    // Nothing may be on its way into the memory of a block that has left.
    __device__ __forceinline__ void drain() {
        while (ahead) settle();
    }
};

// The consumers' end of it, in each warp. All of them take every slot.
struct Ring {
    u32 full, empty;
    const u8 *start;
    u32 slots, slot, parity;

    __device__ __forceinline__ void begin(Shared *s) {
        full = shared_address(s->full);
        empty = shared_address(s->empty);
        start = s->ring();
        slots = s->slots;
        slot = parity = 0;
    }

    // The next slot, when it is there.
    __device__ __forceinline__ const u8 *take(Watch &w) const {
        wait_for(w, full + slot * 8, parity, PLACE_STREAM);
        return start + slot * SLOT_BYTES;
    }

    // This warp has read it.
    __device__ __forceinline__ void give(u32 lane) {
        __syncwarp();
        if (lane == 0) mbarrier_arrive(empty + slot * 8);
        if (++slot == slots) slot = 0, parity ^= 1;
    }

    // The slot that comes n after the next one; the ring is longer.
    __device__ __forceinline__ u32 ahead(u32 n) const { return slot + n < slots ? slot + n : slot + n - slots; }
    __device__ __forceinline__ const u8 *slot_at(u32 n) const { return start + ahead(n) * SLOT_BYTES; }

    // The next `n` slots, when all of them are there.
    __device__ __forceinline__ void take_all(Watch &w, u32 n) const {
        for (u32 i = 0; i < n; i++) wait_for(w, full + ahead(i) * 8, parity ^ (u32)(slot + i >= slots), PLACE_STREAM);
        __syncwarp();
    }
};
