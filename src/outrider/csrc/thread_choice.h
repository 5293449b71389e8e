// How many threads work on a model's passes, by the times of passes before. Knows nothing about threads or models.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace outrider {

// Beside other processes a pass of many threads waits for those that the system does not run, and fewer threads can be
// faster. Each number of threads that is considered has a slowness, the mean time of its latest passes over the usual
// time of passes with as many rows; the fastest works. Now and then a few passes try a neighbour of the number at work:
// seldom where all threads work and their times are steady, as the trial of fewer then costs time, more often where
// fewer work, and soon when the times change.
class ThreadChoice {
public:
    // Threads for a pass of `rows` rows, at most `limit`. Another limit starts anew.
    int choose(int64_t rows, int limit);
    // The pass of `rows` rows took `seconds` with the threads that choose() gave.
    void record(int64_t rows, int threads, double seconds);
    // The number at work, trials apart; 0 before the first choice.
    int threads() const { return numbers_.empty() ? 0 : numbers_[current_].threads; }

private:
    struct Number {
        int threads;
        double slowness;
    };
    void start(int limit);
    void move(size_t number);
    void end_trial(double slowness);
    size_t neighbour();
    bool cheap(int64_t rows) const;

    std::vector<Number> numbers_;  // of threads considered, the limit first, then ever fewer
    std::vector<double> usual_;    // seconds of a pass, by the size of its rows; 0: not known yet
    size_t current_ = 0, tried_ = 0;
    bool trial_ = false, up_ = false;
    int trial_passes_ = 0;
    double trial_sum_ = 0.0;
    int64_t since_ = 0, wait_ = 0;  // passes since the last trial or move, and until the next trial
    int64_t passes_ = 0;            // since the last move
    double level_ = 0.0;            // the slowness at work over a longer time
};

}  // namespace outrider
