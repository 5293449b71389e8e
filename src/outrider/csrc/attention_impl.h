// Paged attention over a SIMD traits type: online softmax in float32 over pieces of 64 keys at fixed places, so that a
// row's result depends on its own keys only. Keys are the lanes of the scores, dimensions the lanes of the mix.
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

// Where the key of a position lies. In a tree several nodes share a position, and each row has its own ancestors there.
inline int64_t element_of(const AttentionTask& t, int64_t position) {
    const int64_t place = t.tree && position >= t.tree_start ? t.tree[position - t.tree_start] : position;
    const int64_t block = t.block_table[place / t.block_size];
    return (block * t.block_size + place % t.block_size) * t.kv_heads * t.head_dim;
}

// Ask for the K (or V) of keys [begin, end) ahead of their use: heads lie apart, so the processor does not foresee them.
inline void fetch(const AttentionTask& t, const void* base, int64_t begin, int64_t end) {
    const int64_t width = t.half ? 2 : 4;
    for (int64_t at = begin; at < end; ++at) {
        const uint8_t* p = static_cast<const uint8_t*>(base) + element_of(t, at) * width;
        for (int64_t line = 0; line < t.head_dim * width; line += 64) __builtin_prefetch(p + line);
    }
}

// Keys [begin, begin + n) as tile[d][16]; lanes beyond n are zero.
template <class S>
inline void load_keys(const AttentionTask& t, int64_t begin, int n, float* tile) {
    using N = typename S::Narrow;  // 8 lanes, for 8 x 8 transposes
    int64_t at[kKeyTile];
    for (int j = 0; j < n; ++j) at[j] = element_of(t, begin + j);
    for (int j0 = 0; j0 < kKeyTile; j0 += 8) {
        for (int64_t d = 0; d < t.head_dim; d += 8) {
            const int64_t left = t.head_dim - d;
            typename N::F r[8];
            for (int j = 0; j < 8; ++j)
                r[j] = j0 + j < n ? load_kv<N>(t, t.keys, at[j0 + j] + d, left) : N::zero();
            if (left >= 8) {
                N::transpose8(r, tile + d * kKeyTile + j0, kKeyTile);
                continue;
            }
            alignas(64) float tmp[8 * 8];
            N::transpose8(r, tmp, 8);
            for (int64_t i = 0; i < left; ++i)
                for (int j = 0; j < 8; ++j) tile[(d + i) * kKeyTile + j0 + j] = tmp[8 * i + j];
        }
    }
}

// Scores of NQ queries with the 16 keys of a tile.
template <class S, int NQ>
inline void score(const float* const* q, const float* tile, int64_t head_dim, float* const* out) {
    using F = typename S::F;
    constexpr int H = kKeyTile / S::L;
    F a[NQ][H];
    for (int i = 0; i < NQ; ++i)
        for (int h = 0; h < H; ++h) a[i][h] = S::zero();
    for (int64_t d = 0; d < head_dim; ++d) {
        F k[H];
        for (int h = 0; h < H; ++h) k[h] = S::load(tile + d * kKeyTile + S::L * h);
#pragma GCC unroll 4
        for (int i = 0; i < NQ; ++i) {
            const F v = S::set1(q[i][d]);
            for (int h = 0; h < H; ++h) a[i][h] = S::fma(v, k[h], a[i][h]);
        }
    }
    for (int i = 0; i < NQ; ++i)
        for (int h = 0; h < H; ++h) S::store(out[i] + S::L * h, a[i][h]);
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
    const int64_t low = t.window > 0 ? last - t.window + 1 : 0;
    uint32_t bits = 0;
    for (int j = 0; j < kKeyTile; ++j) {
        const int64_t at = begin + j;
        bits |= uint32_t(at < end && at <= last && at >= low) << j;
    }
    return bits;
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
    for (int64_t piece = begin; piece < end; piece += kPiece) {
        const int64_t stop = piece + kPiece < end ? piece + kPiece : end;
        uint32_t any = 0;
        for (int k = 0; k < tiles; ++k)
            for (int i = 0; i < t.rows; ++i) any |= visible(t, i, piece + k * kKeyTile, stop) ? 1u << k : 0u;
        if (!any) continue;
        for (int k = 0; k < tiles; ++k) {
            if (!(any >> k & 1u)) continue;
            const int64_t at = piece + k * kKeyTile, next = at + kKeyTile;
            fetch(t, t.keys, next, next + kKeyTile < end ? next + kKeyTile : end);
            fetch(t, t.values, at, next < stop ? next : stop);
            load_keys<S>(t, at, int(stop - at < kKeyTile ? stop - at : kKeyTile), tile);
            for (int i = 0; i < queries; i += 4) {
                const int n = queries - i < 4 ? queries - i : 4;
                const float* q[4];
                float* out[4];
                for (int j = 0; j < n; ++j) {
                    q[j] = t.query + (i + j) / t.heads * t.ldq + (i + j) % t.heads * t.head_dim;
                    out[j] = scores + (i + j) * kPiece + k * kKeyTile;
                }
                switch (n) {
                    case 1: score<S, 1>(q, tile, t.head_dim, out); break;
                    case 2: score<S, 2>(q, tile, t.head_dim, out); break;
                    case 3: score<S, 3>(q, tile, t.head_dim, out); break;
                    default: score<S, 4>(q, tile, t.head_dim, out); break;
                }
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
                for (int j = 0; j < kPiece; ++j)
                    if (!(bits[j / kKeyTile] >> j % kKeyTile & 1u)) s[j] = -inf;
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
            const int64_t at = piece + k * kKeyTile;
            const int n = int(stop - at < kKeyTile ? stop - at : kKeyTile);
            for (int j = 0; j < n; ++j) {
                const int64_t element = element_of(t, at + j);
                for (int64_t d = 0; d < padded; d += S::L) {
                    const int64_t left = t.head_dim - d;
                    S::store(tile + j * padded + d, left > 0 ? load_kv<S>(t, t.values, element + d, left) : S::zero());
                }
            }
            for (int row = 0; row < t.rows; ++row) {
                const uint32_t bits = visible(t, row, at, stop);
                if (!bits) continue;
                for (int i = row * t.heads; i < (row + 1) * t.heads; ++i) {
                    const float* p = scores + i * kPiece + k * kKeyTile;
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
