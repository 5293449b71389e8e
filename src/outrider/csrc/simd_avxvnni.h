// SIMD traits of AVX-VNNI, 256 bits wide on processors without AVX-512: Avx2's, with VPDPBUSD for the integer products.
// The integers are the same, so a row has the avx2 variant's bits.
#pragma once

#include "simd_avx2.h"

namespace outrider {
namespace {

struct AvxVnni : Avx2 {
    template <Format FMT>
    struct Codes : Avx2::Codes<FMT> {
        using Base = Avx2::Codes<FMT>;
        static constexpr int offset = FMT == Format::Q8_0 ? 128 : FMT == Format::Q6_K ? 0 : layout_of(FMT).offset;

        Codes(const uint8_t* group, int phase) : Base(group, phase) {
            if constexpr (FMT == Format::Q8_0) {  // shifted by 128 to unsigned bytes
                for (int h = 0; h < H; ++h)
                    for (int q = 0; q < 4; ++q)
                        this->c[h][q] = _mm256_xor_si256(bytes(Base::planes + 32 * h + 64 * q), _mm256_set1_epi8(-128));
            }
        }

        // Adds the sums over this half, of Q6_K times its scale.
        void half(const int8_t* x, I (&sum)[H]) const {
            const I q[4] = {quad(x), quad(x + 4), quad(x + 8), quad(x + 12)};
            for (int h = 0; h < H; ++h) {
                I s = FMT == Format::Q6_K ? _mm256_setzero_si256() : sum[h];
                for (int i = 0; i < 4; ++i) s = _mm256_dpbusd_avx_epi32(s, this->c[h][i], q[i]);
                if constexpr (FMT == Format::Q6_K)  // its scale lies in both int16 of a lane
                    s = _mm256_add_epi32(sum[h], _mm256_mullo_epi32(s, _mm256_srai_epi32(this->scale[h], 16)));
                sum[h] = s;
            }
        }

        void start(const Activation& a, I (&partial)[H]) const {
            for (int h = 0; h < H; ++h) {
                if constexpr (FMT == Format::Q6_K)
                    partial[h] = _mm256_setzero_si256();
                else
                    partial[h] = _mm256_set1_epi32(-offset * a.sum);
            }
            half(a.code, partial);
        }

        void finish(const Activation& a, const I (&partial)[H], I (&sum)[H]) const {
            for (int h = 0; h < H; ++h) {
                sum[h] = partial[h];
                if constexpr (FMT == Format::Q6_K) {
                    const I halves = quad(reinterpret_cast<const int8_t*>(a.half_sum));
                    sum[h] = _mm256_add_epi32(sum[h], _mm256_madd_epi16(halves, Base::offset[h]));
                }
            }
            half(a.code + 16, sum);
        }
    };
};

}  // namespace
}  // namespace outrider
