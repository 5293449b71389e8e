// The thread pool: regions, barriers, and waiting that spins for some tens of microseconds before it sleeps.
#include "thread_pool.h"

#include <cstdlib>
#include <map>

#if defined(__linux__)
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#include <unistd.h>

#include <chrono>
#endif

namespace outrider {
namespace {

inline void pause_cpu() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

constexpr int kBarrierSpins = 4000;  // a barrier's wait is short
constexpr int kIdleSpins = 2000;     // between two forward passes

int usable_processors() {
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
    const unsigned n = std::thread::hardware_concurrency();
    return n > 0 ? int(n) : 1;
}

}  // namespace

void ThreadPool::wait_while(std::atomic<uint32_t>& word, uint32_t seen, int spins) {
    for (int i = 0; i < spins; ++i) {
        if (word.load(std::memory_order_acquire) != seen) return;
        pause_cpu();
    }
    while (word.load() == seen) {
        sleepers_.fetch_add(1);  // before the last look at the word: publish() reads it after writing the word
#if defined(__linux__)
        syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
#else
        if (word.load() == seen) std::this_thread::sleep_for(std::chrono::microseconds(50));
#endif
        sleepers_.fetch_sub(1);
    }
}

void ThreadPool::publish(std::atomic<uint32_t>& word, uint32_t value) {
    word.store(value);
#if defined(__linux__)
    if (sleepers_.load() > 0)
        syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
#endif
}

void Team::barrier() {
    ThreadPool& p = pool_;
    const uint32_t seen = p.phase_.load(std::memory_order_acquire);
    if (p.arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
        p.arrived_.store(0, std::memory_order_relaxed);
        p.next_.store(0, std::memory_order_relaxed);
        p.publish(p.phase_, seen + 1);
        return;
    }
    p.wait_while(p.phase_, seen, kBarrierSpins);
}

int64_t Team::take(int64_t grain) { return pool_.next_.fetch_add(grain, std::memory_order_relaxed); }

ThreadPool::ThreadPool(int threads) : threads_(threads < 1 ? 1 : threads) {
    for (int i = 1; i < threads_; ++i) workers_.emplace_back([this, i] { work(i); });
}

void ThreadPool::work(int thread) {
    uint32_t seen = 0;
    for (;;) {
        wait_while(epoch_, seen, kIdleSpins);
        ++seen;  // regions come one at a time: none can be missed
        Team team(*this, thread, threads_);
        function_(body_, team);
        team.barrier();
    }
}

void ThreadPool::run_erased(Function function, const void* body) {
    const std::lock_guard<std::mutex> lock(turn_);
    function_ = function;
    body_ = body;
    Team team(*this, 0, threads_);
    if (threads_ > 1) publish(epoch_, epoch_.load() + 1);
    function(body, team);
    team.barrier();
}

namespace {

std::mutex pool_lock;
std::map<int, ThreadPool*>* pools = nullptr;
pid_t owner = 0;
int wanted = 0;

int default_threads() {
    if (const char* text = std::getenv("OUTRIDER_NUM_THREADS")) {
        const int n = std::atoi(text);
        if (n > 0) return n;
    }
    return usable_processors();
}

}  // namespace

ThreadPool& pool() {
    const std::lock_guard<std::mutex> lock(pool_lock);
    if (owner != getpid()) {  // at first, and after a fork, which threads do not survive
        pools = new std::map<int, ThreadPool*>;
        owner = getpid();
    }
    if (wanted < 1) wanted = default_threads();
    ThreadPool*& chosen = (*pools)[wanted];
    if (!chosen) chosen = new ThreadPool(wanted);
    return *chosen;
}

void set_threads(int threads) {
    const std::lock_guard<std::mutex> lock(pool_lock);
    wanted = threads;
}

}  // namespace outrider
