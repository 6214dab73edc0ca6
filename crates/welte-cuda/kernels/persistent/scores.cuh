// Probabilities of a chain's tokens, where its slot reports them. They delay no turn: while the next turn runs, the bookkeeper's warp
// of each block reads the logits that its own block has computed. The last of these warps to be done answers.
#pragma once
#include "persistent/choose.cuh"
#include "logprobs.cuh"

// The `wanted` largest of the ranks get(0..count), in turn, by one warp. 0 stands for none.
template <class Get, class Put> __device__ __forceinline__ void largest_of_warp(u32 count, u32 wanted, Get get, Put put) {
    u32 lane = threadIdx.x % 32;
    // Each lane knows the best of its elements that was not put yet.
    u64 best = 0;
    for (u32 i = lane; i < count; i += 32) {
        u64 rank = get(i);
        best = rank > best ? rank : best;
    }
    for (u32 k = 0; k < wanted; k++) {
        u64 winner = warp_max(best);
        if (lane == 0) put(k, winner);
        u32 owner = __ffs(__ballot_sync(~0u, best == winner)) - 1;
        u64 next = 0;
        for (u32 i = owner + lane * 32; i < count; i += 32 * 32) {
            u64 rank = get(i);
            if (rank < winner && rank > next) next = rank;
        }
        next = warp_max(next);
        if (lane == owner) best = next;
    }
}

// What the bookkeepers' warps need.
struct LogprobPlaces {
    Sync *sync;
    const float *logits;
    u64 *candidates; // the likeliest tokens of each block's logits: of a turn, by turn modulo 2
    LogprobAnswer *answers; // a ring, like the mailbox
    u32 slots; // of the ring
    u32 n;     // tokens
    u32 shift; // fraction bits of a probability
    u32 wanted; // likeliest tokens
};

// Computes this block's part for the current turn. A block reads its own logits, and overwrites them when it has done so (await_scores). So
// no block begins the turn after the next before all have ended this one. Memory that is indexed by turn modulo 2 is then free.
__device__ __forceinline__ void score_token(Shared *s, const LogprobPlaces &a, const Share &share, u32 turn, u32 serial) {
    u32 lane = threadIdx.x % 32, which = turn % 2, token = s->scores.token;
    const float *logits = a.logits + share.first;
    Softmax softmax = {s->scores.largest, a.shift, 0};
    auto logit = [&](u32 i) { return number(__ldcg(logits + i)); };
    u64 sum = 0;
    for (u32 i = lane; i < share.rows; i += 32) sum += softmax.term(logit(i));
    sum = warp_sum(sum);
    u64 *lists = a.candidates + (u64)which * gridDim.x * a.wanted, *own = lists + blockIdx.x * a.wanted;
    largest_of_warp(share.rows, a.wanted, [&](u32 i) { return ranked(logit(i), share.first + i); }, [&](u32 k, u64 rank) { own[k] = rank; });
    u32 last = 0;
    if (lane == 0) {
        atomicAdd((unsigned long long *)&a.sync->sums[which], sum);
        if (token - share.first < share.rows) a.sync->chosen_logits[which] = logit(token - share.first);
        __threadfence();
        last = atomicAdd(&a.sync->scored[which], 1) + 1 == gridDim.x;
        __threadfence();
    }
    if (!__shfl_sync(~0u, last, 0)) return;
    softmax.sum = far(&a.sync->sums[which]);
    double log_sum = softmax.log_sum();
    LogprobAnswer *answer = a.answers + (serial & (a.slots - 1));
    largest_of_warp(gridDim.x * a.wanted, a.wanted, [&](u32 i) { return far(lists + i); },
                    [&](u32 k, u64 rank) { answer->top[k] = pair_of(index_of(rank), softmax.logprob(value_of(rank), log_sum)); });
    if (lane == 0) {
        answer->token = pair_of(token, softmax.logprob(__ldcg(&a.sync->chosen_logits[which]), log_sum));
        a.sync->sums[which] = 0;
        a.sync->scored[which] = 0;
        __threadfence_system();
        store_system(&answer->head, pair_of(serial, a.wanted));
    }
}

// Called by all consumers before they overwrite the block's logits.
__device__ __forceinline__ void await_scores(WaitContext &w, Shared *s) {
    WaitState wait;
    while (s->scores.done != s->scores.handed && keep_waiting(w, wait, PLACE_TOKEN)) {
    }
}

// The bookkeeper's warp where probabilities are reported. `serial` is that of the first token. It leaves as keep_books does: in block 0
// its first lane does that work too.
__device__ __forceinline__ void keep_scores(Shared *s, const SampleArgs &a, const LogprobPlaces &places, const Share &share, u32 serial) {
    bool keeps = blockIdx.x == 0 && threadIdx.x % 32 == 0;
    for (u32 turn = 0;;) {
        u32 done = __shfl_sync(~0u, s->signals.done, 0);
        __threadfence_block();
        bool recorded = keeps && record_token(s, a);
        u32 handed = __shfl_sync(~0u, s->scores.handed, 0);
        if (handed != turn) {
            __threadfence_block();
            __syncwarp();
            score_token(s, places, share, turn, serial + turn);
            turn++;
            __syncwarp();
            if (threadIdx.x % 32 == 0) s->scores.done = turn;
        } else if (!__any_sync(~0u, recorded)) {
            if (done) return;
            __nanosleep(100);
        }
    }
}
