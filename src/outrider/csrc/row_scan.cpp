#include "row_scan.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "thread_pool.h"

namespace outrider {
namespace {

constexpr int64_t kLanes = 8;
constexpr int64_t kGrain = 64;     // blocks that a thread takes at a time
constexpr double kNothing = -50.0;  // exp of it, times any vocabulary, is lost beside 1

// Memory that each thread keeps: fresh pages would cost as much as what is computed in them.
template <class T>
T* scratch(int64_t size) {
    thread_local std::vector<T> memory;
    if (int64_t(memory.size()) < size) memory.resize(std::size_t(size));
    return memory.data();
}

// tops[b] = the largest of each block of x [n]; returns whether all are numbers.
#define OUTRIDER_TOPS(T)                                                                      \
    OUTRIDER_CLONES bool tops_of(const T* x, int64_t n, T* tops) {                            \
        constexpr int64_t lanes = 64 / sizeof(T);                                             \
        int64_t strange = 0;                                                                  \
        for (int64_t begin = 0; begin < n; begin += kBlock) {                                 \
            T top[lanes];                                                                     \
            for (int64_t lane = 0; lane < lanes; ++lane) top[lane] = -std::numeric_limits<T>::infinity(); \
            const int64_t end = begin + kBlock < n ? begin + kBlock : n;                      \
            int64_t i = begin;                                                                \
            T odd[lanes] = {};                                                                \
            for (; i + lanes <= end; i += lanes)                                              \
                for (int64_t lane = 0; lane < lanes; ++lane) {                                \
                    const T v = x[i + lane];                                                  \
                    top[lane] = v > top[lane] ? v : top[lane];                                \
                    odd[lane] = v == v ? odd[lane] : T(1);                                    \
                }                                                                             \
            for (; i < end; ++i) {                                                            \
                top[0] = x[i] > top[0] ? x[i] : top[0];                                       \
                odd[0] = x[i] == x[i] ? odd[0] : T(1);                                        \
            }                                                                                 \
            T best = top[0], any = odd[0];                                                    \
            for (int64_t lane = 1; lane < lanes; ++lane) {                                    \
                best = top[lane] > best ? top[lane] : best;                                   \
                any += odd[lane];                                                             \
            }                                                                                 \
            strange += any != T(0);                                                           \
            *tops++ = best;                                                                   \
        }                                                                                     \
        return strange == 0;                                                                  \
    }
OUTRIDER_TOPS(float)
OUTRIDER_TOPS(double)
#undef OUTRIDER_TOPS

#define OUTRIDER_EXP(T)                                                                               \
    OUTRIDER_CLONES void exps_of(const T* x, int64_t n, double peak, double divisor, double* out) {  \
        if (divisor == 1.0) {                                                                         \
            for (int64_t i = 0; i < n; ++i) out[i] = exp_negative(double(x[i]) - peak);               \
        } else {                                                                                      \
            for (int64_t i = 0; i < n; ++i) out[i] = exp_negative((double(x[i]) - peak) / divisor);   \
        }                                                                                             \
    }
OUTRIDER_EXP(float)
OUTRIDER_EXP(double)
#undef OUTRIDER_EXP

// out[i] = weight times its logarithm, which is 0 where the weight is.
#define OUTRIDER_SURPRISAL(T)                                                                          \
    OUTRIDER_CLONES void times_scaled(const T* x, int64_t n, double peak, double divisor, const double* w, double* out) { \
        for (int64_t i = 0; i < n; ++i) {                                                             \
            const double scaled = (double(x[i]) - peak) / divisor;                                    \
            out[i] = w[i] * (scaled < -708.0 ? -708.0 : scaled);                                      \
        }                                                                                             \
    }
OUTRIDER_SURPRISAL(float)
OUTRIDER_SURPRISAL(double)
#undef OUTRIDER_SURPRISAL

// The sum of exp((x - peak) * factor) from floats, for n <= kBlock: exp(r) by its Taylor polynomial to r^6.
#define OUTRIDER_ROUGH(T)                                                                      \
    OUTRIDER_CLONES double rough_sum(const T* x, int64_t n, T peak, float factor) {            \
        constexpr int64_t lanes = 16;                                                          \
        float weights[kBlock];                                                                 \
        for (int64_t i = 0; i < n; ++i) {                                                      \
            const float scaled = float(x[i] - peak) * factor;                                  \
            const float v = scaled < -87.0f ? -87.0f : scaled;                                 \
            const float shifted = v * 1.44269504f + 12582912.0f;                               \
            const float whole = shifted - 12582912.0f;                                         \
            const float r = (v - whole * 0.693359375f) + whole * 2.12194440e-4f;               \
            float p = 1.38888889e-3f * r + 8.33333333e-3f;                                     \
            p = p * r + 4.16666667e-2f;                                                        \
            p = p * r + 1.66666667e-1f;                                                        \
            p = p * r + 0.5f;                                                                  \
            p = p * r + 1.0f;                                                                  \
            p = p * r + 1.0f;                                                                  \
            uint32_t bits;                                                                     \
            std::memcpy(&bits, &shifted, sizeof bits);                                         \
            bits = (bits + 127u) << 23;                                                        \
            float scale;                                                                       \
            std::memcpy(&scale, &bits, sizeof scale);                                          \
            weights[i] = p * scale;                                                            \
        }                                                                                      \
        float sums[lanes] = {};                                                                \
        int64_t i = 0;                                                                         \
        for (; i + lanes <= n; i += lanes)                                                     \
            for (int64_t lane = 0; lane < lanes; ++lane) sums[lane] += weights[i + lane];      \
        for (; i < n; ++i) sums[0] += weights[i];                                              \
        double sum = 0.0;                                                                      \
        for (float each : sums) sum += double(each);                                           \
        return sum;                                                                            \
    }
OUTRIDER_ROUGH(float)
OUTRIDER_ROUGH(double)
#undef OUTRIDER_ROUGH

// body(first block, last block) over all of them, on all threads where there is enough to do.
template <class Body>
void sweep(int64_t blocks, const Body& body) {
    if (blocks < 4 * kGrain) return body(int64_t(0), blocks);
    pool().run([&](Team& team) { team.share(blocks, kGrain, body); });
}

// A block's two sums for each of `blocks` [2 * blocks], added up in their order.
template <class T, class Sum>
Moments add_blocks(const RowScan<T>& scan, double divisor, const Sum& sum) {
    Moments* parts = scratch<Moments>(scan.blocks);
    sweep(scan.blocks, [&](int64_t first, int64_t last) {
        for (int64_t b = first; b < last; ++b)
            parts[b] = scan.scaled(double(scan.tops[b]), divisor) < kNothing ? Moments{} : sum(b);
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
    return add_blocks(scan, divisor, [&](int64_t b) {
        double weights[kBlock];
        const int64_t begin = scan.begin(b), n = scan.end(b) - begin;
        exps_of(scan.row + begin, n, scan.peak, divisor, weights);
        return Moments{sum_of(weights, n), 0.0};
    }).sum;
}

template <class T>
Moments moments_of_weights(const RowScan<T>& scan, double divisor) {
    return add_blocks(scan, divisor, [&](int64_t b) {
        double weights[kBlock], scaled[kBlock];
        const int64_t begin = scan.begin(b), n = scan.end(b) - begin;
        exps_of(scan.row + begin, n, scan.peak, divisor, weights);
        times_scaled(scan.row + begin, n, scan.peak, divisor, weights, scaled);
        return Moments{sum_of(weights, n), sum_of(scaled, n)};
    });
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
    // Rounding to T must not raise the bound.
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
    if (k <= scan.blocks) {  // at least k tokens are no smaller than the k-th largest block's
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
