#include "sampling.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "thread_pool.h"

// A second build of a loop for processors with AVX2, chosen when the library is loaded.
#if defined(__x86_64__) && defined(__linux__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__SANITIZE_ADDRESS__)
#define OUTRIDER_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define OUTRIDER_CLONES
#endif

namespace outrider {
namespace {

constexpr int64_t kLanes = 8;
constexpr int64_t kGrain = 8192;  // elements that a thread takes at a time
constexpr int64_t kFew = 256;  // as many largest values are kept in a heap; more are selected from a copy
constexpr std::size_t kTypicalBins = 4096;  // of distances from the typical surprisal
constexpr double kBinsPerNat = 128.0;
constexpr double kNucleusFloors[] = {1e-2, 1e-4, 1e-7, 0.0};

// exp(x) for x <= 0, within 2 units in the last place; 0 below -708.
inline double exp_negative(double x) {
    // x = n ln 2 + r with |r| <= ln 2 / 2; exp(r) by its Taylor polynomial, whose rest is below 1e-17.
    constexpr double magic = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer
    const double clamped = x < -708.0 ? -708.0 : x;
    const double shifted = clamped * 1.4426950408889634 + magic;
    const double n = shifted - magic;
    const double r = (clamped - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10;
    double p = 1.6059043836821613e-10;  // 1 / 13!
    p = p * r + 2.08767569878681e-09;
    p = p * r + 2.505210838544172e-08;
    p = p * r + 2.755731922398589e-07;
    p = p * r + 2.7557319223985893e-06;
    p = p * r + 2.48015873015873e-05;
    p = p * r + 0.0001984126984126984;
    p = p * r + 0.001388888888888889;
    p = p * r + 0.008333333333333333;
    p = p * r + 0.041666666666666664;
    p = p * r + 0.16666666666666666;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    uint64_t bits;
    std::memcpy(&bits, &shifted, sizeof bits);
    const uint64_t power = (bits + 1023u) << 52;  // the low bits of `shifted` hold n
    double scale;
    std::memcpy(&scale, &power, sizeof scale);
    return x < -708.0 ? 0.0 : p * scale;
}

// out[i] = exp((x[i] - peak) / divisor). Without contraction the wider vectors of a clone give the very same bits.
#define OUTRIDER_EXP_ALL(T)                                                                       \
    OUTRIDER_CLONES void exp_all(const T* x, int64_t n, double peak, double divisor, double* out) { \
        for (int64_t i = 0; i < n; ++i) out[i] = exp_negative((double(x[i]) - peak) / divisor);      \
    }
OUTRIDER_EXP_ALL(float)
OUTRIDER_EXP_ALL(double)
#undef OUTRIDER_EXP_ALL

// Eight sums side by side, then from the first to the last.
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

OUTRIDER_CLONES double smallest_of(const double* x, int64_t n) {
    double lanes[kLanes] = {};
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes)
        for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] = x[i + lane] < lanes[lane] ? x[i + lane] : lanes[lane];
    for (; i < n; ++i) lanes[0] = x[i] < lanes[0] ? x[i] : lanes[0];
    return *std::min_element(lanes, lanes + kLanes);
}

// exp_all on all threads where there is enough to do; each element is what it is whoever makes it.
template <class T>
void exp_shared(const T* x, int64_t n, double peak, double divisor, double* out) {
    if (n < 2 * kGrain) return exp_all(x, n, peak, divisor, out);
    pool().run([&](Team& team) {
        team.share(n, kGrain, [&](int64_t begin, int64_t end) { exp_all(x + begin, end - begin, peak, divisor, out + begin); });
    });
}

// How many of x are above `than`, and how many of the first `before` equal it.
#define OUTRIDER_COUNT(T)                                                              \
    OUTRIDER_CLONES int64_t count_better(const T* x, int64_t n, T than, int64_t before) { \
        int64_t count = 0;                                                             \
        for (int64_t i = 0; i < n; ++i) count += x[i] > than;                          \
        for (int64_t i = 0; i < before; ++i) count += x[i] == than;                    \
        return count;                                                                  \
    }
OUTRIDER_COUNT(float)
OUTRIDER_COUNT(double)
#undef OUTRIDER_COUNT

// Memory for a row that each thread keeps: fresh pages would cost as much as what is computed in them.
double* scratch(int64_t size) {
    thread_local std::vector<double> memory;
    if (int64_t(memory.size()) < size) memory.resize(std::size_t(size));
    return memory.data();
}

inline uint64_t mix(uint64_t word) {  // as sampling/rng.py describes it
    word ^= word >> 30;
    word *= 0xBF58476D1CE4E5B9ull;
    word ^= word >> 27;
    word *= 0x94D049BB133111EBull;
    return word ^ word >> 31;
}

// The places of the k largest values, ties by lowest place, ascending.
template <class T>
std::vector<int64_t> largest(const T* values, int64_t size, int64_t k) {
    std::vector<int64_t> ids;
    if (k <= kFew && k < size) {
        // A heap with the worst on top: the smallest value and, among equals, the highest place.
        const auto better = [&](int64_t a, int64_t b) {
            return values[a] != values[b] ? values[a] > values[b] : a < b;
        };
        for (int64_t i = 0; i < k; ++i) ids.push_back(i);
        std::make_heap(ids.begin(), ids.end(), better);
        T worst = values[ids.front()];
        for (int64_t i = k; i < size; ++i) {
            if (!(values[i] > worst)) continue;  // an equal one further on is no better
            std::pop_heap(ids.begin(), ids.end(), better);
            ids.back() = i;
            std::push_heap(ids.begin(), ids.end(), better);
            worst = values[ids.front()];
        }
        std::sort(ids.begin(), ids.end());
        return ids;
    }
    std::vector<T> copy(values, values + size);
    std::nth_element(copy.begin(), copy.begin() + (k - 1), copy.end(), [](T a, T b) { return a > b; });
    const T threshold = copy[std::size_t(k - 1)];
    int64_t ties = k;
    for (int64_t i = 0; i < size; ++i) ties -= values[i] > threshold;
    ids.reserve(std::size_t(k));
    for (int64_t i = 0; i < size; ++i)
        if (values[i] > threshold || (values[i] == threshold && ties-- > 0)) ids.push_back(i);
    return ids;
}

// Keep the places [0, n) of `law` that `keep` lists in ascending order.
void keep_places(SparseLaw& law, const std::vector<int64_t>& keep) {
    for (std::size_t i = 0; i < keep.size(); ++i) {
        law.ids[i] = law.ids[std::size_t(keep[i])];
        law.weights[i] = law.weights[std::size_t(keep[i])];
    }
    law.ids.resize(keep.size());
    law.weights.resize(keep.size());
}

// From `order`, the first places that together reach `mass`.
void cut(const double* weights, std::vector<int64_t>& order, double mass) {
    double reached = 0.0;
    std::size_t count = 0;
    while (count < order.size()) {
        reached += weights[order[count++]];
        if (reached >= mass) break;
    }
    order.resize(count);
}

// The places of the nucleus of w [size], ascending.
std::vector<int64_t> nucleus(const double* w, int64_t size, double top_p) {
    const double mass = top_p * sum_of(w, size);
    std::vector<int64_t> order;
    for (double floor : kNucleusFloors) {
        order.clear();
        double held = 0.0;
        for (int64_t i = 0; i < size; ++i)
            if (w[i] > floor) order.push_back(i), held += w[i];
        if (held >= mass) break;
    }
    std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return w[a] != w[b] ? w[a] > w[b] : a < b; });
    cut(w, order, mass);
    std::sort(order.begin(), order.end());
    return order;
}

// `scaled` are the logarithms of the weights.
void keep_typical(SparseLaw& law, const std::vector<double>& scaled, double typical_p) {
    const int64_t size = int64_t(law.weights.size());
    const double sum = sum_of(law.weights.data(), size);
    const double log_sum = std::log(sum);
    for (double& w : law.weights) w /= sum;
    std::vector<double> distance(static_cast<std::size_t>(size));
    for (int64_t i = 0; i < size; ++i) {
        const double w = law.weights[std::size_t(i)];
        distance[std::size_t(i)] = w > 0.0 ? w * (log_sum - scaled[std::size_t(i)]) : 0.0;
    }
    const double entropy = sum_of(distance.data(), size);
    // Mass by distance in bins: only the tokens up to the bin in which the mass is reached are sorted.
    std::vector<double> held(kTypicalBins, 0.0);
    const auto bin_of = [&](int64_t i) {
        return std::size_t(std::min(distance[std::size_t(i)] * kBinsPerNat, double(kTypicalBins - 1)));
    };
    for (int64_t i = 0; i < size; ++i) {
        if (!(law.weights[std::size_t(i)] > 0.0)) continue;
        distance[std::size_t(i)] = std::fabs(log_sum - scaled[std::size_t(i)] - entropy);
        held[bin_of(i)] += law.weights[std::size_t(i)];
    }
    std::size_t last = 0;
    for (double mass = held[0]; mass <= typical_p + 1e-9 && last + 1 < kTypicalBins; mass += held[last]) ++last;
    std::vector<int64_t> order;
    for (int64_t i = 0; i < size; ++i)
        if (law.weights[std::size_t(i)] > 0.0 && bin_of(i) <= last) order.push_back(i);
    std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
        const double x = distance[std::size_t(a)], y = distance[std::size_t(b)];
        return x != y ? x < y : a < b;
    });
    cut(law.weights.data(), order, typical_p);
    std::sort(order.begin(), order.end());
    keep_places(law, order);
}

template <class T>
inline double scaled_logit(T logit, double peak, double divisor) {
    return (double(logit) - peak) / divisor;
}

// A temperature of zero would make 0 / 0 of the peak itself.
inline double divisor_of(double temperature) { return std::max(temperature, std::numeric_limits<double>::min()); }

}  // namespace

template <class T>
void dense_law(const T* logits, int64_t size, double peak, double temperature, double* probs) {
    const double divisor = divisor_of(temperature);
    exp_shared(logits, size, peak, divisor, probs);
    const double sum = sum_of(probs, size);
    for (int64_t i = 0; i < size; ++i) probs[i] /= sum;
}

template <class T>
SparseLaw sparse_law(const T* logits, int64_t size, double peak, const LawOptions& options) {
    const double divisor = divisor_of(options.temperature);
    SparseLaw law;
    const bool topped = options.top_k > 0 && options.top_k < size;
    if (topped) {  // temperature keeps the order
        law.ids = largest(logits, size, options.top_k);
        law.weights.resize(law.ids.size());
        for (std::size_t i = 0; i < law.ids.size(); ++i)
            law.weights[i] = exp_negative(scaled_logit(logits[law.ids[i]], peak, divisor));
    } else {
        double* weights = scratch(size);
        exp_shared(logits, size, peak, divisor, weights);
        if (options.top_p < 1.0) {
            law.ids = nucleus(weights, size, options.top_p);
        } else {
            for (int64_t i = 0; i < size; ++i)
                if (weights[i] >= options.min_p) law.ids.push_back(i);
        }
        law.weights.reserve(law.ids.size());
        for (const int64_t id : law.ids) law.weights.push_back(weights[id]);
    }
    if (options.top_p < 1.0 && topped)
        keep_places(law, nucleus(law.weights.data(), int64_t(law.weights.size()), options.top_p));
    if (options.min_p > 0.0) {
        std::vector<int64_t> keep;
        for (std::size_t i = 0; i < law.weights.size(); ++i)
            if (law.weights[i] >= options.min_p) keep.push_back(int64_t(i));
        keep_places(law, keep);
    }
    if (options.typical_p < 1.0) {
        std::vector<double> scaled(law.ids.size());
        for (std::size_t i = 0; i < law.ids.size(); ++i) scaled[i] = scaled_logit(logits[law.ids[i]], peak, divisor);
        keep_typical(law, scaled, options.typical_p);
    }
    const double sum = sum_of(law.weights.data(), int64_t(law.weights.size()));
    for (double& w : law.weights) w /= sum;
    return law;
}

template <class T>
TokenReport token_report(const T* logits, int64_t size, double peak, int64_t token, int64_t num_top) {
    TokenReport report;
    double* weights = scratch(size);
    exp_shared(logits, size, peak, 1.0, weights);
    const double log_sum = std::log(sum_of(weights, size));
    const T own = logits[token];
    report.logprob = double(own) - peak - log_sum;
    report.rank = 1 + count_better(logits, size, own, token);
    if (num_top > 0) {
        std::vector<int64_t> ids = largest(logits, size, std::min(num_top, size));
        std::stable_sort(ids.begin(), ids.end(), [&](int64_t a, int64_t b) { return logits[a] > logits[b]; });
        for (const int64_t id : ids)
            if (std::isfinite(double(logits[id]))) report.top.emplace_back(id, double(logits[id]) - peak - log_sum);
    }
    return report;
}

int64_t keyed_draw(const double* weights, int64_t size, uint64_t key, double* total) {
    *total = sum_of(weights, size);
    if (smallest_of(weights, size) < 0.0 || !(*total > 0.0) || std::isinf(*total)) return -1;
    int64_t best = -1;
    double most = 0.0;
    for (int64_t i = 0; i < size; ++i) {
        if (weights[i] == 0.0) continue;
        const double weight = weights[i] / *total;
        const uint64_t word = mix(key + (uint64_t(i) + 1u) * 0x9E3779B97F4A7C15ull);
        const double u = double((word >> 12 << 1) | 1u) * 0x1p-53;
        // -log(u) >= 1 - u: most tokens lose without a logarithm. The factor leaves room for rounding.
        if (best >= 0 && weight < most * (1.0 - u) * (1.0 - 1e-12)) continue;
        const double value = weight / -std::log(u);
        if (best < 0 || value > most) best = i, most = value;
    }
    return best;
}

template void dense_law(const float*, int64_t, double, double, double*);
template void dense_law(const double*, int64_t, double, double, double*);
template SparseLaw sparse_law(const float*, int64_t, double, const LawOptions&);
template SparseLaw sparse_law(const double*, int64_t, double, const LawOptions&);
template TokenReport token_report(const float*, int64_t, double, int64_t, int64_t);
template TokenReport token_report(const double*, int64_t, double, int64_t, int64_t);

}  // namespace outrider
