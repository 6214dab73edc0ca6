// Shared memory: its addresses, barriers in it, and copies into it.
#include "lanes.h"

const unsigned FIRST_ADDRESS = 0x400;

void *dynamic_shared(unsigned alignment) {
    Block &block = *current->warp->block;
    if (!block.dynamic) {
        // Aligned as was asked for, and no better; its end is where memory ends.
        size_t by = alignment < 16 ? 16 : alignment;
        char *start = (char *)((size_t)(block.room + MOST_SHARED - grid->launch->shared) / by * by);
        if (by < 1024 && (size_t)start / by % 2 == 0 && start - by >= block.room) start -= by;
        const char *const *shared = grid->launch->function->module->shared;
        unsigned fixed = FIRST_ADDRESS + (unsigned)(shared[1] - shared[0]);
        block.dynamic = start;
        memset(start, 0xff, grid->launch->shared);
        block.address = (fixed + 1023) / 1024 * 1024 + (unsigned)((size_t)start % 1024);
    }
    return block.dynamic;
}

unsigned shared_address(const void *p) {
    const Block &block = *current->warp->block;
    const char *at = (const char *)p, *const *fixed = grid->launch->function->module->shared;
    if (at >= fixed[0] && at < fixed[1]) return FIRST_ADDRESS + (unsigned)(at - fixed[0]);
    if (!block.dynamic || at < block.dynamic || at > block.dynamic + grid->launch->shared) die("the shared address of what is not in shared memory");
    return block.address + (unsigned)(at - block.dynamic);
}

static void *in_shared(const Block &block, unsigned address, unsigned bytes) {
    const Module &module = *grid->launch->function->module;
    unsigned fixed = address - FIRST_ADDRESS, dynamic = address - block.address;
    if ((u64)fixed + bytes <= (size_t)(module.shared[1] - module.shared[0])) return module.shared[0] + fixed;
    if (!block.dynamic || (u64)dynamic + bytes > grid->launch->shared) die("an address beyond the block's shared memory");
    return block.dynamic + dynamic;
}

void *shared(unsigned address, unsigned bytes) { return in_shared(*current->warp->block, address, bytes); }

struct Mbarrier { // in 8 bytes of shared memory
    u64 pending : 16, arrivals : 16, phase : 1, kind : 7;
    long long bytes : 24;
};
const u64 MADE = 0x35;

static Mbarrier &mbarrier(const Block &block, unsigned at) {
    if (at % 8) die("an mbarrier at an address that is not a multiple of 8");
    Mbarrier &m = *(Mbarrier *)in_shared(block, at, 8);
    if (m.kind != MADE) die("an mbarrier that was not initialised");
    return m;
}

static void settle(Mbarrier &m) {
    if (m.pending || m.bytes) return;
    m.pending = m.arrivals;
    m.phase ^= 1;
    something_happened = true;
}

void mbarrier_init(unsigned at, unsigned arrivals) {
    Mbarrier &m = *(Mbarrier *)shared(at, 8);
    m = {};
    m.pending = m.arrivals = arrivals;
    m.kind = MADE;
}

static void arrive(const Block &block, unsigned at, unsigned bytes) {
    perhaps_pause();
    Mbarrier &m = mbarrier(block, at);
    if (!m.pending) die("more arrivals at an mbarrier than its phase has");
    m.bytes += bytes;
    m.pending--;
    settle(m);
}

void mbarrier_arrive(unsigned at, unsigned bytes) { arrive(*current->warp->block, at, bytes); }

// A block of this cluster, which is still there.
static Block &peer(unsigned rank) {
    const Dim &own = current->warp->block->index;
    const unsigned size = grid->launch->function->cluster, x = own.x / size * size + rank;
    if (rank >= size) die("a block beyond the cluster");
    for (unsigned i = 0; i < grid->resident; i++) {
        Block &block = *grid->blocks[i];
        if (block.alive && block.index.x == x && block.index.y == own.y && block.index.z == own.z) return block;
    }
    die("a block of the cluster that has left, or not begun");
}

// Only dynamic shared memory: a block's static one is elsewhere while others have their turn.
void *shared_of(unsigned rank, unsigned address, unsigned bytes) { return in_shared(peer(rank), address, bytes); }

void mbarrier_arrive_at(unsigned rank, unsigned at) { arrive(peer(rank), at, 0); }

bool mbarrier_passed(unsigned at, unsigned parity) {
    const Mbarrier &m = mbarrier(*current->warp->block, at);
    if (m.phase == parity) pause("an mbarrier at", (const void *)(size_t)at);
    return m.phase != parity;
}

// ---- copies ----

void copy_bulk(unsigned to, const void *from, unsigned bytes, unsigned barrier) {
    Block &block = *current->warp->block;
    if (to % 16 || (size_t)from % 16 || bytes % 16) die("a bulk copy that is not a multiple of 16");
    memset(shared(to, bytes), 0xff, bytes); // nobody may look at it yet
    mbarrier(block, barrier);
    block.bulk.push_back({to, bytes, bytes, barrier, from});
}

void copy_to(unsigned blocks, unsigned to, const void *from, unsigned bytes, unsigned taken, unsigned barrier) {
    if (to % 16 || (taken && (size_t)from % 16) || bytes % 16) die("a bulk copy that is not a multiple of 16");
    for (unsigned rank = 0; rank < 8; rank++) {
        if (blocks ? !(blocks >> rank & 1) : rank > 0) continue;
        Block &block = blocks ? peer(rank) : *current->warp->block;
        memset(in_shared(block, to, bytes), 0xff, bytes);
        mbarrier(block, barrier);
        block.bulk.push_back({to, bytes, taken, barrier, from});
    }
}

bool deliver(Block &block) {
    size_t left = 0, all = block.bulk.size();
    for (const Bulk &copy : block.bulk) {
        if (chance(3)) {
            block.bulk[left++] = copy;
            continue;
        }
        char *to = (char *)in_shared(block, copy.to, copy.bytes);
        memcpy(to, copy.from, copy.taken);
        memset(to + copy.taken, 0, copy.bytes - copy.taken);
        Mbarrier &m = mbarrier(block, copy.barrier);
        m.bytes -= copy.bytes;
        settle(m);
    }
    block.bulk.resize(left);
    return all > 0;
}

void copy_async(unsigned to, const void *from, unsigned bytes, unsigned taken) {
    if (to % bytes || (taken && (size_t)from % bytes)) die("an asynchronous copy that is not aligned");
    memset(shared(to, bytes), 0xff, bytes);
    current->copies.push_back({to, bytes, taken, current->committed, from});
}

// The lane's copies arrive like bulk copies from now on: as late as possible, and the barrier waits for their bytes.
void arrive_after_copies(unsigned at) {
    Block &block = *current->warp->block;
    unsigned bytes = 0;
    for (const Copy &copy : current->copies) {
        block.bulk.push_back({copy.to, copy.bytes, copy.taken, at, copy.from});
        bytes += copy.bytes;
    }
    current->copies.clear();
    mbarrier_arrive(at, bytes);
}

void copy_commit() { current->committed++; }

void copy_wait(unsigned pending) {
    perhaps_pause();
    std::vector<Copy> &copies = current->copies;
    size_t done = 0;
    for (; done < copies.size() && copies[done].group + pending < current->committed; done++) {
        const Copy &copy = copies[done];
        char *to = (char *)shared(copy.to, copy.bytes);
        memcpy(to, copy.from, copy.taken);
        memset(to + copy.taken, 0, copy.bytes - copy.taken);
    }
    copies.erase(copies.begin(), copies.begin() + done);
}
