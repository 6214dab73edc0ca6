// The end of a turn: all blocks agree on the token. Choosing the largest logit takes one meeting of the blocks. Everything else is
// chosen by the sampler (sample.cuh). Block 0's bookkeeper reports the token to the host while the next turn runs.
#pragma once
#include "persistent/exchange.cuh"
#include "sample.cuh"

__device__ __forceinline__ bool wants_largest_logit(const Sampler &s) {
    return !(s.temperature > 0.0f) && !has_penalties(s) && s.biases == 0 && !s.masked;
}

// Hands the token to the bookkeeper's warp, for its probability (persistent/scores.cuh). The block's logits are complete.
__device__ __forceinline__ void hand_to_scores(WaitContext &w, Shared *s, u32 token, u64 best) {
    s->scores.token = token;
    s->scores.largest = best ? value_of(best) : -__int_as_float(0x7f800000);
    __threadfence_block();
    s->scores.handed = s->scores.handed + 1;
}

// Hands the token to the bookkeeper. A turn takes far longer than the bookkeeper, so this wait is short.
__device__ __forceinline__ void hand_to_bookkeeper(WaitContext &w, Shared *s) {
    WaitState wait;
    while (s->bookkeeping.recorded != s->bookkeeping.handed && keep_waiting(w, wait, PLACE_TOKEN)) {
    }
    s->bookkeeping.token = s->token;
    s->bookkeeping.ended = s->ended;
    __threadfence_block();
    s->bookkeeping.handed = s->bookkeeping.handed + 1;
}

// Tells all blocks the largest logit that this one has seen, and that the chain is cancelled if it heard so.
__device__ __forceinline__ void agree(const Shared *s, Sync *sync, u32 turn, u64 best, u32 cancelled) {
    unsigned long long *largest = (unsigned long long *)&sync->best[turn & 3];
    if (cancelled) sync->cancelled[turn & 3] = cancelled;
#if RANKS > 1
    atomicMax_system(largest, best);
#pragma unroll
    for (u32 r = 0; r < RANKS - 1; r++) {
        atomicMax_system(elsewhere(largest, s->away[r]), best);
        if (cancelled) store_relaxed_system(elsewhere(&sync->cancelled[turn & 3], s->away[r]), cancelled);
    }
#else
    atomicMax(largest, best);
#endif
}

// `best` is the largest logit that this thread has seen. `scores`: the token's probability is wanted. Afterwards all consumers may read
// s->token and s->ended.
__device__ __forceinline__ void choose_token(WaitContext &w, Shared *s, const SampleArgs &a, Sync *sync, u64 best, bool greedy, bool scores, u32 turn,
                                             u32 turns, u32 cancelled) {
    u32 tid = threadIdx.x;
    bool compares = greedy || scores;
    u64 largest = 0;
    if (compares) {
#pragma unroll
        for (int o = 16; o > 0; o >>= 1) {
            u64 other = __shfl_xor_sync(~0u, best, o);
            best = other > best ? other : best;
        }
        if (tid % 32 == 0) s->best[tid / 32] = best;
    }
    consumers_meet();
    if (tid == 0) {
        if (compares) {
#pragma unroll
            for (int i = 1; i < WARPS; i++) best = s->best[i] > best ? s->best[i] : best;
        }
        agree(s, sync, turn, best, cancelled);
        // Numbers of a block that gave up are invalid. It does not arrive, so the others give up here, and nobody chooses a token.
        if (!s->signals.gave_up) arrive_everywhere(s, &sync->arrived);
        wait_for_all(w, &sync->arrived, turn + 1);
        s->ended = s->signals.gave_up;
        // As rank 0 heard it.
        if (RANKS > 1) cancelled = far(&sync->cancelled[turn & 3]);
        if (compares) largest = far(&sync->best[turn & 3]);
        // No block reads this entry any more, and none writes it before the turn after the next.
        if (blockIdx.x == 0) sync->best[(turn + 3) & 3] = 0;
    }
    if (!greedy) {
        consumers_meet();
        if (s->ended) return;
        if (tid < THREADS && sample_block(a, s->scratchpad, cancelled)) {
            block_meets();
            if (tid == 0) arrive(&sync->chosen);
        }
        if (tid == 0) wait_count(w, &sync->chosen, turn + 1);
    }
    if (tid == 0) {
        u32 chosen;
        if (greedy) {
            u32 token = chosen = min(index_of(largest), a.n - 1);
            bool end = turn + 1 >= turns || far(&sync->cancelled[turn & 3]);
            for (u32 i = 0; i < s->end_count; i++) end |= s->ends[i] == token;
            s->token = token;
            s->ended = end;
        } else {
            s->token = min(far(&a.step->rows[0].token), a.n - 1);
            s->ended = far(&a.step->ended);
            chosen = far(&a.states[a.row].token);
        }
        if (scores && chosen < NO_MASK && !s->signals.gave_up) hand_to_scores(w, s, chosen, largest);
        if (greedy && blockIdx.x == 0 && !s->signals.gave_up) hand_to_bookkeeper(w, s);
    }
    consumers_meet();
}

// Writes history, tokens, mailbox and step state, if a token was handed over. False if not.
__device__ __forceinline__ bool record_token(Shared *s, const SampleArgs &a) {
    if (s->bookkeeping.recorded == s->bookkeeping.handed) return false;
    __threadfence_block();
    finish(a, s->bookkeeping.token, s->bookkeeping.ended);
    __threadfence_block();
    s->bookkeeping.recorded = s->bookkeeping.recorded + 1;
    return true;
}

// The bookkeeper.
//
// Memory order: thread 0 writes a token and then `handed`; after the last token it writes `done`. A fence precedes each of the two
// writes. The bookkeeper reads `done`, and after a fence `handed`. All four accesses are volatile, so these are two release and
// acquire patterns at block scope: if the bookkeeper reads `done` as 1, it then reads the last value of `handed`, and after another
// fence that token. So it leaves only when every token is recorded. If it read `handed` first, the last token and `done` could
// both be written between the two reads, and it would leave without recording that token.
__device__ __forceinline__ void keep_books(Shared *s, const SampleArgs &a) {
    for (;;) {
        u32 done = s->signals.done;
        __threadfence_block();
        if (record_token(s, a)) continue;
        if (done) return;
        __nanosleep(100);
    }
}
