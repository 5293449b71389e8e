// SIMD traits in GCC/Clang vector extensions: 8 lanes, any processor. Products and sums are rounded separately.
#pragma once

#include "formats.h"

namespace outrider {
namespace {

struct Portable {
    static constexpr const char* kName = "portable";
    static constexpr int L = 8, H = 2;
    static constexpr int kPhases = 2;
    static constexpr int kFloatRows = 4;
    using Narrow = Portable;
    typedef float F __attribute__((vector_size(32)));
    typedef int32_t I __attribute__((vector_size(32)));
    typedef uint32_t U __attribute__((vector_size(32)));

    template <class T>
    static T get(const void* p) {
        T v;
        __builtin_memcpy(&v, p, sizeof v);
        return v;
    }
    static F zero() { return F{} ; }
    static F set1(float x) { return F{x, x, x, x, x, x, x, x}; }
    static I int1(int32_t x) { return I{x, x, x, x, x, x, x, x}; }
    static F load(const float* p) { return get<F>(p); }
    static void store(float* p, F v) { __builtin_memcpy(p, &v, sizeof v); }
    static F add(F a, F b) { return a + b; }
    static F sub(F a, F b) { return a - b; }
    static F mul(F a, F b) { return a * b; }
    static F div(F a, F b) { return a / b; }
    static F fma(F a, F b, F c) { return a * b + c; }
    static void add_product(F& a, F b, F c) { a = fma(b, c, a); }
    static F select(I mask, F a, F b) { return F((mask & I(a)) | (~mask & I(b))); }
    static F max(F a, F b) { return select(a > b, a, b); }
    static F min(F a, F b) { return select(a < b, a, b); }
    static F keep_not_less(F v, F x, F low) { return F(~(x < low) & I(v)); }
    static F pow2(F biased) { return F((U(biased) + U(int1(127 - 0x4b400000))) << 23); }
    static F from_int(I v) { return __builtin_convertvector(v, F); }
    static F abs_bits_max(F a, F x) {
        const I bits = I(x) & int1(0x7fffffff);
        return select(I(a) > bits, a, F(bits));
    }
    static F load_half(const void* p) {  // half_to_float of each lane
        typedef uint16_t H __attribute__((vector_size(16)));
        const U h = __builtin_convertvector(get<H>(p), U), body = (h & U(int1(0x7fff))) << 13;
        const F number = F(body) * F(U(int1((254 - 15) << 23)));
        const U special = body + U(int1((255 - 31) << 23)), sign = (h & U(int1(0x8000))) << 16;
        return F(U(select(I(body) >= int1(0x7c00 << 13), F(special), number)) | sign);
    }
    static void store_half(uint16_t* p, F v) {
        for (int i = 0; i < L; ++i) p[i] = float_to_half(v[i]);
    }
    static F load_u8(const uint8_t* p) {
        F v;
        for (int i = 0; i < L; ++i) v[i] = float(p[i]);
        return v;
    }
    static F bf16_first(const uint8_t* p) { return F(get<U>(p) << 16); }
    static F bf16_second(const uint8_t* p) { return F(get<U>(p) & U(int1(int32_t(0xffff0000u)))); }
    static float largest_bits(F v) {  // of the lanes, none negative
        const I bits = I(v);
        int at = 0;
        for (int i = 1; i < L; ++i) at = bits[i] > bits[at] ? i : at;
        return v[at];
    }
    // 32 integers in [-127, 127] to which 1.5 * 2^23 was added, and the sums of the first 16 and of the rest.
    static void store_codes(const F (&biased)[4], int8_t* out, int32_t (&sum)[2]) {
        sum[0] = sum[1] = 0;
        for (int i = 0; i < 4; ++i) {
            const U n = U(biased[i]) - U(int1(0x4b400000));
            for (int j = 0; j < L; ++j) {
                out[L * i + j] = int8_t(n[j]);
                sum[i / 2] += out[L * i + j];
            }
        }
    }
    // The sums of each vector's lanes.
    static F sums8(const F (&r)[8]) {
        F sums;
        for (int j = 0; j < 8; ++j) {
            const F v = r[j];
            sums[j] = ((v[0] + v[2]) + (v[1] + v[3])) + ((v[4] + v[6]) + (v[5] + v[7]));
        }
        return sums;
    }
    static F halves_swapped(F v) { return F{v[4], v[5], v[6], v[7], v[0], v[1], v[2], v[3]}; }
    static F halved(F v) { return v; }  // a vector folded to 8 lanes

    // Four quads of a group for all 16 channels: the bytes of lane i are 4 columns of channel i.
    template <Format FMT>
    struct Codes {
        I c[H][4];
        I scale[H];     // of Q6_K: this half's
        int half_at;    // 0 or 1

        Codes(const uint8_t* group, int phase) : half_at(phase) {
            const uint8_t* planes = group + layout_of(FMT).scales;
            const auto mask = [](uint32_t byte) { return U(int1(int32_t(byte * 0x01010101u))); };
            for (int h = 0; h < H; ++h) {
                const auto word = [planes, h](int at) { return get<U>(planes + at + 32 * h); };
                for (int q = 0; q < 4; ++q) {
                    U v;
                    if constexpr (FMT == Format::Q8_0)
                        v = word(256 * phase + 64 * q);
                    else
                        v = word(128 * phase + 64 * (q / 2)) >> (4 * (q % 2)) & mask(15);
                    if constexpr (layout_of(FMT).planes == 320) v |= (word(256) >> (4 * phase + q) & mask(1)) << 4;
                    if constexpr (FMT == Format::Q6_K) v |= (word(256 + 64 * phase) >> (2 * q) & mask(3)) << 4;
                    c[h][q] = I(v);
                }
                for (int i = 0; i < L; ++i) scale[h][i] = int8_t(group[16 * phase + L * h + i]);
            }
        }

        // Exact sums over this half, offset included.
        void start(const Activation& a, I (&sum)[H]) const {
            const int8_t* x = a.code + 16 * half_at;
            constexpr int offset = layout_of(FMT).offset;
            for (int h = 0; h < H; ++h) {
                sum[h] = int1(-offset * a.half_sum[half_at]);
                for (int q = 0; q < 4; ++q) {
                    for (int k = 0; k < 4; ++k) {
                        const U raised = U(c[h][q]) << (24 - 8 * k);  // the column's byte on top
                        const I v = FMT == Format::Q8_0 ? I(raised) >> 24 : I(raised >> 24);
                        sum[h] += v * int1(x[4 * q + k]);
                    }
                }
                if constexpr (FMT == Format::Q6_K) sum[h] *= scale[h];
            }
        }

        void finish(const Activation& a, const I (&partial)[H], I (&sum)[H]) const {
            start(a, sum);
            for (int h = 0; h < H; ++h) sum[h] += partial[h];
        }
    };
};

}  // namespace
}  // namespace outrider
