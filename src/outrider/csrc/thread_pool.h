// One pool of threads for all kernels: a region runs one function on every thread, with barriers and shared counters
// inside. Waiting spins briefly, then sleeps. Knows nothing about tensors.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace outrider {

class ThreadPool;

// One thread's view of a region.
class Team {
public:
    int thread() const { return thread_; }
    int threads() const { return threads_; }
    // All threads arrive before any goes on; what was written before is visible after.
    void barrier();
    // Hand out [0, count) in ranges of `grain` to whichever thread is free, then a barrier. Results must not depend on
    // who gets what.
    template <class Body>
    void share(int64_t count, int64_t grain, const Body& body) {
        for (int64_t at = take(grain); at < count; at = take(grain)) body(at, at + grain < count ? at + grain : count);
        barrier();
    }

private:
    friend class ThreadPool;
    Team(ThreadPool& pool, int thread, int threads) : pool_(pool), thread_(thread), threads_(threads) {}
    int64_t take(int64_t grain);
    ThreadPool& pool_;
    const int thread_, threads_;
};

class ThreadPool {
public:
    explicit ThreadPool(int threads);
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int threads() const { return threads_; }

    // Run body(Team&) on every thread, the caller's included; returns when all are done. Calls from several threads
    // take turns. The body must not throw.
    template <class Body>
    void run(const Body& body) {
        run_erased([](const void* b, Team& team) { (*static_cast<const Body*>(b))(team); }, &body);
    }

private:
    friend class Team;
    using Function = void (*)(const void*, Team&);
    void run_erased(Function function, const void* body);
    void work(int thread);
    void wait_while(std::atomic<uint32_t>& word, uint32_t seen, int spins);
    void publish(std::atomic<uint32_t>& word, uint32_t value);

    const int threads_;
    std::vector<std::thread> workers_;
    std::mutex turn_;
    Function function_ = nullptr;
    const void* body_ = nullptr;
    alignas(64) std::atomic<uint32_t> epoch_{0};   // a new value: a new region
    alignas(64) std::atomic<uint32_t> phase_{0};   // a new value: a barrier opened
    alignas(64) std::atomic<int32_t> arrived_{0};
    alignas(64) std::atomic<int64_t> next_{0};
    alignas(64) std::atomic<int32_t> sleepers_{0};
};

// The process's pool, made at first use and again after a fork. Threads: set_threads, else OUTRIDER_NUM_THREADS, else
// the processors this process may use. Pools live as long as the process, one for each number of threads asked for, so
// that a change of the number never ends a pool in use.
ThreadPool& pool();
void set_threads(int threads);

}  // namespace outrider
