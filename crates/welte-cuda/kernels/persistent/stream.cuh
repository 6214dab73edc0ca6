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

// On their way while attention is awaited, where that is how the weights pause.
constexpr u32 SLOTS_WHILE_ATTENDING = 2;

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
    static constexpr u32 BYTES = round_up(SETS * V::rows * ROW, 128);
    static_assert(BYTES * 3 <= RING_BYTES, "the ring is too small");
    // Rows of the other matrix lie n rows further on.
    static constexpr u64 MATRIX_ROWS = (u64)V::n * SETS;
};

__device__ __forceinline__ Signals look(u32 signals) {
    uint4 v = load_shared(signals);
    return {v.x, v.y, v.z, v.w};
}

// Where slots lie in the ring: one behind the other, and at its beginning where there is too little left at its end.
__device__ __forceinline__ u32 place_in_ring(u32 at, u32 bytes, u32 size) { return at + bytes > size ? 0 : at; }

// The streaming warp, of which one lane does everything: what it does for a slot takes time in which nothing is asked for.
struct Streamer {
    Shared *s;
    u64 policy; // read_once()
    u32 signals, ring, full, empty, size;
    u32 at;     // where the last slot ends
    u32 laid;   // the same, counted on and on from lap to lap
    u32 number; // of the next slot
    u32 given;  // slots known to be given back
    u32 oldest; // where the first one that is not begins, counted on and on; nothing where there is none
    u32 ahead;  // slots asked for and not known to be there
    u32 pauses; // while the block waits so: FOR_INPUT altogether, FOR_ATTENTION but for a few slots

    __device__ __forceinline__ void begin(Shared *shared, u32 pauses_then) {
        s = shared;
        pauses = pauses_then;
        policy = read_once();
        signals = shared_address((const void *)&s->signals);
        ring = shared_address(s->ring());
        full = shared_address(s->full);
        empty = full + SLOTS * 8;
        size = s->ring_bytes;
        at = laid = number = given = oldest = ahead = 0;
    }

    // What was asked for first is there. Copies need nobody else: they arrive, whoever has run out of patience.
    __device__ __forceinline__ void settle() {
        u32 first = number - ahead;
        while (!mbarrier_passed(full + first % SLOTS * 8, first / SLOTS & 1)) {
        }
        ahead--;
    }

    // There is room up to `end`, and a barrier. False: the chain is over. (When nobody waits any more, slots are given back whose
    // copies are still on their way: then two are on their way to one place, but never to one barrier, of which there are more.)
    __device__ __forceinline__ bool room(u32 end) {
        u32 tries = 0;
        while (given < number && (end - oldest > size || number - given == SLOTS)) {
            // Asked for beside the barrier; of a slot that is still to come it is nothing yet.
            u32 next = s->begins[(given + 1) % SLOTS];
            if (mbarrier_passed(empty + given % SLOTS * 8, given / SLOTS & 1)) {
                given++, oldest = next;
                continue;
            }
            Signals now = look(signals);
            if (now.done || now.dead) return false;
            // How long consumers wait is their affair.
            if (++tries % 16 == 0) __nanosleep(100);
        }
        return true;
    }

    // More on its way would only delay what others ask for; and while this block waits, anything may.
    __device__ __forceinline__ void await_turn(u32 most_ahead) {
        while (ahead >= most_ahead) settle();
        if (!pauses) return;
        u32 most_then = pauses == FOR_ATTENTION ? SLOTS_WHILE_ATTENDING : 0;
        for (Signals now = look(signals); now.hungry & pauses && ahead >= most_then && !now.dead; now = look(signals)) {
            if (ahead) settle();
            else __nanosleep(20);
        }
    }

    // `most_ahead`: slots that may be on their way.
    template <class V> __device__ __forceinline__ bool feed(const Instruction &in, Share share, u32 most_ahead) {
        using L = Slot<V>;
        constexpr u32 PLANES = L::F::PLANES, COPIES = L::SETS * PLANES;
        // Plane after plane, of a gate and its `up` in turn.
        u64 from[COPIES];
#pragma unroll
        for (u32 i = 0; i < COPIES; i++)
            from[i] = in.weight + L::MATRIX_ROWS * L::before(i / L::SETS) + (u64)(i % L::SETS * V::n + share.first) * L::stride(i / L::SETS);
        for (u32 row = 0; row < share.rows; row += V::rows) {
            u32 rows = min((u32)V::rows, share.rows - row), barrier = full + number % SLOTS * 8;
            u32 place = place_in_ring(at, L::BYTES, size), start = place == at ? laid : laid + size - at;
            if (!room(start + L::BYTES)) return false;
            if (given == number) oldest = start;
            // Nothing but the copies comes behind the wait for their turn: until they are asked for there is too little on its way.
            mbarrier_expect(barrier, rows * L::SETS * L::ROW);
            s->begins[number % SLOTS] = start;
            await_turn(most_ahead);
#pragma unroll
            for (u32 i = 0; i < COPIES; i++) {
                u32 to = V::rows * (L::SETS * L::before(i / L::SETS) + i % L::SETS * L::stride(i / L::SETS)), bytes = rows * L::stride(i / L::SETS);
                copy_bulk_by(policy, ring + place + to, (const void *)from[i], bytes, barrier);
                from[i] += bytes;
            }
            at = place + L::BYTES, laid = start + L::BYTES;
            number++, ahead++;
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
    u32 barriers, barrier, parity; // of the first slot and of the next: when it is there; SLOTS further on, when it is given back
    u32 size, at;
    const u8 *start;

    __device__ __forceinline__ void begin(Shared *s) {
        barriers = barrier = shared_address(s->full);
        size = s->ring_bytes;
        start = s->ring();
        parity = at = 0;
    }

    // The next slot.
    template <class V> __device__ __forceinline__ const u8 *slot() const { return start + place_in_ring(at, Slot<V>::BYTES, size); }

    // That and those behind it, of the same instruction.
    template <class V> __device__ __forceinline__ const u8 *slot(u32 n) const {
        constexpr u32 BYTES = Slot<V>::BYTES;
        u32 first = place_in_ring(at, BYTES, size), fit = (size - first) / BYTES;
        return start + (n < fit ? first + n * BYTES : (n - fit) * BYTES);
    }

    // When the next slot is there.
    __device__ __forceinline__ void take(Watch &w) const { wait_for(w, barrier, parity, PLACE_STREAM); }

    // When so many are.
    __device__ __forceinline__ void take(Watch &w, u32 n) const {
        for (u32 i = 0; i < n; i++) {
            u32 one = barrier + i * 8;
            bool turned = one >= barriers + SLOTS * 8;
            wait_for(w, turned ? one - SLOTS * 8 : one, parity ^ (u32)turned, PLACE_STREAM);
        }
        __syncwarp();
    }

    // This warp has read the next slot.
    template <class V> __device__ __forceinline__ void give(u32 lane) {
        __syncwarp();
        if (lane == 0) mbarrier_arrive(barrier + SLOTS * 8);
        at = place_in_ring(at, Slot<V>::BYTES, size) + Slot<V>::BYTES;
        barrier += 8;
        if (barrier == barriers + SLOTS * 8) barrier = barriers, parity ^= 1;
    }
};
