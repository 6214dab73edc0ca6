// Grids, as the driver has them run.
#pragma once
#include "include/pretend.h"
#include <deque>
#include <memory>
#include <string>
#include <vector>

using namespace pretend_gpu;

struct Block;

struct Module {
    void *handle;
    Place **place;      // the object's pretend_place
    char *shared[2];    // its static shared memory
    Block *holds;       // of which block that is at the moment
    int file;           // open as long as it is loaded: the loader tells objects apart by their paths
};

struct Function {
    Module *module;
    std::string name;
    void (*code)(const void *args);
    unsigned args;         // bytes of its parameter
    unsigned most_threads; // __launch_bounds__
    unsigned most_shared;  // dynamic shared memory that it was allowed
    unsigned cluster;      // blocks of a cluster
};

struct Launch {
    Function *function;
    Dim blocks;
    Dim threads;
    unsigned shared;
    bool may_overlap; // begins while the grid before still runs, as far as that lets it
    std::vector<char> args;
};

const unsigned MOST_SHARED = 227 << 10; // of a block
// The same on a GPU of an architecture.
inline unsigned most_shared(unsigned arch) { return arch == 80 ? 163 << 10 : arch < 90 || arch >= 120 ? 99 << 10 : MOST_SHARED; }
const unsigned USUAL_SHARED = 48 << 10; // without asking

unsigned setting(const char *name, unsigned otherwise);
unsigned multiprocessors();
extern const Services services;
// Grids of one stream. A block per multiprocessor is alive at a time. Where grids may overlap, each runs up to its
// grid_wait() as early as it may, before the grids that it waits for have done their work.
struct Grid;
struct Row {
    std::deque<Grid *> begun;

    void run(std::shared_ptr<const Launch>);
    void finish();
    void finish_first();
};
// Milliseconds that the device of this thread is late.
unsigned lateness();
[[noreturn]] void die(const char *why);
// What the driver knows of an address, for messages.
void describe(const void *address, char *text, size_t room);
// For conditional nodes of graphs.
void set_condition(unsigned long long handle, unsigned value);
// This thread may run grids.
void catch_faults();
