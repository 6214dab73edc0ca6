// The functions of CUDA's driver that the crate uses. Memory is the process's, a stream is a thread with a list of work, a graph is
// such a list that is kept. What an answer looks like in memory is as in NVIDIA's documentation.
#include "run.h"
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <deque>
#include <dlfcn.h>
#include <elf.h>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>

typedef unsigned long long u64;
typedef u64 Address;

enum Result {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    NOT_FOUND = 500,
    NOT_READY = 600,
    LAUNCH_OUT_OF_RESOURCES = 701,
    COOPERATIVE_LAUNCH_TOO_LARGE = 720,
    NOT_SUPPORTED = 801,
};

const size_t PAGE = 4096;
static size_t total_memory() { return (size_t)setting("WELTE_PRETEND_MEMORY", 8 << 10) << 20; }

// ---- memory ----

struct Allocation {
    char *all; // with a page at each end that nobody may touch
    size_t mapped, bytes;
    bool host;
};

static std::mutex memory_lock;
static std::map<char *, Allocation> allocations; // by address
static size_t taken;

// The end of what is given lies right before a page that nobody may touch, as far as the alignment lets it.
static Result allocate(char **to, size_t bytes, bool host) {
    std::lock_guard<std::mutex> guard(memory_lock);
    if (!bytes) return INVALID_VALUE;
    if (taken + bytes > total_memory()) return OUT_OF_MEMORY;
    size_t room = (bytes + 255) / 256 * 256, pages = (room + PAGE - 1) / PAGE * PAGE;
    char *all = (char *)mmap(nullptr, pages + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED || mprotect(all + PAGE, pages, PROT_READ | PROT_WRITE)) return OUT_OF_MEMORY;
    *to = all + PAGE + pages - room;
    memset(all + PAGE, 0xff, pages); // NaN, for those who read what they have not written
    allocations[*to] = {all, pages + 2 * PAGE, bytes, host};
    taken += bytes;
    return SUCCESS;
}

static Result release(char *start) {
    std::lock_guard<std::mutex> guard(memory_lock);
    auto found = allocations.find(start);
    if (found == allocations.end()) return INVALID_VALUE;
    const Allocation &a = found->second;
    for (char *p = start + a.bytes; p < a.all + a.mapped - PAGE; p++)
        if (*p != (char)0xff) die("somebody has written beyond the end of an allocation");
    for (char *p = a.all + PAGE; p < start; p++)
        if (*p != (char)0xff) die("somebody has written before the start of an allocation");
    munmap(a.all, a.mapped);
    taken -= a.bytes;
    allocations.erase(found);
    return SUCCESS;
}

// Whether so many bytes are there.
static bool known(const void *start, size_t bytes, bool *host = nullptr) {
    std::lock_guard<std::mutex> guard(memory_lock);
    auto next = allocations.upper_bound((char *)start);
    if (next == allocations.begin()) return false;
    auto &[first, a] = *std::prev(next);
    if (host) *host = a.host;
    return (char *)start + bytes <= first + a.bytes;
}

void describe(const void *address, char *text, size_t room) {
    snprintf(text, room, "no memory of the device is near");
    for (auto &[start, a] : allocations) {
        const char *at = (const char *)address;
        if (at < a.all || at >= a.all + a.mapped) continue;
        if (at < start) snprintf(text, room, "%td bytes before an allocation of %zu bytes", start - at, a.bytes);
        else snprintf(text, room, "byte %td of an allocation of %zu bytes", at - start, a.bytes);
    }
}

// ---- streams and graphs ----

typedef std::function<void()> Work;

struct Graph {
    std::vector<Work> works;
    u64 nodes = 0;
};

// A device runs one grid at a time, whatever stream it is of.
const unsigned MOST_DEVICES = 8;
static std::mutex devices[MOST_DEVICES];
static thread_local unsigned current_device; // of this thread

static thread_local struct Stream *serving; // by this thread

struct Stream {
    std::mutex lock;
    std::condition_variable changed;
    std::deque<Work> works;
    bool busy = false, ends = false;
    std::mutex &device = devices[current_device];
    Row grids;
    std::thread thread{[this] { serve(); }};

    void serve() {
        serving = this;
        catch_faults();
        std::unique_lock<std::mutex> guard(lock);
        for (;;) {
            changed.wait(guard, [&] { return ends || !works.empty(); });
            if (works.empty()) return;
            Work work = std::move(works.front());
            works.pop_front();
            busy = true;
            guard.unlock();
            work();
            work = nullptr;
            guard.lock();
            if (works.empty()) { // nothing that could begin early
                guard.unlock();
                finish_grids();
                guard.lock();
            }
            busy = false;
            changed.notify_all();
        }
    }

    void finish_grids() {
        std::lock_guard<std::mutex> one(device);
        grids.finish();
    }

    // Other work than grids, after those before.
    void add_after(Work work) {
        add([=] {
            finish_grids();
            work();
        });
    }

    void add(Work work) {
        std::lock_guard<std::mutex> guard(lock);
        works.push_back(std::move(work));
        changed.notify_all();
    }

    bool idle() {
        std::lock_guard<std::mutex> guard(lock);
        return works.empty() && !busy;
    }

    void finish() {
        std::unique_lock<std::mutex> guard(lock);
        changed.wait(guard, [&] { return works.empty() && !busy; });
    }

    ~Stream() {
        {
            std::lock_guard<std::mutex> guard(lock);
            ends = true;
            changed.notify_all();
        }
        thread.join();
    }
};

unsigned lateness() {
    static const unsigned milliseconds = setting("WELTE_PRETEND_LATE", 0);
    return &serving->device == &devices[1] ? milliseconds : 0;
}

static std::mutex streams_lock;
static std::vector<Stream *> streams;

struct Event {
    std::mutex lock;
    std::condition_variable changed;
    u64 recorded = 0, passed = 0;
    std::chrono::steady_clock::time_point at;
};

struct Condition {
    unsigned value;
};

void set_condition(u64 handle, unsigned value) { ((Condition *)handle)->value = value; }

// What the driver's structs look like.
struct Attribute {
    int id;
    char pad[4];
    union {
        int number;
        char room[64];
    };
};
struct Config {
    Dim blocks, threads;
    unsigned shared;
    Stream *stream;
    Attribute *attributes;
    unsigned count;
};
struct KernelNode {
    Function *function;
    Dim blocks, threads;
    unsigned shared;
    void **args, **extra, *kernel, *context;
};
struct LoopNode {
    u64 handle;
    int kind;
    unsigned size;
    Graph **bodies;
    void *context;
};
struct NodeParameters {
    int type, reserved[3];
    union {
        KernelNode kernel;
        LoopNode loop;
    };
};
struct Edge {
    unsigned char from, to, type, reserved[5];
};

const int COOPERATIVE = 2, OVERLAP = 6, KERNEL_NODE = 0, CONDITIONAL_NODE = 13, LOOP = 1, DYNAMIC_SHARED = 8;
const unsigned char PROGRAMMATIC_PORT = 1, PROGRAMMATIC = 1;

#define API extern "C" __attribute__((visibility("default"))) Result

API cuInit(unsigned) { return SUCCESS; }
API cuDriverGetVersion(int *to) { return *to = 13000, SUCCESS; }
static int device_count() { return (int)std::min(setting("WELTE_PRETEND_GPUS", 1), MOST_DEVICES); }
API cuDeviceGetCount(int *to) { return *to = device_count(), SUCCESS; }
API cuDeviceGet(int *to, int number) { return *to = number, number >= 0 && number < device_count() ? SUCCESS : INVALID_DEVICE; }
static bool has_peers() { return setting("WELTE_PRETEND_PEERS", 1) != 0; }
API cuDeviceCanAccessPeer(int *to, int, int) { return *to = has_peers(), SUCCESS; }
API cuDeviceGetP2PAttribute(int *to, int, int, int) { return *to = has_peers(), SUCCESS; }
API cuDeviceGetName(char *to, int room, int) { return snprintf(to, room, "a pretend GPU"), SUCCESS; }
API cuDeviceTotalMem_v2(size_t *to, int) { return *to = total_memory(), SUCCESS; }
API cuDeviceGetAttribute(int *to, int which, int) {
    unsigned arch = setting("WELTE_PRETEND_ARCH", 90);
    const std::map<int, int> values = {{13, 1000000}, {16, (int)multiprocessors()}, {36, 1000000}, {37, 64}, {38, 32 << 20},
                                       {75, (int)arch / 10}, {76, (int)arch % 10}, {81, 228 << 10}, {97, (int)most_shared(arch)}};
    auto found = values.find(which);
    if (found == values.end()) return INVALID_VALUE;
    return *to = found->second, SUCCESS;
}
API cuGetErrorName(Result result, const char **to) {
    static const std::map<Result, const char *> names = {
        {INVALID_VALUE, "an invalid value"}, {OUT_OF_MEMORY, "out of memory"}, {INVALID_DEVICE, "no such device"},
        {INVALID_IMAGE, "no image"}, {NOT_FOUND, "not found"}, {NOT_READY, "not ready"}, {LAUNCH_OUT_OF_RESOURCES, "too much for a launch"},
        {COOPERATIVE_LAUNCH_TOO_LARGE, "more blocks than can run at a time"}, {NOT_SUPPORTED, "not supported"}};
    auto found = names.find(result);
    return *to = found == names.end() ? "an error" : found->second, SUCCESS;
}
API cuGetErrorString(Result, const char **to) { return *to = "an error of the pretend GPU", SUCCESS; }
// A context is the number of its device, counted from 1.
API cuDevicePrimaryCtxRetain(void **to, int device) { return *to = (void *)(u64)(device + 1), SUCCESS; }
API cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }
API cuCtxSetCurrent(void *context) { return current_device = (unsigned)(u64)context - 1, SUCCESS; }
API cuCtxEnablePeerAccess(void *, unsigned) { return has_peers() ? SUCCESS : NOT_SUPPORTED; }

API cuMemGetInfo_v2(size_t *free, size_t *total) {
    std::lock_guard<std::mutex> guard(memory_lock);
    return *total = total_memory(), *free = total_memory() - taken, SUCCESS;
}
API cuMemAlloc_v2(Address *to, size_t bytes) { return allocate((char **)to, bytes, false); }
API cuMemFree_v2(Address start) {
    {
        std::lock_guard<std::mutex> guard(streams_lock);
        for (Stream *stream : streams) stream->finish();
    }
    return release((char *)start);
}
API cuMemAllocAsync(Address *to, size_t bytes, Stream *) { return allocate((char **)to, bytes, false); }
API cuMemFreeAsync(Address start, Stream *stream) {
    if (!known((void *)start, 1)) return INVALID_VALUE;
    stream->add_after([=] { release((char *)start); });
    return SUCCESS;
}
API cuMemHostAlloc(void **to, size_t bytes, unsigned) { return allocate((char **)to, bytes, true); }
API cuMemFreeHost(void *start) { return release((char *)start); }
API cuMemHostGetDevicePointer_v2(Address *to, void *start, unsigned) { return *to = (Address)start, SUCCESS; }

API cuMemcpyHtoDAsync_v2(Address to, const void *from, size_t bytes, Stream *stream) {
    bool host = false;
    if (!known((void *)to, bytes)) return INVALID_VALUE;
    if (known(from, bytes, &host) && host) { // pinned: read when its turn comes
        stream->add_after([=] { memcpy((void *)to, from, bytes); });
        return SUCCESS;
    }
    auto copy = std::make_shared<std::vector<char>>((const char *)from, (const char *)from + bytes);
    stream->add_after([=] { memcpy((void *)to, copy->data(), bytes); });
    return SUCCESS;
}
API cuMemcpyDtoHAsync_v2(void *to, Address from, size_t bytes, Stream *stream) {
    bool host = false;
    if (!known((void *)from, bytes)) return INVALID_VALUE;
    stream->add_after([=] { memcpy(to, (const void *)from, bytes); });
    if (!(known(to, bytes, &host) && host)) stream->finish();
    return SUCCESS;
}
API cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, Stream *stream) {
    if (!known((void *)to, bytes) || !known((void *)from, bytes)) return INVALID_VALUE;
    stream->add_after([=] { memcpy((void *)to, (const void *)from, bytes); });
    return SUCCESS;
}
API cuMemsetD8Async(Address to, unsigned char value, size_t bytes, Stream *stream) {
    if (!known((void *)to, bytes)) return INVALID_VALUE;
    stream->add_after([=] { memset((void *)to, value, bytes); });
    return SUCCESS;
}

// ---- code ----

API cuModuleLoadData(Module **to, const void *image) {
    const Elf64_Ehdr *head = (const Elf64_Ehdr *)image;
    if (memcmp(head->e_ident, ELFMAG, SELFMAG) || head->e_machine != EM_X86_64) return INVALID_IMAGE;
    size_t bytes = head->e_shoff + (size_t)head->e_shnum * head->e_shentsize;
    int file = memfd_create("kernels", MFD_CLOEXEC);
    if (file < 0 || write(file, image, bytes) != (ssize_t)bytes) return OUT_OF_MEMORY;
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) return fprintf(stderr, "the pretend GPU: %s\n", dlerror()), INVALID_IMAGE;
    char **shared = (char **)dlsym(handle, "pretend_ends");
    *(const Services **)dlsym(handle, "pretend") = &services;
    *to = new Module{handle, (Place **)dlsym(handle, "pretend_place"), {shared[0], shared[1]}, nullptr, file};
    return SUCCESS;
}
API cuModuleUnload(Module *module) {
    dlclose(module->handle);
    close(module->file);
    delete module;
    return SUCCESS;
}
API cuModuleGetFunction(Function **to, Module *module, const char *name) {
    auto find = [&](std::string what) { return dlsym(module->handle, what.c_str()); };
    void *code = find(name), *args = find(std::string("pretend_args_") + name);
    if (!code || !args) return NOT_FOUND;
    const unsigned *most = (const unsigned *)find(std::string("pretend_threads_") + name);
    const unsigned *cluster = (const unsigned *)find(std::string("pretend_cluster_") + name);
    *to = new Function{module, name, (void (*)(const void *))code, *(const unsigned *)args, *most, 0, cluster ? *cluster : 1};
    (*to)->most_shared = USUAL_SHARED - (unsigned)(module->shared[1] - module->shared[0]);
    return SUCCESS;
}
API cuFuncGetAttribute(int *to, int which, Function *function) {
    if (which != DYNAMIC_SHARED) return INVALID_VALUE;
    return *to = (int)function->most_shared, SUCCESS;
}
API cuFuncSetAttribute(Function *function, int which, int value) {
    size_t fixed = function->module->shared[1] - function->module->shared[0];
    if (which != DYNAMIC_SHARED || value < 0 || value + fixed > MOST_SHARED) return INVALID_VALUE;
    return function->most_shared = (unsigned)value, SUCCESS;
}
// A map of a matrix of 16-bit elements, for boxes of 128-byte rows in swizzled order. copy_box() in include/ptx.cuh reads it.
API cuTensorMapEncodeTiled(u64 *to, int type, unsigned rank, void *address, const u64 *dimensions, const u64 *strides, const unsigned *box,
                           const unsigned *steps, int interleave, int swizzle, int, int fill) {
    const bool two_bytes = type == 6 || type == 9, whole_rows = box[0] == 64 && box[1] <= 256 && box[1] > 0;
    if (rank != 2 || !two_bytes || !whole_rows || steps[0] != 1 || steps[1] != 1 || interleave || swizzle != 3 || fill) return INVALID_VALUE;
    if ((size_t)address % 16 || strides[0] % 16 || (size_t)to % 64) return INVALID_VALUE;
    const u64 words[16] = {(u64)address, dimensions[0], dimensions[1], strides[0], box[1]};
    return memcpy(to, words, sizeof words), SUCCESS;
}
// A launch with its parameter copied, once it is known that the function takes such a one.
static Result make_launch(std::shared_ptr<Launch> &to, Function *function, Dim b, Dim t, unsigned shared, void **args, bool may_overlap) {
    if (!b.x || !b.y || !b.z || b.y > 65535 || b.z > 65535 || !t.x || t.x > 1024 || t.y != 1 || t.z != 1) return INVALID_VALUE;
    if (shared > function->most_shared) return INVALID_VALUE;
    if (t.x > function->most_threads || function->cluster > 8 || function->cluster > multiprocessors()) return LAUNCH_OUT_OF_RESOURCES;
    if (b.x % function->cluster) return INVALID_VALUE;
    to = std::make_shared<Launch>(Launch{function, b, t, shared, may_overlap, {}});
    to->args.assign((const char *)args[0], (const char *)args[0] + function->args);
    return SUCCESS;
}
API cuLaunchKernelEx(const Config *config, Function *function, void **args, void **) {
    const Dim &b = config->blocks;
    bool may_overlap = false;
    for (unsigned i = 0; i < config->count; i++) {
        const Attribute &a = config->attributes[i];
        if (a.id == COOPERATIVE && a.number && (u64)b.x * b.y * b.z > multiprocessors()) return COOPERATIVE_LAUNCH_TOO_LARGE;
        may_overlap |= a.id == OVERLAP && a.number;
    }
    std::shared_ptr<Launch> launch;
    Result made = make_launch(launch, function, b, config->threads, config->shared, args, may_overlap);
    if (made) return made;
    Stream *stream = config->stream;
    stream->add([=] {
        std::lock_guard<std::mutex> one(stream->device);
        stream->grids.run(launch);
    });
    return SUCCESS;
}

// ---- streams, events, graphs ----

API cuStreamCreate(Stream **to, unsigned) {
    *to = new Stream();
    std::lock_guard<std::mutex> guard(streams_lock);
    streams.push_back(*to);
    return SUCCESS;
}
API cuStreamDestroy_v2(Stream *stream) {
    stream->finish();
    {
        std::lock_guard<std::mutex> guard(streams_lock);
        for (size_t i = 0; i < streams.size(); i++)
            if (streams[i] == stream) streams.erase(streams.begin() + i--);
    }
    delete stream;
    return SUCCESS;
}
API cuStreamSynchronize(Stream *stream) { return stream->finish(), SUCCESS; }
API cuStreamQuery(Stream *stream) { return stream->idle() ? SUCCESS : NOT_READY; }

API cuEventCreate(Event **to, unsigned) { return *to = new Event(), SUCCESS; }
API cuEventDestroy_v2(Event *event) {
    {
        std::unique_lock<std::mutex> guard(event->lock);
        event->changed.wait(guard, [&] { return event->passed == event->recorded; });
    }
    return delete event, SUCCESS;
}
API cuEventRecord(Event *event, Stream *stream) {
    {
        std::lock_guard<std::mutex> guard(event->lock);
        event->recorded++;
    }
    stream->add_after([=] {
        std::lock_guard<std::mutex> guard(event->lock);
        event->passed++;
        event->at = std::chrono::steady_clock::now();
        event->changed.notify_all();
    });
    return SUCCESS;
}
API cuStreamWaitEvent(Stream *stream, Event *event, unsigned) {
    std::lock_guard<std::mutex> guard(event->lock);
    u64 last = event->recorded;
    stream->add_after([=] {
        std::unique_lock<std::mutex> guard(event->lock);
        event->changed.wait(guard, [&] { return event->passed >= last; });
    });
    return SUCCESS;
}
API cuEventSynchronize(Event *event) {
    std::unique_lock<std::mutex> guard(event->lock);
    event->changed.wait(guard, [&] { return event->passed == event->recorded; });
    return SUCCESS;
}
API cuEventElapsedTime_v2(float *to, Event *first, Event *last) {
    return *to = std::chrono::duration<float, std::milli>(last->at - first->at).count(), SUCCESS;
}

API cuGraphCreate(Graph **to, unsigned) { return *to = new Graph(), SUCCESS; }
API cuGraphDestroy(Graph *graph) { return delete graph, SUCCESS; }
// Conditions and bodies live as long as the process: there are few.
API cuGraphConditionalHandleCreate(u64 *to, Graph *graph, void *, unsigned value, unsigned) {
    Condition *condition = new Condition{value};
    graph->works.push_back([=] {
        serving->finish_grids();
        condition->value = value;
    });
    return *to = (u64)condition, SUCCESS;
}
// Nodes of a graph run in the order in which they are added: each depends on the one before and on no other.
API cuGraphAddNode_v2(void **to, Graph *graph, void *const *after, const Edge *edge, size_t count, NodeParameters *node) {
    if (count != (graph->nodes > 0) || (count && *after != (void *)graph->nodes)) return NOT_SUPPORTED;
    if (node->type == KERNEL_NODE) {
        const KernelNode &k = node->kernel;
        bool may_overlap = count && edge && edge->type == PROGRAMMATIC;
        if (may_overlap && edge->from != PROGRAMMATIC_PORT) return INVALID_VALUE;
        std::shared_ptr<Launch> launch;
        Result made = make_launch(launch, k.function, k.blocks, k.threads, k.shared, k.args, may_overlap);
        if (made) return made;
        graph->works.push_back([=] {
            std::lock_guard<std::mutex> one(serving->device);
            serving->grids.run(launch);
        });
    } else if (node->type == CONDITIONAL_NODE && node->loop.kind == LOOP && node->loop.size == 1 && !count) {
        Graph **body = new Graph *(new Graph());
        Condition *condition = (Condition *)node->loop.handle;
        node->loop.bodies = body;
        graph->works.push_back([=] {
            while (condition->value) {
                for (const Work &work : (*body)->works) work();
                serving->finish_grids();
            }
        });
    } else {
        return NOT_SUPPORTED;
    }
    return *to = (void *)++graph->nodes, SUCCESS;
}
API cuGraphInstantiateWithFlags(Graph **to, Graph *graph, u64) { return *to = new Graph(*graph), SUCCESS; }
API cuGraphUpload(Graph *, Stream *) { return SUCCESS; }
API cuGraphExecDestroy(Graph *graph) { return delete graph, SUCCESS; }
API cuGraphLaunch(Graph *graph, Stream *stream) {
    for (const Work &work : graph->works) stream->add(work);
    return SUCCESS;
}
