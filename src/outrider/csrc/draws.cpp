// Draws whose noise is a hash of a key and the token id: the winner of weight / E, E being exponential noise.
#include <algorithm>
#include <cmath>
#include <limits>

#include "sampling.h"

namespace outrider {
namespace {

constexpr uint64_t kGamma = 0x9E3779B97F4A7C15ull;

// As sampling/rng.py describes it, but for its last step, which leaves the upper 31 bits as they are.
inline uint64_t mix_most(uint64_t word) {
    word ^= word >> 30;
    word *= 0xBF58476D1CE4E5B9ull;
    word ^= word >> 27;
    return word * 0x94D049BB133111EBull;
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
    // Whether a token of this weight may still win. -log(u) >= 1 - u: most lose without a logarithm. The factor leaves
    // room for rounding.
    bool open(double weight, double u) const { return id < 0 || weight >= value * (1.0 - u) * (1.0 - 1e-12); }
};

// Which of the tokens [begin, end), none with a weight above `bound`, may still win: their number, and ids in `found`.
// The noise alone tells, 31 bits of it.
int64_t contenders(uint64_t key, int64_t begin, int64_t end, double bound, double value, int32_t* found) {
    const double least = 1.0 - bound / (value * (1.0 - 1e-12)) * (1.0 + 1e-12);  // of u
    const uint64_t limit = least > 0.0 ? uint64_t(std::max(least * 0x1p31 - 2.0, 0.0)) << 33 : 0u;
    int64_t count = 0;
    for (int64_t i = begin; i < end; ++i) {
        found[count] = int32_t(i - begin);
        count += mixed(key, i) >= limit;
    }
    return count;
}

// A draw from all tokens. The likeliest blocks come first, so that the rest have much to beat.
template <class T>
int64_t draw_of_all(const RowScan<T>& scan, double divisor, uint64_t key) {
    Winner winner;
    int32_t found[kBlock];
    for (const bool likely : {true, false}) {
        for (int64_t b = 0; b < scan.blocks; ++b) {
            const double bound = exp_negative(scan.scaled(double(scan.tops[b]), divisor));
            if ((bound >= 1e-2) != likely || bound == 0.0) continue;
            const int64_t begin = scan.begin(b);
            const int64_t count = contenders(key, begin, scan.end(b), bound, winner.value, found);
            for (int64_t i = 0; i < count; ++i) {
                const int64_t id = begin + found[i];
                const double weight = exp_negative(scan.scaled(double(scan.row[id]), divisor));
                const double u = uniform_of(mixed(key, id));
                if (weight > 0.0 && winner.open(weight, u)) winner.offer(id, weight / -std::log(u));
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
int64_t draw_token(const RowScan<T>& scan, const LawOptions& options, uint64_t key) {
    if (!options.truncates(scan.size))
        return draw_of_all(scan, std::max(options.temperature, std::numeric_limits<double>::min()), key);
    const Survivors law = survivors(scan, options);
    Winner winner;
    for (std::size_t i = 0; i < law.ids.size(); ++i) {
        const double u = uniform_of(mixed(key, law.ids[i]));
        if (law.weights[i] > 0.0 && winner.open(law.weights[i], u))
            winner.offer(law.ids[i], law.weights[i] / -std::log(u));
    }
    return winner.id;
}

template int64_t draw_token(const RowScan<float>&, const LawOptions&, uint64_t);
template int64_t draw_token(const RowScan<double>&, const LawOptions&, uint64_t);

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
