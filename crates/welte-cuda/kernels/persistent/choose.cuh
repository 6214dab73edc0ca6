// The end of a turn: all blocks agree on the token. The largest logit of all needs one meeting; the sampler (sample.cuh) is
// asked where anything else is wanted. A block's clerk tells the host while the next turn runs.
#pragma once
#include "persistent/exchange.cuh"
#include "sample.cuh"

__device__ __forceinline__ bool asks_for_the_largest(const Sampler &s) {
    return !(s.temperature > 0.0f) && !has_penalties(s) && s.biases == 0;
}

// Hands the token to the clerk. A turn is far longer than the clerk's work on the one before.
__device__ __forceinline__ void tell(Watch &w, Shared *s) {
    Wait wait;
    while (s->clerk.told != s->clerk.turns && again(w, wait, PLACE_TOKEN)) {
    }
    s->clerk.token = s->token;
    s->clerk.ended = s->ended;
    __threadfence_block();
    s->clerk.turns = s->clerk.turns + 1;
}

// `best` is the largest logit that this thread has seen. Afterwards s->token and s->ended are there for all consumers.
__device__ __forceinline__ void choose(Watch &w, Shared *s, const SampleArgs &a, Sync *sync, u64 best, bool greedy, u32 turn, u32 turns, u32 cancelled) {
    u32 tid = threadIdx.x;
    if (greedy) {
#pragma unroll
        for (int o = 16; o > 0; o >>= 1) {
            u64 other = __shfl_xor_sync(~0u, best, o);
            best = other > best ? other : best;
        }
        if (tid % 32 == 0) s->best[tid / 32] = best;
    }
    consumers_meet();
    if (tid == 0) {
        if (greedy) {
#pragma unroll
            for (int i = 1; i < WARPS; i++) best = s->best[i] > best ? s->best[i] : best;
            atomicMax((unsigned long long *)&sync->best[turn & 3], best);
            if (blockIdx.x == 0) sync->cancelled[turn & 3] = cancelled;
        }
        arrive(&sync->arrived);
        wait_count(w, &sync->arrived, gridDim.x * (turn + 1));
    }
    if (!greedy) {
        consumers_meet();
        if (tid < THREADS && sample_block(a, s->work, cancelled)) {
            block_meets();
            if (tid == 0) arrive(&sync->chosen);
        }
        if (tid == 0) wait_count(w, &sync->chosen, turn + 1);
    }
    if (tid == 0) {
        if (greedy) {
            u64 rank = far(&sync->best[turn & 3]);
            u32 token = min(index_of(rank), a.n - 1);
            bool end = turn + 1 >= turns || far(&sync->cancelled[turn & 3]);
            for (u32 i = 0; i < s->ends_kept; i++) end |= s->ends[i] == token;
            // Nobody reads this one any more, nor writes it before the turn after the next.
            if (blockIdx.x == 0) sync->best[(turn + 3) & 3] = 0;
            s->token = token;
            s->ended = end;
        } else {
            s->token = min(far(&a.step->rows[0].token), a.n - 1);
            s->ended = far(&a.step->ended);
        }
        if (greedy && blockIdx.x == 0 && !s->signals.dead) tell(w, s);
    }
    consumers_meet();
}

// The clerk: history, conveyor, mailbox and step state.
__device__ __forceinline__ void keep_books(Shared *s, const SampleArgs &a) {
    for (;;) {
        if (s->clerk.told != s->clerk.turns) {
            __threadfence_block();
            finish(a, s->clerk.token, s->clerk.ended);
            __threadfence_block();
            s->clerk.told = s->clerk.told + 1;
        } else if (s->signals.done) {
            return;
        } else {
            __nanosleep(100);
        }
    }
}
