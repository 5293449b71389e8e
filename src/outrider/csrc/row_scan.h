// What distributions, draws and log-probabilities look for in a row of logits: sums of exponentials, and the few tokens that
// matter, found without looking at blocks of the row that cannot hold one. Double arithmetic in a fixed order and an
// exponential of its own, so that what a row gives depends on nothing but the row: not on threads, on other rows, on the
// processor or on the C library. Knows nothing about requests, models or Python.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

// A second build of a loop for processors with AVX2, chosen when the library is loaded. Without contraction its wider
// vectors give the very same bits. By GCC only: Clang lets no wide vector into or out of the inlined functions of a clone.
#if defined(__x86_64__) && defined(__linux__) && defined(__GLIBC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define OUTRIDER_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define OUTRIDER_CLONES
#endif

namespace outrider {

constexpr int64_t kBlock = 128;  // tokens whose largest logit is known

// A row, and the largest logit of each block of it. Lives until the same thread scans its next row.
template <class T>
struct RowScan {
    const T* row;
    int64_t size;
    const T* tops;  // [blocks]
    int64_t blocks;
    double peak;  // the largest of all; NaN if one is NaN

    int64_t begin(int64_t block) const { return block * kBlock; }
    int64_t end(int64_t block) const { return block + 1 < blocks ? (block + 1) * kBlock : size; }
    // The logarithm of a token's weight, which is 1 for the most probable one.
    double scaled(double logit, double divisor) const { return (logit - peak) / divisor; }
};

template <class T>
RowScan<T> scan_row(const T* row, int64_t size);

struct Moments {
    double sum = 0.0;     // of the weights
    double scaled = 0.0;  // of weight times its logarithm
};

// Of exp(scaled), to the last places.
template <class T>
double sum_of_weights(const RowScan<T>& scan, double divisor);
template <class T>
Moments moments_of_weights(const RowScan<T>& scan, double divisor);

// The same sum from floats: within kRough of it, relatively, for divisors that `rough_enough` names.
constexpr double kRough = 2e-5;
inline bool rough_enough(double divisor) { return divisor >= 0.02 && divisor <= 100.0; }
template <class T>
double rough_sum_of_weights(const RowScan<T>& scan, double divisor);

// The ids, ascending, of all tokens whose logit is at least `bound`, and perhaps of some a little below it.
template <class T>
void find_above(const RowScan<T>& scan, double bound, std::vector<int64_t>& ids);

// The ids of the k largest logits, ties by lowest id, ascending.
template <class T>
std::vector<int64_t> find_largest(const RowScan<T>& scan, int64_t k);

// How many tokens come before `token`, the most probable first and ties by lowest id.
template <class T>
int64_t count_before(const RowScan<T>& scan, int64_t token);

// out[i] = exp((x[i] - peak) / divisor), on all threads where there is enough to do.
template <class T>
void exp_all(const T* x, int64_t n, double peak, double divisor, double* out);

// Eight sums side by side, then from the first to the last.
double sum_of(const double* x, int64_t n);

// Vectors that any processor computes with, in pieces where its own are narrower.
typedef double Doubles __attribute__((vector_size(32)));
typedef float Floats __attribute__((vector_size(32)));
typedef uint64_t Words __attribute__((vector_size(32)));

// exp(x) for x <= 0, within 2 units in the last place; below -708 that of -708. V is double or a vector of them, U the
// same of uint64_t; a lane's result is that of double.
template <class V, class U>
__attribute__((always_inline)) inline V exp_clamped(const V& x) {
    // x = n ln 2 + r with |r| <= ln 2 / 2; exp(r) by 1 + r + r^2 / 2 and the interpolation of the rest at Chebyshev nodes,
    // relatively within 4e-17. Its terms are summed in pairs, which depend on each other less than one long chain would.
    constexpr double magic = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer
    const V least = V{} - 708.0;
    const V clamped = x < least ? least : x;
    const V shifted = clamped * 1.4426950408889634 + magic;
    const V n = shifted - magic;
    const V r = (clamped - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10;
    const V r2 = r * r, r4 = r2 * r2;
    const V p01 = 1.0 + r, p23 = 0.5 + 0.16666666666666666 * r;
    const V p45 = 0.04166666666665136 + 0.008333333333332155 * r;
    const V p67 = 0.0013888888905881542 + 0.0001984126985433861 * r;
    const V p89 = 2.4801536388690766e-05 + 2.755728006701698e-06 * r;
    const V pab = 2.761380686153829e-07 + 2.5095554677111112e-08 * r;
    const V p = (p23 * r2 + p01) + ((p67 * r2 + p45) + (pab * r2 + p89) * r4) * r4;
    U bits;
    std::memcpy(&bits, &shifted, sizeof bits);
    const U power = (bits + uint64_t(1023)) << 52;  // the low bits of `shifted` hold n
    V scale;
    std::memcpy(&scale, &power, sizeof scale);
    return p * scale;
}

// The same, but 0 below -708.
template <class V, class U>
__attribute__((always_inline)) inline V exp_negative_of(const V& x) {
    const V least = V{} - 708.0, zero = V{}, result = exp_clamped<V, U>(x);
    return x < least ? zero : result;
}

inline double exp_negative(double x) { return exp_negative_of<double, uint64_t>(x); }

}  // namespace outrider
