// Meetings of lanes: of a warp, with what its products do, and of a block.
#include "lanes.h"
#include <unistd.h>

static void each_matrix(Slot *slots, bool turned) {
    const unsigned short *rows[32];
    for (unsigned i = 0; i < 32; i++) {
        if (slots[i].w[0] % 16) die("a row of a matrix at an address that is not a multiple of 16");
        rows[i] = (const unsigned short *)shared(slots[i].w[0], 16);
    }
    for (unsigned lane = 0; lane < 32; lane++)
        for (unsigned m = 0; m < 4; m++) {
            unsigned g = lane / 4, t = lane % 4;
            unsigned low = turned ? rows[8 * m + 2 * t][g] : rows[8 * m + g][2 * t];
            unsigned high = turned ? rows[8 * m + 2 * t + 1][g] : rows[8 * m + g][2 * t + 1];
            slots[lane].w[m] = low | high << 16;
        }
}

static float widened(unsigned bits, bool bfloat) {
    float f;
    unsigned word = bits << 16;
    _Float16 h;
    unsigned short half = (unsigned short)bits;
    if (bfloat) return memcpy(&f, &word, 4), f;
    return memcpy(&h, &half, 2), (float)h;
}

static void multiply(Slot *slots, bool bfloat) {
    float a[16][16], b[16][8];
    for (unsigned lane = 0; lane < 32; lane++)
        for (unsigned i = 0; i < 2; i++) {
            unsigned g = lane / 4, k = lane % 4 * 2 + i;
            const unsigned *w = slots[lane].w;
            a[g][k] = widened(w[0] >> 16 * i & 0xffff, bfloat), a[g + 8][k] = widened(w[1] >> 16 * i & 0xffff, bfloat);
            a[g][k + 8] = widened(w[2] >> 16 * i & 0xffff, bfloat), a[g + 8][k + 8] = widened(w[3] >> 16 * i & 0xffff, bfloat);
            b[k][g] = widened(w[4] >> 16 * i & 0xffff, bfloat), b[k + 8][g] = widened(w[5] >> 16 * i & 0xffff, bfloat);
        }
    for (unsigned row = 0; row < 16; row++) {
        float sums[8] = {};
        for (unsigned k = 0; k < 16; k++)
            for (unsigned n = 0; n < 8; n++) sums[n] += a[row][k] * b[k][n];
        for (unsigned n = 0; n < 8; n++) memcpy(&slots[row % 8 * 4 + n / 2].w[row / 8 * 2 + n % 2], &sums[n], 4);
    }
}

static void multiply_bytes(Slot *slots) {
    int a[16][32], b[32][8];
    for (unsigned lane = 0; lane < 32; lane++)
        for (unsigned i = 0; i < 8; i++) {
            unsigned g = lane / 4, half = i / 4, k = lane % 4 * 4 + i % 4 + 16 * half;
            const unsigned *w = slots[lane].w;
            auto byte = [&](unsigned word) { return (signed char)(w[word] >> i % 4 * 8); };
            a[g][k] = byte(2 * half), a[g + 8][k] = byte(2 * half + 1), b[k][g] = byte(4 + half);
        }
    for (unsigned row = 0; row < 16; row++)
        for (unsigned n = 0; n < 8; n++) {
            int sum = 0;
            for (unsigned k = 0; k < 32; k++) sum += a[row][k] * b[k][n];
            slots[row % 8 * 4 + n / 2].w[row / 8 * 2 + n % 2] = (unsigned)sum;
        }
}

void finish_meeting(Warp &warp) {
    Slot *slots = warp.slots[warp.turn & 1];
    for (unsigned i = 0; i < 32; i++)
        if (!(warp.arrived >> i & 1)) memset(&slots[i], 0xff, sizeof(Slot));
    if (warp.meeting >= LOAD_MATRICES && warp.meeting <= MMA_S8 && ~warp.arrived) die("a product of a warp whose lanes are not all there");
    if (warp.meeting == LOAD_MATRICES || warp.meeting == LOAD_MATRICES_TURNED) each_matrix(slots, warp.meeting == LOAD_MATRICES_TURNED);
    if (warp.meeting == MMA_F16 || warp.meeting == MMA_BF16) multiply(slots, warp.meeting == MMA_BF16);
    if (warp.meeting == MMA_S8) multiply_bytes(slots);
    warp.ready |= warp.arrived;
    warp.arrived = 0;
    warp.turn++;
    something_happened = true;
}

const Slot *meet(unsigned mask, Meeting meeting, const void *in, unsigned bytes) {
    static const char *const names[MEETINGS] = {"__syncwarp", "a shuffle", "a vote", "ldmatrix", "ldmatrix.trans", "mma f16", "mma bf16", "mma s8", "wgmma"};
    perhaps_pause();
    Warp &warp = *current->warp;
    if (!(mask & bit(current))) die("a lane meets others under a mask without itself");
    if (!warp.arrived) warp.mask = mask, warp.meeting = meeting;
    if (warp.mask != mask || warp.meeting != meeting) {
        current->at = names[meeting];
        die("lanes of a warp meet for different things");
    }
    Slot *slots = warp.slots[warp.turn & 1];
    if (bytes) memcpy(slots[current->place.thread.x % 32].w, in, bytes);
    warp.arrived |= bit(current);
    if (warp.mask & warp.alive & ~warp.arrived) wait(names[meeting], nullptr);
    else finish_meeting(warp);
    return slots;
}

void finish_barrier(Block &block, unsigned id) {
    Barrier &barrier = block.barriers[id];
    for (auto &warp : block.warps) {
        for (unsigned some = warp->waiting[id]; some; some &= some - 1) warp->lanes[__builtin_ctz(some)].counted = barrier.yes;
        warp->ready |= warp->waiting[id];
        warp->waiting[id] = 0;
    }
    barrier = {};
    something_happened = true;
}

int barrier(unsigned id, unsigned threads, bool yes) {
    perhaps_pause();
    Block &block = *current->warp->block;
    if (id >= BARRIERS || threads % 32) die("a barrier that there is not");
    Barrier &here = block.barriers[id];
    if (here.arrived && here.wanted != threads) die("lanes meet at a barrier for different numbers of threads");
    here.wanted = threads;
    here.yes += yes;
    if (++here.arrived == (threads ? threads : block.alive)) {
        int counted = here.yes;
        finish_barrier(block, id);
        return counted;
    }
    current->warp->waiting[id] |= bit(current);
    wait("barrier", (const void *)(size_t)id);
    return current->counted;
}

// Once a lane looks at the same again, or has looked often enough, others go on first.
void yield(const char *at, const void *what) {
    bool again = what == current->last || ++current->looked % 8 == 0;
    current->last = what;
    const unsigned late = lateness();
    if (again || late || chance(2)) pause(at, what);
    if (late) usleep(late * 1000);
}

void cluster_sync() {
    perhaps_pause();
    const unsigned size = grid->launch->function->cluster;
    const Dim &at = current->warp->block->index, &all = grid->launch->blocks;
    ClusterMeeting &meeting = grid->meetings[((u64)at.z * all.y + at.y) * all.x + at.x / size];
    const unsigned turn = meeting.turn;
    if (++meeting.arrived == size * grid->launch->threads.x) {
        meeting.arrived = 0, meeting.turn++;
        something_happened = true;
    }
    while (meeting.turn == turn) pause("a cluster's barrier", nullptr);
}
