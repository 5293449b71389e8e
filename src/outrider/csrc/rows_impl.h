// Row-wise kernels over a SIMD traits type: quantization of activations, norms, rotary, activations, vocabulary
// reductions. Lane sums are reduced in one fixed tree.
#pragma once

#include "kernels.h"

namespace outrider {
namespace {

template <class S>
inline typename S::F load_n(const float* p, int64_t n, float fill = 0.0f) {
    if (n >= S::L) return S::load(p);
    alignas(64) float tmp[S::L];
    for (int i = 0; i < S::L; ++i) tmp[i] = i < n ? p[i] : fill;
    return S::load(tmp);
}

template <class S>
inline void store_n(float* p, int64_t n, typename S::F v) {
    if (n >= S::L) return S::store(p, v);
    alignas(64) float tmp[S::L];
    S::store(tmp, v);
    for (int i = 0; i < n; ++i) p[i] = tmp[i];
}

template <class S>
inline float lane_sum(typename S::F v) {
    alignas(64) float t[S::L];
    S::store(t, v);
    for (int step = S::L / 2; step > 0; step /= 2)
        for (int i = 0; i < step; ++i) t[i] += t[i + step];
    return t[0];
}

template <class S>
inline float lane_max(typename S::F v) {
    alignas(64) float t[S::L];
    S::store(t, v);
    for (int step = S::L / 2; step > 0; step /= 2)
        for (int i = 0; i < step; ++i) t[i] = t[i] > t[i + step] ? t[i] : t[i + step];
    return t[0];
}

constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: what is added to it is rounded to an integer

// e^x: x = n ln 2 + r with |r| <= ln 2 / 2, then the series of e^r up to r^7 (relative error below 2^-22).
// 0 below -87.3 (the edge of the normal numbers); saturates above 88.3; a NaN stays a NaN.
template <class S>
inline typename S::F exp(typename S::F x) {
    using F = typename S::F;
    const F low = S::set1(-87.3f);
    const F t = S::min(S::set1(88.3f), S::max(low, x));
    const F magic = S::set1(kRound);
    const F biased = S::fma(t, S::set1(1.44269504089f), magic);
    const F n = S::sub(biased, magic);
    F r = S::fma(n, S::set1(-0.693359375f), t);
    r = S::fma(n, S::set1(2.12194440e-4f), r);
    F p = S::set1(1.0f / 5040.0f);
    p = S::fma(p, r, S::set1(1.0f / 720.0f));
    p = S::fma(p, r, S::set1(1.0f / 120.0f));
    p = S::fma(p, r, S::set1(1.0f / 24.0f));
    p = S::fma(p, r, S::set1(1.0f / 6.0f));
    p = S::fma(p, r, S::set1(0.5f));
    p = S::fma(p, r, S::set1(1.0f));
    p = S::fma(p, r, S::set1(1.0f));
    return S::keep_not_less(S::mul(p, S::pow2(biased)), x, low);
}

template <class S>
inline float exp1(float x) {
    alignas(64) float t[S::L];
    S::store(t, exp<S>(S::set1(x)));
    return t[0];
}

constexpr float kTopCode[4] = {127.0f, 126.0f, 125.0f, 124.0f};

// 32 values of group g of a row of n, zero beyond its end.
template <class N>
inline void load_group(const float* x, int64_t n, int64_t g, typename N::F (&v)[kGroup / 8]) {
    for (int i = 0; i < kGroup / 8; ++i) {
        const int64_t at = g * kGroup + 8 * i;
        v[i] = at < n ? load_n<N>(x + at, n - at) : N::zero();
    }
}

// Sums of products over a group with the codes that give its largest magnitude the code 127, 126, 125 and 124: xq of the
// four, then qq of the four; x is times `unit`, 127 / largest.
template <class N>
inline typename N::F products(const typename N::F (&x)[kGroup / 8], float unit) {
    using F = typename N::F;
    const F magic = N::set1(kRound);
    F v[kGroup / 8], sums[8];
    for (int i = 0; i < kGroup / 8; ++i) v[i] = N::mul(x[i], N::set1(unit));
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) {
        const F by = N::set1(kTopCode[k] / 127.0f);
        F xq = N::zero(), qq = N::zero();
        for (int i = 0; i < kGroup / 8; ++i) {
            const F q = N::sub(N::fma(v[i], by, magic), magic);
            xq = N::fma(v[i], q, xq);
            qq = N::fma(q, q, qq);
        }
        sums[k] = xq;
        sums[4 + k] = qq;
    }
    return N::sums8(sums);
}

// Each group is rounded with the scale that leaves the least squared error of four, of which kTopCode names the largest
// code. For codes q the best scale is xq / qq and leaves xx - xq^2 / qq. A NaN or infinity makes the scale NaN, and the
// row's result. Each step goes over some groups before the next, as the steps of one group wait for each other.
template <class S>
void quantize(const float* x, int64_t n, int64_t g0, int64_t g1, Activation* out, int64_t stride) {
    using N = typename S::Narrow;
    using F = typename N::F;
    constexpr int batch = 8;
    alignas(64) float unit[batch], sums[batch][8], scale[batch][8], gain[batch][8];
    F v[kGroup / 8];
    for (int64_t from = g0; from < g1; from += batch) {
        const int count = int(g1 - from < batch ? g1 - from : batch);
        for (int g = 0; g < count; ++g) {
            load_group<N>(x, n, from + g, v);
            F top = N::zero();
            for (int i = 0; i < kGroup / 8; ++i) top = N::abs_bits_max(top, v[i]);
            unit[g] = 127.0f / N::largest_bits(top);
        }
        for (int g = 0; g < count; ++g) {
            load_group<N>(x, n, from + g, v);
            N::store(sums[g], products<N>(v, unit[g]));
        }
        for (int g = 0; g < count; ++g) {
            const F s = N::load(sums[g]), fitted = N::div(s, N::halves_swapped(s));  // xq / qq in the first four lanes
            N::store(scale[g], fitted);
            N::store(gain[g], N::mul(s, fitted));
        }
        for (int g = 0; g < count; ++g) {
            Activation& a = out[(from + g) * stride];
            int best = 0;
            for (int k = 1; k < 4; ++k) best += (k - best) * int(gain[g][k] > gain[g][best]);  // no branch: none foresees it
            const bool empty = unit[g] > 127.0f / 1e-30f;
            const F by = N::set1(empty ? 0.0f : unit[g] * (kTopCode[best] / 127.0f));
            load_group<N>(x, n, from + g, v);
            for (int i = 0; i < kGroup / 8; ++i) v[i] = N::add(N::mul(v[i], by), N::set1(kRound));
            int32_t sum[2];
            N::store_codes(v, a.code, sum);
            a.scale = empty ? 0.0f : scale[g][best] / unit[g];
            a.sum = sum[0] + sum[1];
            a.sum_scaled = a.scale * float(a.sum);
            a.half_sum[0] = int16_t(sum[0]);
            a.half_sum[1] = int16_t(sum[1]);
        }
    }
}

template <class S>
void rms_norm(const float* x, const float* weight, int64_t n, float eps, float* y) {
    typename S::F sum = S::zero();
    for (int64_t i = 0; i < n; i += S::L) {
        const typename S::F v = load_n<S>(x + i, n - i);
        sum = S::fma(v, v, sum);
    }
    const float inverse = 1.0f / __builtin_sqrtf(lane_sum<S>(sum) / float(n) + eps);
    for (int64_t i = 0; i < n; i += S::L) {
        const typename S::F v = S::mul(load_n<S>(x + i, n - i), S::set1(inverse));
        store_n<S>(y + i, n - i, S::mul(v, load_n<S>(weight + i, n - i)));
    }
}

template <class S>
void add(float* y, const float* x, int64_t n) {
    for (int64_t i = 0; i < n; i += S::L) store_n<S>(y + i, n - i, S::add(load_n<S>(y + i, n - i), load_n<S>(x + i, n - i)));
}

template <class S>
void scale(float* y, float by, int64_t n) {
    for (int64_t i = 0; i < n; i += S::L) store_n<S>(y + i, n - i, S::mul(load_n<S>(y + i, n - i), S::set1(by)));
}

template <class S>
void act_mul(Act act, const float* gate, const float* up, int64_t n, float* y) {
    using F = typename S::F;
    const F one = S::set1(1.0f);
    for (int64_t i = 0; i < n; i += S::L) {
        const F g = load_n<S>(gate + i, n - i);
        F u = g;
        if (act == Act::GeluTanh) {  // 0.5 (1 + tanh u) = 1 / (1 + e^-2u), u = sqrt(2 / pi) (g + 0.044715 g^3)
            const F cube = S::mul(S::mul(g, g), g);
            u = S::mul(S::set1(1.5957691216057308f), S::fma(S::set1(0.044715f), cube, g));
        }
        const F v = S::div(g, S::add(one, exp<S>(S::sub(S::zero(), u))));
        store_n<S>(y + i, n - i, S::mul(v, load_n<S>(up + i, n - i)));
    }
}

template <class S>
void rotate(float* x, const float* cos, const float* sin, int64_t half) {
    for (int64_t i = 0; i < half; i += S::L) {
        const int64_t n = half - i;
        const typename S::F a = load_n<S>(x + i, n), b = load_n<S>(x + half + i, n);
        const typename S::F c = load_n<S>(cos + i, n), s = load_n<S>(sin + i, n);
        store_n<S>(x + i, n, S::sub(S::mul(a, c), S::mul(b, s)));
        store_n<S>(x + half + i, n, S::add(S::mul(b, c), S::mul(a, s)));
    }
}

template <class S>
void to_half(const float* x, int64_t n, uint16_t* y) {
    const typename S::F most = S::set1(65504.0f), least = S::set1(-65504.0f);
    for (int64_t i = 0; i < n; i += S::L) {
        const typename S::F v = load_n<S>(x + i, n - i);
        const typename S::F clamped = S::fma(v, S::zero(), S::min(most, S::max(least, v)));
        alignas(64) uint16_t tmp[S::L];
        S::store_half(n - i >= S::L ? y + i : tmp, clamped);
        for (int64_t j = i; n - i < S::L && j < n; ++j) y[j] = tmp[j - i];
    }
}

template <class S>
void argmax(const float* x, int64_t n, int64_t* index, float* value) {
    typename S::F top = S::set1(-__builtin_inff()), poison = S::zero();
    for (int64_t i = 0; i < n; i += S::L) {
        const typename S::F v = load_n<S>(x + i, n - i, x[n - 1]);
        top = S::max(top, v);
        poison = S::fma(v, S::zero(), poison);  // NaN where a NaN or an infinity was
    }
    float best = lane_max<S>(top);
    const float sum = lane_sum<S>(poison);
    int64_t at = 0;
    if (sum != sum) {  // rare: decide exactly
        best = -__builtin_inff();
        for (int64_t i = 0; i < n; ++i) {
            if (x[i] != x[i]) {
                *index = i;
                *value = x[i];
                return;
            }
            best = x[i] > best ? x[i] : best;
        }
    }
    while (at < n - 1 && x[at] != best) ++at;
    *index = at;
    *value = best;
}

template <class S>
float log_sum_exp(const float* x, int64_t n) {
    int64_t at;
    float top;
    argmax<S>(x, n, &at, &top);
    if (!(top > -__builtin_inff() && top < __builtin_inff())) return top;
    typename S::F sum = S::zero();
    for (int64_t i = 0; i < n; i += S::L) {
        const typename S::F v = load_n<S>(x + i, n - i, -__builtin_inff());
        sum = S::add(sum, exp<S>(S::sub(v, S::set1(top))));
    }
    return top + float(__builtin_log(double(lane_sum<S>(sum))));
}

template <class S>
constexpr void fill_rows(Kernels& k) {
    k.quantize = quantize<S>;
    k.rms_norm = rms_norm<S>;
    k.add = add<S>;
    k.scale = scale<S>;
    k.act_mul = act_mul<S>;
    k.rotate = rotate<S>;
    k.to_half = to_half<S>;
    k.argmax = argmax<S>;
    k.log_sum_exp = log_sum_exp<S>;
}

}  // namespace
}  // namespace outrider
