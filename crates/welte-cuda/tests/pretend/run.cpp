// Runs a grid: lanes are scheduled warp by warp, a warp for as long as any of its lanes can go on, the blocks in turns.
//
// In order, unless WELTE_PRETEND_SEED is not 0: then lanes, warps and blocks change places, and every service may let
// others go first. What deadlocks ends with a list of who waits where.
#include "lanes.h"
#include <algorithm>
#include <ctime>
#include <sys/mman.h>

const size_t STACK = 64 << 10;
const unsigned SHARED_OF_ALL = 228 << 10; // blocks of a multiprocessor
const unsigned MOST_LANES = 4096;         // of a grid at a time, where a block per multiprocessor is not more

const size_t AHEAD = 2; // grids that have begun before the one whose turn it is has ended

// Of the thread that serves a stream: grids of several devices run at the same time.
thread_local Grid *grid;
thread_local Lane *current;
thread_local bool in_order, something_happened;
static thread_local std::vector<Grid *> idle; // with the memory of grids that have ended
static thread_local void *scheduler;
static thread_local u64 ticks, random_state;

unsigned setting(const char *name, unsigned otherwise) {
    const char *text = getenv(name);
    return text && *text ? (unsigned)strtoul(text, nullptr, 10) : otherwise;
}

unsigned multiprocessors() {
    static const unsigned count = setting("WELTE_PRETEND_SMS", 8);
    return count ? count : 1;
}

// 0 .. below; always 0 where everything goes in order.
unsigned chance(unsigned below) {
    if (in_order) return 0;
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

// The next lane of the warp that can go on has its turn; the scheduler if there is none.
static void leave() {
    Lane *from = current;
    const Warp &warp = *from->warp;
    unsigned some = warp.ready & ~warp.paused;
    if (!some) return pretend_change(&from->stack, scheduler);
    unsigned first = in_order ? from->place.thread.x % 32 : chance(32);
    unsigned later = some & ~0u << first;
    current = (Lane *)&warp.lanes[__builtin_ctz(later ? later : some)];
    *grid->launch->function->module->place = &current->place;
    ticks++;
    pretend_change(&from->stack, current->stack);
}

void wait(const char *at, const void *what) {
    current->at = at;
    current->what = what;
    current->warp->ready &= ~bit(current);
    leave();
    current->at = nullptr;
}

void pause(const char *at, const void *what) {
    current->at = at;
    current->what = what;
    current->warp->paused |= bit(current);
    leave();
    current->at = nullptr;
}

// Where things may go in another order, they do now and then.
void perhaps_pause() {
    if (!in_order && chance(8) == 0) pause("its turn", nullptr);
}

static void lane_main() {
    grid->launch->function->code(grid->launch->args.data());
    if (*current->bottom) die("the stack was too small");
    Warp &warp = *current->warp;
    Block &block = *warp.block;
    warp.alive &= ~bit(current), warp.ready &= ~bit(current);
    block.alive--;
    something_happened = true;
    if (warp.arrived && !(warp.mask & warp.alive & ~warp.arrived)) finish_meeting(warp);
    Barrier &all = block.barriers[0];
    if (all.arrived && !all.wanted && all.arrived == block.alive) finish_barrier(block, 0);
    if (!block.alive && !block.released) block.released = true, grid->released++;
    if (!block.alive && !block.bulk.empty()) die("a bulk copy is on its way into a block that has left");
    leave();
    __builtin_unreachable();
}

// A stack that begins with lane_main. Stacks are mapped in groups, since a process may have fewer mappings than a grid has
// threads. Neighbours begin at different offsets in a page; otherwise they would share a few cache lines.
static void *fresh_stack(Lane &lane, unsigned number) {
    const unsigned EACH = 256;
    while (grid->stacks.size() <= number) {
        char *all = (char *)mmap(nullptr, EACH * STACK + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (all == MAP_FAILED || mprotect(all, PAGE, PROT_NONE)) die("no memory for stacks");
        for (unsigned i = 0; i < EACH; i++) grid->stacks.push_back(all + PAGE + i * STACK);
    }
    lane.bottom = (const u64 *)grid->stacks[number];
    void **top = (void **)(grid->stacks[number] + STACK - 64 - number % 61 * 64);
    *--top = nullptr; // as after a call: not a multiple of 16
    *--top = (void *)lane_main;
    return top - 6;
}

void grid_wait() {
    if (!grid->early) return;
    current->warp->parked |= bit(current);
    wait("the grid before", nullptr);
}

void grid_release() {
    Block &block = *current->warp->block;
    if (!block.released) block.released = true, grid->released++;
}

static long long now() { return (long long)ticks; }

const Services services = {meet, barrier, grid_wait, grid_release, yield, dynamic_shared, shared_address, shared, mbarrier_init, mbarrier_arrive, mbarrier_passed,
                           copy_bulk, copy_async, arrive_after_copies, copy_commit, copy_wait, cluster_sync, shared_of, mbarrier_arrive_at, copy_to,
                           set_condition, now, die};

// ---- scheduling ----

static void enter(Lane &lane) {
    current = &lane;
    *grid->launch->function->module->place = &lane.place;
    ticks++;
    pretend_change(&scheduler, lane.stack);
    current = nullptr;
}

// Lets lanes of a warp run until none can, but each at most once after it has let others go first.
static bool turn(Warp &warp) {
    warp.paused = 0;
    if (!warp.ready) return false;
    while (unsigned some = warp.ready & ~warp.paused) enter(warp.lanes[__builtin_ctz(some)]);
    return true;
}

// The object's static shared memory becomes this block's.
static void hold(Block &block) {
    Module &module = *grid->launch->function->module;
    size_t bytes = module.shared[1] - module.shared[0];
    if (module.holds == &block || !bytes) return;
    if (module.holds) memcpy(module.holds->kept.data(), module.shared[0], bytes);
    memcpy(module.shared[0], block.kept.data(), bytes);
    module.holds = &block;
}

static void start(unsigned place, u64 number) {
    Block &block = *grid->blocks[place];
    const Dim &all = grid->launch->blocks, &threads = grid->launch->threads;
    Module &module = *grid->launch->function->module;
    block.index = {(unsigned)(number % all.x), (unsigned)(number / all.x % all.y), (unsigned)(number / all.x / all.y)};
    block.alive = threads.x;
    block.released = false;
    block.dynamic = nullptr;
    block.bulk.clear();
    memset(block.barriers, 0, sizeof block.barriers);
    if (module.holds == &block) module.holds = nullptr;
    block.kept.assign(module.shared[1] - module.shared[0], (char)0xff);
    while (block.warps.size() < (threads.x + 31) / 32) block.warps.emplace_back(new Warp());
    for (unsigned w = 0; w < block.warps.size(); w++) {
        Warp &warp = *block.warps[w];
        warp.block = &block;
        warp.number = w;
        warp.alive = warp.paused = warp.arrived = warp.parked = 0;
        memset(warp.waiting, 0, sizeof warp.waiting);
        for (unsigned i = 0; i < 32 && w * 32 + i < threads.x; i++) {
            Lane &lane = warp.lanes[i];
            unsigned thread = w * 32 + i;
            lane.place = {{thread, 0, 0}, block.index, threads, all};
            lane.warp = &warp;
            lane.stack = fresh_stack(lane, place * ((threads.x + 31) / 32 * 32) + thread);
            lane.at = nullptr, lane.what = lane.last = nullptr;
            lane.looked = lane.committed = 0;
            lane.copies.clear();
            warp.alive |= 1u << i;
        }
        warp.ready = warp.alive;
    }
}

// Looking again and again is work too: only time tells that it leads to nothing.
static void watch() {
    static thread_local time_t since;
    static const unsigned patience = setting("WELTE_PRETEND_PATIENCE", 60);
    time_t now = time(nullptr);
    if (something_happened) since = now;
    something_happened = false;
    if (now - since > (time_t)patience) die("for too long nothing has happened but looking");
}

// One turn for every block. False: none could go on.
static bool round() {
    bool ran = false;
    const size_t warps = (grid->launch->threads.x + 31) / 32;
    for (unsigned i = 0, first = chance(grid->resident); i < grid->resident; i++) {
        unsigned place = (first + i) % grid->resident;
        Block &block = *grid->blocks[place];
        if (!block.alive) continue;
        hold(block);
        ran |= deliver(block);
        for (size_t w = 0, from = chance((unsigned)warps); w < warps; w++) ran |= turn(*block.warps[(from + w) % warps]);
        if (block.alive) continue;
        grid->launch->function->module->holds = nullptr;
        if (grid->next < grid->all) start(place, grid->next++);
        else grid->open--;
    }
    return ran;
}

// Blocks that are alive at a time: one per multiprocessor, more where there is room for them (and for their stacks).
static unsigned at_a_time(const Launch &launch) {
    const char *const *fixed = launch.function->module->shared;
    unsigned sms = multiprocessors(), shared = launch.shared + (unsigned)(fixed[1] - fixed[0]) + 1024;
    unsigned fit = std::min({2048 / launch.threads.x, SHARED_OF_ALL / shared, MOST_LANES / launch.threads.x / sms});
    return sms * std::max(1u, fit);
}

static void begin(std::shared_ptr<const Launch> launch) {
    grid->all = (u64)launch->blocks.x * launch->blocks.y * launch->blocks.z;
    grid->resident = (unsigned)std::min<u64>(grid->all, at_a_time(*launch));
    grid->launch = std::move(launch);
    grid->next = grid->released = grid->open = 0;
    grid->meetings.clear();
    grid->early = true;
    static const unsigned seed = setting("WELTE_PRETEND_SEED", 0);
    in_order = seed == 0;
    random_state = in_order ? 0 : (seed + ticks) * 0x9e3779b97f4a7c15ull | 1;
    while (grid->blocks.size() < grid->resident) {
        std::unique_ptr<Block> block(new Block());
        char *room = (char *)mmap(nullptr, MOST_SHARED + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        block->room = room + PAGE;
        if (room == MAP_FAILED || mprotect(block->room, MOST_SHARED, PROT_READ | PROT_WRITE)) die("no memory for a block");
        grid->blocks.push_back(std::move(block));
    }
    for (; grid->open < grid->resident; grid->open++) start(grid->open, grid->next++);
    // What of it need not wait.
    for (int rounds = 0; grid->open && rounds < 1000 && round(); rounds++) {
    }
}

// Goes on after the grid before has ended: to the end, or until the next one may begin.
static void go_on(bool to_the_end) {
    grid->early = false;
    for (auto &block : grid->blocks)
        for (auto &warp : block->warps) warp->ready |= warp->parked, warp->parked = 0;
    something_happened = true;
    for (u64 rounds = 0; grid->open && (to_the_end || grid->released < grid->all); rounds++) {
        if (!round()) die("all wait for each other");
        if (rounds % 4096 == 4095) watch();
    }
}

void Row::finish_first() {
    grid = begun.front();
    go_on(true);
    grid->launch = nullptr;
    idle.push_back(grid);
    begun.pop_front();
    grid = nullptr;
}

void Row::finish() {
    while (!begun.empty()) finish_first();
}

void Row::run(std::shared_ptr<const Launch> launch) {
    while (!begun.empty() && (begun.size() >= AHEAD || !launch->may_overlap)) finish_first();
    // It may begin when all blocks of the one before have said so.
    while (!begun.empty() && begun.back()->released < begun.back()->all) {
        if (begun.size() > 1) {
            finish_first();
            continue;
        }
        grid = begun.front();
        go_on(false);
        if (!grid->open) finish_first();
    }
    if (idle.empty()) idle.push_back(new Grid());
    grid = idle.back();
    idle.pop_back();
    begin(std::move(launch));
    begun.push_back(grid);
    grid = nullptr;
}
