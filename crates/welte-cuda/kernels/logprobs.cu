// Probabilities of tokens (logprobs.cuh). One block answers a query.
#define THREADS 1024
#define WARPS (THREADS / 32)
#define MOST_QUERIES 32 // of a launch
__device__ __forceinline__ void block_meets() { __syncthreads(); }
__device__ __forceinline__ int block_counts(bool of) { return __syncthreads_count(of); }
#include "sample.cuh"
#include "logprobs.cuh"

struct LogprobArgs {
    const float *logits; // of the first output row
    LogprobAnswer *answers;
    u32 n;
    u32 stride; // from one row's logits to the next
    u32 shift;  // fraction bits of a term
    u32 count;
    u32 queries[MOST_QUERIES * 3]; // output row, token, and the number of likeliest tokens
};

struct Shared {
    u64 ranks[WARPS];
    u64 sums[WARPS];
};

__device__ u64 largest_rank(Shared &sh, u64 v) {
    v = warp_max(v);
    __syncthreads();
    if (threadIdx.x % 32 == 0) sh.ranks[threadIdx.x / 32] = v;
    __syncthreads();
    return warp_max(sh.ranks[threadIdx.x % 32]);
}

__device__ u64 total(Shared &sh, u64 v) {
    v = warp_sum(v);
    if (threadIdx.x % 32 == 0) sh.sums[threadIdx.x / 32] = v;
    __syncthreads();
    return warp_sum(sh.sums[threadIdx.x % 32]);
}

// The answer to a query about a row of `n` logits.
__device__ void answer_query(Shared &sh, const float *row, u32 n, u32 shift, u32 serial, u32 token, u32 likeliest, LogprobAnswer *answer) {
    u32 t = threadIdx.x, lane = t % 32, wanted = min(likeliest, min(n, (u32)MOST_TOP));
    // Each thread knows the best of its elements that is not among the answers yet.
    u64 best = 0;
    for (u32 i = t; i < n; i += THREADS) {
        u64 rank = ranked(number(row[i]), i);
        best = rank > best ? rank : best;
    }
    u64 winner = largest_rank(sh, best);
    Softmax softmax = {value_of(winner), shift, 0};
    u64 sum = 0;
    for (u32 i = t; i < n; i += THREADS) sum += softmax.term(number(row[i]));
    softmax.sum = total(sh, sum);
    double log_sum = t == 0 ? softmax.log_sum() : 0.0;
    for (u32 k = 0; k < wanted; ++k) {
        if (k) winner = largest_rank(sh, best);
        u32 index = index_of(winner), owner = index % THREADS;
        if (t == 0) answer->top[k] = pair_of(index, softmax.logprob(value_of(winner), log_sum));
        // The owner's warp finds the owner's next best.
        if (t / 32 == owner / 32) {
            u64 next = 0;
            for (u32 i = owner + lane * THREADS; i < n; i += 32 * THREADS) {
                u64 rank = ranked(number(row[i]), i);
                if (rank < winner && rank > next) next = rank;
            }
            next = warp_max(next);
            if (t == owner) best = next;
        }
    }
    if (t == 0) {
        answer->token = pair_of(token, softmax.logprob(number(row[token]), log_sum));
        __threadfence_system();
        store_system(&answer->head, pair_of(serial, wanted));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) logprobs(const __grid_constant__ LogprobArgs a) {
    __shared__ Shared sh;
    grid_release();
    grid_wait();
    const u32 *query = a.queries + blockIdx.x * 3;
    answer_query(sh, a.logits + (u64)query[0] * a.stride, a.n, a.shift, 0, query[1], query[2], a.answers + blockIdx.x);
}

struct ChainLogprobArgs {
    const float *logits; // of the first row
    LogprobAnswer *answers; // a ring: the answer about a token is where the mailbox has the token
    Step *step;
    RowState *states;
    const u8 *samplers;
    u64 sampler_bytes;
    u32 n;
    u32 stride;
    u32 shift;
    u32 slots; // of the ring
};

#include "generated.cuh"

// After a step of a chain: of the tokens that were just chosen, where their slots report probabilities. A block for each row.
extern "C" __global__ void __launch_bounds__(THREADS, 1) chain_logprobs(const __grid_constant__ ChainLogprobArgs a) {
    __shared__ Shared sh;
    grid_release();
    grid_wait();
    RowState *state = a.states + blockIdx.x;
    if (!state->is_new) return;
    const Sampler *sampler = (const Sampler *)(a.samplers + a.step->rows[blockIdx.x].slot * a.sampler_bytes);
    u32 token = state->token;
    if (sampler->logprobs && token < NO_MASK) {
        u32 serial = state->serial - a.step->live;
        answer_query(sh, a.logits + (u64)blockIdx.x * a.stride, a.n, a.shift, serial, token, sampler->logprobs - 1, a.answers + (serial & (a.slots - 1)));
    }
    __syncthreads();
    if (threadIdx.x == 0) state->is_new = 0;
}
