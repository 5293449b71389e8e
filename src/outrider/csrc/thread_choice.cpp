// The choice of the number of threads by the times of passes.
#include "thread_choice.h"

#include <algorithm>

namespace outrider {
namespace {

constexpr double kRate = 1.0 / 8, kSlowRate = 1.0 / 64;  // of the running means
constexpr double kBetter = 0.9;     // another number must be faster by this to be taken
constexpr double kWorse = 1.15;  // a trial ends with a first pass slower than this
constexpr double kChanged = 1.25;   // a change of the times by this asks for a trial
constexpr double kOutlier = 4.0;    // one pass counts as at most so many times the mean
constexpr int kTrialPasses = 4;
constexpr int64_t kFirstWait = 8, kCalmWait = 24, kWaitWithAll = 512, kWaitWithFewer = 64;
constexpr size_t kSizes = 24;

// Up to 16 rows each number for itself, then by powers of two.
size_t size_of(int64_t rows) {
    if (rows <= 16) return size_t(std::max<int64_t>(rows, 1) - 1);
    size_t size = 16;
    for (int64_t upto = 32; upto < rows && size + 1 < kSizes; upto *= 2) ++size;
    return size;
}

}  // namespace

void ThreadChoice::start(int limit) {
    *this = ThreadChoice();
    // Until it is measured, a number is taken to be as slow as if all work divided evenly.
    const auto add = [&](int threads) {
        if (threads >= 1 && (numbers_.empty() || threads < numbers_.back().threads))
            numbers_.push_back({threads, double(limit) / threads});
    };
    add(limit);
    add(limit - 1);
    for (int threads = limit / 2; threads >= 1; threads /= 2) add(threads);
    add(1);
    usual_.assign(kSizes, 0.0);
    wait_ = kFirstWait;
    level_ = numbers_[0].slowness;
}

// A trial costs up to its whole pass once more: not those of the large batches of a prompt, where there are others.
bool ThreadChoice::cheap(int64_t rows) const {
    const double usual = usual_[size_of(rows)];
    if (usual == 0.0) return false;
    for (double other : usual_)
        if (other > 0.0 && usual > 2.0 * other) return false;
    return true;
}

// More and fewer in turn; below all threads also the number after the next, as one thread less can change little.
size_t ThreadChoice::neighbour() {
    up_ = !up_;
    const size_t last = numbers_.size() - 1;
    if (current_ == 0) return std::min<size_t>(up_ ? 1 : 2, last);
    if (current_ == last) return last - 1;
    return up_ ? current_ - 1 : current_ + 1;
}

int ThreadChoice::choose(int64_t rows, int limit) {
    limit = std::max(limit, 1);
    if (numbers_.empty() || numbers_[0].threads != limit) start(limit);
    if (numbers_.size() == 1 || !cheap(rows)) return threads();
    if (!trial_ && since_ >= wait_) {
        trial_ = true;
        tried_ = neighbour();
        trial_passes_ = 0;
        trial_sum_ = 0.0;
    }
    return trial_ ? numbers_[tried_].threads : threads();
}

void ThreadChoice::move(size_t number) {
    current_ = number;
    level_ = numbers_[number].slowness;
    passes_ = 0;
    since_ = 0;
    wait_ = kFirstWait;
}

void ThreadChoice::end_trial(double slowness) {
    numbers_[tried_].slowness = slowness;
    trial_ = false;
    since_ = 0;
    if (slowness < kBetter * numbers_[current_].slowness)
        move(tried_);
    else
        wait_ = std::min(wait_ * 4, current_ == 0 ? kWaitWithAll : kWaitWithFewer);
}

void ThreadChoice::record(int64_t rows, int threads, double seconds) {
    if (numbers_.size() < 2 || !(seconds > 0.0)) return;
    double& usual = usual_[size_of(rows)];
    if (trial_ && threads == numbers_[tried_].threads && usual > 0.0) {
        trial_sum_ += seconds / usual;
        ++trial_passes_;
        const double mean = trial_sum_ / trial_passes_;
        if (trial_passes_ == kTrialPasses || mean > kWorse * numbers_[current_].slowness) end_trial(mean);
        return;
    }
    Number& now = numbers_[current_];
    if (threads != now.threads) return;
    ++since_;
    ++passes_;
    if (usual == 0.0) {
        usual = seconds / now.slowness;
        return;
    }
    const double slowness = std::min(seconds / usual, kOutlier * now.slowness);
    // A number just taken is known from few passes: the next ones count for more.
    now.slowness += std::max(kRate, 1.0 / double(2 + passes_)) * (slowness - now.slowness);
    level_ += kSlowRate * (now.slowness - level_);
    usual += kSlowRate * (slowness / now.slowness - 1.0) * usual;
    size_t best = current_;
    for (size_t i = 0; i < numbers_.size(); ++i)
        if (numbers_[i].slowness < numbers_[best].slowness) best = i;
    if (numbers_[best].slowness < kBetter * now.slowness) {
        trial_ = false;
        move(best);
    } else if (since_ >= kCalmWait && (now.slowness > kChanged * level_ || kChanged * now.slowness < level_)) {
        level_ = now.slowness;
        wait_ = std::min(wait_, kCalmWait);
    }
}

}  // namespace outrider
