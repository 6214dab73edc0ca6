// What is said when something is wrong, and then the process ends.
#include "lanes.h"
#include <csignal>
#include <cstdarg>
#include <unistd.h>

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
    say("\nthe pretend GPU: %s\n", why);
    if (grid) {
        const Dim &g = grid->launch->blocks;
        say("in %s, %u,%u,%u blocks of %u threads, %u bytes of shared memory", grid->launch->function->name.c_str(), g.x, g.y, g.z, grid->launch->threads.x, grid->launch->shared);
        if (current) {
            const Dim &b = current->place.block;
            say(", block %u,%u,%u, thread %u", b.x, b.y, b.z, current->place.thread.x);
        }
        say("\n");
        unsigned lines = 0;
        for (unsigned i = 0; grid && i < grid->resident; i++)
            for (size_t w = 0; grid->blocks[i]->alive && w < (grid->launch->threads.x + 31) / 32 && lines++ < 200; w++) list(*grid->blocks[i]->warps[w]);
    }
    abort();
}

static thread_local bool serves;

static void fault(int signal, siginfo_t *info, void *) {
    std::signal(signal, SIG_DFL);
    if (!grid || !serves) return; // not in a kernel: once more, and then as if nobody had caught it
    char what[200];
    describe(info->si_addr, what, sizeof what);
    for (unsigned i = 0; grid && i < grid->resident; i++) {
        ptrdiff_t at = (char *)info->si_addr - grid->blocks[i]->room;
        if (at >= -(ptrdiff_t)PAGE && at < (ptrdiff_t)(MOST_SHARED + PAGE)) snprintf(what, sizeof what, "%td bytes from the end of shared memory", at - MOST_SHARED);
    }
    char why[300];
    snprintf(why, sizeof why, "a fault at %p: %s", info->si_addr, what);
    die(why);
}

void catch_faults() {
    serves = true;
    stack_t own = {};
    own.ss_size = 64 << 10;
    own.ss_sp = malloc(own.ss_size);
    sigaltstack(&own, nullptr);
    struct sigaction action = {};
    action.sa_sigaction = fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int signal : {SIGSEGV, SIGBUS, SIGFPE}) sigaction(signal, &action, nullptr);
}
