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

// e^x: x = n ln 2 + r with |r| <= ln 2 / 2, then the series of e^r up to r^7 (relative error below 2^-22).
// 0 below -87.3 (the edge of the normal numbers); saturates above 88.3; a NaN stays a NaN.
template <class S>
inline typename S::F exp(typename S::F x) {
    using F = typename S::F;
    const F low = S::set1(-87.3f);
    const F t = S::min(S::set1(88.3f), S::max(low, x));
    const F magic = S::set1(12582912.0f);  // 1.5 * 2^23
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

// How a group is rounded: x = code * scale, code = round(x * by).
struct Rounding {
    float by, scale;
};

// The rounding that leaves the least squared error of the four that give the largest of 32 magnitudes the code 127, 126,
// 125 or 124. For codes q the best scale is xq / qq and leaves xx - xq^2 / qq, sums of products over the group. Where a
// NaN or an infinity is among the values the scale is NaN.
template <class N>
inline Rounding best_rounding(const float* x, float largest) {
    using F = typename N::F;
    constexpr float code[4] = {127.0f, 126.0f, 125.0f, 124.0f};
    const F magic = N::set1(12582912.0f);
    const float unit = 127.0f / largest;
    F v[kGroup / 8], products[8];  // xq and qq of each
    for (int i = 0; i < kGroup / 8; ++i) v[i] = N::mul(N::load(x + 8 * i), N::set1(unit));
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) {
        const F by = N::set1(code[k] / 127.0f);
        F xq = N::zero(), qq = N::zero();
        for (int i = 0; i < kGroup / 8; ++i) {
            const F q = N::sub(N::fma(v[i], by, magic), magic);
            xq = N::fma(v[i], q, xq);
            qq = N::fma(q, q, qq);
        }
        products[k] = xq;
        products[4 + k] = qq;
    }
    alignas(64) float lanes[8][8], sum[8];
    N::transpose8(products, lanes[0], 8);
    F total = N::load(lanes[0]);
    for (int i = 1; i < 8; ++i) total = N::add(total, N::load(lanes[i]));
    N::store(sum, total);
    int best = 0;
    float scale = sum[0] / sum[4], gain = sum[0] * scale;
    for (int k = 1; k < 4; ++k) {
        const float other = sum[k] / sum[4 + k], more = sum[k] * other;
        best = more > gain ? k : best;
        scale = more > gain ? other : scale;
        gain = more > gain ? more : gain;
    }
    return {unit * (code[best] / 127.0f), scale / unit};
}

// Groups are rounded by best_rounding. A NaN or infinity makes the scale NaN, and the row's result.
template <class S>
void quantize(const float* x, int64_t n, int64_t g0, int64_t g1, Activation* out, int64_t stride) {
    union Bits { float f; uint32_t u; int32_t i; };
    for (int64_t g = g0; g < g1; ++g) {
        Activation& a = out[g * stride];
        alignas(64) float v[kGroup];
        const float* xg = x + g * kGroup;
        const int64_t valid = n - g * kGroup;
        if (valid < kGroup) {
            for (int i = 0; i < kGroup; ++i) v[i] = i < valid ? xg[i] : 0.0f;
            xg = v;
        }
        typename S::F top = S::zero();
        for (int i = 0; i < kGroup; i += S::L) top = S::abs_bits_max(top, S::load(xg + i));
        alignas(64) Bits t[S::L];
        S::store(&t[0].f, top);
        Bits largest;
        largest.u = 0;
        for (int i = 0; i < S::L; ++i) largest.u = t[i].u > largest.u ? t[i].u : largest.u;
        const bool empty = largest.f < 1e-30f;
        const Rounding rounding = empty ? Rounding{0.0f, 0.0f} : best_rounding<typename S::Narrow>(xg, largest.f);
        const typename S::F by = S::set1(rounding.by), magic = S::set1(12582912.0f);
        alignas(64) Bits rounded[kGroup];
        for (int i = 0; i < kGroup; i += S::L) S::store(&rounded[i].f, S::add(S::mul(S::load(xg + i), by), magic));
        int32_t sum[2] = {0, 0};
        for (int i = 0; i < kGroup; ++i) a.code[i] = int8_t(rounded[i].u - 0x4b400000u);
        for (int i = 0; i < kGroup / 2; ++i) sum[0] += a.code[i];
        for (int i = kGroup / 2; i < kGroup; ++i) sum[1] += a.code[i];
        a.scale = rounding.scale;
        a.sum = sum[0] + sum[1];
        a.sum_scaled = a.scale * float(a.sum);
        a.half_sum[0] = int16_t(sum[0]);
        a.half_sum[1] = int16_t(sum[1]);
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
