// Many regions of many stages, with more threads than processors and several callers: each range is done once, with what
// the stage before wrote. For ThreadSanitizer: make tsan.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "thread_pool.h"

using namespace outrider;

namespace {

constexpr int64_t kCount = 97;
constexpr int kStages = 40;

// Stages double and add over plain memory, which only the pool's own ordering protects.
bool region(ThreadPool& workers, int threads, int64_t grain) {
    std::vector<int64_t> values(kCount, 1), done(size_t(workers.threads()), 0);
    int64_t expected = 1;
    workers.run(
        [&](Team& team) {
            if (threads % 2 == 0) team.wake();
            for (int stage = 0; stage < kStages; ++stage) {
                const int64_t add = stage % 5;
                // A stage of its own size each time, down to one range.
                const int64_t count = stage % 7 == 6 ? 1 : kCount;
                const int64_t from = values[0];
                team.share(count, grain, [&](int64_t begin, int64_t end, int thread) {
                    for (int64_t i = begin; i < end; ++i) values[size_t(i)] = (from + add) % 1000003;
                    done[size_t(thread)] += end - begin;
                });
                if (count == 1)
                    for (int64_t i = 1; i < kCount; ++i) values[size_t(i)] = values[0];
                expected = (expected + add) % 1000003;
                for (int64_t v : values)
                    if (v != expected) return;
            }
        },
        threads);
    int64_t all = 0, wanted = 0;
    for (int64_t n : done) all += n;
    for (int stage = 0; stage < kStages; ++stage) wanted += stage % 7 == 6 ? 1 : kCount;
    return all == wanted && values.back() == expected;
}

}  // namespace

int main(int argc, char** argv) {
    const int regions = argc > 1 ? std::atoi(argv[1]) : 300;
    for (int size : {1, 2, 3, 8}) {
        ThreadPool& workers = *new ThreadPool(size);  // pools live as long as the process
        std::vector<std::thread> callers;
        std::atomic<int> wrong{0};
        for (int caller = 0; caller < 3; ++caller)
            callers.emplace_back([&, caller] {
                for (int i = 0; i < regions; ++i) {
                    if (!region(workers, (i + caller) % (size + 1), 1 + i % 5)) ++wrong;
                    // Long enough for workers to fall asleep, now and then.
                    if (i % 50 == 49) std::this_thread::sleep_for(std::chrono::milliseconds(2));
                }
            });
        for (std::thread& caller : callers) caller.join();
        if (wrong > 0) {
            std::printf("%d regions of a pool of %d are wrong\n", wrong.load(), size);
            return 1;
        }
        std::printf("%d regions of a pool of %d are right\n", 3 * regions, size);
    }
    std::fflush(stdout);
    std::_Exit(0);
}
