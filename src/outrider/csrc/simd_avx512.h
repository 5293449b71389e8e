// SIMD traits of AVX-512 with VNNI: 16 lanes, so a block of 16 channels is one vector. Groups of activations are rounded by
// AVX2. Weights in bf16 are widened: activations stay float32, where VDPBF16PS would round them.
#pragma once

#include "simd_avx2.h"

namespace outrider {
namespace {

struct Avx512 {
    static constexpr const char* kName = "avx512";
    static constexpr int L = 16, H = 1;
    static constexpr int kPhases = 1;
    static constexpr int kFloatRows = 8;
    using Narrow = Avx2;
    using F = __m512;
    using I = __m512i;

    static F zero() { return _mm512_setzero_ps(); }
    static F set1(float x) { return _mm512_set1_ps(x); }
    static F load(const float* p) { return _mm512_loadu_ps(p); }
    static void store(float* p, F v) { _mm512_storeu_ps(p, v); }
    static F add(F a, F b) { return _mm512_add_ps(a, b); }
    static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
    static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
    static F div(F a, F b) { return _mm512_div_ps(a, b); }
    static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
    static void add_product(F& a, F b, F c) { a = fma(b, c, a); }
    static F max(F a, F b) { return _mm512_max_ps(a, b); }
    static F min(F a, F b) { return _mm512_min_ps(a, b); }
    static F keep_not_less(F v, F x, F low) {
        return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, low, _CMP_NLT_UQ), v);
    }
    static F pow2(F biased) {
        const I n = _mm512_add_epi32(_mm512_castps_si512(biased), _mm512_set1_epi32(127 - 0x4b400000));
        return _mm512_castsi512_ps(_mm512_slli_epi32(n, 23));
    }
    static F from_int(I v) { return _mm512_cvtepi32_ps(v); }
    static F abs_bits_max(F a, F x) {
        const I bits = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff));
        return _mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(a), bits));
    }
    static F load_half(const void* p) {
        return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    }
    static void store_half(uint16_t* p, F v) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
    }
    static F load_u8(const uint8_t* p) {
        return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
    }
    static F bf16_first(const uint8_t* p) { return _mm512_castsi512_ps(_mm512_slli_epi32(bytes(p), 16)); }
    static F bf16_second(const uint8_t* p) {
        return _mm512_castsi512_ps(_mm512_and_si512(bytes(p), _mm512_set1_epi32(int(0xffff0000u))));
    }

    static __m256 halved(F v) {
        return _mm256_add_ps(_mm512_castps512_ps256(v), _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v), 1)));
    }

    static I quad(const int8_t* p) {
        int32_t v;
        __builtin_memcpy(&v, p, 4);
        return _mm512_set1_epi32(v);
    }
    static I bytes(const uint8_t* p) { return _mm512_loadu_si512(p); }

    // The 8 quads of a group for all 16 channels, as unsigned bytes for VPDPBUSD; Q8_0's are shifted by 128.
    template <Format FMT>
    struct Codes {
        I c[8];
        I scale[2];  // of Q6_K: for columns 0-15 and 16-31

        Codes(const uint8_t* group, int) {
            const uint8_t* p = group + layout_of(FMT).scales;
            if constexpr (FMT == Format::Q8_0) {
                for (int q = 0; q < 8; ++q) c[q] = _mm512_xor_si512(bytes(p + 64 * q), _mm512_set1_epi8(-128));
                return;
            }
            const I nibble = _mm512_set1_epi8(15);
            for (int j = 0; j < 4; ++j) {
                const I v = bytes(p + 64 * j);
                c[2 * j] = _mm512_and_si512(v, nibble);
                c[2 * j + 1] = _mm512_and_si512(_mm512_srli_epi16(v, 4), nibble);
            }
            if constexpr (layout_of(FMT).planes == 320) {
                const I high = bytes(p + 256), bit = _mm512_set1_epi8(16);
                for (int q = 0; q < 8; ++q) {
                    const I moved = q < 4 ? _mm512_slli_epi16(high, unsigned(4 - q)) : _mm512_srli_epi16(high, unsigned(q - 4));
                    c[q] = _mm512_or_si512(c[q], _mm512_and_si512(moved, bit));
                }
            }
            if constexpr (FMT == Format::Q6_K) {
                const I bits = _mm512_set1_epi8(48);
                for (int q = 0; q < 8; ++q) {
                    const I high = bytes(p + 256 + 64 * (q / 4));
                    const int j = q % 4;
                    const I moved =
                        j < 2 ? _mm512_slli_epi16(high, unsigned(4 - 2 * j)) : _mm512_srli_epi16(high, unsigned(2 * j - 4));
                    c[q] = _mm512_or_si512(c[q], _mm512_and_si512(moved, bits));
                }
                for (int i = 0; i < 2; ++i)
                    scale[i] = _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(group + 16 * i)));
            }
        }

        I half(const int8_t* x, int from, int32_t start) const {
            I a = _mm512_set1_epi32(start), b = _mm512_setzero_si512();
            a = _mm512_dpbusd_epi32(a, c[from], quad(x));
            b = _mm512_dpbusd_epi32(b, c[from + 1], quad(x + 4));
            a = _mm512_dpbusd_epi32(a, c[from + 2], quad(x + 8));
            b = _mm512_dpbusd_epi32(b, c[from + 3], quad(x + 12));
            return _mm512_add_epi32(a, b);
        }

        // Exact integer sums over the group's 32 columns, offset included; there is no earlier phase.
        void finish(const Activation& a, const I (&)[H], I (&sum)[H]) const {
            if constexpr (FMT == Format::Q6_K) {
                const I first = half(a.code, 0, -32 * a.half_sum[0]), second = half(a.code + 16, 4, -32 * a.half_sum[1]);
                sum[0] = _mm512_add_epi32(_mm512_mullo_epi32(first, scale[0]), _mm512_mullo_epi32(second, scale[1]));
                return;
            }
            constexpr int offset = FMT == Format::Q8_0 ? 128 : layout_of(FMT).offset;
            sum[0] = _mm512_add_epi32(half(a.code, 0, -offset * a.sum), half(a.code + 16, 4, 0));
        }
    };
};

}  // namespace
}  // namespace outrider
