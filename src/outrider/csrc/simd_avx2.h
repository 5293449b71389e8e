// SIMD traits of AVX2 + FMA + F16C: 8 lanes, so a block of 16 channels is two halves.
#pragma once

#include <immintrin.h>

#include "formats.h"

namespace outrider {
namespace {

struct Avx2 {
    static constexpr const char* kName = "avx2";
    static constexpr int L = 8, H = 2;       // lanes; vectors of a block
    static constexpr int kPhases = 2;        // a group's 8 quads do not fit the registers at once
    static constexpr int kFloatRows = 6;     // whose sums fit the registers beside the weights
    using Narrow = Avx2;
    using F = __m256;
    using I = __m256i;  // 8 x int32, or 32 bytes of codes

    static F zero() { return _mm256_setzero_ps(); }
    static F set1(float x) { return _mm256_set1_ps(x); }
    static F load(const float* p) { return _mm256_loadu_ps(p); }
    static void store(float* p, F v) { _mm256_storeu_ps(p, v); }
    static F add(F a, F b) { return _mm256_add_ps(a, b); }
    static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
    static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
    static F div(F a, F b) { return _mm256_div_ps(a, b); }
    static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
    // a += b * c in a's own register: GCC would move sums through memory when all registers are in use.
    static void add_product(F& a, F b, F c) { asm volatile("vfmadd231ps %2, %1, %0" : "+x"(a) : "x"(b), "x"(c)); }
    // b where either is NaN.
    static F max(F a, F b) { return _mm256_max_ps(a, b); }
    static F min(F a, F b) { return _mm256_min_ps(a, b); }
    // v where x is not less than low (also where it is NaN), else 0.
    static F keep_not_less(F v, F x, F low) { return _mm256_and_ps(v, _mm256_cmp_ps(x, low, _CMP_NLT_UQ)); }
    // 2^n for an integral float n in [-127, 127] that was made by adding 1.5 * 2^23 (`biased`).
    static F pow2(F biased) {
        const I n = _mm256_add_epi32(_mm256_castps_si256(biased), _mm256_set1_epi32(127 - 0x4b400000));
        return _mm256_castsi256_ps(_mm256_slli_epi32(n, 23));
    }
    static F from_int(I v) { return _mm256_cvtepi32_ps(v); }
    static F abs_bits_max(F a, F x) {  // maximum of |x| as bit patterns: a NaN is the largest
        const I bits = _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff));
        return _mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256(a), bits));
    }
    static F load_half(const void* p) {
        return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    }
    static void store_half(uint16_t* p, F v) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
    }
    static F load_u8(const uint8_t* p) {
        return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
    }
    // Of 8 pairs of bf16 the first of each; the second of each.
    static F bf16_first(const uint8_t* p) { return _mm256_castsi256_ps(_mm256_slli_epi32(bytes(p), 16)); }
    static F bf16_second(const uint8_t* p) {
        alignas(32) static constexpr uint32_t high[8] = {0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u,
                                                         0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u};
        I v = bytes(p);
        asm("vpand %1, %0, %0" : "+x"(v) : "m"(high));  // a mask in a register would cost a row its own
        return _mm256_castsi256_ps(v);
    }
    static float largest_bits(F v) {  // of the lanes, none negative
        __m128i m = _mm_max_epi32(_mm_castps_si128(_mm256_castps256_ps128(v)), _mm_castps_si128(_mm256_extractf128_ps(v, 1)));
        m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
        m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
        return _mm_cvtss_f32(_mm_castsi128_ps(m));
    }
    // 32 integers in [-127, 127] to which 1.5 * 2^23 was added, and the sums of the first 16 and of the rest.
    static void store_codes(const F (&biased)[4], int8_t* out, int32_t (&sum)[2]) {
        I n[4];
        for (int i = 0; i < 4; ++i) n[i] = _mm256_sub_epi32(_mm256_castps_si256(biased[i]), _mm256_set1_epi32(0x4b400000));
        const I mixed = _mm256_packs_epi16(_mm256_packs_epi32(n[0], n[1]), _mm256_packs_epi32(n[2], n[3]));
        const I codes = _mm256_permutevar8x32_epi32(mixed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
        _mm256_storeu_si256(reinterpret_cast<I*>(out), codes);
        I s = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), codes), _mm256_set1_epi16(1));
        s = _mm256_add_epi32(s, _mm256_shuffle_epi32(s, 0x4e));
        s = _mm256_add_epi32(s, _mm256_shuffle_epi32(s, 0xb1));
        sum[0] = _mm256_extract_epi32(s, 0);
        sum[1] = _mm256_extract_epi32(s, 4);
    }
    // The sums of each vector's lanes.
    static F sums8(const F (&r)[8]) {
        F four[2];
        for (int i = 0; i < 2; ++i) {
            const F a = _mm256_add_ps(_mm256_unpacklo_ps(r[4 * i], r[4 * i + 1]), _mm256_unpackhi_ps(r[4 * i], r[4 * i + 1]));
            const F b = _mm256_add_ps(_mm256_unpacklo_ps(r[4 * i + 2], r[4 * i + 3]),
                                      _mm256_unpackhi_ps(r[4 * i + 2], r[4 * i + 3]));
            four[i] = _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xee));
        }
        return _mm256_add_ps(_mm256_permute2f128_ps(four[0], four[1], 0x20), _mm256_permute2f128_ps(four[0], four[1], 0x31));
    }
    static F halves_swapped(F v) { return _mm256_permute2f128_ps(v, v, 1); }
    static F halved(F v) { return v; }  // a vector folded to 8 lanes

    // ---- integer products ----
    static I quad(const int8_t* p) {  // 4 codes to all lanes
        int32_t v;
        __builtin_memcpy(&v, p, 4);
        return _mm256_set1_epi32(v);
    }
    static I bytes(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const I*>(p)); }

    static I pair16(I w, I x) { return _mm256_maddubs_epi16(w, x); }
    static I both16(I first, I second) {  // as the two int16 of each lane
        return _mm256_or_si256(_mm256_and_si256(first, _mm256_set1_epi32(0xffff)), _mm256_slli_epi32(second, 16));
    }

    // Four quads of a group (columns 0-15 or 16-31) for all 16 channels, as unsigned bytes. Sums are exact: with
    // |x| <= 127 no int16 overflows, since 15 * 127 * 2 * 8, 31 * 127 * 2 * 4 and 63 * 127 * 2 * 2 are below 32768, and
    // 128 * 127 * 2 is as well.
    template <Format FMT>
    struct Codes {
        static constexpr bool four = FMT == Format::Q4_0 || FMT == Format::Q4_1 || FMT == Format::Q4_K;
        I c[H][4];
        const uint8_t* planes;  // of Q8_0: where the signs are
        I scale[H], offset[H];  // of Q6_K: this half's scale, and -32 times both

        Codes(const uint8_t* group, int phase) : planes(group + layout_of(FMT).scales) {
            if constexpr (FMT == Format::Q8_0) planes += 256 * phase;
            const I nibble = _mm256_set1_epi8(15);
            for (int h = 0; h < H; ++h) {
                const uint8_t* p = planes + 32 * h;
                if constexpr (FMT == Format::Q8_0) {
                    for (int q = 0; q < 4; ++q) c[h][q] = _mm256_abs_epi8(bytes(p + 64 * q));
                    continue;
                }
                for (int j = 0; j < 2; ++j) {
                    const I v = bytes(p + 128 * phase + 64 * j);
                    c[h][2 * j] = _mm256_and_si256(v, nibble);
                    c[h][2 * j + 1] = _mm256_and_si256(_mm256_srli_epi16(v, 4), nibble);
                }
                if constexpr (layout_of(FMT).planes == 320) {
                    const I bit = _mm256_set1_epi8(16), stored = bytes(p + 256);
                    const I high = phase ? _mm256_srli_epi16(stored, 4) : stored;
                    for (int q = 0; q < 4; ++q)
                        c[h][q] = _mm256_or_si256(c[h][q], _mm256_and_si256(_mm256_slli_epi16(high, 4 - q), bit));
                }
                if constexpr (FMT == Format::Q6_K) {
                    const I bits = _mm256_set1_epi8(48), high = bytes(p + 256 + 64 * phase);
                    for (int q = 0; q < 4; ++q) {
                        const I moved = q < 2 ? _mm256_slli_epi16(high, 4 - 2 * q) : _mm256_srli_epi16(high, 2 * q - 4);
                        c[h][q] = _mm256_or_si256(c[h][q], _mm256_and_si256(moved, bits));
                    }
                    const auto wide = [group, h](int at) {
                        return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(group + at + 8 * h)));
                    };
                    const I a = wide(0), b = wide(16), zero = _mm256_setzero_si256();
                    scale[h] = phase ? both16(b, b) : both16(a, a);
                    offset[h] = both16(_mm256_sub_epi32(zero, _mm256_slli_epi32(a, 5)),
                                       _mm256_sub_epi32(zero, _mm256_slli_epi32(b, 5)));
                }
            }
        }

        // Sums over this half: int16 pairs for 4-bit codes, else int32.
        void half(const int8_t* x, I (&sum)[H]) const {
            const I x0 = quad(x), x1 = quad(x + 4), x2 = quad(x + 8), x3 = quad(x + 12);
            const I ones = _mm256_set1_epi16(1);
            for (int h = 0; h < H; ++h) {
                if constexpr (FMT == Format::Q8_0) {
                    const uint8_t* p = planes + 32 * h;
                    const I s0 = _mm256_madd_epi16(pair16(c[h][0], _mm256_sign_epi8(x0, bytes(p))), ones);
                    const I s1 = _mm256_madd_epi16(pair16(c[h][1], _mm256_sign_epi8(x1, bytes(p + 64))), ones);
                    const I s2 = _mm256_madd_epi16(pair16(c[h][2], _mm256_sign_epi8(x2, bytes(p + 128))), ones);
                    const I s3 = _mm256_madd_epi16(pair16(c[h][3], _mm256_sign_epi8(x3, bytes(p + 192))), ones);
                    sum[h] = _mm256_add_epi32(_mm256_add_epi32(s0, s1), _mm256_add_epi32(s2, s3));
                    continue;
                }
                const I p01 = _mm256_add_epi16(pair16(c[h][0], x0), pair16(c[h][1], x1));
                const I p23 = _mm256_add_epi16(pair16(c[h][2], x2), pair16(c[h][3], x3));
                if constexpr (FMT == Format::Q6_K)
                    sum[h] = _mm256_add_epi32(_mm256_madd_epi16(p01, scale[h]), _mm256_madd_epi16(p23, scale[h]));
                else if constexpr (four)
                    sum[h] = _mm256_add_epi16(p01, p23);
                else
                    sum[h] = _mm256_madd_epi16(_mm256_add_epi16(p01, p23), ones);
            }
        }

        void start(const Activation& a, I (&partial)[H]) const { half(a.code, partial); }

        // The whole group's sums, offset included.
        void finish(const Activation& a, const I (&partial)[H], I (&sum)[H]) const {
            half(a.code + 16, sum);
            for (int h = 0; h < H; ++h) {
                if constexpr (four)
                    sum[h] = _mm256_madd_epi16(_mm256_add_epi16(sum[h], partial[h]), _mm256_set1_epi16(1));
                else
                    sum[h] = _mm256_add_epi32(sum[h], partial[h]);
                if constexpr (FMT == Format::Q6_K) {
                    const I halves = quad(reinterpret_cast<const int8_t*>(a.half_sum));
                    sum[h] = _mm256_add_epi32(sum[h], _mm256_madd_epi16(halves, offset[h]));
                } else if constexpr (layout_of(FMT).offset != 0) {
                    sum[h] = _mm256_sub_epi32(sum[h], _mm256_set1_epi32(a.sum * layout_of(FMT).offset));
                }
            }
        }
    };
};

}  // namespace
}  // namespace outrider
