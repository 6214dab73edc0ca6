// Chooses the next token as the CPU device does (see `Sampling` for the order of filters), then advances the step.
//
// The fewer rows, the more blocks per row; their number changes no token. Every block keeps its slice of the logits in shared memory.
// The argmax needs no barrier: the last block to arrive knows it. Otherwise the blocks wait for each other at grid-wide barriers. There are no more blocks than multiprocessors, so all of them
// run at once. The first barrier is for the largest logit, the others are for a threshold.
//
// Top-k and top-p keep the first elements of the order (largest first, lowest index on a tie). Usually these are few. A histogram
// over the grid then gives a lower bound of their values, everything above is gathered, and the last block sorts it. Otherwise
// the last kept element is found digit by digit from sums over the grid. The sums count elements for top-k and add probabilities
// in fixed point for top-p, so the order of additions does not matter.
//
// The includer defines THREADS, the threads per block; block_meets(), a barrier of the block; and block_counts(bool), a barrier
// that also counts.
#pragma once
#include "rank.cuh"

#define BINS 2048
#define BARRIERS 12
#define GATHERED 1024 // the most elements that are sorted
#define MOST_BLOCKS 1024

// The start of the sampler's region. The host writes it; the host and the device both append to the history.
struct Sampler {
    float temperature;
    u32 top_k;
    float top_p;
    float least; // logarithm of min-p; minus infinity if min-p is off
    float repeat;
    float frequency;
    float presence;
    u32 last_n;
    u64 seed;
    u32 ends;     // number of end tokens
    u32 biases;   // number of biases
    u32 size;     // capacity of the history, a ring
    u32 head;     // index of the history's next token
    u32 len;      // tokens in the history
    u32 most_ends;
    u32 masked;   // tokens are chosen only where the slot's mask allows
    u32 logprobs; // 0: no probabilities are reported; else one more than the number of likeliest tokens
    // Followed by u32 ends[most_ends], u32 history[size], and the biases: token and value.
};

// State that the blocks share. Zero between kernels.
struct GridSync {
    u64 best;                 // rank of the largest logit
    u64 winner;               // rank of the chosen element
    u32 arrived;
    u32 cancelled;
    u32 barriers[BARRIERS];
    u32 gathered;
    u32 late; // a block waited too long for its mask
    u64 sums[7][BINS]; // three digits for top-k, three for top-p, then the histogram
};

// Private memory of the blocks that sample for one row.
struct SampleScratch {
    u64 list[GATHERED];    // elements to sort
    u32 ties[MOST_BLOCKS]; // a count per block
};

struct SampleArgs {
    Step *step;
    RowState *states; // one per row
    const float *logits; // of the first row
    u8 *samplers; // one per slot
    GridSync *grid_sync; // one per row of the launch
    SampleScratch *scratch; // the same
    u32 *tokens;
    u64 *mailbox;
    const u32 *cancel;
    const u32 *masks; // in the host's memory: `MASK_DEPTH` per slot, each with its position and from word 4 on a bit per token
    const u32 *fault; // not null: where a kernel says that the logits are invalid
    u64 sampler_bytes; // from one slot's sampler to the next
    u32 n;
    u32 slice; // logits per block
    u32 mailbox_slots;
    u32 shift; // fraction bits of a probability; a sum of n fits 62 bits
    u32 row;   // of the step: the launch's first
    u32 stride; // from one row's logits to the next
    u32 mask_stride; // words from one mask to the next
    u32 patience_us; // for a mask
    u32 guess; // not 0: tokens leave no trace in their slots, and masks do not count; MOVES: rows are those of a draft pass, which have read
               // the token before the guess and go on whatever the guess is; MASKED: the guess takes the place of the row; above: rows stay,
               // and so many more guesses came before
    u32 pad;
};

constexpr u32 MOVES = 2, MASKED = 3; // of `guess`

// The memory that samples for the nth row of the launch.
__device__ __forceinline__ SampleArgs of_row(const SampleArgs &a, u32 nth) {
    SampleArgs row = a;
    row.row += nth;
    row.logits += (u64)nth * a.stride;
    row.grid_sync += nth;
    row.scratch += nth;
    return row;
}

// From the row's position to that of its token.
__device__ __forceinline__ u32 ahead(const SampleArgs &a) {
    if (a.guess == MASKED) return 0;
    return a.guess > MASKED ? a.guess - MASKED + 1 : a.guess == MOVES ? 2 : 1;
}

// The sampler of the row's slot.
__device__ __forceinline__ Sampler *sampler_of(const SampleArgs &a) { return (Sampler *)(a.samplers + a.step->rows[a.row].slot * a.sampler_bytes); }

__device__ __forceinline__ u64 mix(u64 x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

// The random bits of a token. With u = (bits + 1/2) / 2^32 its noise is -log(-log(u)).
__device__ __forceinline__ u32 bits_of(u64 key, u32 index) { return (u32)(mix(key ^ (u64)index * 0xd1342543de82ef95ull) >> 32); }

__device__ __forceinline__ float noise(u32 bits) {
    double uniform = __ddiv_rn((double)bits + 0.5, 4294967296.0);
    return (float)-log(-log(uniform));
}

// An upper bound of the noise: -log(u) is at least 1 - u. Close where the noise is large. The addend covers all rounding.
__device__ __forceinline__ float most_noise(u32 bits) { return 0.001f - __logf(((float)~bits + 0.5f) * (1.0f / 4294967296.0f)); }

__device__ __forceinline__ u32 upper(u64 rank) { return (u32)(rank >> 32); }

// The position of z <= 0 in the order, 0 for the largest value; NOT for NaN.
#define NOT 0xffffffffu
__device__ __forceinline__ u32 order(float z) {
    u32 bits = __float_as_uint(z);
    return z != z ? NOT : bits == 0 ? 0 : 1 + (bits & 0x7fffffffu);
}

__device__ __forceinline__ float back(u32 order) { return order ? -__uint_as_float(order - 1) : 0.0f; }

struct Scratch {
    u64 reduced[THREADS / 32];
    u64 scanned[THREADS / 32];
    u64 before;
    u64 found;
    u64 total;
    u32 bin;
    u32 tie;
    u32 last;
    u32 up_to;
    u32 seen; // upper half of the best rank so far
    u32 pad;
    u32 lows[BINS]; // low words of a histogram's sums; or, with highs, the elements to sort
    u32 highs[BINS];
};

__device__ __forceinline__ u64 block_max(Scratch &sh, u64 v) {
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) {
        u64 w = __shfl_xor_sync(~0u, v, o);
        v = w > v ? w : v;
    }
    block_meets();
    if (threadIdx.x % 32 == 0) sh.reduced[threadIdx.x / 32] = v;
    block_meets();
    v = 0;
#pragma unroll
    for (u32 i = 0; i < THREADS / 32; ++i) v = sh.reduced[i] > v ? sh.reduced[i] : v;
    return v;
}

// A grid-wide barrier. The spin is bounded, in case a block never arrives.
__device__ __forceinline__ void meet(const SampleArgs &a, u32 which) {
    block_meets();
    if (threadIdx.x == 0) {
        u32 *barrier = &a.grid_sync->barriers[which];
        __threadfence();
        atomicAdd(barrier, 1);
        for (u32 spins = 0; spins < 1u << 22; ++spins) {
            if (load_acquire(barrier) >= gridDim.x) break;
        }
        __threadfence();
    }
    block_meets();
}

__device__ __forceinline__ bool has_penalties(const Sampler &s) {
    return s.last_n && !(s.repeat == 1.0f && s.frequency == 0.0f && s.presence == 0.0f);
}

// Adds biases and penalties to the block's slice of the logits.
__device__ void adjust(const Sampler &s, const Sampler *sampler, float *values, u32 *counts, u32 from, u32 count) {
    const u32 *history = (const u32 *)(sampler + 1) + s.most_ends;
    const u32 *biases = history + s.size;
    // A token may occur twice, so one warp adds the biases in order.
    if (threadIdx.x < 32) {
        for (u32 i = 0; i < s.biases; i += 32) {
            u32 at = i + threadIdx.x;
            u32 token = at < s.biases ? biases[at * 2] - from : NOT;
            bool mine = token < count;
            u32 same = __match_any_sync(~0u, mine ? token : NOT - threadIdx.x);
            u32 turn = __popc(same & ((1u << threadIdx.x) - 1));
            for (u32 r = 0; __any_sync(~0u, mine && turn >= r); ++r) {
                if (mine && turn == r) values[token] += __uint_as_float(biases[at * 2 + 1]);
                __syncwarp();
            }
        }
    }
    if (!has_penalties(s)) return;
    u32 recent = min(s.last_n, s.len);
    for (u32 i = threadIdx.x; i < count; i += THREADS) counts[i] = 0;
    block_meets();
    for (u32 i = threadIdx.x; i < recent; i += THREADS) {
        u32 token = history[(s.head + s.size - 1 - i) % s.size] - from;
        if (token < count) atomicAdd(&counts[token], 1);
    }
    block_meets();
    for (u32 i = threadIdx.x; i < count; i += THREADS) {
        if (!counts[i]) continue;
        float v = values[i];
        v = v > 0.0f ? __fdiv_rn(v, s.repeat) : __fmul_rn(v, s.repeat);
        values[i] = __fsub_rn(__fsub_rn(v, __fmul_rn((float)counts[i], s.frequency)), s.presence);
    }
}

// In place of a token (`welte_device::NO_TOKEN`, `NO_MASK`).
#define NO_TOKEN 0xffffffffu
#define NO_MASK 0xfffffffeu
// Masks of a slot (`welte_device::MaskBoard::DEPTH`).
#define MASK_DEPTH 8

#define PATIENCE_AT_END_NS 1000000 // for a mask, once the host ends the chain

// Waits for the mask of a position. False if it does not come in time: sooner if the host ends the chain.
__device__ bool await_mask(const SampleArgs &a, Scratch &sh, const u32 *mask, u32 position) {
    if (threadIdx.x == 0) {
        u64 patience = (u64)a.patience_us * 1000, begun = 0;
        bool came = true;
        while (load_system(mask) != position) {
            u64 now = now_ns();
            if (!begun) begun = now;
            if (now - begun > patience || (now - begun > PATIENCE_AT_END_NS && load_system(a.cancel))) {
                came = false;
                break;
            }
        }
        __threadfence_system();
        sh.last = came;
        if (!came) a.grid_sync->late = 1;
    }
    block_meets();
    return sh.last;
}

// Gives the tokens of the block's slice that the mask does not allow minus infinity. A slice begins at a multiple of 4.
__device__ void apply_mask(const SampleArgs &a, Scratch &sh, float *values, u32 from, u32 count) {
    const auto &row = a.step->rows[a.row];
    u32 position = row.position + 1;
    const u32 *mask = a.masks + ((u64)row.slot * MASK_DEPTH + position % MASK_DEPTH) * a.mask_stride;
    bool came = await_mask(a, sh, mask, position);
    // The mask is in the host's memory, which is slow to read: all words of the slice are requested at once.
    u32 first = from / 32, words = (from + count + 31) / 32 - first;
    for (u32 base = 0; base < words; base += BINS) {
        u32 here = min(words - base, (u32)BINS);
        for (u32 i = threadIdx.x; i < here; i += THREADS) sh.lows[i] = came ? load_system(mask + 4 + first + base + i) : 0;
        block_meets();
        u32 begin = max((first + base) * 32, from) - from, end = min((first + base + here) * 32 - from, count);
        for (u32 i = begin + threadIdx.x; i < end; i += THREADS) {
            u32 token = from + i;
            if (!(sh.lows[token / 32 - first - base] >> token % 32 & 1)) values[i] = -__int_as_float(0x7f800000);
        }
        block_meets();
    }
}

struct Threshold { // keeps elements with a lower order, or with the same order and an index that is not higher
    u32 order;
    u32 index;
};

__device__ __forceinline__ bool keeps(const Threshold &t, u32 order, u32 index) {
    return order < t.order || (order == t.order && index <= t.index);
}

// The measure of an element: 1, or its probability relative to the largest.
__device__ __forceinline__ u64 measure(const SampleArgs &a, bool mass, u32 order) {
    if (!mass) return 1;
    float z = back(order);
    return z < -50.0f ? 0 : (u64)(exp((double)z) * (double)(1ull << a.shift));
}

// The sum that top-p asks for.
__device__ __forceinline__ u64 share_of(double share, u64 total) {
    double d = ceil(fmax(share, 0.0) * (double)total);
    return d < 1.0 ? 1 : min((u64)d, total);
}

// Finds the bin in which the running sum reaches `wanted`, and the sum before it. If `share` is not negative, `wanted` becomes
// that share of the sum of all bins.
__device__ __forceinline__ void find_bin(Scratch &sh, const u64 *sums, double share, u64 &wanted) {
    constexpr u32 EACH = BINS / THREADS;
    u64 v[EACH], mine = 0;
#pragma unroll
    for (u32 i = 0; i < EACH; ++i) mine += v[i] = far(sums + threadIdx.x * EACH + i);
    u64 run = mine;
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
        u64 w = __shfl_up_sync(~0u, run, o);
        if (threadIdx.x % 32 >= o) run += w;
    }
    if (threadIdx.x % 32 == 31) sh.scanned[threadIdx.x / 32] = run;
    if (threadIdx.x == 0) sh.bin = NOT;
    block_meets();
    u64 total = 0;
#pragma unroll
    for (u32 i = 0; i < THREADS / 32; ++i) {
        if (i < threadIdx.x / 32) run += sh.scanned[i];
        total += sh.scanned[i];
    }
    if (share >= 0.0) wanted = share_of(share, total);
    if (threadIdx.x == 0) sh.total = total;
    u64 before = run - mine;
    if (before < wanted && wanted <= run) {
#pragma unroll
        for (u32 i = 0; i < EACH; ++i) {
            if (before < wanted && wanted <= before + v[i]) {
                sh.bin = threadIdx.x * EACH + i;
                sh.before = before;
                sh.found = v[i];
            }
            before += v[i];
        }
    }
    block_meets();
}

__device__ __forceinline__ void clear_bins(Scratch &sh) {
    block_meets();
    for (u32 i = threadIdx.x; i < BINS; i += THREADS) sh.lows[i] = sh.highs[i] = 0;
    block_meets();
}

__device__ __forceinline__ void add_to_bin(Scratch &sh, u32 bin, u64 m) {
    u32 low = (u32)m, carry = atomicAdd(&sh.lows[bin], low) + low < low;
    if ((u32)(m >> 32) + carry) atomicAdd(&sh.highs[bin], (u32)(m >> 32) + carry);
}

__device__ __forceinline__ void send_bins(Scratch &sh, u64 *sums) {
    block_meets();
    for (u32 i = threadIdx.x; i < BINS; i += THREADS) {
        u64 m = (u64)sh.highs[i] << 32 | sh.lows[i];
        if (m) atomicAdd((unsigned long long *)&sums[i], m);
    }
}

// Finds the element at which the sum of measures reaches `wanted`, or a share of the total. `mass`: measures are probabilities, not counts.
__device__ __forceinline__ Threshold select(const SampleArgs &a, Scratch &sh, const u32 *orders, u32 from, u32 count, Threshold kept, bool mass, double share,
                                            u64 wanted, u32 barrier) {
    u32 prefix = 0, shift = 20; // three digits, of 11, 10 and 10 bits
#pragma unroll 1
    for (u32 digit = 0; digit < 3; ++digit) {
        u32 bits = digit ? 10 : 11;
        clear_bins(sh);
        for (u32 i = threadIdx.x; i < count; i += THREADS) {
            u32 o = orders[i];
            if (o == NOT || (digit && o >> (shift + bits) != prefix) || !keeps(kept, o, from + i)) continue;
            u64 m = measure(a, mass, o);
            if (m) add_to_bin(sh, o >> shift & ((1u << bits) - 1), m);
        }
        u64 *sums = a.grid_sync->sums[(mass ? 3 : 0) + digit];
        send_bins(sh, sums);
        meet(a, barrier + digit);
        find_bin(sh, sums, digit ? -1.0 : share, wanted);
        if (sh.bin == NOT) return kept; // fewer elements than wanted
        prefix = prefix << bits | sh.bin;
        wanted -= sh.before;
        shift = shift >= 10 ? shift - 10 : 0;
    }
    Threshold t = {prefix, NOT};
    u64 each = measure(a, mass, prefix);
    u64 needed = (wanted + each - 1) / each; // of the elements with this order
    if (needed * each == sh.found) {
        t.index = prefix == kept.order ? kept.index : NOT;
        return t;
    }
    u32 mine = 0;
    for (u32 base = 0; base < count; base += THREADS) {
        u32 i = base + threadIdx.x;
        mine += block_counts(i < count && orders[i] == prefix && keeps(kept, prefix, from + i));
    }
    if (threadIdx.x == 0) {
        a.scratch->ties[blockIdx.x] = mine;
        sh.tie = NOT;
    }
    meet(a, barrier + 3);
    // One block has the element. The others only need to know on which side of it they are.
    u32 before = 0;
    for (u32 b = 0; b < blockIdx.x; ++b) before += __ldcg(a.scratch->ties + b);
    if (before >= needed) return Threshold{prefix, from - 1};
    if (before + mine <= needed) return Threshold{prefix, prefix == kept.order ? kept.index : NOT};
    u32 seen = before;
    for (u32 base = 0; base < count; base += THREADS) {
        u32 i = base + threadIdx.x;
        bool equal = i < count && orders[i] == prefix && keeps(kept, prefix, from + i);
        u32 in_warp = __ballot_sync(~0u, equal);
        block_meets();
        if (threadIdx.x % 32 == 0) sh.scanned[threadIdx.x / 32] = __popc(in_warp);
        block_meets();
        u32 rank = seen + __popc(in_warp & ((2u << threadIdx.x % 32) - 1)); // including this one
        for (u32 w = 0; w < THREADS / 32; ++w) {
            if (w < threadIdx.x / 32) rank += (u32)sh.scanned[w];
            seen += (u32)sh.scanned[w];
        }
        if (equal && rank == needed) sh.tie = from + i;
    }
    block_meets();
    t.index = sh.tie;
    return t;
}

// The histogram bin of a value, in steps of 1/64. The last bin has all small values.
__device__ __forceinline__ u32 bin_of(u32 order) {
    float z = back(order);
    return z < -31.96f ? BINS - 1 : (u32)(z * -64.0f);
}

// Gathers the first elements of the order, up to the end of a bin, so that all kept elements are among them. False if these are
// too many.
__device__ bool gather(const SampleArgs &a, const Sampler &s, Scratch &sh, const u32 *orders, u32 from, u32 count, bool by_count) {
    GridSync *grid_sync = a.grid_sync;
    clear_bins(sh);
    for (u32 i = threadIdx.x; i < count; i += THREADS) {
        u32 o = orders[i];
        u64 m = o == NOT ? 0 : by_count ? 1 : measure(a, true, o);
        if (m) add_to_bin(sh, bin_of(o), m);
    }
    send_bins(sh, grid_sync->sums[6]);
    meet(a, 9);
    u64 wanted = s.top_k;
    find_bin(sh, grid_sync->sums[6], by_count ? -1.0 : fmax((double)s.top_p, 0.0), wanted);
    u32 bin = sh.bin;
    if (bin >= BINS - 1) return false;
    // Each element has at least the probability of its bin's end.
    double members = (double)(sh.before + sh.found);
    if (!by_count) members /= exp((double)(bin + 1) / -64.0) * (double)(1ull << a.shift) - 1.0;
    if (members > GATHERED) return false;
    for (u32 i = threadIdx.x; i < count; i += THREADS)
        if (orders[i] != NOT && bin_of(orders[i]) <= bin)
            a.scratch->list[atomicAdd(&grid_sync->gathered, 1)] = (u64)orders[i] << 32 | (from + i);
    return true;
}

// The rank of an element with its noise; 0 if it cannot win. Noise is from -3.2 to 22.9, and the largest value is always kept.
// `seen` is the upper half of another element's rank, or 0: logarithms are computed for few elements that rank lower.
__device__ __forceinline__ u64 drawn(u64 key, const Sampler &s, u32 order, u32 index, u32 seen = 0) {
    float below = back(order), z = __fdiv_rn(below, s.temperature);
    if (below < s.least || !(z >= -27.0f)) return 0;
    u32 bits = bits_of(key, index);
    if (upper(ranked(z + most_noise(bits), index)) < seen) return 0;
    return ranked(__fadd_rn(z, noise(bits)), index);
}

// The last block's choice among the gathered elements.
__device__ u64 choose(const SampleArgs &a, const Sampler &s, Scratch &sh, u64 key, bool by_count) {
    constexpr u32 EACH = GATHERED / THREADS;
    u64 *list = (u64 *)sh.lows;
    u32 count = __ldcg(&a.grid_sync->gathered), size = 32;
    u64 total = sh.total;
    while (size < count) size *= 2;
    for (u32 i = threadIdx.x; i < size; i += THREADS) list[i] = i < count ? far(a.scratch->list + i) : ~0ull;
    for (u32 run = 2; run <= size; run *= 2)
        for (u32 gap = run / 2; gap > 0; gap /= 2) {
            block_meets();
            for (u32 i = threadIdx.x; i < size / 2; i += THREADS) {
                u32 low = i / gap * gap * 2 + i % gap;
                u64 x = list[low], y = list[low + gap];
                if ((x > y) == ((low & run) == 0)) {
                    list[low] = y;
                    list[low + gap] = x;
                }
            }
        }
    block_meets();
    u32 kept = by_count ? min(s.top_k, count) : count;
    if (s.top_p < 1.0f) { // keep elements until the sum of probabilities reaches its share
        u64 m[EACH], mine = 0;
#pragma unroll
        for (u32 i = 0; i < EACH; ++i) {
            u32 at = threadIdx.x * EACH + i;
            mine += m[i] = at < kept ? measure(a, true, (u32)(list[at] >> 32)) : 0;
        }
        u64 run = mine;
#pragma unroll
        for (int o = 1; o < 32; o <<= 1) {
            u64 w = __shfl_up_sync(~0u, run, o);
            if (threadIdx.x % 32 >= o) run += w;
        }
        if (threadIdx.x % 32 == 31) sh.scanned[threadIdx.x / 32] = run;
        if (threadIdx.x == 0) sh.up_to = kept;
        block_meets();
        u64 all = 0;
        for (u32 i = 0; i < THREADS / 32; ++i) {
            if (i < threadIdx.x / 32) run += sh.scanned[i];
            all += sh.scanned[i];
        }
        u64 wanted = share_of(s.top_p, by_count ? all : total), before = run - mine;
#pragma unroll
        for (u32 i = 0; i < EACH; ++i) {
            if (before < wanted && wanted <= before + m[i]) sh.up_to = threadIdx.x * EACH + i + 1;
            before += m[i];
        }
        block_meets();
        kept = sh.up_to;
    }
    u64 winner = 0;
    for (u32 i = threadIdx.x; i < kept; i += THREADS) {
        u64 rank = drawn(key, s, (u32)(list[i] >> 32), (u32)list[i]);
        winner = rank > winner ? rank : winner;
    }
    return block_max(sh, winner);
}

// Stores the token in the history, the tokens and the mailbox, and advances the row, or stops it.
__device__ void finish(const SampleArgs &a, u32 token, bool cut) {
    Sampler *s = sampler_of(a);
    Step *step = a.step;
    RowState *state = a.states + a.row;
    u32 *ends = (u32 *)(s + 1), *history = ends + s->most_ends;
    bool none = token >= NO_MASK, end = none;
    if (a.guess >= MOVES) {
        // Before the row may stop: if others go on, its last step is repeated there, and keeps what it has left at its place.
        a.tokens[a.row] = token;
        if (a.guess == MOVES) step->rows[a.row].advance(token);
        else step->rows[a.row].read(token);
    } else {
        for (u32 i = 0; i < s->ends; ++i) end |= ends[i] == token;
    }
    // Blocks of one launch may sample several rows of a slot without penalties. Its history is not read.
    if (s->size && !none && !a.guess && has_penalties(*s)) {
        history[s->head] = token;
        s->head = s->head + 1 < s->size ? s->head + 1 : 0;
        s->len = min(s->len + 1, s->size);
    }
    u32 serial = state->serial, left = state->left - 1;
    state->token = token;
    state->is_new = 1;
    store_system(a.mailbox + (serial & (a.mailbox_slots - 1)), (u64)serial << 32 | token);
    state->serial = serial + step->live;
    if (end || left == 0 || cut) {
        state->left = 0;
        // Rows that have stopped repeat their last step until all have. No other place ends the chain: all blocks of a launch must see
        // the same.
        if (atomicAdd(&step->stopped, 1) + 1 == step->live) step->ended = 1;
        return;
    }
    state->left = left;
    if (a.guess >= MOVES) return;
    a.tokens[a.row] = token;
    step->rows[a.row].advance(token);
}

// This block's part of choosing a token from complete logits. `shared` has room for Scratch and twice the slice. `cancelled` is
// the host's flag as block 0 read it. True in the last block to arrive, which has chosen the token and finished the step.
__device__ bool sample_block(const SampleArgs &a, u8 *shared, u32 cancelled) {
    Scratch &sh = *(Scratch *)shared;
    u32 *orders = (u32 *)(shared + sizeof(Scratch)); // values of the slice, later their orders; then the slice's counts
    u32 t = threadIdx.x, from = blockIdx.x * a.slice;
    u32 count = from < a.n ? min(a.slice, a.n - from) : 0;
    const Sampler *sampler = sampler_of(a);
    const Sampler s = *sampler;
    GridSync *grid_sync = a.grid_sync;
    float *values = (float *)orders;
    for (u32 i = t; i < count; i += THREADS) values[i] = __ldcg(a.logits + from + i);
    block_meets();
    bool masked = s.masked && !a.guess;
    if (masked) apply_mask(a, sh, values, from, count);
    adjust(s, sampler, values, orders + a.slice, from, count);
    block_meets();
    u64 best = 0;
    for (u32 i = t; i < count; i += THREADS) {
        u64 rank = values[i] == values[i] ? ranked(values[i], from + i) : 0;
        best = rank > best ? rank : best;
    }
    best = block_max(sh, best);
    if (t == 0) {
        if (best) atomicMax((unsigned long long *)&grid_sync->best, best);
        if (blockIdx.x == 0) grid_sync->cancelled = cancelled;
    }
    u64 winner = 0, key = 0;
    u32 gathers = 0, used = 0; // gathers: 1 by probability, 2 by count; used: a bit per array of sums
    bool greedy = !(s.temperature > 0.0f);
    if (!greedy) {
        meet(a, 0);
        winner = best = far(&grid_sync->best);
        float largest = value_of(best);
        if (best && fabsf(largest) < __int_as_float(0x7f800000)) {
            for (u32 i = t; i < count; i += THREADS) orders[i] = order(__fsub_rn(values[i], largest));
            block_meets();
            bool some = s.top_k && s.top_k < a.n, by_count = some && s.top_k <= GATHERED / 2;
            key = mix(s.seed ^ mix((u64)(a.step->rows[a.row].position + ahead(a)) ^ 0x9e3779b97f4a7c15ull));
            if (by_count || (!some && s.top_p < 1.0f)) {
                gathers = gather(a, s, sh, orders, from, count, by_count) ? 1 + by_count : 0;
                used |= 1 << 6;
            }
            if (!gathers) {
                Threshold kept = {NOT - 1, NOT};
                // By count, then by probability. In a loop the code is compiled once.
#pragma unroll 1
                for (u32 mass = 0; mass < 2; ++mass) {
                    if (!(mass ? s.top_p < 1.0f : some)) continue;
                    double share = mass ? fmax((double)s.top_p, 0.0) : -1.0;
                    kept = select(a, sh, orders, from, count, kept, mass, share, mass ? 0 : s.top_k, mass ? 5 : 1);
                }
                if (some || s.top_p < 1.0f) used |= 63;
                winner = 0;
                if (t == 0) sh.seen = 0;
                block_meets();
                for (u32 i = t; i < count; i += THREADS) {
                    if (orders[i] == NOT || !keeps(kept, orders[i], from + i)) continue;
                    u64 rank = drawn(key, s, orders[i], from + i, *(volatile u32 *)&sh.seen);
                    if (rank <= winner) continue;
                    winner = rank;
                    atomicMax(&sh.seen, upper(rank));
                }
                winner = block_max(sh, winner);
                if (t == 0 && winner) atomicMax((unsigned long long *)&grid_sync->winner, winner);
            }
        } else if (t == 0 && blockIdx.x == 0) {
            atomicMax((unsigned long long *)&grid_sync->winner, best);
        }
    }
    __threadfence();
    block_meets();
    if (t == 0) sh.last = atomicAdd(&grid_sync->arrived, 1) + 1 == gridDim.x;
    block_meets();
    if (!sh.last) return false;
    __threadfence();
    if (gathers) {
        winner = choose(a, s, sh, key, gathers == 2);
    } else {
        winner = far(greedy ? &grid_sync->best : &grid_sync->winner);
    }
    if (t == 0) {
        u32 token = index_of(winner);
        if (masked) {
            u64 largest = far(&grid_sync->best);
            if (far(&grid_sync->late)) token = NO_MASK;
            else if (!largest || value_of(largest) == -__int_as_float(0x7f800000)) token = NO_TOKEN;
            grid_sync->late = 0;
        }
        finish(a, token, grid_sync->cancelled);
        grid_sync->best = grid_sync->winner = 0;
        grid_sync->arrived = grid_sync->cancelled = grid_sync->gathered = 0;
    }
    if (greedy) return true;
    if (t < BARRIERS) grid_sync->barriers[t] = 0;
    for (u32 array = 0; array < 7; ++array)
        if (used >> array & 1)
            for (u32 i = t; i < BINS; i += THREADS) grid_sync->sums[array][i] = 0;
    return true;
}
