// One pool of threads for all kernels. The thread that calls run() goes through a region's stages; the ranges of a stage
// go to whichever thread is free. Waiting spins briefly, then sleeps. Knows nothing about tensors.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace outrider {

class ThreadPool;

// A region: what the calling thread shares its stages with.
class Team {
public:
    int threads() const { return threads_; }

    // A stage: body(begin, end) or body(begin, end, thread) for [0, count) in ranges of `grain`, each on whichever thread
    // is free, thread being below threads(). Returns when all ranges are done, and waits only for threads that hold one:
    // a thread that the system does not run delays nothing. What was written before is visible in the body, what the
    // body wrote is visible after. Results must not depend on who gets what. The body must not throw.
    template <class Body>
    void share(int64_t count, int64_t grain, const Body& body) {
        if (threads_ == 1 || count <= grain) {
            for (int64_t at = 0; at < count; at += grain) call(body, at, at + grain < count ? at + grain : count, 0);
            return;
        }
        share_erased(
            count, grain,
            [](const void* b, int64_t begin, int64_t end, int thread) {
                call(*static_cast<const Body*>(b), begin, end, thread);
            },
            &body);
    }
    // Wake the workers that sleep: a stage of several ranges comes soon.
    void wake();

private:
    friend class ThreadPool;
    using Function = void (*)(const void*, int64_t, int64_t, int);
    Team(ThreadPool& pool, int threads) : pool_(pool), threads_(threads) {}

    template <class Body>
    static void call(const Body& body, int64_t begin, int64_t end, int thread) {
        if constexpr (std::is_invocable_v<const Body&, int64_t, int64_t, int>)
            body(begin, end, thread);
        else
            body(begin, end);
    }
    void share_erased(int64_t count, int64_t grain, Function function, const void* body);

    ThreadPool& pool_;
    const int threads_;
};

class ThreadPool {
public:
    explicit ThreadPool(int threads);
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int threads() const { return threads_; }

    // Run body(Team&) on this thread, with up to `threads` threads, this one included, for what it shares; 0: all of
    // them. Calls from several threads take turns.
    template <class Body>
    void run(const Body& body, int threads = 0) {
        const std::lock_guard<std::mutex> lock(turn_);
        Team team(*this, threads > 0 && threads < threads_ ? threads : threads_);
        body(team);
    }

private:
    friend class Team;
    struct alignas(64) Sleeper {
        std::atomic<uint32_t> asleep{0};
    };

    void work(int thread);
    int64_t help(int thread);
    void wake(Sleeper& sleeper);
    template <class Ready>
    void wait_until(Sleeper& sleeper, const Ready& ready);

    const int threads_;
    std::unique_ptr<Sleeper[]> sleepers_;  // by thread
    std::vector<std::thread> workers_;
    std::mutex turn_;

    // The stage: its number in the upper half of open_, in the lower half the ranges that nobody has taken. The other
    // fields change only while that is 0, so whoever lowers open_ by one has read those of this stage.
    alignas(64) std::atomic<uint64_t> open_{0};
    std::atomic<Team::Function> function_{nullptr};
    std::atomic<const void*> body_{nullptr};
    std::atomic<int64_t> count_{0}, grain_{1};
    std::atomic<int> helpers_{0};                 // workers 1 to helpers_ take part
    alignas(64) std::atomic<int64_t> helped_{0};  // ranges that workers have done
};

// The process's pool, made at first use and again after a fork. Its threads: what set_threads set, else
// OUTRIDER_NUM_THREADS, else set_default_threads, else the machine's processors. Pools live as long as the process, one for each number of threads
// asked for, so that a change of the number never ends a pool in use.
ThreadPool& pool();

// The number is a limit, within which a model's passes choose by their times; when fixed, all of them always work.
void set_threads(int threads, bool fixed = false);
void set_default_threads(int threads);
bool threads_fixed();

}  // namespace outrider
