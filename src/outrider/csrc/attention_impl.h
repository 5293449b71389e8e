// Paged attention over a SIMD traits type: online softmax in float32 over pieces of 64 keys at fixed places, so that a
// row's result depends on its own keys only.
#pragma once

#include "rows_impl.h"

namespace outrider {
namespace {

template <class S>
inline typename S::F load_kv(const AttentionTask& t, const void* base, int64_t element, int64_t n) {
    if (t.half) {
        const uint16_t* p = static_cast<const uint16_t*>(base) + element;
        if (n >= S::L) return S::load_half(p);
        uint16_t tmp[S::L];
        for (int i = 0; i < S::L; ++i) tmp[i] = i < n ? p[i] : uint16_t(0);
        return S::load_half(tmp);
    }
    return load_n<S>(static_cast<const float*>(base) + element, n);
}

// Where the keys of positions [begin, begin + n) lie, as elements of the cache: block by block, but in a tree, where
// several nodes share a position, by the row's own ancestors.
inline void find_places(const AttentionTask& t, int64_t begin, int64_t n, int64_t* at) {
    const int64_t width = t.kv_heads * t.head_dim;
    const auto element_of = [&](int64_t place) {
        return (t.block_table[place / t.block_size] * t.block_size + place % t.block_size) * width;
    };
    int64_t in_order = t.tree ? t.tree_start - begin : n, i = 0;
    in_order = in_order < 0 ? 0 : in_order < n ? in_order : n;
    while (i < in_order) {
        const int64_t left = t.block_size - (begin + i) % t.block_size;
        const int64_t stop = i + (left < in_order - i ? left : in_order - i);
        for (int64_t element = element_of(begin + i); i < stop; ++i, element += width) at[i] = element;
    }
    for (; i < n; ++i) at[i] = element_of(t.tree[begin + i - t.tree_start]);
}

// Ask for a key (or value) ahead of its use: heads lie apart, so the processor does not foresee it. Into the second cache:
// the first is in use, and taking lines into it would keep back the reads of the present keys.
inline void fetch(const AttentionTask& t, const void* base, int64_t at) {
    const int64_t width = t.half ? 2 : 4;
    const uint8_t* p = static_cast<const uint8_t*>(base) + at * width;
    for (int64_t line = 0; line < t.head_dim * width; line += 64) __builtin_prefetch(p + line, 0, 2);
}

// Keys (or values) at n places as float tile[j][padded]; what lies beyond is zero. Meanwhile those at `count` places of
// `ahead` are fetched, one after each, so that the requests do not block the reads.
template <class S>
inline void load_tile(const AttentionTask& t, const void* base, const int64_t* at, int64_t n, const int64_t* ahead,
                      int64_t count, float* tile, int64_t padded) {
    for (int64_t j = 0; j < kKeyTile; ++j, tile += padded) {
        if (j < count) fetch(t, base, ahead[j]);
        if (j < n && t.half && t.head_dim % kKeyTile == 0) {
            const uint16_t* p = static_cast<const uint16_t*>(base) + at[j];
#pragma GCC unroll 4
            for (int64_t d = 0; d < padded; d += S::L) S::store(tile + d, S::load_half(p + d));
            continue;
        }
        for (int64_t d = 0; d < padded; d += S::L) {
            const int64_t left = j < n ? t.head_dim - d : 0;
            S::store(tile + d, left > 0 ? load_kv<S>(t, base, at[j] + d, left) : S::zero());
        }
    }
}

// Scores of a query with 8 keys of a tile: products by lanes, then the lanes by one fixed tree.
template <class S>
inline void score(const float* q, int64_t head_dim, const float* tile, int64_t padded, float* out) {
    using N = typename S::Narrow;
    typename S::F a[8];
    for (int j = 0; j < 8; ++j) a[j] = S::zero();
    for (int64_t d = 0; d < head_dim; d += S::L) {
        const typename S::F v = load_n<S>(q + d, head_dim - d);
#pragma GCC unroll 8
        for (int j = 0; j < 8; ++j) a[j] = S::fma(v, S::load(tile + j * padded + d), a[j]);
    }
    typename N::F half[8];
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) half[j] = S::halved(a[j]);
    N::store(out, N::sums8(half));
}

// acc[0..D) += sum over keys j of p[j] * tile[j][0..D), for the D = N * L dimensions at `tile`; absent keys are skipped.
template <class S, int N>
inline void mix(const float* p, uint32_t present, const float* tile, int64_t stride, float* acc) {
    typename S::F a[N];
    for (int i = 0; i < N; ++i) a[i] = S::load(acc + S::L * i);
    for (int j = 0; j < kKeyTile; ++j) {
        if (!(present >> j & 1u)) continue;
        const typename S::F v = S::set1(p[j]);
        for (int i = 0; i < N; ++i) a[i] = S::fma(v, S::load(tile + j * stride + S::L * i), a[i]);
    }
    for (int i = 0; i < N; ++i) S::store(acc + S::L * i, a[i]);
}

// Which of the keys [begin, begin + 16) row i sees, as bits.
inline uint32_t visible(const AttentionTask& t, int i, int64_t begin, int64_t end) {
    const int64_t last = t.position[i];
    int64_t low = t.window > 0 ? last - t.window + 1 - begin : 0, high = (last < end ? last + 1 : end) - begin;
    low = low > 0 ? low : 0;
    high = high < kKeyTile ? high : kKeyTile;
    return low < high ? (1u << high) - (1u << low) : 0u;
}

template <class S>
void attend(const AttentionTask& t, int64_t begin, int64_t end, float* acc, float* maximum, float* total) {
    constexpr int tiles = kPiece / kKeyTile;
    const int queries = t.rows * t.heads;
    const int64_t padded = padded_dim(t.head_dim);
    float* tile = t.scratch;
    float* scores = tile + kKeyTile * padded;
    const float inf = __builtin_inff();
    for (int64_t i = 0; i < queries * padded; ++i) acc[i] = 0.0f;
    for (int i = 0; i < queries; ++i) maximum[i] = -inf, total[i] = 0.0f;
    const auto keys_from = [&](int64_t at, int64_t stop) { return stop - at < kPiece ? (stop > at ? stop - at : 0) : kPiece; };
    int64_t places[2][kPiece];  // of a piece, and of the one whose keys and values are fetched meanwhile
    int64_t count = keys_from(begin, end);
    find_places(t, begin, count, places[0]);
    for (int64_t j = 0; j < count; ++j) fetch(t, t.keys, places[0][j]);
    for (int64_t j = 0; j < count; ++j) fetch(t, t.values, places[0][j]);
    int now = 0;
    for (int64_t piece = begin; piece < end; piece += kPiece, now ^= 1) {
        const int64_t* at = places[now];
        const int64_t* ahead = places[now ^ 1];
        const int64_t stop = piece + keys_from(piece, end);
        count = keys_from(piece + kPiece, t.ready > end ? t.ready : end);
        find_places(t, piece + kPiece, count, places[now ^ 1]);
        uint32_t any = 0;
        for (int k = 0; k < tiles; ++k)
            for (int i = 0; i < t.rows; ++i) any |= visible(t, i, piece + k * kKeyTile, stop) ? 1u << k : 0u;
        if (!any) continue;
        for (int k = 0; k < tiles; ++k) {
            if (!(any >> k & 1u)) continue;
            const int64_t from = k * kKeyTile;
            load_tile<S>(t, t.keys, at + from, stop - piece - from, ahead + from, count - from, tile, padded);
            for (int i = 0; i < queries; ++i) {
                const float* q = t.query + i / t.heads * t.ldq + i % t.heads * t.head_dim;
                float* out = scores + i * kPiece + from;
                score<S>(q, t.head_dim, tile, padded, out);
                score<S>(q, t.head_dim, tile + 8 * padded, padded, out + 8);
            }
        }
        for (int row = 0; row < t.rows; ++row) {
            uint32_t bits[tiles], sees = 0;
            for (int k = 0; k < tiles; ++k) sees |= bits[k] = visible(t, row, piece + k * kKeyTile, stop);
            for (int head = 0; head < t.heads; ++head) {
                const int i = row * t.heads + head;
                float* s = scores + i * kPiece;
                if (!sees) {
                    for (int j = 0; j < kPiece; ++j) s[j] = 0.0f;
                    continue;
                }
                for (int k = 0; k < tiles; ++k) {
                    if (bits[k] == (1u << kKeyTile) - 1) continue;
                    for (int j = 0; j < kKeyTile; ++j)
                        if (!(bits[k] >> j & 1u)) s[k * kKeyTile + j] = -inf;
                }
                typename S::F top = S::set1(-inf), sum = S::zero();
                for (int j = 0; j < kPiece; j += S::L) top = S::max(S::load(s + j), top);
                float most = lane_max<S>(top);
                most = most > maximum[i] ? most : maximum[i];
                const typename S::F shift = S::set1(most);
                for (int j = 0; j < kPiece; j += S::L) {
                    const typename S::F p = exp<S>(S::sub(S::load(s + j), shift));
                    sum = S::add(sum, p);
                    S::store(s + j, p);
                }
                const float alpha = exp1<S>(maximum[i] - most);
                total[i] = total[i] * alpha + lane_sum<S>(sum);
                maximum[i] = most;
                if (alpha != 1.0f) scale<S>(acc + i * padded, alpha, padded);
            }
        }
        for (int k = 0; k < tiles; ++k) {
            if (!(any >> k & 1u)) continue;
            const int64_t from = k * kKeyTile;
            load_tile<S>(t, t.values, at + from, stop - piece - from, ahead + from, count - from, tile, padded);
            for (int row = 0; row < t.rows; ++row) {
                const uint32_t bits = visible(t, row, piece + from, stop);
                if (!bits) continue;
                for (int i = row * t.heads; i < (row + 1) * t.heads; ++i) {
                    const float* p = scores + i * kPiece + from;
                    float* a = acc + i * padded;
                    int64_t d = 0;
                    for (; d + 64 <= padded; d += 64) mix<S, 64 / S::L>(p, bits, tile + d, padded, a + d);
                    for (; d < padded; d += 16) mix<S, 16 / S::L>(p, bits, tile + d, padded, a + d);
                }
            }
        }
    }
}

template <class S>
void merge(int64_t queries, int64_t head_dim, float* acc, float* maximum, float* total, const float* acc2,
           const float* maximum2, const float* total2) {
    const int64_t padded = padded_dim(head_dim);
    for (int64_t i = 0; i < queries; ++i) {
        if (maximum2[i] == -__builtin_inff() && total2[i] == 0.0f) continue;
        const float most = maximum[i] > maximum2[i] ? maximum[i] : maximum2[i];
        const float by = exp1<S>(maximum[i] - most), by2 = exp1<S>(maximum2[i] - most);
        total[i] = total[i] * by + total2[i] * by2;
        maximum[i] = most;
        for (int64_t d = 0; d < padded; d += S::L) {
            float* a = acc + i * padded + d;
            const typename S::F kept = S::mul(S::load(a), S::set1(by));
            S::store(a, S::fma(S::load(acc2 + i * padded + d), S::set1(by2), kept));
        }
    }
}

template <class S>
void finish(const float* acc, float total, int64_t head_dim, float* out) {
    for (int64_t d = 0; d < head_dim; d += S::L)
        store_n<S>(out + d, head_dim - d, S::div(load_n<S>(acc + d, head_dim - d), S::set1(total)));
}

template <class S>
constexpr void fill_attention(Kernels& k) {
    k.attend = attend<S>;
    k.merge = merge<S>;
    k.finish = finish<S>;
}

}  // namespace
}  // namespace outrider
