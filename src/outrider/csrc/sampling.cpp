#include "sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace outrider {
namespace {

constexpr double kNucleusFloors[] = {1e-2, 1e-4, 1e-7, 0.0};
constexpr double kTypicalRadii[] = {2.0, 4.0, 8.0, 16.0, std::numeric_limits<double>::infinity()};
constexpr std::size_t kFew = 64;        // up to this many tokens are sorted without buckets
constexpr std::size_t kBuckets = 4096;  // each covers 1/64 of an octave

// A temperature of zero would give 0 / 0 at the peak.
inline double divisor_of(double temperature) { return std::max(temperature, std::numeric_limits<double>::min()); }

// A logit that is not above any logit whose scaled value is at least `scaled`.
template <class T>
double logit_at(const RowScan<T>& scan, double scaled, double divisor) {
    return scan.peak + scaled * divisor - 1e-6 * (std::fabs(scan.peak) + std::fabs(scaled * divisor));
}

template <class T>
void weigh(const RowScan<T>& scan, double divisor, Survivors& found) {
    found.weights.resize(found.ids.size());
    for (std::size_t i = 0; i < found.ids.size(); ++i)
        found.weights[i] = exp_negative(scan.scaled(double(scan.row[found.ids[i]]), divisor));
}

// Keep the entries whose indices `keep` lists in ascending order.
void keep_places(Survivors& found, const std::vector<int64_t>& keep) {
    for (std::size_t i = 0; i < keep.size(); ++i) {
        found.ids[i] = found.ids[std::size_t(keep[i])];
        found.weights[i] = found.weights[std::size_t(keep[i])];
    }
    found.ids.resize(keep.size());
    found.weights.resize(keep.size());
}

inline int64_t bits_of(double x) {  // increasing in x for x >= 0
    int64_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}

inline std::size_t bucket(int64_t bits) {
    return std::size_t(std::min(std::max(bits >> 46, int64_t(0)), int64_t(kBuckets - 1)));
}

// Order by weight, the largest first.
struct ByWeight {
    const std::vector<double>& weights;
    std::size_t bucket_of(std::size_t i) const { return bucket(bits_of(1.0) - bits_of(weights[i])); }
    bool before(std::size_t a, std::size_t b) const {
        return weights[a] != weights[b] ? weights[a] > weights[b] : a < b;
    }
};

// Order by distance, the smallest first.
struct ByDistance {
    const std::vector<double>& distance;
    std::size_t bucket_of(std::size_t i) const { return bucket(bits_of(distance[i]) - bits_of(0x1p-32)); }
    bool before(std::size_t a, std::size_t b) const {
        return distance[a] != distance[b] ? distance[a] < distance[b] : a < b;
    }
};

// Keep the shortest prefix in the given order whose weights sum to at least the wanted mass; all tokens if none does. The
// wanted mass is known to lie in [mass, most]. Returns false, with no change, if the result depends on where. Buckets
// follow the order, so only the bucket in which the mass is reached is sorted.
template <class Order>
bool cut(Survivors& found, const Order& by, double mass, double most) {
    const std::size_t size = found.ids.size();
    std::size_t last = 0;  // the bucket in which the mass is reached
    double reached = 0.0;
    if (size > kFew) {
        std::vector<double> held(kBuckets, 0.0);
        for (std::size_t i = 0; i < size; ++i) held[by.bucket_of(i)] += found.weights[i];
        for (; last + 1 < kBuckets && reached + held[last] < mass; ++last) reached += held[last];
    }
    std::vector<int64_t> keep, order;
    for (std::size_t i = 0; i < size; ++i) {
        const std::size_t at = size > kFew ? by.bucket_of(i) : last;
        if (at <= last) (at < last ? keep : order).push_back(int64_t(i));
    }
    std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return by.before(std::size_t(a), std::size_t(b)); });
    bool sure = most <= mass;
    for (const int64_t place : order) {
        keep.push_back(place);
        reached += found.weights[std::size_t(place)];
        if (reached >= mass) {
            sure = reached >= most;
            break;
        }
    }
    if (!sure) return false;
    std::sort(keep.begin(), keep.end());
    keep_places(found, keep);
    return true;
}

// Keep the nucleus: the smallest set of largest weights that reaches top_p of a mass in [low, high]. Returns false if the
// set depends on where in that interval the mass is.
bool keep_nucleus(Survivors& found, double top_p, double low, double high) {
    const std::vector<double> weights = found.weights;
    return cut(found, ByWeight{weights}, top_p * low, top_p * high);
}

// The nucleus of a whole row. A rough sum of all weights is nearly always enough; otherwise the exact sum is computed.
template <class T>
Survivors nucleus(const RowScan<T>& scan, double divisor, double top_p) {
    Survivors found;
    for (bool rough = rough_enough(divisor);; rough = false) {
        const double sum = rough ? rough_sum_of_weights(scan, divisor) : sum_of_weights(scan, divisor);
        const double low = rough ? sum * (1.0 - kRough) : sum, high = rough ? sum * (1.0 + kRough) : sum;
        for (const double floor : kNucleusFloors) {
            find_above(scan, logit_at(scan, std::log(floor), divisor), found.ids);
            weigh(scan, divisor, found);
            if (sum_of(found.weights.data(), int64_t(found.weights.size())) >= top_p * high) break;
        }
        if (keep_nucleus(found, top_p, low, high) || !rough) return found;
    }
}

void keep_likely(Survivors& found, double min_p) {
    std::vector<int64_t> keep;
    for (std::size_t i = 0; i < found.weights.size(); ++i)
        if (found.weights[i] >= min_p) keep.push_back(int64_t(i));
    keep_places(found, keep);
}

// Keep the most typical tokens of `found`. `sum` is the total weight and `center` the weighted mean of the scaled logits.
// |surprisal - entropy| of a token equals |scaled logit - center|.
template <class T>
void keep_typical(const RowScan<T>& scan, double divisor, double typical_p, double sum, double center, Survivors& found) {
    std::vector<double> distance(found.ids.size());
    for (std::size_t i = 0; i < distance.size(); ++i)
        distance[i] = std::fabs(scan.scaled(double(scan.row[found.ids[i]]), divisor) - center);
    cut(found, ByDistance{distance}, typical_p * sum, typical_p * sum);
}

template <class T>
Survivors typical(const RowScan<T>& scan, double divisor, double typical_p) {
    const Moments all = moments_of_weights(scan, divisor);
    const double center = all.scaled / all.sum;
    Survivors found;
    std::vector<int64_t> near;
    for (const double radius : kTypicalRadii) {
        find_above(scan, logit_at(scan, center - radius, divisor), found.ids);
        weigh(scan, divisor, found);
        near.clear();
        for (std::size_t i = 0; i < found.ids.size(); ++i) {
            const double distance = std::fabs(scan.scaled(double(scan.row[found.ids[i]]), divisor) - center);
            if (found.weights[i] > 0.0 && distance <= radius) near.push_back(int64_t(i));
        }
        keep_places(found, near);
        if (sum_of(found.weights.data(), int64_t(near.size())) > (typical_p + 1e-9) * all.sum) break;
    }
    keep_typical(scan, divisor, typical_p, all.sum, center, found);
    return found;
}

}  // namespace

template <class T>
void dense_probabilities(const RowScan<T>& scan, double temperature, double* probs) {
    exp_all(scan.row, scan.size, scan.peak, divisor_of(temperature), probs);
    const double sum = sum_of(probs, scan.size);
    for (int64_t i = 0; i < scan.size; ++i) probs[i] /= sum;
}

template <class T>
Survivors survivors(const RowScan<T>& scan, const SamplingOptions& options) {
    const double divisor = divisor_of(options.temperature);
    Survivors found;
    if (options.top_k > 0 && options.top_k < scan.size) {  // temperature does not change the order
        found.ids = find_largest(scan, options.top_k);
        weigh(scan, divisor, found);
        if (options.top_p < 1.0) {
            const double sum = sum_of(found.weights.data(), int64_t(found.weights.size()));
            keep_nucleus(found, options.top_p, sum, sum);
        }
    } else if (options.top_p < 1.0) {
        found = nucleus(scan, divisor, options.top_p);
    } else if (options.min_p > 0.0) {
        find_above(scan, logit_at(scan, std::log(options.min_p), divisor), found.ids);
        weigh(scan, divisor, found);
    } else {
        return typical(scan, divisor, options.typical_p);
    }
    if (options.min_p > 0.0) keep_likely(found, options.min_p);
    if (options.typical_p < 1.0) {
        std::vector<int64_t> keep;
        std::vector<double> parts;
        for (std::size_t i = 0; i < found.weights.size(); ++i) {
            if (!(found.weights[i] > 0.0)) continue;
            keep.push_back(int64_t(i));
            parts.push_back(found.weights[i] * scan.scaled(double(scan.row[found.ids[i]]), divisor));
        }
        keep_places(found, keep);
        const double sum = sum_of(found.weights.data(), int64_t(keep.size()));
        const double center = sum_of(parts.data(), int64_t(keep.size())) / sum;
        keep_typical(scan, divisor, options.typical_p, sum, center, found);
    }
    return found;
}

template <class T>
TokenReport token_report(const RowScan<T>& scan, int64_t token, int64_t num_top) {
    TokenReport report;
    const double log_sum = std::log(sum_of_weights(scan, 1.0));
    const T* row = scan.row;
    report.logprob = double(row[token]) - scan.peak - log_sum;
    report.rank = 1 + count_before(scan, token);
    if (num_top > 0) {
        std::vector<int64_t> ids = find_largest(scan, std::min(num_top, scan.size));
        std::stable_sort(ids.begin(), ids.end(), [row](int64_t a, int64_t b) { return row[a] > row[b]; });
        for (const int64_t id : ids)
            if (std::isfinite(double(row[id]))) report.top.emplace_back(id, double(row[id]) - scan.peak - log_sum);
    }
    return report;
}

#define OUTRIDER_SAMPLING(T)                                                 \
    template void dense_probabilities(const RowScan<T>&, double, double*);   \
    template Survivors survivors(const RowScan<T>&, const SamplingOptions&); \
    template TokenReport token_report(const RowScan<T>&, int64_t, int64_t);
OUTRIDER_SAMPLING(float)
OUTRIDER_SAMPLING(double)
#undef OUTRIDER_SAMPLING

}  // namespace outrider
