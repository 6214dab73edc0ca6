// Runs a grid: lanes are scheduled warp by warp, a warp for as long as any of its lanes can go on, the blocks in turns.
//
// In order, unless WELTE_PRETEND_SEED is not 0: then lanes, warps and blocks change places, and every service may let
// others go first. What deadlocks ends with a list of who waits where.
#include "run.h"
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <dlfcn.h>
#include <memory>
#include <sys/mman.h>
#include <unistd.h>

typedef unsigned long long u64;

const size_t STACK = 64 << 10, PAGE = 4096;
const unsigned BARRIERS = 16, FIRST_ADDRESS = 0x400;

struct Copy { // cp.async on its way
    unsigned to, bytes, taken, group;
    const void *from;
};

struct Warp;

struct Lane {
    Place place;
    Warp *warp;
    void *stack; // where it stands
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
    unsigned to, bytes, barrier;
    const void *from;
};

struct Block {
    Dim index;
    unsigned alive;
    char *room;      // for dynamic shared memory: MOST_SHARED before a page that nobody may touch
    char *dynamic;   // where it begins, once somebody has asked
    unsigned address;
    std::vector<char> kept; // static shared memory while another block has its turn
    std::vector<Bulk> bulk;
    Barrier barriers[BARRIERS];
    std::vector<std::unique_ptr<Warp>> warps;
};

static const Launch *running;
static Lane *current;
static void *scheduler;
static std::vector<std::unique_ptr<Block>> blocks; // that are alive, and others
static unsigned resident;
static std::vector<char *> stacks;
static u64 ticks, random_state;
static time_t last_event;

unsigned setting(const char *name, unsigned otherwise) {
    const char *text = getenv(name);
    return text && *text ? (unsigned)strtoul(text, nullptr, 10) : otherwise;
}

unsigned multiprocessors() {
    static const unsigned count = setting("WELTE_PRETEND_SMS", 8);
    return count ? count : 1;
}

// 0 .. below; always 0 where everything goes in order.
static unsigned chance(unsigned below) {
    if (!random_state) return 0;
    random_state ^= random_state << 13, random_state ^= random_state >> 7, random_state ^= random_state << 17;
    return (unsigned)(random_state >> 33) % below;
}

// ---- changing lanes ----

// Keeps the registers that a call must keep, and goes on with another stack.
extern "C" void pretend_change(void **from, void *to);
asm(R"(
.text
.globl pretend_change
.type pretend_change, @function
pretend_change:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size pretend_change, .-pretend_change
)");

static void leave() {
    pretend_change(&current->stack, scheduler);
}

static unsigned bit(const Lane *lane) { return 1u << lane->place.thread.x % 32; }

static void wait(const char *at, const void *what) {
    current->at = at;
    current->what = what;
    current->warp->ready &= ~bit(current);
    leave();
    current->at = nullptr;
}

static void pause(const char *at, const void *what) {
    current->at = at;
    current->what = what;
    current->warp->paused |= bit(current);
    leave();
    current->at = nullptr;
}

// Where things may go in another order, they do now and then.
static void perhaps_pause() {
    if (random_state && chance(8) == 0) pause("its turn", nullptr);
}

static void finish_meeting(Warp &);
static void finish_barrier(Block &, unsigned id);

static void lane_main() {
    running->function->code(running->args.data());
    Warp &warp = *current->warp;
    Block &block = *warp.block;
    warp.alive &= ~bit(current), warp.ready &= ~bit(current);
    block.alive--;
    last_event = 0;
    if (warp.arrived && !(warp.mask & warp.alive & ~warp.arrived)) finish_meeting(warp);
    Barrier &all = block.barriers[0];
    if (all.arrived && !all.wanted && all.arrived == block.alive) finish_barrier(block, 0);
    if (!block.alive && !block.bulk.empty()) die("a bulk copy is on its way into a block that has left");
    leave();
    __builtin_unreachable();
}

// A stack that begins with lane_main. Neighbours begin at other places of a page: they would all share a few cache lines.
static void *fresh_stack(unsigned number) {
    while (stacks.size() <= number) {
        char *all = (char *)mmap(nullptr, STACK + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (all == MAP_FAILED || mprotect(all, PAGE, PROT_NONE)) die("no memory for stacks");
        stacks.push_back(all + PAGE);
    }
    void **top = (void **)(stacks[number] + STACK - 64 - number % 61 * 64);
    *--top = nullptr; // as after a call: not a multiple of 16
    *--top = (void *)lane_main;
    return top - 6;
}

// ---- meetings ----

static void each_matrix(Warp &warp, Slot *slots, bool turned) {
    const unsigned short *rows[32];
    for (unsigned i = 0; i < 32; i++) {
        if (slots[i].w[0] % 16) die("a row of a matrix at an address that is no multiple of 16");
        rows[i] = (const unsigned short *)services.shared(slots[i].w[0], 16);
    }
    for (unsigned lane = 0; lane < 32; lane++)
        for (unsigned m = 0; m < 4; m++) {
            unsigned g = lane / 4, t = lane % 4;
            unsigned low = turned ? rows[8 * m + 2 * t][g] : rows[8 * m + g][2 * t];
            unsigned high = turned ? rows[8 * m + 2 * t + 1][g] : rows[8 * m + g][2 * t + 1];
            slots[lane].w[m] = low | high << 16;
        }
    (void)warp;
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

static void finish_meeting(Warp &warp) {
    Slot *slots = warp.slots[warp.turn & 1];
    for (unsigned i = 0; i < 32; i++)
        if (!(warp.arrived >> i & 1)) memset(&slots[i], 0xff, sizeof(Slot));
    if (warp.meeting >= LOAD_MATRICES && warp.meeting <= MMA_BF16 && ~warp.arrived) die("a product of a warp whose lanes are not all there");
    if (warp.meeting == LOAD_MATRICES || warp.meeting == LOAD_MATRICES_TURNED) each_matrix(warp, slots, warp.meeting == LOAD_MATRICES_TURNED);
    if (warp.meeting == MMA_F16 || warp.meeting == MMA_BF16) multiply(slots, warp.meeting == MMA_BF16);
    warp.ready |= warp.arrived;
    warp.arrived = 0;
    warp.turn++;
    last_event = 0;
}

static const Slot *meet(unsigned mask, Meeting meeting, const void *in, unsigned bytes) {
    static const char *const names[MEETINGS] = {"__syncwarp", "a shuffle", "a vote", "ldmatrix", "ldmatrix.trans", "mma f16", "mma bf16", "wgmma"};
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

static void finish_barrier(Block &block, unsigned id) {
    Barrier &barrier = block.barriers[id];
    for (auto &warp : block.warps) {
        for (unsigned some = warp->waiting[id]; some; some &= some - 1) warp->lanes[__builtin_ctz(some)].counted = barrier.yes;
        warp->ready |= warp->waiting[id];
        warp->waiting[id] = 0;
    }
    barrier = {};
    last_event = 0;
}

static int barrier(unsigned id, unsigned threads, bool yes) {
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
static void yield(const char *at, const void *what) {
    bool again = what == current->last || ++current->looked % 8 == 0;
    current->last = what;
    if (again || chance(2)) pause(at, what);
}

// ---- shared memory ----

static void *dynamic_shared(unsigned alignment) {
    Block &block = *current->warp->block;
    if (!block.dynamic) {
        // Aligned as was asked for, and no better; its end is where memory ends.
        size_t by = alignment < 16 ? 16 : alignment;
        char *start = (char *)((size_t)(block.room + MOST_SHARED - running->shared) / by * by);
        if (by < 1024 && (size_t)start / by % 2 == 0 && start - by >= block.room) start -= by;
        const char *const *shared = running->function->module->shared;
        unsigned fixed = FIRST_ADDRESS + (unsigned)(shared[1] - shared[0]);
        block.dynamic = start;
        block.address = (fixed + 1023) / 1024 * 1024 + (unsigned)((size_t)start % 1024);
    }
    return block.dynamic;
}

static unsigned shared_address(const void *p) {
    const Block &block = *current->warp->block;
    const char *at = (const char *)p, *const *fixed = running->function->module->shared;
    if (at >= fixed[0] && at < fixed[1]) return FIRST_ADDRESS + (unsigned)(at - fixed[0]);
    if (!block.dynamic || at < block.dynamic || at > block.dynamic + running->shared) die("the shared address of what is not in shared memory");
    return block.address + (unsigned)(at - block.dynamic);
}

static void *in_shared(const Block &block, unsigned address, unsigned bytes) {
    const Module &module = *running->function->module;
    unsigned fixed = address - FIRST_ADDRESS, dynamic = address - block.address;
    if ((u64)fixed + bytes <= (size_t)(module.shared[1] - module.shared[0])) return module.shared[0] + fixed;
    if (!block.dynamic || (u64)dynamic + bytes > running->shared) die("an address beyond the block's shared memory");
    return block.dynamic + dynamic;
}

static void *shared(unsigned address, unsigned bytes) { return in_shared(*current->warp->block, address, bytes); }

struct Mbarrier { // in 8 bytes of shared memory
    u64 pending : 16, arrivals : 16, phase : 1, kind : 7;
    long long bytes : 24;
};
const u64 MADE = 0x35;

static Mbarrier &mbarrier(const Block &block, unsigned at) {
    if (at % 8) die("an mbarrier at an address that is no multiple of 8");
    Mbarrier &m = *(Mbarrier *)in_shared(block, at, 8);
    if (m.kind != MADE) die("an mbarrier that was not initialised");
    return m;
}

static void settle(Mbarrier &m) {
    if (m.pending || m.bytes) return;
    m.pending = m.arrivals;
    m.phase ^= 1;
    last_event = 0;
}

static void mbarrier_init(unsigned at, unsigned arrivals) {
    Mbarrier &m = *(Mbarrier *)shared(at, 8);
    m = {};
    m.pending = m.arrivals = arrivals;
    m.kind = MADE;
}

static void mbarrier_arrive(unsigned at, unsigned bytes) {
    perhaps_pause();
    Mbarrier &m = mbarrier(*current->warp->block, at);
    if (!m.pending) die("more arrivals at an mbarrier than its phase has");
    m.bytes += bytes;
    m.pending--;
    settle(m);
}

static bool mbarrier_passed(unsigned at, unsigned parity) {
    const Mbarrier &m = mbarrier(*current->warp->block, at);
    if (m.phase == parity) pause("an mbarrier at", (const void *)(size_t)at);
    return m.phase != parity;
}

// ---- copies ----

static void copy_bulk(unsigned to, const void *from, unsigned bytes, unsigned barrier) {
    Block &block = *current->warp->block;
    if (to % 16 || (size_t)from % 16 || bytes % 16) die("a bulk copy that is no multiple of 16");
    memset(shared(to, bytes), 0xff, bytes); // nobody may look at it yet
    mbarrier(block, barrier);
    block.bulk.push_back({to, bytes, barrier, from});
}

static bool deliver(Block &block) {
    size_t left = 0, all = block.bulk.size();
    for (const Bulk &copy : block.bulk) {
        if (chance(3)) {
            block.bulk[left++] = copy;
            continue;
        }
        memcpy(in_shared(block, copy.to, copy.bytes), copy.from, copy.bytes);
        Mbarrier &m = mbarrier(block, copy.barrier);
        m.bytes -= copy.bytes;
        settle(m);
    }
    block.bulk.resize(left);
    return all > 0;
}

static void copy_async(unsigned to, const void *from, unsigned bytes, unsigned taken) {
    if (to % bytes || (taken && (size_t)from % bytes)) die("an asynchronous copy that is not aligned");
    memset(shared(to, bytes), 0xff, bytes);
    current->copies.push_back({to, bytes, taken, current->committed, from});
}

static void copy_commit() { current->committed++; }

static void copy_wait(unsigned pending) {
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

static long long now() { return (long long)ticks; }

const Services services = {meet, barrier, yield, dynamic_shared, shared_address, shared, mbarrier_init, mbarrier_arrive, mbarrier_passed,
                           copy_bulk, copy_async, copy_commit, copy_wait, set_condition, now, die};

// ---- scheduling ----

static void enter(Lane &lane) {
    current = &lane;
    *running->function->module->place = &lane.place;
    ticks++;
    pretend_change(&scheduler, lane.stack);
    current = nullptr;
}

// Lets lanes of a warp run until none can, but each at most once after it has let others go first.
static bool turn(Warp &warp) {
    warp.paused = 0;
    bool ran = false;
    while (unsigned some = warp.ready & ~warp.paused) {
        unsigned by = chance(32);
        some = some >> by | some << (32 - by) % 32;
        for (; some; some &= some - 1) {
            unsigned lane = (__builtin_ctz(some) + by) % 32;
            if (warp.ready & ~warp.paused & 1u << lane) enter(warp.lanes[lane]);
        }
        ran = true;
    }
    return ran;
}

// The object's static shared memory becomes this block's.
static void hold(Block &block) {
    Module &module = *running->function->module;
    size_t bytes = module.shared[1] - module.shared[0];
    if (module.holds == &block || !bytes) return;
    if (module.holds) memcpy(module.holds->kept.data(), module.shared[0], bytes);
    memcpy(module.shared[0], block.kept.data(), bytes);
    module.holds = &block;
}

static void start(unsigned place, u64 number) {
    Block &block = *blocks[place];
    const Dim &grid = running->blocks, &threads = running->threads;
    const Module &module = *running->function->module;
    block.index = {(unsigned)(number % grid.x), (unsigned)(number / grid.x % grid.y), (unsigned)(number / grid.x / grid.y)};
    block.alive = threads.x;
    block.dynamic = nullptr;
    block.bulk.clear();
    memset(block.barriers, 0, sizeof block.barriers);
    memset(block.room, 0xff, MOST_SHARED);
    block.kept.assign(module.shared[1] - module.shared[0], (char)0xff);
    while (block.warps.size() < (threads.x + 31) / 32) block.warps.emplace_back(new Warp());
    for (unsigned w = 0; w < block.warps.size(); w++) {
        Warp &warp = *block.warps[w];
        warp.block = &block;
        warp.number = w;
        warp.alive = warp.paused = warp.arrived = 0;
        memset(warp.waiting, 0, sizeof warp.waiting);
        for (unsigned i = 0; i < 32 && w * 32 + i < threads.x; i++) {
            Lane &lane = warp.lanes[i];
            unsigned thread = w * 32 + i;
            lane.place = {{thread, 0, 0}, block.index, threads, grid};
            lane.warp = &warp;
            lane.stack = fresh_stack(place * ((threads.x + 31) / 32 * 32) + thread);
            lane.at = nullptr, lane.what = lane.last = nullptr;
            lane.looked = lane.committed = 0;
            lane.copies.clear();
            warp.alive |= 1u << i;
        }
        warp.ready = warp.alive;
    }
}

static void watch() {
    time_t time_now = time(nullptr);
    if (!last_event) last_event = time_now;
    static const unsigned patience = setting("WELTE_PRETEND_PATIENCE", 60);
    if (time_now - last_event > (time_t)patience) die("for too long nothing has happened but looking");
}

void run(const Launch &launch) {
    u64 all = (u64)launch.blocks.x * launch.blocks.y * launch.blocks.z, next = 0;
    resident = (unsigned)(all < multiprocessors() ? all : multiprocessors());
    running = &launch;
    random_state = setting("WELTE_PRETEND_SEED", 0);
    if (random_state) random_state = random_state * 0x9e3779b97f4a7c15ull + ticks;
    last_event = 0;
    while (blocks.size() < resident) {
        std::unique_ptr<Block> block(new Block());
        char *room = (char *)mmap(nullptr, MOST_SHARED + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        block->room = room + PAGE;
        if (room == MAP_FAILED || mprotect(block->room, MOST_SHARED, PROT_READ | PROT_WRITE)) die("no memory for a block");
        blocks.push_back(std::move(block));
    }
    launch.function->module->holds = nullptr;
    unsigned open = 0;
    for (; open < resident; open++) start(open, next++);
    for (u64 rounds = 0; open; rounds++) {
        bool ran = false;
        unsigned first = chance(resident);
        for (unsigned i = 0; i < resident; i++) {
            Block &block = *blocks[(first + i) % resident];
            if (!block.alive) continue;
            hold(block);
            ran |= deliver(block);
            size_t warps = (launch.threads.x + 31) / 32, from = chance((unsigned)warps);
            for (size_t w = 0; w < warps; w++) ran |= turn(*block.warps[(from + w) % warps]);
            if (block.alive) continue;
            launch.function->module->holds = nullptr;
            if (next < all) start((first + i) % resident, next++);
            else open--;
        }
        if (!ran) die("all wait for each other");
        if (rounds % 4096 == 4095) watch();
    }
    running = nullptr;
}

// ---- when something is wrong ----

static void say(const char *format, ...) {
    char text[512];
    va_list list;
    va_start(list, format);
    int n = vsnprintf(text, sizeof text, format, list);
    va_end(list);
    if (n > 0 && write(2, text, (size_t)n < sizeof text ? n : sizeof text - 1) < 0) abort();
}

// Lanes of a warp that wait for the same are one line.
static void list(const Warp &warp) {
    unsigned left = warp.alive;
    while (left) {
        const Lane &first = warp.lanes[__builtin_ctz(left)];
        unsigned same = 0;
        for (unsigned some = left; some; some &= some - 1) {
            unsigned i = __builtin_ctz(some);
            if (warp.lanes[i].at == first.at && warp.lanes[i].what == first.what) same |= 1u << i;
        }
        left &= ~same;
        const Dim &b = warp.block->index;
        say("  block %u,%u,%u warp %u lanes %08x: ", b.x, b.y, b.z, warp.number, same);
        if (!first.at) say("at work\n");
        else if (strcmp(first.at, "barrier")) say("%s %p\n", first.at, first.what);
        else {
            const Barrier &barrier = warp.block->barriers[(size_t)first.what];
            say("barrier %zu, %u of %u have come\n", (size_t)first.what, barrier.arrived, barrier.wanted ? barrier.wanted : warp.block->alive);
        }
    }
}

void die(const char *why) {
    say("\nthe pretended GPU: %s\n", why);
    if (running) {
        const Dim &g = running->blocks;
        say("in %s, %u,%u,%u blocks of %u threads, %u bytes of shared memory", running->function->name.c_str(), g.x, g.y, g.z, running->threads.x, running->shared);
        if (current) {
            const Dim &b = current->place.block;
            say(", block %u,%u,%u, thread %u", b.x, b.y, b.z, current->place.thread.x);
        }
        say("\n");
        unsigned lines = 0;
        for (unsigned i = 0; i < resident && blocks[i]; i++)
            for (size_t w = 0; blocks[i]->alive && w < (running->threads.x + 31) / 32 && lines++ < 200; w++) list(*blocks[i]->warps[w]);
    }
    abort();
}

static void fault(int signal, siginfo_t *info, void *) {
    std::signal(signal, SIG_DFL);
    if (!current) return; // not in a kernel: once more, and then as if nobody had caught it
    char what[200];
    describe(info->si_addr, what, sizeof what);
    for (unsigned i = 0; i < resident && blocks[i]; i++) {
        ptrdiff_t at = (char *)info->si_addr - blocks[i]->room;
        if (at >= -(ptrdiff_t)PAGE && at < (ptrdiff_t)(MOST_SHARED + PAGE)) snprintf(what, sizeof what, "%td bytes from the end of shared memory", at - MOST_SHARED);
    }
    for (char *stack : stacks)
        if ((char *)info->si_addr >= stack - PAGE && (char *)info->si_addr < stack) snprintf(what, sizeof what, "the stack is full");
    char why[300];
    snprintf(why, sizeof why, "a fault at %p: %s", info->si_addr, what);
    die(why);
}

void catch_faults() {
    stack_t own = {};
    own.ss_size = 64 << 10;
    own.ss_sp = malloc(own.ss_size);
    sigaltstack(&own, nullptr);
    struct sigaction action = {};
    action.sa_sigaction = fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int signal : {SIGSEGV, SIGBUS, SIGFPE}) sigaction(signal, &action, nullptr);
}
