#include "row_scan.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "thread_pool.h"

namespace outrider {
namespace {

constexpr int64_t kLanes = 8;
constexpr int64_t kGrain = 64;      // blocks per unit of work of a thread
constexpr double kNothing = -50.0;  // exp(-50) times any vocabulary size is below the rounding of a sum >= 1

// Memory that each thread reuses, because faults on new pages would cost as much as the computation.
template <class T>
T* scratch(int64_t size) {
    thread_local std::vector<T> memory;
    if (int64_t(memory.size()) < size) memory.resize(std::size_t(size));
    return memory.data();
}

template <class V, class T>
__attribute__((always_inline)) inline V load(const T* p) {
    V v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

__attribute__((always_inline)) inline Doubles widened(const double* p) { return load<Doubles>(p); }
__attribute__((always_inline)) inline Doubles widened(const float* p) {
    typedef float Four __attribute__((vector_size(16)));
    return __builtin_convertvector(load<Four>(p), Doubles);
}

// A block of kBlock tokens at `x`. If only n tokens are left, this is a copy padded with -inf.
template <class T>
const T* whole_block(const T* x, int64_t n, T* room) {
    if (n == kBlock) return x;
    std::copy(x, x + n, room);
    std::fill(room + n, room + kBlock, -std::numeric_limits<T>::infinity());
    return room;
}

// The largest logit of a block. Sets `odd` if one is NaN.
template <class V, class T>
__attribute__((always_inline)) inline T top_of(const T* x, bool& odd) {
    constexpr int64_t lanes = sizeof(V) / sizeof(T);
    V top[4], poison[4] = {};
    for (int at = 0; at < 4; ++at) top[at] = load<V>(x + at * lanes), poison[at] = top[at];
    for (int64_t i = 0; i < kBlock; i += 4 * lanes)
        for (int at = 0; at < 4; ++at) {
            const V v = load<V>(x + i + at * lanes);
            top[at] = v > top[at] ? v : top[at];
            poison[at] = v == v ? poison[at] : v;
        }
    T best = -std::numeric_limits<T>::infinity();
    for (int at = 0; at < 4; ++at)
        for (int64_t lane = 0; lane < lanes; ++lane) {
            best = top[at][lane] > best ? top[at][lane] : best;
            odd |= poison[at][lane] != poison[at][lane];
        }
    return best;
}

// tops[b] = the largest logit of block b of x [n]. Returns false if one is NaN.
#define OUTRIDER_TOPS(T, V)                                                    \
    OUTRIDER_CLONES bool tops_of(const T* x, int64_t n, T* tops) {             \
        bool odd = false;                                                      \
        T room[kBlock];                                                        \
        for (int64_t i = 0; i < n; i += kBlock)                                \
            *tops++ = top_of<V>(whole_block(x + i, std::min(kBlock, n - i), room), odd); \
        return !odd;                                                           \
    }
OUTRIDER_TOPS(float, Floats)
OUTRIDER_TOPS(double, Doubles)
#undef OUTRIDER_TOPS

#define OUTRIDER_EXP(T)                                                                               \
    OUTRIDER_CLONES void exps_of(const T* x, int64_t n, double peak, double divisor, double* out) {   \
        int64_t i = 0;                                                                                \
        for (; i + 4 <= n; i += 4) {                                                                  \
            const Doubles weights = exp_negative_of<Doubles, Words>((widened(x + i) - peak) / divisor); \
            std::memcpy(out + i, &weights, sizeof weights);                                           \
        }                                                                                             \
        for (; i < n; ++i) out[i] = exp_negative((double(x[i]) - peak) / divisor);                    \
    }
OUTRIDER_EXP(float)
OUTRIDER_EXP(double)
#undef OUTRIDER_EXP

struct Four {
    Doubles sum[2] = {}, scaled[2] = {};
};

// Sums over a block. `divides`: the divisor is not 1. `surprisals`: sum weight * log(weight) too.
template <bool divides, bool surprisals, class T>
__attribute__((always_inline)) inline void sum_block(const T* x, double peak, double divisor, Four& sums) {
    for (int64_t i = 0; i < kBlock; i += 8)
        for (int at = 0; at < 2; ++at) {
            Doubles scaled = widened(x + i + 4 * at) - peak;
            if (divides) scaled /= divisor;
            const Doubles weights = exp_clamped<Doubles, Words>(scaled), least = Doubles{} - 708.0;
            sums.sum[at] += weights;  // clamped weights are below the rounding of the sum, which is at least 1
            if (surprisals) sums.scaled[at] += weights * (scaled < least ? least : scaled);
        }
}

__attribute__((always_inline)) inline double added(const Doubles (&sums)[2]) {
    double total = 0.0;
    for (const Doubles& each : sums)
        for (int lane = 0; lane < 4; ++lane) total += each[lane];
    return total;
}

#define OUTRIDER_SUMS(T)                                                                              \
    OUTRIDER_CLONES Moments sums_of(const T* x, int64_t n, double peak, double divisor, bool surprisals) { \
        T room[kBlock];                                                                               \
        x = whole_block(x, n, room);                                                                  \
        Four sums;                                                                                    \
        if (surprisals) sum_block<true, true>(x, peak, divisor, sums);                                \
        else if (divisor != 1.0) sum_block<true, false>(x, peak, divisor, sums);                      \
        else sum_block<false, false>(x, peak, divisor, sums);                                         \
        return {added(sums.sum), added(sums.scaled)};                                                 \
    }
OUTRIDER_SUMS(float)
OUTRIDER_SUMS(double)
#undef OUTRIDER_SUMS

__attribute__((always_inline)) inline Floats below(const float* x, float peak) { return load<Floats>(x) - peak; }
__attribute__((always_inline)) inline Floats below(const double* x, double peak) {
    Floats v;
    for (int lane = 0; lane < 8; ++lane) v[lane] = float(x[lane] - peak);
    return v;
}

// exp(max(x, -87)) in float arithmetic, by the Taylor polynomial up to r^6.
__attribute__((always_inline)) inline Floats rough_exp(const Floats& x) {
    typedef uint32_t Bits __attribute__((vector_size(32)));
    const Floats least = Floats{} - 87.0f;
    const Floats v = x < least ? least : x;
    const Floats shifted = v * 1.44269504f + 12582912.0f;  // 1.5 * 2^23
    const Floats n = shifted - 12582912.0f;
    const Floats r = (v - n * 0.693359375f) + n * 2.12194440e-4f, r2 = r * r;
    const Floats p23 = 0.5f + 1.66666667e-1f * r, p45 = 4.16666667e-2f + 8.33333333e-3f * r;
    const Floats p = ((p45 + 1.38888889e-3f * r2) * r2 + p23) * r2 + (1.0f + r);
    Bits bits;
    std::memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 127u) << 23;
    Floats scale;
    std::memcpy(&scale, &bits, sizeof scale);
    return p * scale;
}

#define OUTRIDER_ROUGH(T)                                                      \
    OUTRIDER_CLONES double rough_sum(const T* x, int64_t n, T peak, float factor) { \
        T room[kBlock];                                                        \
        x = whole_block(x, n, room);                                           \
        Floats sums[2] = {};                                                   \
        for (int64_t i = 0; i < kBlock; i += 16)                               \
            for (int at = 0; at < 2; ++at) sums[at] += rough_exp(below(x + i + 8 * at, peak) * factor); \
        double total = 0.0;                                                    \
        for (int lane = 0; lane < 8; ++lane) total += double(sums[0][lane]) + double(sums[1][lane]); \
        return total;                                                          \
    }
OUTRIDER_ROUGH(float)
OUTRIDER_ROUGH(double)
#undef OUTRIDER_ROUGH

// Calls body(first, last) for ranges [first, last) that cover all blocks. Uses all threads if there are many blocks.
template <class Body>
void sweep(int64_t blocks, const Body& body) {
    if (blocks < 4 * kGrain) return body(int64_t(0), blocks);
    pool().run([&](Team& team) { team.share(blocks, kGrain, body); });
}

// The sums of all blocks, added in block order.
template <class T>
Moments add_blocks(const RowScan<T>& scan, double divisor, bool surprisals) {
    Moments* parts = scratch<Moments>(scan.blocks);
    sweep(scan.blocks, [&](int64_t first, int64_t last) {
        for (int64_t b = first; b < last; ++b) {
            const bool counts = scan.scaled(double(scan.tops[b]), divisor) >= kNothing;
            const int64_t begin = scan.begin(b);
            parts[b] = counts ? sums_of(scan.row + begin, scan.end(b) - begin, scan.peak, divisor, surprisals) : Moments{};
        }
    });
    Moments total;
    for (int64_t b = 0; b < scan.blocks; ++b) total.sum += parts[b].sum, total.scaled += parts[b].scaled;
    return total;
}

}  // namespace

OUTRIDER_CLONES double sum_of(const double* x, int64_t n) {
    double lanes[kLanes] = {};
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes)
        for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += x[i + lane];
    for (; i < n; ++i) lanes[i % kLanes] += x[i];
    double sum = 0.0;
    for (double lane : lanes) sum += lane;
    return sum;
}

template <class T>
void exp_all(const T* x, int64_t n, double peak, double divisor, double* out) {
    sweep((n + kBlock - 1) / kBlock, [&](int64_t first, int64_t last) {
        const int64_t begin = first * kBlock, end = std::min(last * kBlock, n);
        exps_of(x + begin, end - begin, peak, divisor, out + begin);
    });
}

template <class T>
RowScan<T> scan_row(const T* row, int64_t size) {
    const int64_t blocks = (size + kBlock - 1) / kBlock;
    T* tops = scratch<T>(blocks);
    const bool numbers = tops_of(row, size, tops);
    const double peak = numbers ? double(*std::max_element(tops, tops + blocks)) : std::nan("");
    return {row, size, tops, blocks, peak};
}

template <class T>
double sum_of_weights(const RowScan<T>& scan, double divisor) {
    return add_blocks(scan, divisor, false).sum;
}

template <class T>
Moments moments_of_weights(const RowScan<T>& scan, double divisor) {
    return add_blocks(scan, divisor, true);
}

template <class T>
double rough_sum_of_weights(const RowScan<T>& scan, double divisor) {
    double total = 0.0;
    for (int64_t b = 0; b < scan.blocks; ++b) {
        if (scan.scaled(double(scan.tops[b]), divisor) < -40.0) continue;
        total += rough_sum(scan.row + scan.begin(b), scan.end(b) - scan.begin(b), T(scan.peak), float(1.0 / divisor));
    }
    return total;
}

template <class T>
void find_above(const RowScan<T>& scan, double bound, std::vector<int64_t>& ids) {
    ids.clear();
    // The margin keeps rounding to T from raising the bound.
    const T least = T(bound - 1e-6 * std::fabs(bound));
    for (int64_t b = 0; b < scan.blocks; ++b) {
        if (!(scan.tops[b] >= least)) continue;
        for (int64_t i = scan.begin(b); i < scan.end(b); ++i)
            if (scan.row[i] >= least) ids.push_back(i);
    }
}

template <class T>
std::vector<int64_t> find_largest(const RowScan<T>& scan, int64_t k) {
    const T* row = scan.row;
    T least = -std::numeric_limits<T>::infinity();
    if (k <= scan.blocks) {  // at least k tokens are not below the k-th largest of the block tops
        std::vector<T> tops(scan.tops, scan.tops + scan.blocks);
        std::nth_element(tops.begin(), tops.begin() + (k - 1), tops.end(), [](T a, T b) { return a > b; });
        least = tops[std::size_t(k - 1)];
    } else if (k < scan.size) {
        std::vector<T> copy(row, row + scan.size);
        std::nth_element(copy.begin(), copy.begin() + (k - 1), copy.end(), [](T a, T b) { return a > b; });
        least = copy[std::size_t(k - 1)];
    }
    std::vector<int64_t> ids, equal;
    for (int64_t b = 0; b < scan.blocks; ++b) {
        if (!(scan.tops[b] >= least)) continue;
        for (int64_t i = scan.begin(b); i < scan.end(b); ++i) {
            if (row[i] > least) ids.push_back(i);
            else if (row[i] == least && int64_t(equal.size()) < k) equal.push_back(i);
        }
    }
    const auto better = [row](int64_t a, int64_t b) { return row[a] != row[b] ? row[a] > row[b] : a < b; };
    ids.insert(ids.end(), equal.begin(), equal.end());
    if (int64_t(ids.size()) > k) {
        std::nth_element(ids.begin(), ids.begin() + (k - 1), ids.end(), better);
        ids.resize(std::size_t(k));
    }
    std::sort(ids.begin(), ids.end());
    return ids;
}

template <class T>
int64_t count_before(const RowScan<T>& scan, int64_t token) {
    const T own = scan.row[token];
    int64_t count = 0;
    for (int64_t b = 0; b < scan.blocks; ++b) {
        if (!(scan.tops[b] >= own)) continue;
        for (int64_t i = scan.begin(b); i < scan.end(b); ++i) count += scan.row[i] > own;
        for (int64_t i = scan.begin(b); i < std::min(scan.end(b), token); ++i) count += scan.row[i] == own;
    }
    return count;
}

#define OUTRIDER_ROW_SCAN(T)                                                   \
    template void exp_all(const T*, int64_t, double, double, double*);         \
    template RowScan<T> scan_row(const T*, int64_t);                           \
    template double sum_of_weights(const RowScan<T>&, double);                 \
    template Moments moments_of_weights(const RowScan<T>&, double);            \
    template double rough_sum_of_weights(const RowScan<T>&, double);           \
    template void find_above(const RowScan<T>&, double, std::vector<int64_t>&); \
    template std::vector<int64_t> find_largest(const RowScan<T>&, int64_t);    \
    template int64_t count_before(const RowScan<T>&, int64_t);
OUTRIDER_ROW_SCAN(float)
OUTRIDER_ROW_SCAN(double)
#undef OUTRIDER_ROW_SCAN

}  // namespace outrider
