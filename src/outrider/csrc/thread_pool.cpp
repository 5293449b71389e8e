// The thread pool: stages, and waiting that spins for some tens of microseconds before it sleeps.
#include "thread_pool.h"

#include <cstdlib>
#include <map>

#include <unistd.h>
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#else
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

constexpr int kSpins = 4000;  // longer than a stage that one thread does alone

uint32_t untaken(uint64_t open) { return uint32_t(open); }

}  // namespace

// ready() reads with sequential consistency what is written, likewise, before wake(): either it sees the new value or
// wake() sees that this thread sleeps.
template <class Ready>
void ThreadPool::wait_until(Sleeper& sleeper, const Ready& ready) {
    for (;;) {
        for (int i = 0; i < kSpins; ++i) {
            if (ready()) return;
            pause_cpu();
        }
        sleeper.asleep.store(1);
        while (!ready() && sleeper.asleep.load() == 1) {
#if defined(__linux__)
            syscall(SYS_futex, reinterpret_cast<uint32_t*>(&sleeper.asleep), FUTEX_WAIT_PRIVATE, 1, nullptr, nullptr, 0);
#else
            std::this_thread::sleep_for(std::chrono::microseconds(50));
#endif
        }
        sleeper.asleep.store(0);
    }
}

void ThreadPool::wake(Sleeper& sleeper) {
    if (sleeper.asleep.load() == 0) return;
    sleeper.asleep.store(0);
#if defined(__linux__)
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&sleeper.asleep), FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
#endif
}

ThreadPool::ThreadPool(int threads) : threads_(threads < 1 ? 1 : threads), sleepers_(new Sleeper[size_t(threads_)]) {
    for (int i = 1; i < threads_; ++i) workers_.emplace_back([this, i] { work(i); });
}

// Do ranges of the open stage until none is left; how many. Not those of the next stage: the caller counts by stage.
int64_t ThreadPool::help(int thread) {
    int64_t done = 0;
    uint64_t open = open_.load(std::memory_order_acquire);
    const uint64_t stage = open >> 32;
    while (untaken(open) > 0 && open >> 32 == stage) {
        const Team::Function function = function_.load(std::memory_order_relaxed);
        const void* body = body_.load(std::memory_order_relaxed);
        const int64_t count = count_.load(std::memory_order_relaxed), grain = grain_.load(std::memory_order_relaxed);
        if (helpers_.load(std::memory_order_relaxed) < thread) break;
        // On success the stage was still open, so nothing read above is another stage's: the release keeps those reads
        // before it, and the next stage's fields are written only after this range is counted as done.
        if (!open_.compare_exchange_weak(open, open - 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
        const int64_t begin = ((count + grain - 1) / grain - int64_t(untaken(open))) * grain;
        function(body, begin, begin + grain < count ? begin + grain : count, thread);
        ++done;
        open = open_.load(std::memory_order_acquire);
    }
    return done;
}

void ThreadPool::work(int thread) {
    for (;;) {
        wait_until(sleepers_[size_t(thread)], [&] { return untaken(open_.load()) > 0 && helpers_.load() >= thread; });
        const int64_t done = help(thread);
        if (done == 0) continue;
        helped_.fetch_add(done);
        wake(sleepers_[0]);
    }
}

void Team::share_erased(int64_t count, int64_t grain, Function function, const void* body) {
    ThreadPool& p = pool_;
    const int64_t ranges = (count + grain - 1) / grain;
    p.function_.store(function, std::memory_order_relaxed);
    p.body_.store(body, std::memory_order_relaxed);
    p.count_.store(count, std::memory_order_relaxed);
    p.grain_.store(grain, std::memory_order_relaxed);
    p.helpers_.store(threads_ - 1, std::memory_order_relaxed);
    p.helped_.store(0, std::memory_order_relaxed);
    const uint64_t stage = (p.open_.load(std::memory_order_relaxed) >> 32) + 1;
    p.open_.store(stage << 32 | uint64_t(ranges));
    wake();
    const int64_t others = ranges - p.help(0);
    if (others > 0) p.wait_until(p.sleepers_[0], [&] { return p.helped_.load() == others; });
}

void Team::wake() {
    for (int i = 1; i < threads_; ++i) pool_.wake(pool_.sleepers_[size_t(i)]);
}

namespace {

std::mutex pool_lock;
std::map<int, ThreadPool*>* pools = nullptr;
pid_t owner = 0;
int wanted = 0, usual = 0;
std::atomic<bool> fixed_number{false};

int default_threads() {
    if (const char* text = std::getenv("OUTRIDER_NUM_THREADS")) {
        const int n = std::atoi(text);
        if (n > 0) return n;
    }
    if (usual > 0) return usual;
    const unsigned n = std::thread::hardware_concurrency();
    return n > 0 ? int(n) : 1;
}

}  // namespace

ThreadPool& pool() {
    const std::lock_guard<std::mutex> lock(pool_lock);
    if (owner != getpid()) {  // at first, and after a fork, which threads do not survive
        pools = new std::map<int, ThreadPool*>;
        owner = getpid();
    }
    const int threads = wanted > 0 ? wanted : default_threads();
    ThreadPool*& chosen = (*pools)[threads];
    if (!chosen) chosen = new ThreadPool(threads);
    return *chosen;
}

void set_threads(int threads, bool fixed) {
    const std::lock_guard<std::mutex> lock(pool_lock);
    wanted = threads;
    fixed_number.store(fixed);
}

void set_default_threads(int threads) {
    const std::lock_guard<std::mutex> lock(pool_lock);
    usual = threads;
}

bool threads_fixed() { return fixed_number.load(); }

}  // namespace outrider
