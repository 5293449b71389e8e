// From a row of logits to the distribution of the next token, a draw from it, and log-probabilities. The results depend on
// the row, the options and the key only; see row_scan.h. Knows nothing about requests or models.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "row_scan.h"

namespace outrider {

// X(type, name, default) for each option. The Python bindings use these names. top_k 0 keeps all tokens.
#define OUTRIDER_SAMPLING_OPTIONS(X) \
    X(double, temperature, 1.0)      \
    X(int64_t, top_k, 0)             \
    X(double, top_p, 1.0)            \
    X(double, min_p, 0.0)            \
    X(double, typical_p, 1.0)

struct SamplingOptions {
#define OUTRIDER_OPTION(type, name, value) type name = value;
    OUTRIDER_SAMPLING_OPTIONS(OUTRIDER_OPTION)
#undef OUTRIDER_OPTION
    bool truncates(int64_t size) const {
        return (top_k > 0 && top_k < size) || top_p < 1.0 || min_p > 0.0 || typical_p < 1.0;
    }
};

// The tokens that truncation keeps.
struct Survivors {
    std::vector<int64_t> ids;     // ascending
    std::vector<double> weights;  // per id: exp(scaled); the largest of the row is 1
};

struct TokenReport {
    double logprob = 0.0;
    int64_t rank = 0;  // 1 is the most probable token; ties by lowest id
    std::vector<std::pair<int64_t, double>> top;  // (id, logprob), most probable first, without tokens of probability 0
};

// These functions need a scan with a finite peak. T is float or double.
template <class T>
void dense_probabilities(const RowScan<T>& scan, double temperature, double* probs);
template <class T>
Survivors survivors(const RowScan<T>& scan, const SamplingOptions& options);  // needs options.truncates(scan.size)
template <class T>
TokenReport token_report(const RowScan<T>& scan, int64_t token, int64_t num_top);
// The token that keyed_draw returns for the distribution, which is not computed here. The two can differ only if the two
// largest weight / E agree within a relative 2^-50; sampling/draw.py derives this bound.
template <class T>
int64_t draw_token(const RowScan<T>& scan, const SamplingOptions& options, uint64_t key);

// A draw by `weights` [size]: the index with the largest weight / E, where E = -log(u) and u is the uniform number of
// (key, index). The weights must be non-negative with a positive finite sum; returns -1 otherwise. *total is their sum.
int64_t keyed_draw(const double* weights, int64_t size, uint64_t key, double* total);

}  // namespace outrider
