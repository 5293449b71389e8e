// From a row of logits to the law of the next token, a draw from a law, and log-probabilities. Scalar double arithmetic in
// a fixed order and an exponential of its own, so that a row's result depends on nothing but the row: not on threads, on
// other rows, on the processor or on the C library. Knows nothing about requests, models or Python.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace outrider {

struct LawOptions {
    double temperature = 1.0;
    int64_t top_k = 0;  // 0: all
    double top_p = 1.0, min_p = 0.0, typical_p = 1.0;
    bool truncates(int64_t size) const {
        return (top_k > 0 && top_k < size) || top_p < 1.0 || min_p > 0.0 || typical_p < 1.0;
    }
};

struct SparseLaw {
    std::vector<int64_t> ids;     // ascending
    std::vector<double> weights;  // of the ids; they sum to one
};

struct TokenReport {
    double logprob = 0.0;
    int64_t rank = 0;  // 1: the most probable; ties by lowest id
    std::vector<std::pair<int64_t, double>> top;  // most probable first, without those that have no chance
};

// All logits are below +inf and none is NaN; `peak` is the largest. T is float or double.
template <class T>
void dense_law(const T* logits, int64_t size, double peak, double temperature, double* probs);
template <class T>
SparseLaw sparse_law(const T* logits, int64_t size, double peak, const LawOptions& options);
template <class T>
TokenReport token_report(const T* logits, int64_t size, double peak, int64_t token, int64_t num_top);

// The index with the largest weight / E, where E = -log(u) and u is the uniform number of (key, index): a draw by
// `weights` [size], which are non-negative with a positive finite sum. Returns -1 if they are not, and their sum.
int64_t keyed_draw(const double* weights, int64_t size, uint64_t key, double* total);

}  // namespace outrider
