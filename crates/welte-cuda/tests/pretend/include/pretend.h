// The interface between a compiled kernel and the pretend driver. Every thread of a grid is a *lane* with a stack of its
// own; one thread of the operating system runs them all, and changes from one to the next only where a lane asks for it: in
// these services.
#pragma once

namespace pretend_gpu {

struct Dim {
    unsigned x, y, z;
};

// What a lane sees of itself.
struct Place {
    Dim thread, block, threads, blocks;
};

// What a lane brings to a meeting of its warp, or takes from it.
struct Slot {
    unsigned w[8];
};

// Meetings of a warp. The last to come does the common work; lanes that meet must mean the same.
enum Meeting { SYNC, SHUFFLE, VOTE, LOAD_MATRICES, LOAD_MATRICES_TURNED, MMA_F16, MMA_BF16, MMA_S8, FRAGMENT, MEETINGS };

struct Services {
    // All lanes of the mask meet; afterwards each sees what everybody brought (or what the common work left there).
    const Slot *(*meet)(unsigned mask, Meeting, const void *in, unsigned bytes);
    // So many lanes of the block meet (0: all); how many of them said yes.
    int (*barrier)(unsigned id, unsigned threads, bool yes);
    void (*grid_wait)();
    void (*grid_release)();
    // Others go on first: for those who look again and again.
    void (*yield)(const char *at, const void *what);
    void *(*dynamic_shared)(unsigned alignment);
    unsigned (*shared_address)(const void *);
    void *(*shared)(unsigned address, unsigned bytes);
    void (*mbarrier_init)(unsigned barrier, unsigned arrivals);
    void (*mbarrier_arrive)(unsigned barrier, unsigned bytes);
    bool (*mbarrier_passed)(unsigned barrier, unsigned parity);
    void (*copy_bulk)(unsigned to, const void *from, unsigned bytes, unsigned barrier);
    void (*copy_async)(unsigned to, const void *from, unsigned bytes, unsigned taken);
    void (*arrive_after_copies)(unsigned barrier);
    void (*copy_commit)();
    void (*copy_wait)(unsigned pending);
    // Clusters: all their lanes meet; shared memory of the block with a rank; an arrival at its barrier; a copy into the blocks whose bit is
    // set (0: into this one).
    void (*cluster_sync)();
    void *(*shared_of)(unsigned rank, unsigned address, unsigned bytes);
    void (*mbarrier_arrive_at)(unsigned rank, unsigned barrier);
    void (*copy_to)(unsigned blocks, unsigned to, const void *from, unsigned bytes, unsigned taken, unsigned barrier);
    void (*set_condition)(unsigned long long handle, unsigned value);
    long long (*clock)();
    void (*die)(const char *why);
};

} // namespace pretend_gpu
