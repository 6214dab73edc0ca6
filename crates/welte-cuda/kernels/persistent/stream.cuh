// The stream of weights. One warp of a block copies the rows that the block multiplies into a ring in shared memory, in the order of
// the instructions and turn after turn. Weights depend on no activation, so the warp waits only for room; where tuning found it
// better, it also pauses while the block waits for its input, to leave the memory bus to that.
#pragma once
#include "persistent/formats.cuh"
#include "persistent/exchange.cuh"

// Where the results of a product go.
enum class Output : u32 {
    Store,  // they replace the output
    Add,    // they are added to the output
    ActMul, // the activation of the gate's results times those of `up`
    Act,    // their activation replaces the output
    Logits,
    Hold,   // the block keeps them for the product with the next columns
};

// Lanes of the streaming warp that copy. With bulk copies one lane does all the work: no time may pass between a free slot and its
// copies. Without, every lane copies, and the first one does everything else.
constexpr u32 COPYING_LANES = BULK_COPIES ? 1 : 32;

// Slots in flight while the block waits for attention, where weights pause for it.
constexpr u32 SLOTS_WHILE_ATTENDING = 2;

// The planes of a row of V's matrix.
template <class V> struct RowLayout {
    using F = typename V::Format;
    __host__ __device__ static constexpr u32 stride(int p) { return round_up((V::k + F::elements(p) - 1) / F::elements(p) * F::bytes(p), 16); }
    // No loop: the compiler would run it for every row.
    __host__ __device__ static constexpr u32 before(int p) { return upto<0>(p) + upto<1>(p) + upto<2>(p) + upto<3>(p); }
    template <int PLANE> __host__ __device__ static constexpr u32 upto(int p) {
        if constexpr (PLANE < F::PLANES) return p > PLANE ? stride(PLANE) : 0;
        return 0;
    }
};

// Whether slots have a chunk of each line (partition.cuh), and not whole lines: in a step, where BF16 rows have several chunks.
template <class V> constexpr bool BY_CHUNKS = IS_STEP && V::chunks > 1;
// Bytes of a chunk of a BF16 row, and of the last one.
template <class V> constexpr u32 CHUNK_BYTES = (V::k / 8 + V::chunks - 1) / V::chunks * 16;
template <class V> constexpr u32 LAST_CHUNK_BYTES = V::k * 2 - (V::chunks - 1) * CHUNK_BYTES<V>;

template <class V, bool CHUNKED = BY_CHUNKS<V>> constexpr u32 LINE_BYTES = RowLayout<V>::before(V::Format::PLANES);
template <class V> constexpr u32 LINE_BYTES<V, true> = CHUNK_BYTES<V>;

// The layout of a slot: plane after plane, of each V::rows rows and, where gate and up are multiplied together, as many rows of
// `up`.
template <class V> struct Slot : RowLayout<V> {
    using F = typename V::Format;
    static constexpr u32 SETS = V::output == Output::ActMul ? 2 : 1;
    static constexpr u32 ROW = LINE_BYTES<V>;
    static constexpr u32 BYTES = round_up(SETS * V::rows * ROW, 128);
    static_assert(BYTES * 3 <= RING_BYTES, "the ring is too small");
    // The rows of `up` follow n rows after those of the gate. Experts follow each other.
    static constexpr u64 MATRIX_ROWS = (u64)V::n * SETS * (V::used ? V::experts : 1);
    // Rows whose results wait together in a chain.
    static constexpr u32 ROOM = OUTPUTS / SETS < CONSUMERS ? OUTPUTS / SETS : CONSUMERS;
    // Rows whose results wait together in a step.
    static constexpr u32 STEP_SEGMENT = OUTPUTS / SETS / (V::span * V::rows) * (V::span * V::rows);
};

// Rows of the next slot of an experts' product, for the block's rows from `done` on. Gate and up of the chosen experts are one matrix of
// V::used * V::n rows. A slot has rows of one expert, and results that wait together.
template <class V> __device__ __forceinline__ u32 expert_rows(Share share, u32 done) {
    u32 rows = min((u32)V::rows, min(share.rows - done, V::n - (share.first + done) % V::n));
    return min(rows, Slot<V>::ROOM - done % Slot<V>::ROOM);
}

__device__ __forceinline__ Signals load_signals(u32 signals) {
    uint4 v = load_shared(signals);
    return {v.x, v.y, v.z, v.w};
}

// Slots are placed one after the other, and at the start of the ring where its end is too short.
__device__ __forceinline__ u32 slot_offset(u32 at, u32 bytes, u32 size) { return at + bytes > size ? 0 : at; }

// The streaming warp. Only the first lane knows the state of the ring.
struct Streamer {
    Shared *s;
    u64 policy; // read_once()
    u32 signals, ring, full, empty, size;
    u32 at;            // end of the last slot
    u32 end_unwrapped; // the same, counted through all laps of the ring
    u32 number;        // of the next slot
    u32 released;      // slots known to be released
    u32 oldest_start;  // unwrapped start of the first slot that is not released, if there is one
    u32 in_flight;     // slots requested and not known to have arrived
    u32 pause;         // AWAITS_INPUT: all copies wait while the block does; AWAITS_ATTENTION: all but a few
    u32 choices;       // of experts, that have been awaited

    __device__ __forceinline__ void begin(Shared *shared, u32 pause_on) {
        s = shared;
        pause = pause_on;
        policy = read_once();
        signals = shared_address((const void *)&s->signals);
        ring = shared_address(s->ring());
        full = shared_address(s->full);
        empty = full + SLOTS * 8;
        size = s->ring_bytes;
        at = end_unwrapped = number = released = oldest_start = in_flight = choices = 0;
    }

    // Waits for the oldest copies in flight. They arrive without help from other threads.
    __device__ __forceinline__ void await_oldest() {
        u32 first = number - in_flight;
        while (!mbarrier_passed(full + first % SLOTS * 8, first / SLOTS & 1)) {
        }
        in_flight--;
    }

    // Waits until there is room up to `end`, and a free barrier. Returns false when the chain is over. (After a fault consumers release
    // slots whose copies are still in flight. Then two copies may be in flight to one place, but never to one barrier.)
    __device__ __forceinline__ bool wait_for_room(u32 end) {
        u32 tries = 0;
        while (released < number && (end - oldest_start > size || number - released == SLOTS)) {
            // Load it together with the barrier. Of a slot that does not exist yet the value is not used.
            u32 next = s->slot_starts[(released + 1) % SLOTS];
            if (mbarrier_passed(empty + released % SLOTS * 8, released / SLOTS & 1)) {
                released++, oldest_start = next;
                continue;
            }
            Signals now = load_signals(signals);
            if (now.done || now.gave_up) return false;
            // Consumers take as long as they need: there is no limit here.
            if (++tries % 16 == 0) __nanosleep(100);
        }
        return true;
    }

    // More copies in flight would only delay other loads; while this block waits for its input, any copy may.
    __device__ __forceinline__ void throttle(u32 max_in_flight) {
        while (in_flight >= max_in_flight) await_oldest();
        if (!pause) return;
        u32 max_then = pause == AWAITS_ATTENTION ? SLOTS_WHILE_ATTENDING : 0;
        for (Signals now = load_signals(signals); now.awaiting & pause && in_flight >= max_then && !now.gave_up; now = load_signals(signals)) {
            if (in_flight) await_oldest();
            else __nanosleep(20);
        }
    }

    // Where the next slot goes.
    struct Place {
        u32 to, start, barrier; // of the ring, unwrapped
    };

    // Waits until the next slot, of `bytes` bytes, may be requested. Returns false when the chain is over.
    template <class V> __device__ __forceinline__ bool open_slot(u32 bytes, u32 max_in_flight, Place &place) {
        if (BULK_COPIES) return claim_slot<V>(bytes, max_in_flight, place);
        bool open = threadIdx.x % 32 == 0 && claim_slot<V>(bytes, max_in_flight, place);
        place.to = __shfl_sync(~0u, place.to, 0), place.barrier = __shfl_sync(~0u, place.barrier, 0);
        return __shfl_sync(~0u, (u32)open, 0);
    }

    // The same, for one lane.
    template <class V> __device__ __forceinline__ bool claim_slot(u32 bytes, u32 max_in_flight, Place &place) {
        constexpr u32 BYTES = Slot<V>::BYTES;
        place.barrier = full + number % SLOTS * 8;
        place.to = slot_offset(at, BYTES, size), place.start = place.to == at ? end_unwrapped : end_unwrapped + size - at;
        if (!wait_for_room(place.start + BYTES)) return false;
        if (released == number) oldest_start = place.start;
        // Only the copies come after this wait: until they are issued too little is in flight.
        if (BULK_COPIES) mbarrier_expect(place.barrier, bytes);
        s->slot_starts[number % SLOTS] = place.start;
        throttle(max_in_flight);
        return true;
    }

    // Copies part of a slot: multiples of 16 bytes.
    __device__ __forceinline__ void copy(const Place &place, u32 to, u64 from, u32 bytes) {
        to += ring + place.to;
#if BULK_COPIES
        copy_bulk_by(policy, to, (const void *)from, bytes, place.barrier);
#else
#pragma unroll 1
        for (u32 i = threadIdx.x % 32 * 16; i < bytes; i += 32 * 16) copy_async_by(policy, to + i, (const void *)(from + i));
#endif
    }

    // Called after the copies of a slot.
    template <class V> __device__ __forceinline__ void close_slot(const Place &place) {
        if (!BULK_COPIES) arrive_after_copies(place.barrier);
        at = place.to + Slot<V>::BYTES, end_unwrapped = place.start + Slot<V>::BYTES;
        number++, in_flight++;
    }

    // Streams a block's rows of one instruction. `max_in_flight` counts slots.
    template <class V> __device__ __forceinline__ bool feed(const Instruction &in, Share share, u32 max_in_flight) {
#if CHOSEN
        if constexpr (V::used != 0) return feed_experts<V>(in, share, max_in_flight);
#endif
        if constexpr (BY_CHUNKS<V>) return feed_chunks<V>(in, share, max_in_flight);
        if constexpr (V::row_k != V::k) return feed_columns<V>(in, share, max_in_flight);
        using L = Slot<V>;
        constexpr u32 PLANES = L::F::PLANES, COPIES = L::SETS * PLANES;
        // Plane after plane; within a plane gate and up in turn.
        u64 from[COPIES];
#pragma unroll
        for (u32 i = 0; i < COPIES; i++)
            from[i] = in.weight + L::MATRIX_ROWS * L::before(i / L::SETS) + (u64)(i % L::SETS * V::n + share.first) * L::stride(i / L::SETS);
        for (u32 row = 0; row < share.rows; row += V::rows) {
            u32 rows = min((u32)V::rows, share.rows - row);
            Place place;
            if (!open_slot<V>(rows * L::SETS * L::ROW, max_in_flight, place)) return false;
#pragma unroll
            for (u32 i = 0; i < COPIES; i++) {
                u32 to = V::rows * (L::SETS * L::before(i / L::SETS) + i % L::SETS * L::stride(i / L::SETS)), bytes = rows * L::stride(i / L::SETS);
                copy(place, to, from[i], bytes);
                from[i] += bytes;
            }
            close_slot<V>(place);
        }
        return true;
    }

#if CHOSEN
    // Waits for the next choice of experts. Returns false when the chain is over.
    __device__ __forceinline__ bool await_choice() {
        bool there = threadIdx.x % 32 != 0;
        while (!there) {
            there = mbarrier_passed(shared_address(&s->chosen), choices & 1);
            Signals now = load_signals(signals);
            if (!there && (now.done || now.gave_up)) break;
        }
        if (!BULK_COPIES) {
            __syncwarp(); // the other lanes read the choice too
            there = __shfl_sync(~0u, (u32)there, 0);
        }
        choices++;
        return there;
    }

    // The same, with the matrices of the chosen experts.
    template <class V> __device__ __forceinline__ bool feed_experts(const Instruction &in, Share share, u32 max_in_flight) {
        using L = Slot<V>;
        constexpr u32 COPIES = L::SETS * L::F::PLANES;
        constexpr bool ADDS = V::output == Output::Add || V::output == Output::Store; // a sum: all experts have the same rows
        if (in.flags & AWAITS_CHOICE && !await_choice()) return false;
        const u32 *experts = s->choices[(choices - 1) & 1].experts;
        for (u32 i = 0; i < (ADDS ? V::used : 1); i++)
            for (u32 done = 0; done < share.rows;) {
                u32 row = share.first + done, rows = expert_rows<V>(share, done), expert = experts[ADDS ? i : row / V::n];
                u64 line = (u64)expert * (L::SETS * V::n) + row % V::n, from[COPIES];
#pragma unroll
                for (u32 c = 0; c < COPIES; c++) from[c] = in.weight + L::MATRIX_ROWS * L::before(c / L::SETS) + (line + c % L::SETS * V::n) * L::stride(c / L::SETS);
                Place place;
                if (!open_slot<V>(rows * L::SETS * L::ROW, max_in_flight, place)) return false;
#pragma unroll
                for (u32 c = 0; c < COPIES; c++) {
                    u32 to = V::rows * (L::SETS * L::before(c / L::SETS) + c % L::SETS * L::stride(c / L::SETS));
                    copy(place, to, from[c], rows * L::stride(c / L::SETS));
                }
                close_slot<V>(place);
                done += rows;
            }
        return true;
    }
#endif

    // The same, with some columns of rows of floats: a copy for each row.
    template <class V> __device__ __forceinline__ bool feed_columns(const Instruction &in, Share share, u32 max_in_flight) {
        using L = Slot<V>;
        static_assert(L::F::PLANES == 1 && L::SETS == 1, "whole bytes of every column");
        constexpr u64 WHOLE = round_up(V::row_k / L::F::elements(0) * L::F::bytes(0), 16);
        u64 from = in.weight + share.first * WHOLE + V::column / L::F::elements(0) * L::F::bytes(0);
        for (u32 row = 0; row < share.rows; row += V::rows) {
            u32 rows = min((u32)V::rows, share.rows - row);
            Place place;
            if (!open_slot<V>(rows * L::ROW, max_in_flight, place)) return false;
#pragma unroll 1
            for (u32 i = 0; i < rows; i++, from += WHOLE) copy(place, i * L::ROW, from, L::ROW);
            close_slot<V>(place);
        }
        return true;
    }

    // The same, one chunk of all rows after the other, as a step multiplies them: a copy for each line of a slot.
    template <class V> __device__ __forceinline__ bool feed_chunks(const Instruction &in, Share share, u32 max_in_flight) {
        using L = Slot<V>;
        for (u32 begin = 0; begin < share.rows; begin += L::STEP_SEGMENT) {
            u32 here = min(L::STEP_SEGMENT, share.rows - begin);
            for (u32 chunk = 0; chunk < V::chunks; chunk++) {
                u32 bytes = chunk + 1 == V::chunks ? LAST_CHUNK_BYTES<V> : CHUNK_BYTES<V>;
                u64 from = in.weight + (u64)(share.first + begin) * L::stride(0) + chunk * CHUNK_BYTES<V>;
                for (u32 row = 0; row < here; row += V::rows) {
                    u32 rows = min((u32)V::rows, here - row);
                    Place place;
                    if (!open_slot<V>(rows * L::SETS * bytes, max_in_flight, place)) return false;
#pragma unroll
                    for (u32 i = 0; i < L::SETS * V::rows; i++)
                        if (i % V::rows < rows)
                            copy(place, i * L::ROW, from + (u64)(i / V::rows * V::n + i % V::rows) * L::stride(0), bytes);
                    from += (u64)rows * L::stride(0);
                    close_slot<V>(place);
                }
            }
        }
        return true;
    }

    // No copy may be in flight to the memory of a block that has left.
    __device__ __forceinline__ void drain() {
        if (threadIdx.x % 32 == 0)
            while (in_flight) await_oldest();
        if (!BULK_COPIES) __syncwarp();
    }
};

// The consumers' end of the ring. Every warp reads every slot.
struct Ring {
    u32 barriers, barrier, parity; // of slot 0 and of the next slot; the barrier for its release is SLOTS further on
    u32 size, at;
    const u8 *start;

    __device__ __forceinline__ void begin(Shared *s) {
        barriers = barrier = shared_address(s->full);
        size = s->ring_bytes;
        start = s->ring();
        parity = at = 0;
    }

    // The next slot.
    template <class V> __device__ __forceinline__ const u8 *slot() const { return start + slot_offset(at, Slot<V>::BYTES, size); }

    // The n-th slot from the next one on, of the same instruction.
    template <class V> __device__ __forceinline__ const u8 *slot(u32 n) const {
        constexpr u32 BYTES = Slot<V>::BYTES;
        u32 first = slot_offset(at, BYTES, size), fit = (size - first) / BYTES;
        return start + (n < fit ? first + n * BYTES : (n - fit) * BYTES);
    }

    // Waits until the next slot has arrived.
    __device__ __forceinline__ void wait(WaitContext &w) const { wait_barrier(w, barrier, parity, PLACE_WEIGHTS); }

    // Waits until the next n slots have arrived.
    __device__ __forceinline__ void wait(WaitContext &w, u32 n) const {
        for (u32 i = 0; i < n; i++) {
            u32 one = barrier + i * 8;
            bool turned = one >= barriers + SLOTS * 8;
            wait_barrier(w, turned ? one - SLOTS * 8 : one, parity ^ (u32)turned, PLACE_WEIGHTS);
        }
        __syncwarp();
    }

    // This warp has finished the next slot.
    template <class V> __device__ __forceinline__ void release(u32 lane) {
        __syncwarp();
        if (lane == 0) mbarrier_arrive(barrier + SLOTS * 8);
        at = slot_offset(at, Slot<V>::BYTES, size) + Slot<V>::BYTES;
        barrier += 8;
        if (barrier == barriers + SLOTS * 8) barrier = barriers, parity ^= 1;
    }
};
