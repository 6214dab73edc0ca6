// The functions of CUDA's run-time compiler that the crate uses: CUDA C++ becomes C++ for this machine, and g++ compiles it.
//
// Little needs to be changed in the text: a kernel's parameter becomes a reference, as its caller does not know the type, and
// dynamic shared memory a pointer. Everything else is said in include/kernel.h. Two headers are not the crate's but ours.
#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <regex>
#include <spawn.h>
#include <sstream>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <vector>

extern char **environ;
namespace fs = std::filesystem;

enum Result { SUCCESS = 0, COMPILATION = 6 };

struct Program {
    std::string name, source, log, image;
    std::vector<std::pair<std::string, std::string>> headers;
};

static fs::path own_headers() {
    Dl_info info;
    dladdr((void *)own_headers, &info);
    return fs::canonical(info.dli_fname).parent_path().parent_path() / "include";
}

static std::string changed(const std::string &source) {
    static const std::regex bounded(R"(extern "C" __global__ void __launch_bounds__\(([^(),]*)[^()]*\) (\w+)\(const __grid_constant__ (\w+) ?& ?(\w+)\))");
    static const std::regex clustered(R"((extern "C" __global__ void )__cluster_dims__\(([^(),]*), 1, 1\) (__launch_bounds__\([^()]*\) (\w+)\())");
    static const std::regex by_value(R"(const __grid_constant__ (\w+) (\w+)\))");
    static const std::regex free(R"(extern "C" __global__ void (\w+)\(const __grid_constant__ (\w+) ?& ?(\w+)\))");
    static const std::regex dynamic(R"(extern __shared__ __align__\((\w+)\) (\w+) (\w+)\[\];)");
    std::string text = std::regex_replace(source, by_value, "const __grid_constant__ $1& $2)");
    text = std::regex_replace(text, clustered, R"(extern "C" SEEN const unsigned pretend_cluster_$4 = $2; $1$3)");
    text = std::regex_replace(text, bounded, R"(PRETEND_KERNEL($2, $3, ($1)) extern "C" __global__ void $2(const $3& $4))");
    text = std::regex_replace(text, free, R"(PRETEND_KERNEL($1, $2, 1024) extern "C" __global__ void $1(const $2& $3))");
    return std::regex_replace(text, dynamic, "$2 *const $3 = ($2 *)pretend->dynamic_shared($1);");
}

static void save(const fs::path &path, const std::string &text) {
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
}

static std::string load(const fs::path &path) {
    std::ostringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    return text.str();
}

// As many compilers at a time as there are cores, however many threads ask: each takes hundreds of megabytes.
struct Turn {
    static inline std::mutex lock;
    static inline std::condition_variable changed;
    static inline unsigned free = std::max(1u, std::thread::hardware_concurrency());

    Turn() {
        std::unique_lock<std::mutex> guard(lock);
        changed.wait(guard, [] { return free > 0; });
        free--;
    }
    ~Turn() {
        std::lock_guard<std::mutex> guard(lock);
        free++;
        changed.notify_one();
    }
};

static int execute(const std::vector<std::string> &command, const fs::path &log) {
    Turn turn;
    std::vector<char *> args;
    for (const std::string &arg : command) args.push_back((char *)arg.c_str());
    args.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 2, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    // The library path is ours; the compiler needs none.
    std::vector<char *> variables;
    for (char **v = environ; *v; v++)
        if (strncmp(*v, "LD_LIBRARY_PATH=", 16)) variables.push_back(*v);
    variables.push_back(nullptr);
    pid_t child;
    int status = -1, failed = posix_spawnp(&child, args[0], &actions, nullptr, args.data(), variables.data());
    posix_spawn_file_actions_destroy(&actions);
    if (failed) return save(log, "g++ could not be started\n"), failed;
    waitpid(child, &status, 0);
    return status;
}

#define API extern "C" __attribute__((visibility("default"))) Result

API nvrtcVersion(int *major, int *minor) {
    // Part of the cache's key: other sources of ours make other code.
    return *major = 1000000, *minor = PRETEND_VERSION, SUCCESS;
}

API nvrtcCreateProgram(Program **to, const char *source, const char *name, int count, const char *const *headers, const char *const *names) {
    *to = new Program{name, source, "", "", {}};
    for (int i = 0; i < count; i++) (*to)->headers.emplace_back(names[i], headers[i]);
    return SUCCESS;
}

API nvrtcCompileProgram(Program *program, int count, const char *const *options) {
    std::string defines;
    auto define = [&](const std::string &name, const std::string &value) { defines += "#define " + name + " " + value + "\n"; };
    for (int i = 0; i < count; i++) {
        std::string option = options[i];
        if (option.rfind("--gpu-architecture=sm_", 0) == 0) {
            std::string arch = option.substr(22);
            define("__CUDA_ARCH__", std::to_string(atoi(arch.c_str()) * 10));
            if (arch == "90a") define("__CUDA_ARCH_FEAT_SM90_ALL", "1");
        } else if (option.rfind("--define-macro=", 0) == 0) {
            size_t at = option.find('=', 15);
            define(option.substr(15, at - 15), option.substr(at + 1));
        }
    }
    std::string base = (fs::temp_directory_path() / "pretend-kernel-XXXXXX").string();
    if (!mkdtemp(base.data())) return program->log = "no temporary folder", COMPILATION;
    fs::path folder = base, own = own_headers();
    save(folder / "main" / "defines.h", defines);
    save(folder / "main" / (program->name + ".cpp"), changed(program->source));
    for (auto &[name, text] : program->headers)
        if (!fs::exists(own / name)) save(folder / name, changed(text));
    std::vector<std::string> command = {
        "g++", "-std=c++17", "-O1", "-mavx2", "-mfma", "-mf16c", "-ffp-contract=off", "-fno-strict-aliasing", "-fwrapv", "-fno-exceptions", "-fno-rtti",
        "-fno-stack-protector", "-fno-threadsafe-statics", "-fPIC", "-shared", "-fvisibility=hidden", "-w", "-I", own, "-I", folder,
        "-include", own / "kernel.h", "-include", folder / "main" / "defines.h", folder / "main" / (program->name + ".cpp"), "-o", folder / "out"};
    int status = execute(command, folder / "log");
    program->log = load(folder / "log");
    if (status == 0) program->image = load(folder / "out");
    if (!getenv("WELTE_PRETEND_KEEP")) fs::remove_all(folder);
    return status == 0 ? SUCCESS : COMPILATION;
}

API nvrtcGetProgramLogSize(Program *program, size_t *to) { return *to = program->log.size() + 1, SUCCESS; }
API nvrtcGetProgramLog(Program *program, char *to) { return memcpy(to, program->log.c_str(), program->log.size() + 1), SUCCESS; }
API nvrtcGetCUBINSize(Program *program, size_t *to) { return *to = program->image.size(), SUCCESS; }
API nvrtcGetCUBIN(Program *program, char *to) { return memcpy(to, program->image.data(), program->image.size()), SUCCESS; }
API nvrtcDestroyProgram(Program **program) {
    delete *program;
    return *program = nullptr, SUCCESS;
}
