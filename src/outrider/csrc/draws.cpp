// Draws with keyed noise: the token with the largest weight / E, where the exponential noise E is a hash of key and id.
#include <algorithm>
#include <cmath>
#include <limits>

#include "sampling.h"

namespace outrider {
namespace {

constexpr uint64_t kGamma = 0x9E3779B97F4A7C15ull;

// The mixing function of sampling/rng.py without its last step, which does not change the upper 31 bits. U is uint64_t or
// a vector of uint64_t.
template <class U>
__attribute__((always_inline)) inline U mix_most(U word) {
    word ^= word >> 30;
    word *= uint64_t(0xBF58476D1CE4E5B9ull);
    word ^= word >> 27;
    return word * uint64_t(0x94D049BB133111EBull);
}

inline uint64_t mixed(uint64_t key, int64_t id) { return mix_most(key + (uint64_t(id) + 1u) * kGamma); }

inline double uniform_of(uint64_t most) {
    const uint64_t word = most ^ most >> 31;
    return double((word >> 12 << 1) | 1u) * 0x1p-53;
}

struct Winner {
    int64_t id = -1;
    double value = 0.0;

    void offer(int64_t other, double candidate) {
        if (id < 0 || candidate > value || (candidate == value && other < id)) id = other, value = candidate;
    }
    // False if a token of this weight cannot win. -log(u) >= 1 - u, so most tokens need no logarithm. The factor is a
    // margin for rounding, so that the winner is never excluded.
    bool open(double weight, double u) const { return id < 0 || weight >= value * (1.0 - u) * (1.0 - 1e-12); }
};

// upper[i] = the upper 31 bits of the noise of token begin + i, for kBlock tokens. Returns the largest.
OUTRIDER_CLONES int64_t noise_of(uint64_t key, int64_t begin, int64_t* upper) {
    typedef int64_t Signed __attribute__((vector_size(32)));
    Words counter = {1, 2, 3, 4};
    counter = (counter + uint64_t(begin)) * kGamma + key;
    Signed most[2] = {};
    for (int64_t i = 0; i < kBlock; i += 8)
        for (int at = 0; at < 2; ++at) {
            const Signed bits = Signed(mix_most(counter) >> 33);
            counter += 4 * kGamma;
            most[at] = bits > most[at] ? bits : most[at];
            std::memcpy(upper + i + 4 * at, &bits, sizeof bits);
        }
    int64_t largest = 0;
    for (const Signed& each : most)
        for (int lane = 0; lane < 4; ++lane) largest = std::max(largest, int64_t(each[lane]));
    return largest;
}

// The smallest upper bits of noise with which a token of weight at most `bound` can still win.
inline int64_t least_upper(double bound, const Winner& winner) {
    if (winner.id < 0) return 0;
    const double least = 1.0 - bound / winner.value * (1.0 + 1e-11);  // of u
    return least > 0.0 ? int64_t(std::max(least * 0x1p31 - 2.0, 0.0)) : 0;
}

// A draw from all tokens. The most probable blocks come first, so that most tokens of the other blocks are skipped.
template <class T>
int64_t draw_of_all(const RowScan<T>& scan, double divisor, uint64_t key) {
    Winner winner;
    int64_t upper[kBlock];
    for (const bool likely : {true, false}) {
        for (int64_t b = 0; b < scan.blocks; ++b) {
            const double bound = exp_negative(scan.scaled(double(scan.tops[b]), divisor));
            if ((bound >= 1e-2) != likely || bound == 0.0) continue;
            const int64_t begin = scan.begin(b), n = scan.end(b) - begin, largest = noise_of(key, begin, upper);
            if (largest < least_upper(bound, winner)) continue;
            for (int64_t i = 0; i < n; ++i) {
                if (upper[i] < least_upper(bound, winner)) continue;
                const double weight = exp_negative(scan.scaled(double(scan.row[begin + i]), divisor));
                const double u = uniform_of(mixed(key, begin + i));
                if (weight > 0.0 && winner.open(weight, u)) winner.offer(begin + i, weight / -std::log(u));
            }
        }
    }
    return winner.id;
}

OUTRIDER_CLONES double smallest_of(const double* x, int64_t n) {
    constexpr int64_t lanes = 8;
    double least[lanes] = {};
    int64_t i = 0;
    for (; i + lanes <= n; i += lanes)
        for (int64_t lane = 0; lane < lanes; ++lane) least[lane] = x[i + lane] < least[lane] ? x[i + lane] : least[lane];
    for (; i < n; ++i) least[0] = x[i] < least[0] ? x[i] : least[0];
    return *std::min_element(least, least + lanes);
}

}  // namespace

template <class T>
int64_t draw_token(const RowScan<T>& scan, const SamplingOptions& options, uint64_t key) {
    if (!options.truncates(scan.size))
        return draw_of_all(scan, std::max(options.temperature, std::numeric_limits<double>::min()), key);
    const Survivors kept = survivors(scan, options);
    Winner winner;
    for (std::size_t i = 0; i < kept.ids.size(); ++i) {
        const double u = uniform_of(mixed(key, kept.ids[i]));
        if (kept.weights[i] > 0.0 && winner.open(kept.weights[i], u))
            winner.offer(kept.ids[i], kept.weights[i] / -std::log(u));
    }
    return winner.id;
}

template int64_t draw_token(const RowScan<float>&, const SamplingOptions&, uint64_t);
template int64_t draw_token(const RowScan<double>&, const SamplingOptions&, uint64_t);

int64_t keyed_draw(const double* weights, int64_t size, uint64_t key, double* total) {
    *total = sum_of(weights, size);
    if (smallest_of(weights, size) < 0.0 || !(*total > 0.0) || std::isinf(*total)) return -1;
    Winner winner;
    for (int64_t i = 0; i < size; ++i) {
        if (weights[i] == 0.0) continue;
        const double weight = weights[i] / *total;
        const double u = uniform_of(mixed(key, i));
        if (winner.open(weight, u)) winner.offer(i, weight / -std::log(u));
    }
    return winner.id;
}

}  // namespace outrider
