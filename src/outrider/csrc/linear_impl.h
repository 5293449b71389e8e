// Linear kernels over a SIMD traits type: a block of 16 channels times a tile of rows. The weights of a group are
// unpacked once and used by all rows of the tile; a row's own additions run over the groups in order.
#pragma once

#include "kernels.h"

namespace outrider {
namespace {

template <class S>
inline void write_tile(const float (*acc)[kChannels], int rows, const TileOut& out) {
    for (int r = 0; r < rows; ++r) {
        float* y = out.y + r * out.ldy;
        if (out.cols == kChannels) {
            for (int h = 0; h < kChannels; h += S::L) {
                typename S::F v = S::load(acc[r] + h);
                if (out.bias) v = S::add(v, S::load(out.bias + h));
                if (out.accumulate) v = S::add(S::load(y + h), v);
                S::store(y + h, v);
            }
            continue;
        }
        for (int c = 0; c < out.cols; ++c) {
            float v = acc[r][c];
            if (out.bias) v += out.bias[c];
            y[c] = out.accumulate ? y[c] + v : v;
        }
    }
}

// Scales of a group: value = code * weight + minimum, before the activation's own scale.
template <class S, Format FMT>
struct GroupScales {
    typename S::F weight[S::H], minimum[S::H];

    GroupScales(const uint8_t* header, const uint8_t* group) {
        constexpr Layout layout = layout_of(FMT);
        for (int h = 0; h < S::H; ++h) {
            const uint8_t* halves = (layout.groups_per_super > 1 ? header : group) + 2 * S::L * h;
            weight[h] = S::load_half(halves);
            minimum[h] = layout.minimum ? S::load_half(halves + 2 * kChannels) : S::zero();
            if constexpr (FMT == Format::Q4_K || FMT == Format::Q5_K) {
                weight[h] = S::mul(weight[h], S::load_u8(group + S::L * h));
                minimum[h] = S::sub(S::zero(), S::mul(minimum[h], S::load_u8(group + kChannels + S::L * h)));
            }
        }
    }
};

template <class S, Format FMT>
void linear_quantized(const uint8_t* w, int64_t groups, const Activation* x, int rows, const TileOut& out) {
    using F = typename S::F;
    using I = typename S::I;
    constexpr Layout layout = layout_of(FMT);
    constexpr int ahead = 2048;  // bytes of prefetch
    alignas(64) float acc[kRowTile][kChannels];
    alignas(64) I partial[kRowTile][S::H];
    for (int r = 0; r < rows; ++r)
        for (int c = 0; c < kChannels; ++c) acc[r][c] = 0.0f;
    const uint8_t* header = w;
    const uint8_t* group = w + layout.header;
    for (int64_t g = 0; g < groups; ++g, x += rows, group += layout.group()) {
        if (layout.groups_per_super > 1 && g > 0 && g % layout.groups_per_super == 0) {
            header = group;
            group += layout.header;
        }
        for (int line = 0; line < layout.group(); line += 64) __builtin_prefetch(group + ahead + line);
        const typename S::template Codes<FMT> first(group, 0);
        if constexpr (S::kPhases == 2) {  // the group's first half, for all rows
#pragma GCC unroll 1
            for (int r = 0; r < rows; ++r) first.start(x[r], partial[r]);
        }
        const typename S::template Codes<FMT> last(group, S::kPhases - 1);
        const GroupScales<S, FMT> scales(header, group);
#pragma GCC unroll 1
        for (int r = 0; r < rows; ++r) {
            I sum[S::H];
            last.finish(x[r], partial[r], sum);
            const F scale = S::set1(x[r].scale);
            for (int h = 0; h < S::H; ++h) {
                float* a = acc[r] + S::L * h;
                F v = S::fma(S::from_int(sum[h]), S::mul(scales.weight[h], scale), S::load(a));
                if constexpr (layout.minimum) v = S::fma(scales.minimum[h], S::set1(x[r].sum_scaled), v);
                S::store(a, v);
            }
        }
    }
    write_tile<S>(acc, rows, out);
}

// Columns of weights that stay in the first cache while further rows use them.
constexpr int64_t kFloatChunk = 256;

// Each pass over a chunk fetches its share of the next one, `step` bytes from `next` on for every line, so that memory
// is busy while the later rows compute.
template <class S, bool BF16, int R>
inline void float_chunk(const uint8_t* w, int64_t k, const float* x, int64_t ldx, float (*acc)[kChannels],
                        const uint8_t* next, int64_t step) {
    using F = typename S::F;
    constexpr int H = S::H;
    F a[R][H];
    for (int r = 0; r < R; ++r)
        for (int h = 0; h < H; ++h) a[r][h] = S::load(acc[r] + S::L * h);
    for (int64_t i = 0; i < k; i += BF16 ? 2 : 1, w += 64, next += step) {
        __builtin_prefetch(next);
        F first[H], second[H];
        for (int h = 0; h < H; ++h) {
            if constexpr (BF16)
                first[h] = S::bf16_first(w + 4 * S::L * h);
            else
                first[h] = S::load(reinterpret_cast<const float*>(w) + S::L * h);
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const F v = S::set1(x[r * ldx + i]);
            for (int h = 0; h < H; ++h) S::add_product(a[r][h], first[h], v);
        }
        if constexpr (BF16) {
            for (int h = 0; h < H; ++h) second[h] = S::bf16_second(w + 4 * S::L * h);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                const F v = S::set1(x[r * ldx + i + 1]);
                for (int h = 0; h < H; ++h) S::add_product(a[r][h], second[h], v);
            }
        }
    }
    for (int r = 0; r < R; ++r)
        for (int h = 0; h < H; ++h) S::store(acc[r] + S::L * h, a[r][h]);
}

// float_chunk for n rows, 1 to R.
template <class S, bool BF16, int R>
inline void float_rows(int n, const uint8_t* w, int64_t k, const float* x, int64_t ldx, float (*acc)[kChannels],
                       const uint8_t* next, int64_t step) {
    if constexpr (R > 1) {
        if (n < R) return float_rows<S, BF16, R - 1>(n, w, k, x, ldx, acc, next, step);
    }
    float_chunk<S, BF16, R>(w, k, x, ldx, acc, next, step);
}

// k is even for BF16 (columns are padded); x rows have ldx >= k floats.
template <class S, bool BF16>
void linear_float(const uint8_t* w, int64_t k, const float* x, int64_t ldx, int rows, const TileOut& out) {
    alignas(64) float acc[kRowTile][kChannels];
    for (int r = 0; r < rows; ++r)
        for (int c = 0; c < kChannels; ++c) acc[r][c] = 0.0f;
    for (int64_t i = 0; i < k; i += kFloatChunk) {
        const int64_t columns = k - i < kFloatChunk ? k - i : kFloatChunk;
        constexpr int64_t column = kChannels * (BF16 ? 2 : 4);
        const uint8_t* wi = w + i * column;
        const int passes = (rows + S::kFloatRows - 1) / S::kFloatRows;
        const int64_t share = kFloatChunk * column / passes, step = 64 / passes;
        for (int p = 0, r = 0; p < passes; ++p) {
            const int n = (rows - r + passes - p - 1) / (passes - p);
            const float* xr = x + r * ldx + i;
            const uint8_t* next = wi + kFloatChunk * column + p * share;
            float_rows<S, BF16, S::kFloatRows>(n, wi, columns, xr, ldx, acc + r, next, step);
            r += n;
        }
    }
    write_tile<S>(acc, rows, out);
}

template <class S>
constexpr void fill_linear(Kernels& k) {
    k.linear_q[int(Format::F32)] = nullptr;
    k.linear_q[int(Format::BF16)] = nullptr;
    k.linear_q[int(Format::Q8_0)] = linear_quantized<S, Format::Q8_0>;
    k.linear_q[int(Format::Q4_0)] = linear_quantized<S, Format::Q4_0>;
    k.linear_q[int(Format::Q4_1)] = linear_quantized<S, Format::Q4_1>;
    k.linear_q[int(Format::Q5_0)] = linear_quantized<S, Format::Q5_0>;
    k.linear_q[int(Format::Q5_1)] = linear_quantized<S, Format::Q5_1>;
    k.linear_q[int(Format::Q4_K)] = linear_quantized<S, Format::Q4_K>;
    k.linear_q[int(Format::Q5_K)] = linear_quantized<S, Format::Q5_K>;
    k.linear_q[int(Format::Q6_K)] = linear_quantized<S, Format::Q6_K>;
    k.linear_f32 = linear_float<S, false>;
    k.linear_bf16 = linear_float<S, true>;
}

}  // namespace
}  // namespace outrider
