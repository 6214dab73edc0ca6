// What the files that run a grid share: its lanes, and how they wait.
#pragma once
#include "run.h"
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>

typedef unsigned long long u64;

const size_t PAGE = 4096;
const unsigned BARRIERS = 16;

struct Copy { // cp.async on its way
    unsigned to, bytes, taken, group;
    const void *from;
};

struct Warp;

struct Lane {
    Place place;
    Warp *warp;
    void *stack; // where it stands
    const u64 *bottom; // nought as long as the stack was never full
    const char *at;
    const void *what;
    unsigned looked;
    const void *last;
    unsigned committed;
    int counted;
    std::vector<Copy> copies;
};

struct Warp {
    Block *block;
    unsigned number, alive, ready, paused;
    unsigned waiting[BARRIERS];
    unsigned parked; // for the grid before
    Meeting meeting;
    unsigned mask, arrived, turn;
    Slot slots[2][32];
    Lane lanes[32];
};

struct Barrier {
    unsigned wanted, arrived;
    int yes;
};

struct Bulk { // cp.async.bulk on its way
    unsigned to, bytes, taken, barrier; // the bytes that are not taken become zero
    const void *from;
};

struct Block {
    Dim index;
    unsigned alive;
    bool released;
    char *room;      // for dynamic shared memory: MOST_SHARED before a page that nobody may touch
    char *dynamic;   // where it begins, once somebody has asked
    unsigned address;
    std::vector<char> kept; // static shared memory while another block has its turn
    std::vector<Bulk> bulk;
    Barrier barriers[BARRIERS];
    std::vector<std::unique_ptr<Warp>> warps;
};


struct ClusterMeeting {
    unsigned arrived, turn;
};

// A grid with its blocks: as many as are alive at a time, and others that were needed before.
struct Grid {
    std::shared_ptr<const Launch> launch;
    std::vector<std::unique_ptr<Block>> blocks;
    std::vector<char *> stacks;
    unsigned resident, open;    // places for blocks, and those where one is at work
    u64 next, all;              // the block that begins next; how many there are
    u64 released;               // blocks that let the next grid begin, or have left
    std::map<u64, ClusterMeeting> meetings; // of its clusters
    bool early;                 // it has begun before its turn: who waits for the grid before has to wait
};

// The one that runs, and the lane whose turn it is.
extern thread_local Grid *grid;
extern thread_local Lane *current;
extern thread_local bool in_order;
extern thread_local bool something_happened;

inline unsigned bit(const Lane *lane) { return 1u << lane->place.thread.x % 32; }

// 0 .. below; always 0 where everything goes in order.
unsigned chance(unsigned below);
// The current lane cannot go on until somebody makes it ready; `at` and `what` are for messages.
void wait(const char *at, const void *what);
// It can, but others go first.
void pause(const char *at, const void *what);
// Where things may go in another order, they do now and then.
void perhaps_pause();

void finish_meeting(Warp &);
void finish_barrier(Block &, unsigned id);
// Copies that were asked for arrive. False: there were none.
bool deliver(Block &);

const Slot *meet(unsigned mask, Meeting, const void *in, unsigned bytes);
int barrier(unsigned id, unsigned threads, bool yes);
// Once a lane looks at the same again, or has looked often enough, others go on first.
void yield(const char *at, const void *what);
void grid_wait();
void grid_release();
void *dynamic_shared(unsigned alignment);
unsigned shared_address(const void *);
void *shared(unsigned address, unsigned bytes);
void mbarrier_init(unsigned at, unsigned arrivals);
void mbarrier_arrive(unsigned at, unsigned bytes);
bool mbarrier_passed(unsigned at, unsigned parity);
void copy_bulk(unsigned to, const void *from, unsigned bytes, unsigned barrier);
void copy_async(unsigned to, const void *from, unsigned bytes, unsigned taken);
void arrive_after_copies(unsigned barrier);
void cluster_sync();
void *shared_of(unsigned rank, unsigned address, unsigned bytes);
void mbarrier_arrive_at(unsigned rank, unsigned at);
void copy_to(unsigned blocks, unsigned to, const void *from, unsigned bytes, unsigned taken, unsigned barrier);
void copy_commit();
void copy_wait(unsigned pending);
