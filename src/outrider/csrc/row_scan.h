// Scans of one row of logits for distributions, draws and log-probabilities: sums of exponentials, and searches that skip
// blocks which cannot contain a result. The arithmetic is in double, in a fixed order, with an exponential defined here. So
// the result depends on the row only: not on threads, other rows, the processor or the C library. Knows nothing about
// requests, models or Python.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

// Compiles a loop a second time for processors with AVX2. The choice is made when the library is loaded. Both versions give
// the same bits, because contraction is off. GCC only: Clang cannot pass wide vectors to inlined functions of a clone.
#if defined(__x86_64__) && defined(__linux__) && defined(__GLIBC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define OUTRIDER_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define OUTRIDER_CLONES
#endif

namespace outrider {

constexpr int64_t kBlock = 128;  // tokens per block

// A row and the largest logit of each of its blocks. Valid until the same thread scans another row.
template <class T>
struct RowScan {
    const T* row;
    int64_t size;
    const T* tops;  // [blocks], the largest logit of each block
    int64_t blocks;
    double peak;  // the largest logit of the row; NaN if one is NaN

    int64_t begin(int64_t block) const { return block * kBlock; }
    int64_t end(int64_t block) const { return block + 1 < blocks ? (block + 1) * kBlock : size; }
    // The logarithm of a token's weight. The most probable token has weight 1.
    double scaled(double logit, double divisor) const { return (logit - peak) / divisor; }
};

template <class T>
RowScan<T> scan_row(const T* row, int64_t size);

struct Moments {
    double sum = 0.0;     // of the weights
    double scaled = 0.0;  // of weight times log(weight)
};

// Sums over exp(scaled), accurate to a few units in the last place.
template <class T>
double sum_of_weights(const RowScan<T>& scan, double divisor);
template <class T>
Moments moments_of_weights(const RowScan<T>& scan, double divisor);

// The same sum in float arithmetic: the relative error is below kRough if rough_enough(divisor).
constexpr double kRough = 2e-5;
inline bool rough_enough(double divisor) { return divisor >= 0.02 && divisor <= 100.0; }
template <class T>
double rough_sum_of_weights(const RowScan<T>& scan, double divisor);

// The ids, ascending, of all tokens whose logit is at least `bound`. Some with logits slightly below it can be included.
template <class T>
void find_above(const RowScan<T>& scan, double bound, std::vector<int64_t>& ids);

// The ids of the k largest logits, ties by lowest id, ascending.
template <class T>
std::vector<int64_t> find_largest(const RowScan<T>& scan, int64_t k);

// Number of tokens before `token` in the order of decreasing logits, ties by lowest id.
template <class T>
int64_t count_before(const RowScan<T>& scan, int64_t token);

// out[i] = exp((x[i] - peak) / divisor). Uses all threads if n is large.
template <class T>
void exp_all(const T* x, int64_t n, double peak, double divisor, double* out);

// Adds up in eight lanes, then adds the lanes from the first to the last.
double sum_of(const double* x, int64_t n);

// Vector types. The compiler splits them on processors with narrower registers.
typedef double Doubles __attribute__((vector_size(32)));
typedef float Floats __attribute__((vector_size(32)));
typedef uint64_t Words __attribute__((vector_size(32)));

// exp(max(x, -708)) for x <= 0, within 2 units in the last place. V is double or a vector of double, U the same of
// uint64_t. A lane of a vector gives the same bits as a double.
template <class V, class U>
__attribute__((always_inline)) inline V exp_clamped(const V& x) {
    // x = n ln 2 + r with |r| <= ln 2 / 2. exp(r) is 1 + r + r^2 / 2 plus a polynomial that interpolates the rest at
    // Chebyshev nodes; its relative error is below 4e-17. Terms are summed in pairs to shorten the dependency chain.
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

// The same, with 0 for x < -708.
template <class V, class U>
__attribute__((always_inline)) inline V exp_negative_of(const V& x) {
    const V least = V{} - 708.0, zero = V{}, result = exp_clamped<V, U>(x);
    return x < least ? zero : result;
}

inline double exp_negative(double x) { return exp_negative_of<double, uint64_t>(x); }

}  // namespace outrider
