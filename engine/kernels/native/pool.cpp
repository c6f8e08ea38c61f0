#include "pool.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <new>
#include <thread>

namespace vox {
namespace {

// A worker that finds nothing spins this long before it sleeps: longer than the gap between two operations of a model,
// short enough not to rob the rest of the machine when the engine is idle.
constexpr auto SPIN = std::chrono::microseconds(60);

// A caller that waits for a worker's last unit gives way after this many spins: the worker may need this very core.
constexpr int PATIENCE = 4096;

struct Pool {
    std::mutex caller;  // held by the thread whose loop is running
    int wanted = 1;
    int started = 0;  // workers, besides the caller

    // Generation in the high half, next unit in the low half. Claiming a unit is a compare-and-swap on both, so a worker
    // that wakes late can never take a unit of a loop other than the one whose fields it has read.
    std::atomic<uint64_t> ticket{0};
    std::atomic<int64_t> units{0};
    std::atomic<Body> body{nullptr};
    std::atomic<void *> context{nullptr};
    std::atomic<int64_t> done{0};

    std::mutex sleep;
    std::condition_variable wake;
    std::atomic<int> sleepers{0};
    std::atomic<int> retiring{0};  // workers that should end
};

// Where this thread counts on while it works; null on all threads but the one that steps.
thread_local uint64_t *progress = nullptr;

inline void advance() {
    if (progress != nullptr) __atomic_fetch_add(progress, 1, __ATOMIC_RELAXED);
}

Pool *pool = new Pool;  // never destroyed: workers may outlive static destructors

inline void relax() {
#if defined(__aarch64__)
    __asm__ __volatile__("yield");
#elif defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

bool has_work(const Pool &p) {
    return int64_t(p.ticket.load(std::memory_order_seq_cst) & 0xffffffff) < p.units.load(std::memory_order_relaxed);
}

// Runs units of the current loop until none is left to claim.
void drain(Pool &p) {
    uint64_t ticket = p.ticket.load(std::memory_order_acquire);
    for (;;) {
        int64_t unit = int64_t(ticket & 0xffffffff);
        if (unit >= p.units.load(std::memory_order_relaxed)) return;
        Body body = p.body.load(std::memory_order_relaxed);
        void *context = p.context.load(std::memory_order_relaxed);
        if (!p.ticket.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel)) continue;
        body(context, unit);
        advance();
        p.done.fetch_add(1, std::memory_order_release);
        ticket = p.ticket.load(std::memory_order_acquire);
    }
}

bool retire(Pool &p) {
    int left = p.retiring.load();
    while (left > 0)
        if (p.retiring.compare_exchange_weak(left, left - 1)) return true;
    return false;
}

void work(Pool &p) {
    for (;;) {
        auto idle_since = std::chrono::steady_clock::now();
        for (int spins = 1; !has_work(p); spins++) {
            relax();
            if (spins % 64 == 0 && std::chrono::steady_clock::now() - idle_since > SPIN) {
                std::unique_lock<std::mutex> lock(p.sleep);
                p.sleepers.fetch_add(1, std::memory_order_seq_cst);
                p.wake.wait(lock, [&] { return has_work(p) || p.retiring.load() > 0; });
                p.sleepers.fetch_sub(1);
                if (retire(p)) return;
                break;
            }
        }
        drain(p);
    }
}

void start(Pool &p) {
    static bool registered = false;
    if (!registered) {
        // After a fork only the forking thread lives: the child begins with an empty pool of its own.
        pthread_atfork(nullptr, nullptr, [] {
            int wanted = pool->wanted;
            pool = new Pool;
            pool->wanted = wanted;
        });
        registered = true;
    }
    for (; p.started < p.wanted - 1; p.started++) std::thread([&p] { work(p); }).detach();
}

}  // namespace

int threads() { return pool->wanted; }

void run_units(int64_t units, Body body, void *context) {
    Pool &p = *pool;
    if (units <= 1 || p.wanted == 1 || !p.caller.try_lock()) {
        for (int64_t unit = 0; unit < units; unit++) {
            body(context, unit);
            advance();
        }
        return;
    }
    std::lock_guard<std::mutex> running(p.caller, std::adopt_lock);
    if (p.started < p.wanted - 1) start(p);
    uint64_t generation = (p.ticket.load(std::memory_order_relaxed) >> 32) + 1;
    // While the fields change, the ticket reads as used up under either count of units.
    p.done.store(0, std::memory_order_relaxed);
    p.body.store(body, std::memory_order_relaxed);
    p.context.store(context, std::memory_order_relaxed);
    p.ticket.store(generation << 32 | 0xffffffff, std::memory_order_seq_cst);
    p.units.store(units, std::memory_order_seq_cst);
    p.ticket.store(generation << 32, std::memory_order_seq_cst);
    if (p.sleepers.load(std::memory_order_seq_cst) > 0) {
        std::lock_guard<std::mutex> lock(p.sleep);
        p.wake.notify_all();
    }
    drain(p);
    for (int spins = 0; p.done.load(std::memory_order_acquire) < units; spins++) {
        if (spins < PATIENCE) relax();
        else std::this_thread::yield();
    }
}

}  // namespace vox

// Lets the calling thread, and no other, count its work at this address.
extern "C" void vox_show_progress(uint64_t *address) { vox::progress = address; }

extern "C" int vox_threads() { return vox::threads(); }

extern "C" void vox_set_threads(int count) {
    vox::Pool &p = *vox::pool;
    std::lock_guard<std::mutex> running(p.caller);
    p.wanted = count < 1 ? 1 : count;
    int surplus = p.started - (p.wanted - 1);
    if (surplus <= 0) return;
    p.started -= surplus;
    p.retiring.fetch_add(surplus);
    std::lock_guard<std::mutex> lock(p.sleep);
    p.wake.notify_all();
}
