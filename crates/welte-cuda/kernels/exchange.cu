// Ranks give each other their parts of rows: exchange. A chunk of a rank's part lies in the inbox of every other rank, with a flag that
// counts how often the chunk was exchanged. There are two places for it, in turn: who gives a chunk once more has taken everything
// of the last time, so all others have read what lies in the place of the time before that.
// Chunks have turns of their own, so none may lie where another one does, however its floats travel.
#include "common.cuh"

#define RANKS 8         // the most
#define CHUNK 2048      // floats that a block hands over at a time
#define PATIENCE 10ull  // seconds that a rank waits for another one

// What the exchanges of a context share.
struct Seats {
    u64 inboxes[RANKS]; // of each rank: floats of [turn][rank][capacity], then flags of [turn][rank][chunks]
    u64 capacity;
    u64 chunks;
    u32 *counts; // by chunk: how often it was exchanged
    u32 *fault;  // in host memory: 1 + the rank that was waited for in vain
    u64 failed;
};

struct ExchangeArgs {
    const Step *step;
    Seats *seats;
    const float *part;
    float *y;
    u32 starts[RANKS]; // the part of each rank in a vector
    u32 counts[RANKS];
    u32 rank;
    u32 ranks;
    u32 vectors;
    u32 width; // floats of a vector
    u32 part_stride;
    u32 y_stride;
    u32 single; // not 0: only one row is live
    u32 most;   // the largest of the counts
    u32 wide;   // not 0: all places are multiples of four floats
    u32 rounding; // how floats travel (ROUNDING)
};

// How floats travel: whole, or as all readers round them anyway (prepare.cu): as bf16, or as f16 divided by HEADROOM.
enum ROUNDING { WHOLE = 0, BF16 = 1, F16 = 2 };
constexpr float HEADROOM = 64.0f;

// Floats in an inbox.
template <typename T, u32 R> struct Parcel {
    typedef T type;
    static __device__ __forceinline__ T pack(T v) { return v; }
    static __device__ __forceinline__ T unpack(T v) { return v; }
};

template <u32 R> __device__ __forceinline__ u32 two(float a, float b) {
    if (R == BF16) {
        __nv_bfloat162 v = __floats2bfloat162_rn(a, b);
        return *(u32 *)&v;
    }
    a = fminf(fmaxf(a * (1.0f / HEADROOM), -65504.0f), 65504.0f);
    b = fminf(fmaxf(b * (1.0f / HEADROOM), -65504.0f), 65504.0f);
    half2 v = __floats2half2_rn(a, b);
    return *(u32 *)&v;
}

template <u32 R> __device__ __forceinline__ float2 floats(u32 v) {
    if (R == BF16) return make_float2(__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u));
    float2 f = __half22float2(*(half2 *)&v);
    return make_float2(f.x * HEADROOM, f.y * HEADROOM);
}

template <u32 R> struct Rounded1 {
    typedef u16 type;
    static __device__ __forceinline__ u16 pack(float v) { return (u16)two<R>(v, 0.0f); }
    static __device__ __forceinline__ float unpack(u16 v) { return floats<R>(v).x; }
};

template <u32 R> struct Rounded4 {
    typedef uint2 type;
    static __device__ __forceinline__ uint2 pack(float4 v) { return make_uint2(two<R>(v.x, v.y), two<R>(v.z, v.w)); }
    static __device__ __forceinline__ float4 unpack(uint2 v) {
        float2 a = floats<R>(v.x), b = floats<R>(v.y);
        return make_float4(a.x, a.y, b.x, b.y);
    }
};

template <> struct Parcel<float, BF16> : Rounded1<BF16> {};
template <> struct Parcel<float, F16> : Rounded1<F16> {};
template <> struct Parcel<float4, BF16> : Rounded4<BF16> {};
template <> struct Parcel<float4, F16> : Rounded4<F16> {};

__device__ __forceinline__ float *place_of(const Seats &s, u32 ranks, u32 inbox, u32 turn, u32 from) {
    return (float *)s.inboxes[inbox] + (turn * ranks + from) * s.capacity;
}

__device__ __forceinline__ u32 *flag_of(const Seats &s, u32 ranks, u32 inbox, u32 turn, u32 from, u32 chunk) {
    u32 *flags = (u32 *)((float *)s.inboxes[inbox] + 2 * ranks * s.capacity);
    return flags + (turn * ranks + from) * s.chunks + chunk;
}

// Waits until rank `from` has given the chunk.
__device__ __forceinline__ void await(Seats &s, const u32 *flag, u32 serial, u32 from) {
    u64 begun = 0;
    for (u32 polls = 1; load_acquire_system(flag) != serial; ++polls) {
        if (polls % 1024 != 0) continue;
        u64 now = now_ns();
        if (begun == 0) begun = now;
        if (now - begun > PATIENCE * 1000000000ull) {
            *(volatile u32 *)s.fault = 1 + from;
            *(volatile u64 *)&s.failed = 1;
        }
        if (*(volatile u64 *)&s.failed) return;
    }
}

// For each T of rank r's part in the chunk that begins at float `first`: f(its number, its place in the part, its place in y).
template <typename T, typename F> __device__ __forceinline__ void each(const ExchangeArgs &a, u64 vectors, u64 first, u32 r, F f) {
    constexpr u32 WIDE = sizeof(T) / 4;
    u32 count = a.counts[r];
    u64 end = vectors * count;
    if (first + CHUNK < end) end = first + CHUNK;
    for (u64 i = first + threadIdx.x * WIDE; i < end; i += 256 * WIDE) {
        u64 vector = i / count;
        u64 row = vector / a.vectors;
        u32 in_row = (u32)(vector - row * a.vectors), at = (u32)(i - vector * count);
        f(i, (const T *)(a.part + row * a.part_stride + in_row * count + at),
          (T *)(a.y + row * a.y_stride + (u64)in_row * a.width + a.starts[r] + at));
    }
}

template <typename T, u32 R> __device__ __forceinline__ void hand_over(const ExchangeArgs &a) {
    typedef Parcel<T, R> P;
    typedef typename P::type Packed;
    constexpr u32 EACH = sizeof(T) / 4; // floats of a parcel
    Seats &s = *a.seats;
    u64 vectors = (u64)(a.single ? 1 : a.step->live) * a.vectors;
    for (u64 chunk = blockIdx.x, first = chunk * CHUNK; first < vectors * a.most; chunk += gridDim.x, first = chunk * CHUNK) {
        u32 serial = s.counts[chunk] + 1, turn = serial & 1;
        each<T>(a, vectors, first, a.rank, [&](u64 i, const T *part, T *y) {
            T v = *part;
            *y = v;
            Packed packed = P::pack(v);
            for (u32 r = 0; r < a.ranks; ++r)
                if (r != a.rank) ((Packed *)(place_of(s, a.ranks, r, turn, a.rank) + first))[(i - first) / EACH] = packed;
        });
        __threadfence_system();
        __syncthreads();
        u32 r = threadIdx.x;
        if (r < a.ranks && r != a.rank) {
            store_release_system(flag_of(s, a.ranks, r, turn, a.rank, chunk), serial);
            await(s, flag_of(s, a.ranks, a.rank, turn, r, chunk), serial, r);
        }
        __syncthreads();
        for (u32 r = 0; r < a.ranks; ++r) {
            if (r == a.rank) continue;
            const Packed *from = (const Packed *)(place_of(s, a.ranks, a.rank, turn, r) + first);
            each<T>(a, vectors, first, r, [&](u64 i, const T *, T *y) { *y = P::unpack(__ldcg(from + (i - first) / EACH)); });
        }
        if (threadIdx.x == 0) s.counts[chunk] = serial;
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(256) exchange(const __grid_constant__ ExchangeArgs a) {
    grid_wait();
    // All ranks' chains end at the same step.
    if (a.step->ended || a.seats->failed) return;
    if (a.rounding == BF16) a.wide ? hand_over<float4, BF16>(a) : hand_over<float, BF16>(a);
    else if (a.rounding == F16) a.wide ? hand_over<float4, F16>(a) : hand_over<float, F16>(a);
    else a.wide ? hand_over<float4, WHOLE>(a) : hand_over<float, WHOLE>(a);
    // Only now: blocks of the next kernel would take the place of those that another rank on this GPU waits for.
    grid_release();
}
